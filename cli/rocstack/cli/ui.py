"""What the person sees: tables, lines, progress. Colour and live display on a terminal, plain lines without one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


class Terminal:
    """A console, loaded with the first text: `--help` and a printed Dockerfile do without."""

    def __init__(self, *, stderr: bool = False) -> None:
        self._stderr = stderr

    @cached_property
    def console(self) -> Console:
        from rich.console import Console

        return Console(stderr=self._stderr, highlight=False, soft_wrap=True, emoji=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.console, name)


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # but tab and newline

SCHEMA = 1
out = Terminal()
err = Terminal(stderr=True)


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM. Not KeyboardInterrupt, which the command-line library turns into a silent exit."""


class State:
    """Set once by the root command."""

    debug = False
    json = False


def print_json(document: Mapping[str, Any]) -> None:
    """Every document carries the version of its shape: it grows with a change that breaks its readers."""
    sys.stdout.write(json.dumps({"schema": SCHEMA, **document}, indent=1, default=str) + "\n")


def say(text: str) -> None:
    """A plain line to the person; what others wrote is never markup."""
    err.print(clean(text), markup=False)


def escape(text: str) -> str:
    from rich.markup import escape as rich_escape

    return rich_escape(clean(text))


def clean(text: str) -> str:
    """Without the control characters by which what a node says could rule the terminal."""
    return _CONTROLS.sub("", text)


def table(
    columns: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    title: str | None = None,
    right: Iterable[int] = (),
    on: Terminal = out,
) -> None:
    """A table that wraps on a narrow terminal, and aligned columns where there is no terminal."""
    heads, cells = list(columns), [list(map(str, row)) for row in rows]
    numbers = set(right)
    if not on.is_terminal:
        if title:
            on.print(escape(title))
        widths = [max(len(row[i]) for row in [heads, *cells]) for i in range(len(heads))]
        for row in [heads, *cells]:
            padded = (
                c.rjust(w) if i in numbers else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            on.print(escape("  ".join(padded).rstrip()))
        return
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="bold")
    for index, column in enumerate(heads):
        grid.add_column(column, justify="right" if index in numbers else "left", overflow="fold")
    for row in cells:
        grid.add_row(*(escape(cell) for cell in row))
    on.print(grid, soft_wrap=False)


def bars(width: int) -> Progress:
    """A row on standard error for each of some tasks whose names have at most `width` columns. The columns keep their
    places: only the last, what happens at the moment, is cut."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    columns = (
        SpinnerColumn(table_column=Column(width=1)),
        TextColumn("{task.description}", table_column=Column(width=width, no_wrap=True)),
        TimeElapsedColumn(table_column=Column(width=7, no_wrap=True)),
        TextColumn("{task.fields[detail]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
    )
    return Progress(*columns, console=err.console, transient=True, expand=True, refresh_per_second=8)


def mb(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.0f} MB"

"""What the person sees: tables, lines, progress. Colour and live display on a terminal, plain lines without one."""

import json
import sys
import textwrap
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Self

from rocstack.base.errors import RocstackError
from rocstack.base.findings import Finding
from rocstack.base.text import visible, visible_lines


class Terminal:
    """A console, loaded with the first text: `--help` and a printed Dockerfile do without."""

    def __init__(self, *, stderr: bool = False) -> None:
        self._stderr = stderr

    @cached_property
    def console(self) -> Any:
        from rich.console import Console

        return Console(stderr=self._stderr, highlight=False, soft_wrap=True, emoji=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.console, name)

    def say(self, text: str) -> None:
        """Plain lines; what others wrote is never markup."""
        self.print(visible_lines(text), markup=False)


COLOUR = {"error": "bold red", "warning": "bold yellow", "note": "bold"}

SCHEMA = 1
MOST = 16  # rows on a terminal; of more things only those at work are shown
out = Terminal()
err = Terminal(stderr=True)
say = err.say


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM or a closed terminal. Not KeyboardInterrupt, which the command-line library turns into a silent
    exit."""


class State:
    """Set once by the root command."""

    debug = False
    json = False


def print_json(document: Mapping[str, Any]) -> None:
    """Every document carries the version of its shape: it grows with a change that breaks its readers."""
    sys.stdout.write(json.dumps({"schema": SCHEMA, **document}, indent=1, default=str) + "\n")


def escape(text: str) -> str:
    """One line that others wrote, to stand in markup."""
    from rich.markup import escape as rich_escape

    return rich_escape(visible(text))


def table(
    columns: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    title: str | None = None,
    right: Iterable[int] = (),
    spare: Iterable[int] = (),
    on: Terminal = out,
) -> None:
    """A table that wraps on a narrow terminal, and aligned columns where there is no terminal. `right` are columns of
    numbers; those of `spare` go, in this order, until the rest fits."""
    heads, cells = list(columns), [[visible(str(cell)) for cell in row] for row in rows]
    numbers = set(right)
    widths = [max(len(row[i]) for row in [heads, *cells]) for i in range(len(heads))]
    if not on.is_terminal:
        if title:
            on.say(title)
        for row in [heads, *cells]:
            padded = (
                c.rjust(w) if i in numbers else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            on.say("  ".join(padded).rstrip())
        return
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="bold")
    shown = list(range(len(heads)))
    for index in spare:
        if sum(widths[i] + 2 for i in shown) - 2 > on.width:  # columns are two characters apart
            shown.remove(index)
    for index in shown:
        grid.add_column(heads[index], justify="right" if index in numbers else "left", overflow="fold")
    for row in cells:
        grid.add_row(*(escape(row[index]) for index in shown))
    on.print(grid, soft_wrap=False)


def mb(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.0f} MB"


def show_finding(
    finding: Finding, where: str = "", seen: Iterable[str] = (), *, label: str = "", on: Terminal = out
) -> None:
    """`where` is the place or the nodes, `seen` what was seen there, `label` a word that replaces the level.

    error port-down (1 of 3 nodes: n3): bnxt_re2 port 1 (DOWN, Disabled) not active
      cause   cable, transceiver, ...
      next    ...
      source  ...
    """
    word = label or finding.level
    rest = f" {finding.code}{f' ({where})' if where else ''}: {finding.what}"
    first, *more = _wrapped(word + rest, 2, on)
    on.print(f"[{COLOUR[finding.level]}]{word}[/]{escape(first.removeprefix(word))}")
    for line in more:
        on.say(f"  {line}")
    for text in seen:
        paragraph("seen", text, on)
    for name in ("cause", "next", "source"):
        if text := getattr(finding, name):
            paragraph(name, text, on)


def paragraph(label: str, text: str, on: Terminal = out) -> None:
    """A label and its text."""
    for index, line in enumerate(_wrapped(text, 10, on)):
        on.say(f"  {label if index == 0 else '':<8}{line}")


def _wrapped(text: str, indent: int, on: Terminal) -> list[str]:
    """Lines as wide as the terminal; one line without one, for those who grep."""
    width = max(on.width, 40) if on.is_terminal else 1 << 20
    return textwrap.wrap(text, width - indent, break_long_words=False, break_on_hyphens=False) or [""]


def print_error(error: RocstackError) -> None:
    """As a finding with the place of what is wrong; as JSON when the command was asked for JSON."""
    if State.json:
        print_json({"error": error.to_dict()})
    else:
        show_finding(error.finding, str(error.where or ""), on=err)


class Rows:
    """A row for each of some things at work, on a terminal only. Events come from several threads."""

    def __init__(self) -> None:
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._width = 0
        self._guard = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def _open(self, names: Iterable[str]) -> None:
        """The columns keep their places: only the last, what happens at the moment, is cut."""
        self._width = max(map(len, names), default=0)
        if not err.is_terminal:
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        columns = (
            SpinnerColumn(table_column=Column(width=1)),
            TextColumn("{task.description}", table_column=Column(width=self._width, no_wrap=True)),
            TimeElapsedColumn(table_column=Column(width=7, no_wrap=True)),
            TextColumn("{task.fields[detail]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        )
        made = Progress(*columns, console=err.console, transient=True, expand=True, refresh_per_second=8)
        self._bars = self._stack.enter_context(made)

    def _row(self, name: str, text: str) -> None:
        """What it does at the moment."""
        detail = escape(text)
        if self._bars and name in self._tasks:
            self._bars.update(self._tasks[name], detail=detail)
        elif self._bars and len(self._tasks) < MOST:
            self._tasks[name] = self._bars.add_task(escape(name), total=None, detail=detail)

    def _drop(self, name: str) -> None:
        if name in self._tasks:
            self._bars.remove_task(self._tasks.pop(name))

"""The live display of what nodes do: a line a node on a terminal, a line an end without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from rocstack.cli.ui import err, escape

MOST = 16  # rows on a terminal; of more nodes only those at work are shown


class Nodes:
    """Takes events from several threads."""

    def __init__(self, bars: Progress | None, width: int) -> None:
        self._bars, self._width = bars, width
        self._rows: dict[str, TaskID] = {}
        self._start = time.monotonic()
        self._began: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._guard = threading.Lock()

    def say(self, text: str) -> None:
        with self._guard:
            err.print(escape(text))

    def step(self, node: str, text: str) -> None:
        with self._guard:
            self._began.setdefault(node, time.monotonic())
            if self._bars is None:
                return
            if node in self._rows:
                self._bars.update(self._rows[node], detail=escape(text))
            elif len(self._rows) < MOST:
                self._rows[node] = self._bars.add_task(escape(node), total=None, detail=escape(text))

    def end(self, node: str, text: str, *, ok: bool = True) -> None:
        with self._guard:
            now = time.monotonic()
            seconds = now - self._began.pop(node, self._ended.get(node, self._start))
            self._ended[node] = now
            if self._bars and node in self._rows:
                self._bars.remove_task(self._rows.pop(node))
            mark = f"{seconds:6.1f} s" if ok else "[bold red]  failed[/]"
            err.print(f"{mark}  {escape(node.ljust(self._width))}  {escape(text)}")

    def rest(self) -> None:
        with self._guard:
            self._start = time.monotonic()
            self._began.clear()
            self._ended.clear()
            for node in list(self._rows):
                if self._bars:
                    self._bars.remove_task(self._rows.pop(node))


@contextmanager
def display(nodes: Sequence[str]) -> Iterator[Nodes]:
    width = max(map(len, nodes), default=0)
    if not err.is_terminal:
        yield Nodes(None, width)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Progress(*columns, console=err.console, transient=True, refresh_per_second=8) as bars:
        yield Nodes(bars, width)

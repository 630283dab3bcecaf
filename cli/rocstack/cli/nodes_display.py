"""What nodes do at the moment: a row for each on a terminal, a line for each result without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from rocstack.cli.ui import bars, err, escape
from rocstack.deploy.nodes.runs import DeployEvents

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

MOST = 16  # rows on a terminal; of more nodes only those at work are shown


class NodesDisplay(DeployEvents):
    """Takes the events of a deploy from several threads."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._width = 0
        self._rows: dict[str, TaskID] = {}
        self._start = time.monotonic()
        self._began: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._guard = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def begin(self, nodes: Sequence[str]) -> None:
        self._width = max(map(len, nodes), default=0)
        if err.is_terminal:
            self._bars = self._stack.enter_context(bars(self._width))

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

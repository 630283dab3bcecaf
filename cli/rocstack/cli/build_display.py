"""The live display of a build: one line an image on a terminal, one line a finished step without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from rocstack.cli.ui import err, escape
from rocstack.image.build_progress import Line, Step
from rocstack.stack.component import Role

QUIET = ("internal", "export", "auth")


class Shown:
    """Takes events from the builds' threads."""

    def __init__(self, bars: Progress | None, tasks: dict[Role, TaskID]) -> None:
        self._bars = bars
        self._tasks = tasks
        self._guard = threading.Lock()
        self._seen: set[str] = set()  # a step both images need is shown once
        self._ran = 0

    def note(self, text: str) -> None:
        with self._guard:
            err.print(escape(text))

    def event(self, role: Role, item: Step | Line) -> None:
        with self._guard:
            if isinstance(item, Line):
                if self._bars and item.text.strip():
                    self._bars.update(
                        self._tasks[role], detail=escape(f"[{item.step.stage}] {item.text.strip()}")[:100]
                    )
                return
            if item.stage.startswith(QUIET) or item.seconds is None:
                if self._bars and item.started and item.seconds is None:
                    self._bars.update(self._tasks[role], detail=escape(f"[{item.stage}] {item.title}")[:100])
                return
            if item.digest in self._seen or "context canceled" in (item.error or ""):
                return
            self._seen.add(item.digest)
            if item.cached or (item.seconds < 0.05 and not item.error):  # a FROM never says that it is cached
                return
            self._ran += 1
            mark = "[red]failed[/]" if item.error else f"{item.seconds:5.1f} s"
            err.print(f"{mark}  {item.stage:22} {escape(item.title[:70])}")

    def close(self) -> None:
        if not self._ran:
            err.print("every step from the cache")


@contextmanager
def display(roles: tuple[Role, ...], resolved: Any) -> Iterator[Shown]:
    what = ", ".join(roles)
    err.print(
        f"building {what} of {resolved.stack.name} for {resolved.nic.name} (way {resolved.ways}) on {resolved.base}"
    )
    if not err.is_terminal:
        shown = Shown(None, {})
        yield shown
        shown.close()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:8}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Progress(*columns, console=err.console, transient=True, refresh_per_second=8) as bars:
        shown = Shown(bars, {role: bars.add_task(role, total=None, detail="") for role in roles})
        yield shown
    shown.close()

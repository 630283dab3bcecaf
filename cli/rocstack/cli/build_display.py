"""What a build shows while it runs: one line an image on a terminal, one line a finished step without one."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rocstack.base.text import listed
from rocstack.cli.ui import bars, err, escape, say, table
from rocstack.image.build_progress import BuildLine, BuildStep
from rocstack.steps.build import BuildEvents

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from rocstack.node.profile import NodeProfile
    from rocstack.stack.component import Role
    from rocstack.steps.image_plan import ImagePlan

QUIET = ("internal", "export", "auth")


class BuildDisplay(BuildEvents):
    """Takes events from the builds' threads."""

    def __init__(self) -> None:
        self.folder = Path()
        self._bars: Progress | None = None
        self._tasks: dict[Role, TaskID] = {}
        self._guard = threading.Lock()
        self._seen: set[str] = set()  # a step that both images need is shown once
        self._running = False
        self._finished = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()
        if self._running and error[0] is None and not self._finished:
            err.print("every step from the cache")

    def note(self, text: str) -> None:
        with self._guard:
            say(text)

    def planned(self, plan: ImagePlan) -> None:
        self.folder = plan.folder
        _show_providers(plan)

    def started(self, roles: tuple[Role, ...], plan: ImagePlan) -> None:
        resolved = plan.resolved
        what = f"{', '.join(roles)} of {resolved.stack.name} for {resolved.nic.name} (way {resolved.ways})"
        err.print(f"building {what} on {resolved.base}")
        self._running = True
        if err.is_terminal:
            self._bars = self._stack.enter_context(bars(max(map(len, roles))))
            self._tasks = {role: self._bars.add_task(role, total=None, detail="") for role in roles}

    def step(self, role: Role, item: BuildStep | BuildLine) -> None:
        with self._guard:
            if isinstance(item, BuildLine):
                if item.text.strip():
                    self._detail(role, item.step.stage, item.text.strip())
                return
            if item.stage.startswith(QUIET) or item.seconds is None:
                if item.started and item.seconds is None:
                    self._detail(role, item.stage, item.title)
                return
            if item.digest in self._seen or "context canceled" in (item.error or ""):
                return
            self._seen.add(item.digest)
            if item.cached or (item.seconds < 0.05 and not item.error):  # a FROM never says that it is cached
                return
            self._finished += 1
            mark = "[red]failed[/]" if item.error else f"{item.seconds:5.1f} s"
            err.print(f"{mark}  {item.stage:22} {escape(item.title[:70])}")

    def _detail(self, role: Role, stage: str, text: str) -> None:
        if self._bars:
            self._bars.update(self._tasks[role], detail=escape(f"[{stage}] {text}"[:200]))


def _show_providers(image: ImagePlan) -> None:
    """Which provider is built for which nodes; nothing where there is no choice to make."""
    plan, chosen = image.providers, image.settings
    if plan is None or image.resolved.nic.name == "tcp":
        return
    table(
        ("PROVIDER", "VERSION", "KERNEL ABI", "NODES", "WHY"),
        [
            (
                row.provider.way,
                row.provider.version or "the distribution's",
                "" if row.provider.kernel_abi is None else str(row.provider.kernel_abi),
                _node_names(row.nodes, image.nodes),
                row.why,
            )
            for row in plan.rows
        ],
        on=err,
    )
    if plan.plugin:
        say(f"RCCL's plugin: {plan.plugin.name} {plan.plugin.version}, compiled in the image")
    for note in plan.notes:
        say(note)
    used = any(provider.archive or provider.version for provider in plan.providers)
    for name, value in (("--nic-source", chosen.nic_source), ("--nic-accept", chosen.nic_accept)):
        if value and not used:
            say(f"{name} is not used: no provider is built from a release of the vendor's")


def _node_names(names: tuple[str, ...], nodes: tuple[NodeProfile, ...]) -> str:
    virtual = {node.name for node in nodes if node.virtual}
    return listed((f"{name} (virtual)" if name in virtual else name for name in names), 6)

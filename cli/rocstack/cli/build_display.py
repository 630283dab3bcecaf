"""What a build shows: while it runs one line an image on a terminal, one line a finished step without one; and what
was built."""

from pathlib import Path
from typing import Any

from rocstack.base.text import listed
from rocstack.cli.ui import Rows, err, escape, mb, out, say, table
from rocstack.image.build_progress import BuildLine, BuildStep
from rocstack.image.build_report import BuildReport, ImageReport
from rocstack.stack.component import Role
from rocstack.steps.build import BuildEvents
from rocstack.steps.image_plan import ImagePlan

QUIET = ("internal", "export", "auth")


class BuildDisplay(BuildEvents, Rows):
    """Takes events from the builds' threads."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path()
        self._seen: set[str] = set()  # a step that both images need is shown once
        self._running = False
        self._finished = 0

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._running and error[0] is None and not self._finished:
            err.print("every step from the cache")

    def note(self, text: str) -> None:
        with self._guard:
            say(text)

    def planned(self, plan: ImagePlan) -> None:
        if self.folder == Path():  # a further image has a folder beside it
            self.folder = plan.folder
        _show_providers(plan)

    def started(self, roles: tuple[Role, ...], plan: ImagePlan) -> None:
        resolved = plan.resolved
        named = ", ".join(map(resolved.called, roles))
        what = f"{named} of {resolved.stack.name} for {resolved.nic.name} (way {resolved.ways})"
        err.print(f"building {what} on {resolved.base}")
        self._running = True
        self._open(roles)
        for role in roles:
            self._row(role, "")

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
        self._row(role, f"[{stage}] {text}"[:200])


def _show_providers(image: ImagePlan) -> None:
    """Which provider is built for which nodes; nothing where there is no choice to make."""
    plan, chosen = image.providers, image.settings
    if plan is None or image.resolved.nic.name == "tcp":
        return
    virtual = {node.name for node in image.nodes if node.virtual}
    rows = [
        (
            row.provider.way,
            row.provider.version or "the distribution's",
            "" if row.provider.kernel_abi is None else str(row.provider.kernel_abi),
            listed((f"{name} (virtual)" if name in virtual else name for name in row.nodes), 6),
            row.why,
        )
        for row in plan.rows
    ]
    table(("PROVIDER", "VERSION", "KERNEL ABI", "NODES", "WHY"), rows, on=err)
    if plan.plugin:
        say(f"RCCL's plugin: {plan.plugin.name} {plan.plugin.version}, compiled in the image")
    for note in plan.notes:
        say(note)
    used = any(provider.archive or provider.version for provider in plan.providers)
    for name, value in (("--nic-source", chosen.nic_source), ("--nic-accept", chosen.nic_accept)):
        if value and not used:
            say(f"{name} is not used: no provider is built from a release of the vendor's")


def _mark(report: BuildReport, image: ImageReport) -> str:
    return " (rehearsal)" if report.rehearsal and image.role == "worker" and image.status == "built" else ""


def show(report: BuildReport, folder: Path) -> None:
    for image in report.images:
        if image.failure:
            _show_failure(image)
    built = [image for image in report.images if image.status == "built"]
    for image in built[:1]:
        _show_contents(image)
    rows = [
        (
            image.reference,
            f"blocked by {image.blocked_by}" if image.blocked_by else image.status + _mark(report, image),
            mb(image.size_bytes),
            f"{image.seconds:.1f} s",
            (image.image_id or "").removeprefix("sha256:")[:12],
        )
        for image in report.images
    ]
    table(("IMAGE", "STATUS", "SIZE", "TIME", "ID"), rows, right=(2, 3))
    if report.rehearsal:
        out.say(f"rehearsal image: {report.rehearsal}")
    for image in built:
        if image.role == "worker" and not image.gate and report.nic != "tcp":
            out.print("judged by no node: --profiles or --inventory names those that it must fit")
        for verdict in image.gate:
            out.say(f"{verdict.result}: {verdict.says}")
        for reference, digest in image.pushed.items():
            out.print(f"pushed {reference}@{digest}")
    base = f"base {report.base} ({report.base_digest[:19]})"
    out.print(f"\n{base}, index of {report.world}, {report.seconds:.1f} s in all")
    out.say(f"logs and reports: {folder}/")


def _show_contents(image: ImageReport) -> None:
    total, smoke = sum(image.components.values()), {name: "; ".join(seen) for name, seen in image.smoke.items()}
    rows = [
        (name, image.versions.get(name, ""), mb(size), f"{100 * size / total:.0f} %", smoke.pop(name, ""))
        for name, size in image.components.items()
    ]
    rows += [(name, "", "", "", seen) for name, seen in smoke.items()]
    heads = ("COMPONENT", "VERSION", "SIZE", "SHARE", "SMOKE TEST")
    table(heads, rows, title=f"{image.role}: what is in it", right=(2, 3))
    out.print()
    largest = [(name, mb(size)) for name, size in image.largest.items()]
    table(("PACKAGE", "SIZE"), largest, title="the ten largest", right=(1,))
    out.print()
    for item in image.drift[:10]:
        out.print(f"changed since the lock: {item.what} {item.locked} -> {item.found}")
    if len(image.drift) > 10:
        out.print(f"... and {len(image.drift) - 10} more; `rocstack lock` pins what is there now")


def _show_failure(image: ImageReport) -> None:
    failure = image.failure
    assert failure is not None
    err.print(f"[bold red]failed:[/] {escape(image.reference)} in stage {escape(failure.stage)}")
    tries = f" after {image.attempts} attempts" if image.attempts > 1 else ""
    template = f"{failure.template} (Dockerfile line {failure.dockerfile_line})" if failure.template else ""
    for label, text in (
        ("  step", failure.step),
        ("  error", failure.error),
        *(("    |", line) for line in failure.context),
        ("  template", template),
        ("  cause", failure.cause),
        ("  next", failure.next_step),
        ("  kind", failure.kind + tries),
        ("  log", image.log),
        ("  reproduce", failure.reproduce),
    ):
        if text or label.endswith("|"):
            err.say(f"{label}{'' if label.endswith('|') else ':'} {text}")

"""Build and lock: the images of a stack for a NIC, and the versions that are in them."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput, hinted
from rocstack.base.image_names import parse_registry
from rocstack.edge import engine, files
from rocstack.image import base_image as bases
from rocstack.image import pinning, sources
from rocstack.image import render as renderer
from rocstack.image.build import Build, image_name, write_report
from rocstack.image.build_progress import BuildLine, BuildStep
from rocstack.image.build_report import BuildReport
from rocstack.registry.push import push_images, release_tags
from rocstack.settings import site
from rocstack.stack import rules
from rocstack.stack.component import ROLES, Role
from rocstack.stack.lock import Drift, Lock, drift, read, refuse_other_keys, shipped
from rocstack.steps.image_plan import ImagePlan, join, plan_image
from rocstack.steps.options import BuildOptions, LockOptions, Note, ignore, settings


class BuildEvents:
    """What a build reports while it runs. Override what you need; methods may be called from several threads."""

    def note(self, text: str) -> None:
        """A sentence about what happens."""

    def planned(self, plan: ImagePlan) -> None:
        """What will be built is decided, and nothing was built yet."""

    def started(self, roles: tuple[Role, ...], plan: ImagePlan) -> None:
        """BuildKit starts."""

    def step(self, role: Role, item: BuildStep | BuildLine) -> None:
        """A step of a role's image started or ended, or printed a line."""


def build(options: BuildOptions = BuildOptions(), events: BuildEvents | None = None) -> BuildReport:
    """Builds, tests and labels the images; pushes them if asked and all were built.

    Raises:
        BadInput: something is wrong with an option, the stack, the NIC profile, the overlay, the lock or the sources.
        Missing: no engine, or too little disk.
        CheckFailed: the image can't fit a node; a push was refused.
    """
    events = events or BuildEvents()
    chosen = settings(options)
    if options.role and options.role not in ROLES:
        raise BadInput.of("unknown-role", role=options.role, hint=hinted(options.role, ROLES))
    roles = tuple(role for role in ROLES if not options.role or role == options.role)
    # Whatever can be refused without the engine is refused first.
    plan = plan_image(options, chosen, events.note)
    renderer.require_lock(plan.resolved, plan.lock)
    if options.frozen and plan.lock is None:
        raise BadInput.of("frozen-without-lock", stack=plan.resolved.stack.name)
    plan.render()
    given = sources.check(plan.resolved, plan.lock, Path(chosen.sources).expanduser()) if chosen.sources else ()
    events.planned(plan)
    if chosen.push:
        parse_registry(chosen.push)
        release_tags(plan.resolved.stack.name, plan.resolved.nic.name, chosen)
    engine.require_buildx()
    client = engine.connect()
    engine.require_version(client)
    if not all(engine.find_image(client, image_name(chosen, plan.resolved, role)) for role in roles):
        engine.require_disk(client, plan.resolved.stack.disk_mb)
    start = bases.ensure(client, plan.resolved.stack, chosen, events.note)
    plan = replace(plan, resolved=plan.resolved.model_copy(update={"base": start.reference}))
    events.started(roles, plan)
    report = Build(
        client=client,
        resolved=plan.resolved,
        lock=plan.lock,
        context=plan.render(),
        base=start,
        settings=chosen,
        site=site.of(chosen),
        folder=plan.folder,
        roles=roles,
        sources=given,
        nodes=plan.nodes,
        why=plan.why,
        rehearsal=" and ".join(plan.lacks),
        frozen=options.frozen,
        no_cache=options.no_cache,
        refresh=options.refresh,
        on_event=events.step,
        on_note=events.note,
    ).run()
    if report.ok and chosen.push:
        report = push_images(client, report, chosen, move_tags=options.move_tags, say=events.note)
        write_report(plan.folder, report)
    return report


@dataclass(frozen=True)
class Locked:
    """A lock, its file, and what changed since the lock that was there."""

    lock: Lock
    file: Path
    changes: tuple[Drift, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        changes = [change.model_dump() for change in self.changes]
        return {"file": str(self.file), "digest": self.lock.digest(), "changes": changes}


def lock(options: LockOptions = LockOptions(), note: Note = ignore) -> Locked:
    """Resolves a stack, pins every package, wheel and source, and writes the lock.

    Raises:
        BadInput: something is wrong with stack, NIC, overlay or rules; the file can't be written there.
        CheckFailed: apt or pip can't resolve something.
        Missing: no engine.
    """
    if not options.to.parent.is_dir() or options.to.is_dir():
        raise BadInput.of("lock-elsewhere", options.to)
    chosen = settings(options)
    value = join(chosen, methods=options.methods).resolved
    rules.refuse_broken(rules.judge(rules.load(), value.facts()))
    if chosen.sources:
        value = sources.pinned(value, Path(chosen.sources).expanduser())
    client = engine.connect()
    made = pinning.make(value, bases.ensure(client, value.stack, chosen, note), site.of(chosen))
    for path in (shipped(value.stack), options.to):
        before = None
        with suppress(BadInput):  # a damaged lock is replaced
            before = read(path)
            refuse_other_keys(value.stack, before, path, made)
    files.write(options.to, made.to_text())
    if before is None:
        return Locked(made, options.to)
    packages, wheels = ({each.name: each.version for each in part} for part in (made.packages, made.wheels))
    return Locked(made, options.to, tuple(drift(before, packages, wheels)))

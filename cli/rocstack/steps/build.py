"""Build, render and lock: the images of a stack for a NIC."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rocstack.base.errors import BadInput, Where, did_you_mean
from rocstack.steps.options import LOCK, Flag, ImageOptions, Methods, Note, StackOptions, ignore, settings

if TYPE_CHECKING:
    from rocstack.image.build_progress import BuildLine, BuildStep
    from rocstack.image.build_report import BuildReport
    from rocstack.image.context import BuildContext
    from rocstack.stack.component import Role
    from rocstack.stack.lock import Drift, Lock
    from rocstack.steps.image_plan import ImagePlan


@dataclass(frozen=True, kw_only=True)
class BuildOptions(ImageOptions):
    role: Annotated[str, Flag("Build only this role: worker or control; default: both.")] = ""
    base: Annotated[str | None, Flag("Where the base comes from: auto, registry or mmdebstrap.")] = None
    frozen: Annotated[bool, Flag("Fail if the distribution's versions differ from the lock.", ("--frozen",))] = False
    refresh: Annotated[bool, Flag("Fetch the package index again (it is kept for a week).", ("--refresh",))] = False
    no_cache: Annotated[bool, Flag("Rebuild every step.", ("--no-cache",))] = False
    push: Annotated[
        str | None, Flag("Push to this registry when all images are built: registry.example.com:5000/hpc.")
    ] = None
    tag: Annotated[str | None, Flag("Release tag; default: ISO year and week, such as 2026.47.")] = None
    move_tags: Annotated[bool, Flag("Move tags that exist to the new images.", ("--move-tags",))] = False
    ca_bundle: Annotated[str | None, Flag("CA bundle (PEM) of the company's proxy.")] = None


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
        BadInput: something is wrong with an option, the stack, the NIC profile, the overlay or the lock.
        Missing: no engine, or too little disk.
        CheckFailed: the image can't fit a node; a push was refused.
    """
    from rocstack.edge import engine
    from rocstack.image import base_image as bases
    from rocstack.image import render as renderer
    from rocstack.image.build import Build, image_name, write_report
    from rocstack.settings import site
    from rocstack.stack.component import ROLES
    from rocstack.steps.image_plan import plan_image

    events = events or BuildEvents()
    chosen = settings(options)
    if options.role and options.role not in ROLES:
        raise BadInput(f"no role '{options.role}': {did_you_mean(options.role, ROLES)}", code="unknown-role")
    roles = tuple(role for role in ROLES if not options.role or role == options.role)
    # Whatever can be refused without the engine is refused first.
    plan = plan_image(options, chosen, events.note)
    renderer.require_lock(plan.resolved, plan.lock)
    plan.render()
    events.planned(plan)
    if chosen.push:
        from rocstack.base.image_names import parse_registry
        from rocstack.registry.push import release_tags

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
        nodes=plan.nodes,
        frozen=options.frozen,
        no_cache=options.no_cache,
        refresh=options.refresh,
        on_event=events.step,
        on_note=events.note,
    ).run()
    if report.ok and chosen.push:
        from rocstack.registry.push import push_images

        report = push_images(client, report, chosen, move_tags=options.move_tags, say=events.note)
        write_report(plan.folder, report)
    return report


@dataclass(frozen=True, kw_only=True)
class RenderOptions(ImageOptions):
    to: Annotated[Path | None, Flag("Write the whole context to this folder.")] = None
    diff: Annotated[bool, Flag("Show what changed since the last build of this stack and NIC.", ("--diff",))] = False


@dataclass(frozen=True)
class Rendered:
    """A build context; `changes` is a unified diff to the last build's, if that was asked for."""

    context: BuildContext
    folder: Path | None = None
    changes: str | None = None

    @property
    def dockerfile(self) -> str:
        return self.context.files["Dockerfile"].data.decode()

    def to_dict(self) -> dict[str, Any]:
        files = self.context.files
        if self.changes is not None:
            return {"changed": bool(self.changes), "diff": self.changes}
        if self.folder:
            return {"folder": str(self.folder), "digest": self.context.digest(), "files": sorted(files)}
        texts = {name: file.data.decode("utf-8", "replace") for name, file in files.items()}
        return {"digest": self.context.digest(), "files": texts}


def render(options: RenderOptions = RenderOptions(), note: Note = ignore) -> Rendered:
    """The Dockerfile and its context. Builds nothing and needs no engine; the same input gives the same bytes.

    Raises:
        BadInput: as `build`; there is no earlier build to compare with; the folder holds something else.
    """
    from rocstack.image import context
    from rocstack.image.build_report import last_base
    from rocstack.steps.image_plan import plan_image

    chosen = settings(options)
    folder = Path(chosen.out) / f"{chosen.stack_name()}-{chosen.nic}"
    base = chosen.base_image or (last_base(folder) if options.diff else None)
    result = plan_image(options, chosen, note, base=base).render()
    if options.diff:
        last = context.read(folder / "context")
        if not last.files:
            raise BadInput(
                "there is no earlier build to compare with",
                code="no-build",
                where=Where(str(folder)),
                next_step="run `rocstack build` first, or drop --diff",
            )
        return Rendered(result, changes=context.diff(last, result))
    if to := options.to:
        if to.exists() and not (to.is_dir() and (not any(to.iterdir()) or context.is_ours(to))):
            raise BadInput(
                f"{to} holds other files",
                code="not-empty",
                where=Where(str(to)),
                next_step="name an empty folder, or one written by `rocstack render`",
            )
        result.write(to)
    return Rendered(result, to)


@dataclass(frozen=True, kw_only=True)
class LockOptions(StackOptions):
    methods: Methods = ()
    to: Annotated[Path, Flag("File to write the lock to.")] = LOCK


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
    from rocstack.edge import engine, files
    from rocstack.image import base_image as bases
    from rocstack.image import pinning
    from rocstack.settings import site
    from rocstack.stack import rules
    from rocstack.stack.lock import drift, read
    from rocstack.steps.image_plan import join

    if not options.to.parent.is_dir() or options.to.is_dir():
        raise BadInput("the lock can't be written there", code="no-folder", where=Where(str(options.to)))
    chosen = settings(options)
    value = join(chosen, methods=options.methods).resolved
    rules.refuse_broken(rules.judge(rules.load(), value.facts()))
    client = engine.connect()
    made = pinning.make(value, bases.ensure(client, value.stack, chosen, note), site.of(chosen))
    before = None
    with suppress(BadInput):  # a damaged lock is replaced
        before = read(options.to)
    files.write(options.to, made.to_text())
    if before is None:
        return Locked(made, options.to)
    packages, wheels = ({each.name: each.version for each in part} for part in (made.packages, made.wheels))
    return Locked(made, options.to, tuple(drift(before, packages, wheels)))

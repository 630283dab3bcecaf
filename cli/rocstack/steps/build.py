"""Build and lock: the images of a stack for a NIC, and the versions that are in them."""

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import docker

from rocstack.base.errors import BadInput, hinted
from rocstack.base.text import count
from rocstack.edge import engine, files
from rocstack.image import base_image as bases
from rocstack.image import base_reader, kept_packages, pinning, sources
from rocstack.image import render as renderer
from rocstack.image.base_image import BaseImage
from rocstack.image.build import Build, image_name, write_report
from rocstack.image.build_progress import BuildLine, BuildStep
from rocstack.image.build_report import BuildReport
from rocstack.registry.push import push_images, release_tags
from rocstack.settings import site
from rocstack.settings.settings import Settings
from rocstack.stack import base_reading, component
from rocstack.stack.component import FURTHER, ROLES, Role
from rocstack.stack.lock import Drift, Lock, drift, read, refuse_other_keys, shipped, unpinned
from rocstack.stack.resolve import Resolved
from rocstack.steps.image_plan import ImagePlan, join, plan_image, plan_on_top, refuse_base, refuse_broken
from rocstack.steps.options import BuildOptions, LockOptions, Note, ignore, settings
from rocstack.steps.outdated import Upgrade, plan_upgrade, upgraded
from rocstack.steps.release_access import Password, file_key, no_password
from rocstack.trust import files as signatures
from rocstack.trust.keys import SigningKey


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


def build(
    options: BuildOptions = BuildOptions(),
    events: BuildEvents | None = None,
) -> BuildReport:
    """Builds, tests and labels the images, and those that the settings of the cluster ask for; pushes them if asked and
    all were built. A stack that can't be built without a lock and has none gets one first.

    Raises:
        BadInput, Missing, CheckFailed: as `build_images`.
    """
    chosen = settings(options)
    report = build_images(options, events, chosen=chosen)
    if not report.ok or options.role or options.from_image or chosen.cluster.service is None:
        return report
    stack = {} if report.stack == chosen.stack_name() else {"stack": report.stack}  # chosen for the nodes
    further = build_images(replace(options, role="service"), events, chosen=chosen.model_copy(update=stack))
    images, seconds = (*report.images, *further.images), report.seconds + further.seconds
    return report.model_copy(update={"images": images, "seconds": round(seconds, 2)})


def build_images(
    options: BuildOptions = BuildOptions(),
    events: BuildEvents | None = None,
    *,
    chosen: Settings | None = None,
    prefix: str = "",
) -> BuildReport:
    """The images of a stack, or the one that `options` name. `chosen` are other settings than those here; the images'
    names start with `prefix` instead of the setting `image_prefix`.

    Raises:
        BadInput: something is wrong with an option, the stack, the NIC profile, the overlay, the lock or the sources.
        Missing: no engine, or too little disk.
        CheckFailed: the image can't fit a node; the lock can't be made; a push was refused.
    """
    events = events or BuildEvents()
    chosen = chosen or settings(options)
    if options.role and options.role not in (*ROLES, *FURTHER):
        raise BadInput.of("unknown-role", role=options.role, hint=hinted(options.role, (*ROLES, *FURTHER)))
    if options.from_image:
        return _on_top(options, events)
    # Whatever can be refused without the engine is refused first.
    plan = plan_image(options, chosen, events.note)
    chosen = plan.settings
    if options.keep_packages:
        kept_packages.refuse_place(options.keep_packages)
    if options.packages:
        chosen = _with_packages(options, chosen, plan.lock)
        plan = replace(plan, settings=chosen)
    roles = tuple(role for role in plan.resolved.stack.roles if not options.role or role == options.role)
    if not roles:
        raise BadInput.of("no-such-image", stack=plan.resolved.stack.name, role=options.role)
    if options.frozen and plan.lock is None:
        raise BadInput.of("frozen-without-lock", stack=plan.resolved.stack.name)
    locks_first = plan.lock is None and not options.lock.exists() and unpinned(plan.resolved.stack, None)
    if locks_first:
        _refuse_first_lock(options, chosen, plan.resolved)
    else:
        renderer.require_lock(plan.resolved, plan.lock)
    plan.render()
    given: tuple[Path, ...] = ()
    if chosen.sources:
        folder = Path(chosen.sources).expanduser()
        known = sources.pinned(plan.resolved, folder) if locks_first else plan.resolved
        given = sources.check(known, plan.lock, folder)
    events.planned(plan)
    if chosen.push:
        release_tags(plan.resolved.stack.name, plan.resolved.nic.name, chosen)
    client = _engine()
    if not all(engine.find_image(client, image_name(chosen, plan.resolved, role)) for role in roles):
        engine.require_disk(client, plan.resolved.stack.disk_mb)
    start = bases.ensure(client, plan.resolved.stack, chosen, events.note)
    if plan.resolved.needs_reading:
        reading = base_reader.read(client, start.reference, plan.resolved.nic.provider)
        events.note(base_reading.sentence(reading, start.reference))
        plan = replace(plan, resolved=plan.resolved.with_reading(reading, start.reference))
        refuse_base(plan)
    else:
        if chosen.base_image:
            _refuse_unfit(client, plan, start)
        plan = replace(plan, resolved=plan.resolved.model_copy(update={"base": start.reference}))
    if locks_first:
        plan = replace(plan, lock=_first_lock(options, plan, start, events.note))
        renderer.require_lock(plan.resolved, plan.lock)
        if chosen.sources:  # what was pinned is what the build is given
            sources.check(plan.resolved, plan.lock, folder)
    if options.keep_packages:
        _keep(plan, start, options.keep_packages, events.note)
    if prefix:
        plan = replace(plan, settings=plan.settings.model_copy(update={"image_prefix": prefix}))
    report = _run(options, events, plan, client, start, roles, given)
    if report.ok and chosen.push:
        report = push_images(client, report, chosen, move_tags=options.move_tags, say=events.note)
        write_report(plan.folder, report)
    return report


def _with_packages(options: BuildOptions, chosen: Settings, lock: Lock | None) -> Settings:
    """The settings of a build from kept packages, among which may be archives.

    Raises:
        BadInput: no such folder, or one that lacks something.
    """
    assert options.packages is not None
    if options.keep_packages:
        raise BadInput.of("no-combination", why="--packages takes what --keep-packages keeps: give one of them")
    kept_packages.check(options.packages, lock)
    archives = options.packages / kept_packages.SOURCES
    if chosen.sources or not archives.is_dir():
        return chosen
    return chosen.model_copy(update={"sources": str(archives)})


def _keep(plan: ImagePlan, start: BaseImage, folder: Path, note: Note) -> None:
    dockerfile = plan.render().files["Dockerfile"].data.decode()
    given = Path(plan.settings.sources).expanduser() if plan.settings.sources else None
    around = site.of(plan.settings)
    kept = kept_packages.keep(plan.resolved, plan.lock, dockerfile, start, around, folder, note, given)
    parts = [count(kept.debs, "package"), count(kept.wheels, "wheel"), count(kept.archives, "archive")]
    note(f"{folder}: {', '.join(parts)}, {kept.size / 1e6:.0f} MB, {kept.new} files new")


def _refuse_first_lock(options: BuildOptions, chosen: Settings, value: Resolved) -> None:
    """
    Raises:
        BadInput: what a lock made by this build would undo.
    """
    if options.packages:
        raise BadInput.of("packages-without-lock", options.packages, stack=value.stack.name)
    if chosen.trust.keys:
        raise BadInput.of("unsigned-first-lock", options.lock, stack=value.stack.name)


def _first_lock(options: BuildOptions, plan: ImagePlan, start: BaseImage, note: Note) -> Lock:
    """What `rocstack lock` would have made, with the same options.

    Raises:
        BadInput: it can't be written there.
        CheckFailed: apt or pip can't resolve something.
    """
    own, file = plan.resolved.stack, options.lock
    _refuse_place(file)
    note(f"stack {own.name} has no lock yet: making {file}, as `rocstack lock` does")
    made = _make_all(join(plan.settings, methods=options.methods).resolved, start, plan.settings)
    _write(file, made, note)
    wheels, archives = len(made.wheels), len(made.sources)
    note(f"{file}: {len(made.packages)} packages, {wheels} wheels, {archives} sources; later builds use it, commit it")
    said = {repository.name for repository in own.repositories if repository.key_sha256}
    for key in made.keys:
        if key.repository not in said:
            note(f"the key of repository {key.repository} is trusted as {key.url} gave it now: sha256 {key.sha256}")
    return next((lock for role, lock in made.further.items() if role == options.role), made)


def _refuse_unfit(client: docker.DockerClient, plan: ImagePlan, start: BaseImage) -> None:
    """Somebody's own base for a stack that puts everything on it.

    Raises:
        BadInput: nothing that works can be built on it.
    """
    value = plan.resolved
    reading = base_reader.look(client, start.reference, value.nic.provider)
    if reading:
        base_reading.refuse(reading, start.reference, value.nic.provider, [each.way for each in value.providers])
        base_reading.refuse_other(value.stack, reading, start.reference)


def _engine() -> docker.DockerClient:
    engine.require_buildx()
    client = engine.connect()
    engine.require_version(client)
    return client


def _on_top(options: BuildOptions, events: BuildEvents) -> BuildReport:
    """The NIC's layer on somebody's image.

    Raises:
        BadInput: an option that such an image has no use for; no image can be built on that one.
        Missing, CheckFailed: as `build`.
    """
    others = (
        *("stack", "role", "methods", "gfx", "base", "base_image", "sources", "packages", "keep_packages", "frozen"),
        *("push", "tag", "move_tags"),
    )
    unfit = next((name for name in others if getattr(options, name)), None)
    if unfit:
        flag = "--with" if unfit == "methods" else f"--{unfit.replace('_', '-')}"
        raise BadInput.of("no-combination", why=f"--from takes the image as it is, and has no use for {flag}")
    chosen = settings(options, base_image=options.from_image)
    nics = component.library("nic", chosen.overlay_folder())
    nic = component.validate_head(nics.get(chosen.nic), component.NicProfile)
    client = _engine()
    start = bases.given(client, chosen.base_image)
    reading = base_reader.read(client, start.reference, nic.provider)
    events.note(base_reading.sentence(reading, start.reference))
    plan = plan_on_top(options, chosen, events.note, reading, start.reference)
    events.planned(plan)
    return _run(options, events, plan, client, start, plan.resolved.stack.roles)


def _run(
    options: BuildOptions,
    events: BuildEvents,
    plan: ImagePlan,
    client: docker.DockerClient,
    start: BaseImage,
    roles: tuple[Role, ...],
    archives: tuple[Path, ...] = (),
) -> BuildReport:
    events.started(roles, plan)
    return Build(
        client=client,
        resolved=plan.resolved,
        lock=plan.lock,
        context=plan.render(),
        base=start,
        settings=plan.settings,
        site=site.of(plan.settings),
        folder=plan.folder,
        roles=roles,
        sources=archives,
        packages=packages.absolute() if (packages := options.packages or options.keep_packages) else None,
        nodes=plan.nodes,
        why=plan.why,
        rehearsal=" and ".join(plan.lacks),
        frozen=options.frozen,
        no_cache=options.no_cache,
        refresh=options.refresh,
        on_event=events.step,
        on_note=events.note,
    ).run()


@dataclass(frozen=True)
class Locked:
    """A lock, its file, and what changed since the lock that was there."""

    lock: Lock
    file: Path
    changes: tuple[Drift, ...] = ()
    upgrade: Upgrade | None = None
    signature: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        changes = [change.model_dump() for change in self.changes]
        upgrade = {"upgrade": self.upgrade.to_dict()} if self.upgrade else {}
        signed = {"signature": str(self.signature)} if self.signature else {}
        return {"file": str(self.file), "digest": self.lock.digest(), "changes": changes, **signed, **upgrade}


def lock(options: LockOptions = LockOptions(), note: Note = ignore, password: Password = no_password) -> Locked:
    """Resolves a stack, pins every package, wheel and source, and writes the lock; with `upgrade` the stack's file too,
    and with `sign` a signature beside the lock. `password` asks for that of the key.

    Raises:
        BadInput: something is wrong with stack, NIC, overlay or rules; the file can't be written there; the stack isn't
            the user's to upgrade.
        CheckFailed: apt or pip can't resolve something.
        Missing: no engine.
    """
    _refuse_place(options.to)
    if options.keep_packages:
        kept_packages.refuse_place(options.keep_packages)
    key = file_key(options.sign, options.password_file, password)  # what is wrong with it is said before the work
    chosen = settings(options)
    if not options.upgrade:
        if options.only:
            raise BadInput.of("only-with-upgrade", name=options.only[0])
        return _signed(_lock(options, chosen, note), key)
    upgrade = plan_upgrade(options, note)
    with tempfile.TemporaryDirectory(prefix="rocstack-") as folder:
        if upgrade.changes:
            chosen = upgraded(chosen, upgrade, Path(folder))
        return _signed(replace(_lock(options, chosen, note, upgrade), upgrade=upgrade), key)


def _signed(made: Locked, key: SigningKey | None) -> Locked:
    return replace(made, signature=signatures.sign(made.file, key)) if key else made


def _write(file: Path, made: Lock, note: Note) -> None:
    """A signature beside it stays if it is of these bytes."""
    data, signature = made.to_text(), signatures.beside(file)
    if signature.exists() and not (file.is_file() and file.read_bytes() == data.encode()):
        signature.unlink()
        note(f"{signature} is removed: it was not of this lock; `rocstack lock --sign KEY` signs it")
    files.write(file, data)


def _lock(options: LockOptions, chosen: Settings, note: Note, upgrade: Upgrade | None = None) -> Locked:
    plan = join(chosen, methods=options.methods)
    refuse_broken(plan)
    value = plan.resolved
    if chosen.sources:
        sources.pinned(value, Path(chosen.sources).expanduser())
    client = engine.connect()
    start = bases.ensure(client, value.stack, chosen, note)
    if options.keep_packages and value.needs_reading:
        why = "what this stack takes is known when its base was read: `rocstack build --keep-packages` keeps it"
        raise BadInput.of("no-combination", why=why)
    made = _make_all(value, start, chosen)
    if options.keep_packages:
        plans = [(plan, made), *((join(chosen, role=role), lock) for role, lock in made.further.items())]
        for own, lock in plans:
            based = own.resolved.model_copy(update={"base": start.reference})
            _keep(replace(own, resolved=based, lock=lock), start, options.keep_packages, note)
    for path in (shipped(value.stack), options.to):
        before = None
        with suppress(BadInput):  # a damaged lock is replaced
            before = read(path)
            refuse_other_keys(value.stack, before, path, made)
    if upgrade and upgrade.changes:
        upgrade.file.parent.mkdir(exist_ok=True)
        files.write(upgrade.file, upgrade.text)
    _write(options.to, made, ignore if options.sign else note)
    if before is None:
        return Locked(made, options.to)
    packages, wheels = ({each.name: each.version for each in part} for part in (made.packages, made.wheels))
    return Locked(made, options.to, tuple(drift(before, packages, wheels)))


def _refuse_place(file: Path) -> None:
    if not file.parent.is_dir() or file.is_dir() or not os.access(file.parent, os.W_OK):
        raise BadInput.of("lock-elsewhere", file)


def _make_all(value: Resolved, start: BaseImage, chosen: Settings) -> Lock:
    """With the locks of further images."""
    further = {role: _make(join(chosen, role=role).resolved, start, chosen) for role in value.stack.further}
    return _make(value, start, chosen).model_copy(update={"further": further})


def _make(value: Resolved, start: BaseImage, chosen: Settings) -> Lock:
    if chosen.sources:
        value = sources.pinned(value, Path(chosen.sources).expanduser())
    return pinning.make(value, start, site.of(chosen))

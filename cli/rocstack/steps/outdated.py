"""What is newer in a stack's sources than in its lock, and the upgrade to it."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocstack.base import document, paths
from rocstack.base.errors import BadInput, CheckFailed, hinted
from rocstack.edge import engine, files
from rocstack.image import base_image as bases
from rocstack.image import newest, pinning
from rocstack.settings import site
from rocstack.settings.settings import Settings
from rocstack.stack import newer, rules, stack
from rocstack.stack.lock import Lock, wheel_of
from rocstack.stack.newer import AptNews, Newer
from rocstack.stack.resolve import Resolved
from rocstack.stack.stack import Stack
from rocstack.steps.image_plan import join, lock_of, refuse_broken
from rocstack.steps.options import LOCK, LockOptions, Note, OutdatedOptions, ignore, settings


@dataclass(frozen=True)
class Outdated:
    """What is newer, by importance, and what was not looked up."""

    stack: str
    lock: str  # its hash
    base: str
    rows: tuple[Newer, ...]
    gone: tuple[str, ...]  # locked packages that no index has
    security: bool  # whether the stack's sources say which versions fix a security fault
    resolved: Resolved = field(repr=False)
    news: AptNews = field(repr=False)
    locked: Lock = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        return {
            "stack": self.stack,
            "lock": self.lock,
            "security_looked_up": self.security,
            "gone": list(self.gone),
            "newer": [each.model_dump() for each in self.rows],
        }


def outdated(options: OutdatedOptions = OutdatedOptions(), note: Note = ignore) -> Outdated:
    """Compares a lock with what the stack's sources have now. Changes nothing.

    Raises:
        BadInput: something is wrong with stack, NIC, overlay or lock; there is no lock.
        CheckFailed: apt can't resolve something; a mirror does not answer.
        Missing: no engine.
    """
    chosen = settings(options)
    resolved = join(chosen, methods=options.methods).resolved
    own = resolved.stack
    lock = lock_of(own, options.lock, chosen)
    if lock is None:
        raise BadInput.of("nothing-to-compare", stack=own.name)
    client = engine.connect()
    base, place, known = bases.ensure(client, own, chosen, note), site.of(chosen), rules.load()
    note("asking apt, inside the base image")
    news = newest.ask_apt(resolved, lock, base, place)
    rows = newer.of_packages(resolved, lock, news, known)
    rows += [*newer.of_sources(resolved, news, known), *newer.of_repositories(resolved)]
    rows += newest.of_base(client, lock)
    rows += _wheels(resolved, lock, chosen, note)
    return Outdated(
        stack=own.name,
        lock=lock.digest(),
        base=base.reference,
        rows=newer.ordered(rows),
        gone=news.gone,
        security=news.knows_security,
        resolved=resolved,
        news=news,
        locked=lock,
    )


def _wheels(resolved: Resolved, lock: Lock, chosen: Settings, note: Note) -> list[Newer]:
    own, place, known, out = resolved.stack, site.of(chosen), rules.load(), []
    named = {name: version for name, version, _ in pinning.own_wheels(own)}
    if not named:
        return []
    note("asking pip for the wheels")
    found = newest.versions(own, place)
    for name, version in named.items():
        answer = found[name]
        if isinstance(answer, str):
            out.append(Newer(name=name, kind="wheel", locked=version, rules="not looked up", why=answer))
        elif (row := newer.of_wheel(resolved, name, version, answer, known)).newer != version:
            out.append(row)
    if any(row.rules == "not looked up" for row in out):
        why = "what they need is known only with all of them"
        return [*out, Newer(name="other wheels", kind="wheel", locked="", rules="not looked up", why=why)]
    return out + newer.of_other_wheels(lock, pinning.resolve_wheels(own, place), named)


@dataclass(frozen=True)
class VersionChange:
    """A version that an upgrade changed; `refused` says why a newer one was left alone."""

    name: str
    before: str
    after: str
    refused: str = ""


@dataclass(frozen=True)
class Upgrade:
    """A stack with newer versions."""

    file: Path
    text: str
    changes: tuple[VersionChange, ...]
    refused: tuple[VersionChange, ...]

    def to_dict(self) -> dict[str, Any]:
        refused = [{"name": each.name, "newer": each.after or None, "why": each.refused} for each in self.refused]
        changes = [{"name": each.name, "before": each.before, "after": each.after} for each in self.changes]
        return {"file": str(self.file), "changes": changes, "refused": refused}


def plan_upgrade(options: LockOptions, note: Note = ignore) -> Upgrade:
    """The newest versions that the rules and pip allow, in the stack's own file. Writes nothing.

    Raises:
        BadInput: as `outdated`; the stack isn't the user's to change; no such component.
        CheckFailed: as `outdated`; apt has nothing but what breaks a rule.
        Missing: as `outdated`.
    """
    chosen = settings(options)
    own = join(chosen, methods=options.methods).resolved.stack
    file = _own_file(chosen)
    named = {wheel_of(name): name for name in own.components} | {name: name for name in own.wheels}
    for name in options.only:
        if name not in {*named, *named.values()}:
            raise BadInput.of("no-such-component", stack=own.name, name=name, hint=hinted(name, {*named.values()}))
    wanted = {named.get(name, name) for name in options.only or named.values()}
    given = {name: getattr(options, name) for name in ("nic", "stack", "overlay", "methods")}
    seen = outdated(OutdatedOptions(**given, lock=options.to if options.to.exists() else LOCK), note)
    changes, refused = _by_apt(seen, wanted)
    wheels, held = _by_pip(seen, wanted, chosen)
    changes, refused = [*changes, *wheels], [*refused, *held]
    text = Path(stack.read(chosen.stack, chosen.overlay_folder()).path).read_text()
    return Upgrade(file, document.with_values(text, _values(own, changes)), tuple(changes), tuple(refused))


def _by_apt(seen: Outdated, wanted: Collection[str]) -> tuple[list[VersionChange], list[VersionChange]]:
    """An index holds one version of a package, so what it has is what an image gets."""
    changes = list[VersionChange]()
    for name, version in newer.moved_components(seen.resolved, seen.locked, seen.news).items():
        says, why = newer.judge(seen.resolved, {name: version}, rules.load())
        if says == "refused":
            raise CheckFailed.of("apt-breaks-rule", name=name, version=version, why=why)
        if name in wanted:
            changes.append(VersionChange(name, seen.resolved.stack.components[name].version, version))
    unseen = [row for row in seen.rows if row.rules == "not looked up" and row.name in wanted]
    return changes, [VersionChange(row.name, row.locked, "", f"not looked up: {row.why}") for row in unseen]


def _by_pip(
    seen: Outdated, wanted: Collection[str], chosen: Settings
) -> tuple[list[VersionChange], list[VersionChange]]:
    """Pip takes the newest set of wheels that goes together, up to what the rules allow."""
    own = seen.resolved.stack
    changes, refused = list[VersionChange](), list[VersionChange]()
    rows = {row.name: row for row in seen.rows if row.kind == "wheel" and row.newer and row.name in wanted}
    named = {wheel_of(name) if name in own.components else name: row for name, row in rows.items()}
    for row in rows.values():
        if row.rules == "refused":
            refused.append(VersionChange(row.name, row.locked, row.newer or "", row.why))
    bounds = {wheel: _bounds(row) for wheel, row in named.items() if row.allowed}
    if not bounds:
        return changes, refused
    reports = pinning.ask_pip(own, site.of(chosen), bounds)
    found = {wheel.name: wheel.version for wheel in pinning.wheels_of(reports, own)}
    for wheel, row in named.items():
        if row.allowed and found[wheel] != row.locked:
            changes.append(VersionChange(row.name, row.locked, found[wheel]))
        if row.allowed and found[wheel] != row.allowed:
            why = newer.held_by(wheel, row.allowed, reports, own.python)
            refused.append(VersionChange(row.name, found[wheel], row.allowed, why))
    return changes, refused


def _bounds(row: Newer) -> str:
    least, most = (str(text).partition("+")[0] for text in (row.locked, row.allowed))
    return f">={least},<={most}"


def _values(own: Stack, changes: Collection[VersionChange]) -> dict[document.Path_, str]:
    """Where the stack's file says them. Another way to get a component from the same source package goes with it."""
    out: dict[document.Path_, str] = {}
    for each in changes:
        if each.name not in own.components:
            out["wheels", each.name] = each.after
            continue
        out["components", each.name, "version"] = each.after
        for index, other in enumerate(own.alternatives.get(each.name, ())):
            if other.source and other.version == each.before:
                out["alternatives", each.name, index, "version"] = each.after
    return out


def _own_file(chosen: Settings) -> Path:
    """The file that an upgrade changes.

    Raises:
        BadInput: the stack came with rocstack's package, and there is no overlay for a copy of it.
    """
    folder = chosen.overlay_folder()
    file = Path(stack.read(chosen.stack, folder).path)
    if file.resolve().parent != (paths.images() / "stacks").resolve():
        return file
    if folder:
        return folder / "stacks" / file.name
    if paths.packaged():
        raise BadInput.of("stack-not-yours", stack=file.stem)
    return file


def upgraded(chosen: Settings, plan: Upgrade, folder: Path) -> Settings:
    """The settings for the new stack, which is written to `folder` for that, under its own name.

    Raises:
        BadInput: its versions break a rule together, or contradict what else the file says.
    """
    copy = folder / plan.file.name
    files.write(copy, plan.text)
    new = chosen.model_copy(update={"stack": str(copy)})
    refuse_broken(join(new))
    return new

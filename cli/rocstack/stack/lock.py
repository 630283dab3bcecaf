"""The lock: the resolved versions, digests and sha256 of a stack."""

import hashlib
import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from rocstack.base import paths
from rocstack.base.errors import BadInput, CheckFailed
from rocstack.base.words import ImageRef, Line, Name, Package, PlainUrl, Sha256, Value, Version
from rocstack.stack.stack import FURTHER, UNREAD, AptRepository, ComponentChoice, Role, SourceArchive, Stack

FILE = "rocstack.lock"


class LockedBase(Value):
    image: ImageRef
    how: Literal["registry", "mmdebstrap"]
    digest: Line  # of the image, as the registry or the engine names it


class LockedPackage(Value):
    name: Package
    version: Version
    sha256: Sha256 | None = None


class LockedWheel(Value):
    name: Name
    version: Version
    sha256: tuple[Sha256, ...]
    index: PlainUrl | None = None  # where it is, if not in the default one


class LockedSource(Value):
    component: Name
    version: Version
    url: PlainUrl | None = None
    package: Package | None = None
    sha256: Sha256


class LockedKey(Value):
    """The key that signs a repository, as it was when the stack was locked first."""

    repository: Name
    url: PlainUrl
    sha256: Sha256


class Lock(Value):
    """`further` are the locks of a stack's further images, by role."""

    format: Literal[1] = 1
    stack: Name
    definition: Sha256  # of the stack the lock was made from
    base: LockedBase | None = None
    packages: tuple[LockedPackage, ...] = ()
    wheels: tuple[LockedWheel, ...] = ()
    sources: tuple[LockedSource, ...] = ()
    keys: tuple[LockedKey, ...] = ()
    further: dict[Role, "Lock"] = {}

    def digest(self) -> str:
        """The lock hash of the labels: sha256 over the whole lock, but for further images, whose locks have their
        own."""
        return hashlib.sha256(self.model_copy(update={"further": {}}).to_text().encode()).hexdigest()

    def source(self, component: str, url: str | None) -> LockedSource | None:
        """What is locked of a component: the archive at that URL, or its source package."""
        return next((each for each in self.sources if (each.component, each.url) == (component, url)), None)

    def to_text(self) -> str:
        data = self._plain()
        if self.further:
            data["further"] = {role: lock._plain() for role, lock in self.further.items()}
        return json.dumps(data, indent=1, sort_keys=True) + "\n"

    def _plain(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True, exclude={"further"} if self.keys else {"further", "keys"})

    def requirements(self, gfx: Collection[str]) -> tuple[str, ...]:
        """The wheels as pip's requirements files with hashes, one for each index; the default one's has no index. Of
        those with one target's kernels, those of these targets."""
        sets: dict[str, list[str]] = {}
        for wheel in self.wheels:
            if not _is_for(wheel.name, gfx):
                continue
            hashes = " ".join(f"--hash=sha256:{value}" for value in wheel.sha256)
            own = sets.setdefault(wheel.index or "", [f"--index-url {wheel.index}"] if wheel.index else [])
            own.append(f"{wheel.name}=={wheel.version} {hashes}")
        return tuple("\n".join(lines) + "\n" for _, lines in sorted(sets.items()))


def definition_digest(stack: Stack) -> str:
    """sha256 of what decides which packages, wheels and sources a lock holds."""
    chosen = stack.model_dump(
        mode="json",
        include={"base", "python", "components", "repositories", "wheels", "provided"},
        exclude_defaults=True,
    )
    # One lock serves a stack whichever of its alternatives is taken.
    for name, others in stack.alternatives.items():
        choices = [choice.model_dump_json(exclude_defaults=True) for choice in (stack.components[name], *others)]
        chosen["components"][name] = sorted(choices)
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()


def _is_for(wheel: str, gfx: Collection[str]) -> bool:
    """Whether one of these targets needs it: a wheel of kernels names its target, or a family of them (gfx115x)."""
    found = re.search(r"-device-(gfx[0-9a-f]+)(x?)$", wheel)
    return not found or any(each.startswith(found[1]) if found[2] else each == found[1] for each in gfx)


def wheel_of(component: str) -> str:
    """The name of the wheel that a component comes as."""
    return "torch" if component == "pytorch" else component


def source_sha256(component: str, source: ComponentChoice | SourceArchive, lock: Lock | None) -> str | None:
    """What a source of `component` must hash to: an upstream archive itself, or a source package's .dsc
    (which names the sha256 of its files). None where neither stack nor lock says so."""
    locked = lock.source(component, source.url) if lock else None
    return source.sha256 or (locked.sha256 if locked else None)


def key_sha256(repository: AptRepository, lock: Lock | None) -> str | None:
    """What the key of a repository must hash to, where stack or lock says so."""
    keys = lock.keys if lock else ()
    known = (key.sha256 for key in keys if (key.repository, key.url) == (repository.name, repository.key))
    return repository.key_sha256 or next(known, None)


def unpinned(stack: Stack, lock: Lock | None) -> tuple[str, ...]:
    """What no build may start without: keys, archives and wheels whose sha256 neither stack nor lock says.
    A source package counts as pinned: apt checks it against the distribution's signed index."""
    indexes = {wheel_of(n): c.index for n, c in stack.components.items() if c.method == "wheel"}
    locked = {each.name for each in lock.wheels if each.index == indexes.get(each.name, each.index)} if lock else set()
    keys = [f"the key of repository {each.name}" for each in stack.repositories if not key_sha256(each, lock)]
    archives = [
        name if each.url == choice.url else f"{name}'s {each.file}"
        for name, choice in stack.components.items()
        for each in choice.archives
        if not source_sha256(name, each, lock)
    ]
    wheels = [wheel_of(n) for n, c in stack.components.items() if c.method == "wheel"]
    # Of a wheel with kernels in wheels of their own: those of each target.
    kernels = [
        f"{wheel_of(n)}[{extra}]"
        for n, c in stack.components.items()
        for template in c.extras
        for extra in stack.each(template)
        if extra != template and not any(each.endswith(f"-{extra}") for each in locked)
    ]
    return tuple(keys + archives + [name for name in (*wheels, *stack.wheels) if name not in locked] + kernels)


def read(path: Path) -> Lock:
    """Reads a lock file.

    Raises:
        BadInput: it can't be read, or it is no lock.
    """
    return _parsed(path, _content(path))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput.of("unreadable-lock", path=path, problem=error.strerror) from None


def _parsed(path: Path, data: bytes) -> Lock:
    try:
        return Lock.model_validate_json(data.decode("utf-8"))
    except (UnicodeDecodeError, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "not UTF-8"}
        at = ".".join(str(part) for part in first["loc"])
        raise BadInput.of("bad-lock", path, problem=f"{at + ': ' if at else ''}{first['msg']}") from None


def shipped(stack: Stack) -> Path:
    """Where a lock that ships with the stack would be."""
    return paths.images() / "stacks" / f"{stack.name}.lock"


def for_stack(stack: Stack, file: Path | None, check: Callable[[Path, bytes], object] | None = None) -> Lock | None:
    """The lock of `stack`: the user's file if it is there, else the one that ships with the stack. `check` gets the
    bytes of the user's file before they are parsed, and raises what is wrong with them.

    Raises:
        BadInput: the lock was made from another stack, or from another state of this one; a file that was named
            is not there.
    """
    if file and file != Path(FILE) and not file.exists():
        raise BadInput.of("no-lock-file", path=file)
    path = file if file and file.exists() else shipped(stack)
    if not path.exists():
        return None
    data = _content(path)
    if check and path == file:
        check(path, data)
    lock = _parsed(path, data)
    if lock.stack != stack.name:
        if path == file:
            raise BadInput.of("lock-of-other-stack", path, locked=lock.stack, stack=stack.name)
        return None
    if stack.roles[0] in FURTHER:
        own = lock.further.get(stack.roles[0])
        if own is None and lock.definition == definition_digest(stack):
            own = lock  # as the image's own provenance has it
        if own is None:
            return None
        lock = own
    if lock.definition != definition_digest(stack):
        locked = {wheel.name: wheel.version for wheel in lock.wheels}
        changes = (
            f" (wheel {name}: stack {version}, lock {locked.get(name, 'none')})"
            for name, version in stack.wheels.items()
            if locked.get(name) != version
        )
        raise BadInput.of("lock-mismatch", path, stack=stack.name, change=next(changes, ""))
    return lock


class Drift(Value):
    """One thing the world has at another version than the lock."""

    what: Line
    locked: Line
    found: Line


def against_stack(stack: Stack, versions: dict[str, str]) -> tuple[Drift, ...]:
    """Components whose version, as read in the image, is not the one the stack names."""
    return tuple(
        Drift(what=name, locked=choice.version, found=versions[name])
        for name, choice in stack.components.items()
        if name in versions
        and choice.version != UNREAD
        and versions[name].split("+")[0] != choice.version.split("+")[0]
    )


def base_drift(lock: Lock, how: str, digest: str) -> tuple[Drift, ...]:
    """A registry's base at another digest. One made by mmdebstrap has no lasting digest; its packages are compared."""
    if lock.base and lock.base.how == how == "registry" and lock.base.digest != digest:
        return (Drift(what=f"base image {lock.base.image}", locked=lock.base.digest, found=digest),)
    return ()


def drift(lock: Lock, packages: dict[str, str], wheels: dict[str, str]) -> tuple[Drift, ...]:
    """What an image holds at other versions than the lock names. Packages the image lacks are not drift:
    the two roles hold different sets."""
    pinned = [(each.name, each.version, packages.get(each.name)) for each in lock.packages]
    pinned += [(f"{each.name} (wheel)", each.version, wheels.get(each.name)) for each in lock.wheels]
    return tuple(
        Drift(what=what, locked=locked, found=found)
        for what, locked, found in pinned
        if found is not None and found != locked
    )


def refuse_other_keys(stack: Stack, before: Lock, path: Path, now: Lock) -> None:
    """A key stays what it was when the stack was locked first, or what the stack itself says: packages are locked anew
    every week, and among their changes nobody would see it.

    Raises:
        CheckFailed: a repository's key is another.
    """
    own = {repository.name for repository in stack.repositories if repository.key_sha256}
    known = {(key.repository, key.url): key.sha256 for key in before.keys}
    for key in now.keys:
        found, locked = key.sha256, known.get((key.repository, key.url), key.sha256)
        if key.repository not in own and found != locked:
            raise CheckFailed.of("other-key", path, repository=key.repository, url=key.url, locked=locked, found=found)

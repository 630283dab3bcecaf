"""Puts together what a bundle consists of: all of its release and of rocstack, or what an earlier one doesn't have."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rocstack.base import __version__, paths
from rocstack.base.errors import CheckFailed
from rocstack.bundle.collect import BundleContent
from rocstack.bundle.format import BundleMember, BundleRecord
from rocstack.bundle.kit import RocstackKit, is_kit
from rocstack.bundle.relocatable import NAME
from rocstack.bundle.write import BundlePart

_WORD = re.compile(r"[A-Za-z0-9.:_+/-]*")


@dataclass(frozen=True)
class AssembledBundle:
    record: BundleRecord
    script: bytes
    parts: Mapping[str, BundlePart]  # by path
    layers: int  # bytes of the images' layers in it

    @property
    def kit(self) -> int:
        """Bytes of Python and wheels in it."""
        return sum(each.size for each in self.record.members if is_kit(each.path))


def assemble(content: BundleContent, kit: RocstackKit, earlier: BundleRecord | None = None) -> AssembledBundle:
    """Manifests, signatures and attestations are never left out: a delta is checked by itself."""
    parts = {**content.parts, **kit.parts}
    there = {(each.path, each.sha256) for each in earlier.whole()} if earlier else set()
    may = content.layers | kit.parts.keys()
    absent = {path for path in may if (path, parts[path].member.sha256) in there}
    release = content.proved.release
    since = earlier.release if earlier and absent else None
    glibc, tag = ".".join(map(str, kit.glibc)), release.promoted or release.tag
    script = install_script(tag, release.created, kit.python.architecture, glibc, _sorted(parts.values()), since)
    record = BundleRecord(
        release=tag,
        created=release.created,
        rocstack=__version__,
        architecture=kit.python.architecture,
        glibc=glibc,
        python=kit.python.version,
        install=hashlib.sha256(script).hexdigest(),
        members=_sorted(part for path, part in parts.items() if path not in absent),
        since=since,
        absent=_sorted(parts[path] for path in absent),
    )
    layers = sum(each.size for each in record.members if each.path in content.layers)
    return AssembledBundle(record, script, parts, layers)


def install_script(
    release: str, created: str, architecture: str, glibc: str, members: tuple[BundleMember, ...], since: str | None
) -> bytes:
    """The first member. `members` are all of the bundle, also those that a delta leaves out.

    Raises:
        CheckFailed: a name isn't one that can stand in a script.
    """
    kit = [each for each in members if is_kit(each.path)]
    parts = "\n".join(f"{each.sha256}  {each.path}" for each in kit)
    name = hashlib.sha256(parts.encode()).hexdigest()[:16]
    values = {"RELEASE": release, "CREATED": created, "ARCHITECTURE": architecture, "GLIBC": glibc}
    values |= {"PYTHON": NAME, "KIT": name}
    for word in (*values.values(), since or "", *(each.path for each in kit)):
        if not _WORD.fullmatch(word):
            raise CheckFailed.of("bundle-incoherent", file=release, why=f"{word!r:.200} is no word for a script")
    text = (paths.images() / "bundle/install.sh").read_text()
    for key, value in (values | {"SINCE": since or "''", "PARTS": parts}).items():
        text = text.replace(f"@{key}@", value)
    return text.encode()


def _sorted(parts: Iterable[BundlePart]) -> tuple[BundleMember, ...]:
    return tuple(sorted((part.member for part in parts), key=lambda member: member.path))

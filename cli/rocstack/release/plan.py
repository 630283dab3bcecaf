"""release.yml: the images of a release, where they are published, and the keys that sign them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from rocstack.base import document, image_names
from rocstack.base.document import Document
from rocstack.base.errors import BadInput, Where, nearest
from rocstack.base.image_names import registry_text
from rocstack.base.words import AtKey, Line, Name, Sha256, Tag, Value, Version
from rocstack.stack.component import ROLES, Role

FILE = "release.yml"
LATEST = "latest"
STABLE = "stable"  # what a release is promoted to by default
RESERVED = (LATEST, STABLE)
WEEK = re.compile(r"20\d\d\.\d\d")


class ReleaseEntry(Value):
    """The images of one stack for one NIC."""

    stack: Line  # a name of `rocstack stacks`, or a .yml file
    nic: Name
    name: Tag | None = None  # its tags are <name>-<release>; default: <stack>-<nic>
    default: bool = False  # the one that the bare release's tag names
    roles: tuple[Role, ...] = Field(ROLES, min_length=1)
    lock: Line | None = None  # default: rocstack.lock here if it is of this stack, else the one that ships with it
    methods: tuple[Line, ...] = ()  # COMPONENT=METHOD, as --with
    gfx: Line | None = None  # GPU targets instead of the stack's
    profiles: Line | None = None  # node profiles that the images must fit
    sources: Line | None = None  # folder of upstream archives
    nic_source: Line | None = None  # the vendor's bundle or library sources: a file, folder, or http(s) address
    nic_sha256: Sha256 | None = None  # of what is at that address
    nic_releases: tuple[Version, ...] = ()  # releases of the vendor's driver to build for, one provider per kernel ABI
    nic_plugin: Line | None = None  # source of RCCL's plugin

    @property
    def nic_from_url(self) -> bool:
        return (self.nic_source or "").startswith(("http://", "https://"))

    @property
    def variant(self) -> str:
        own = Path(self.stack).stem if self.stack.endswith((".yml", ".yaml")) else self.stack
        return self.name or f"{own}-{self.nic}"


class ReleasePlan(Value):
    """release.yml. Paths are relative to the folder of the file."""

    registry: Annotated[str, Field(min_length=1), AfterValidator(registry_text)] | None = None  # default: `push`
    keys: tuple[Line, ...] = ()  # private keys that sign; the public ones lie beside them
    trusted: tuple[Line, ...] = ()  # public keys that are trusted; default: those of `keys`
    password_file: Line | None = None  # with the password of the private keys; default: it is asked for
    images: tuple[ReleaseEntry, ...] = Field(min_length=1, max_length=100)

    @model_validator(mode="after")
    def _unlike(self) -> ReleasePlan:
        seen: dict[str, int] = {}
        for at, entry in enumerate(self.images):
            if entry.variant in seen:
                raise AtKey(("images", at), f"has the tags of the {_ordinal(seen[entry.variant])}: give it a `name`")
            seen[entry.variant] = at
            if entry.nic_releases and not entry.nic_source:
                raise AtKey(("images", at, "nic_releases"), "needs `nic_source`, where these releases are")
            if entry.nic_from_url != bool(entry.nic_sha256):
                key = "nic_source" if entry.nic_from_url else "nic_sha256"
                problem = (
                    "an address needs `nic_sha256`" if entry.nic_from_url else "is of a `nic_source` at an address"
                )
                raise AtKey(("images", at, key), problem)
            if len(set(entry.roles)) < len(entry.roles):
                raise AtKey(("images", at, "roles"), "names a role twice")
        bare = [at for at, entry in enumerate(self.images) if entry.default]
        if len(bare) > 1:
            raise AtKey(("images", bare[1], "default"), "only one entry can have the bare release's tag")
        return self


@dataclass(frozen=True)
class ReleaseFile:
    """A plan, and the lines of its file."""

    plan: ReleasePlan
    path: Path
    doc: Document

    @classmethod
    def load(cls, path: Path) -> ReleaseFile:
        """
        Raises:
            BadInput: it isn't there, or something in it is wrong, with its line.
        """
        if not path.exists():
            others = sorted(each.name for each in path.absolute().parent.glob("*.y*ml"))
            near = nearest(path.name, others)
            raise BadInput.of("no-release-file", path=path, hint=f": did you mean '{near}'?" if near else "")
        doc = document.read(path)
        return cls(doc.validate(ReleasePlan), path, doc)

    def path_of(self, text: str) -> Path:
        given = Path(text).expanduser()
        return given if given.is_absolute() else self.path.parent / given

    def where(self, *keys: str | int) -> Where:
        return self.doc.where(keys)


def tags(entry: ReleaseEntry, release: str) -> tuple[str, ...]:
    """Of an entry's images in a release: `<variant>-<release>`, and the bare one for the default entry.

    Raises:
        BadInput: no tag, too long for one, or one that means something else.
    """
    if release in RESERVED or re.match(r"(c|i|sha256)-", release):
        raise BadInput.of("reserved-tag", tag=release)
    return image_names.variant_tags(entry.variant, release, bare=entry.default)


def newest(names: Sequence[str]) -> str | None:
    """The last week among tags."""
    return max((name for name in names if WEEK.fullmatch(name)), default=None)


def _ordinal(at: int) -> str:
    return f"entry in place {at + 1}"

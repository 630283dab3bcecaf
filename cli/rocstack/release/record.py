"""release.json: what a release consists of; and its notes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import ValidationError

from rocstack.base.text import count, from_json, listed, visible
from rocstack.base.words import ImageId, Line, Name, Sha256, Tag, Value
from rocstack.stack.component import Role

SCHEMA: Literal[1] = 1
LARGEST = 12 << 20  # bytes


class ReleasedImage(Value):
    """One image. Sizes are bytes."""

    stack: Name
    nic: Name
    way: Line  # how the NIC's provider gets in
    role: Role
    variant: Tag
    repository: Line  # host/name
    digest: ImageId
    id: ImageId  # on an engine
    inputs: Sha256  # of all that was decided before the build
    lock: Sha256
    content: Sha256
    size: int  # uncompressed, of all files
    compressed: int  # of all layers, as nodes pull them
    versions: dict[str, Line]  # component -> version
    packages: dict[str, Line]  # of the distribution, and wheels
    tags: tuple[Tag, ...]

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.digest}"

    @property
    def called(self) -> str:
        return f"{self.variant} {self.role}"


class Vulnerabilities(Value):
    """`state` is never "none": what was not looked up is unknown."""

    state: Literal["not looked up"] = "not looked up"
    why: Line = "rocstack reads no vulnerability data; give the attested SBOM of each image to a scanner"


class ReleaseRecord(Value):
    """The images published together under one tag."""

    schema_version: Literal[1] = SCHEMA
    tag: Tag
    created: Line  # UTC, ISO 8601
    rocstack: Line
    registry: Line
    previous: Tag | None = None
    promoted: Tag | None = None  # the name that it was promoted to, which `images` have as their tags
    images: tuple[ReleasedImage, ...]
    vulnerabilities: Vulnerabilities = Vulnerabilities()

    @property
    def named(self) -> str:
        return f"{self.tag}, promoted to {self.promoted}" if self.promoted else self.tag

    def dumps(self) -> str:
        return self.model_dump_json(indent=1) + "\n"


def loads(data: bytes) -> ReleaseRecord:
    """
    Raises:
        ValueError: it is no release.json; in a short sentence.
    """
    if len(data) > LARGEST:
        raise ValueError(f"it has more than {LARGEST >> 20} MB")
    try:
        from_json(data)  # its numbers and its depth
        return ReleaseRecord.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))[:80]}: {first['msg'][:120]}".removeprefix(": ")) from None


def changes(before: ReleaseRecord | None, now: ReleaseRecord) -> dict[str, tuple[str, ...]]:
    """Of each image of `now`: what is in it at another version than in the release before, each in a few words."""
    old = {(each.variant, each.role): each for each in before.images} if before else {}
    return {each.called: tuple(_changes(old.get((each.variant, each.role)), each)) for each in now.images}


def _changes(old: ReleasedImage | None, new: ReleasedImage) -> Iterator[str]:
    if old is None:
        yield "new in this release"
        return
    if old.digest == new.digest:
        return
    for kind, was, is_now in (("", old.versions, new.versions), ("", old.packages, new.packages)):
        yield from _versions(kind, was, is_now)
    if old.way != new.way:
        yield f"NIC provider: {old.way} -> {new.way}"
    if old.packages == new.packages and old.versions == new.versions:
        yield "the same versions, built again"


def _versions(kind: str, was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(was.keys() | now.keys()):
        before, after = was.get(name), now.get(name)
        if before != after:
            yield f"{kind}{name}: {before or 'not there'} -> {after or 'gone'}"


def notes(release: ReleaseRecord, before: ReleaseRecord | None, keys: Sequence[str], measured: str = "") -> str:
    """Release notes, Markdown. `keys` are the signers' fingerprints, `measured` a section of its own."""
    lines = [f"# Release {release.tag}", ""]
    what = f"{count(len(release.images), 'image')}, made by rocstack {release.rocstack} on {release.created}."
    table = "| image | tags | compressed | unpacked | digest |"
    lines += [what, "", "## Images", "", table, "| --- | --- | --- | --- | --- |"]
    for each in release.images:
        tags = ", ".join(f"`{tag}`" for tag in each.tags)
        sizes = f"{each.compressed / 1e6:.0f} MB | {each.size / 1e6:.0f} MB"
        lines.append(f"| `{each.repository}` | {tags} | {sizes} | `{each.digest}` |")
    lines += ["", "## Versions", ""]
    names = sorted({name for each in release.images for name in each.versions})
    heads = [each.called for each in release.images]
    lines += [f"| component | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for name in names:
        cells = [_cell(each.versions.get(name, "")) for each in release.images]
        lines.append(f"| {_cell(name)} | {' | '.join(cells)} |")
    ways = [_cell(each.way) if each.role == "worker" else "" for each in release.images]
    lines += [f"| way of the NIC's provider | {' | '.join(ways)} |", ""]
    lines += [f"## Changes since {before.tag}", ""] if before else ["This is the first release.", ""]
    for called, found in changes(before, release).items() if before else ():
        shown = listed(found, 40) if found else "nothing: the same image"
        lines.append(f"- {called}: {_cell(shown)}")
    if before:
        gone = {(each.variant, each.role) for each in before.images} - {(e.variant, e.role) for e in release.images}
        lines += [f"- {variant} {role}: not in this release any more" for variant, role in sorted(gone)]
    lines += [
        *([""] if before else []),
        *([measured] if measured else []),
        "## Vulnerabilities",
        "",
        f"{release.vulnerabilities.state}: {release.vulnerabilities.why}.",
        "",
    ]
    example = release.images[0].reference
    lines += ["## Check", "", "Signed by:", ""]
    lines += [f"- `{key}`" for key in keys]
    lines += [
        "",
        "```sh",
        f"rocstack release verify {release.tag} --registry {release.registry} --key release.pub",
        f"cosign verify --key release.pub --insecure-ignore-tlog=true {example}",
        "```",
        "",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return visible(text).replace("|", "\\|").replace("<", "&lt;")

"""What two images of the same inputs differ in: layer by layer, file by file, by cause. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Literal

from rocstack.base.words import Value
from rocstack.release.layer_files import LayerFile, LayerFiles

How = Literal["changed", "only in the first", "only in the second"]
NOTHING = LayerFiles({})
# Marks of what a layer takes away, in the OCI image specification: a file, or all that lies below in a folder.
GONE, EMPTIED = ".wh.", ".wh..wh..opq"
# What a file is, where no package at another version explains it. The first that matches.
CAUSES = (
    ("byte code", r".*\.pyc"),
    ("log", r"var/log/.*"),
    ("the loader's cache", r"etc/ld\.so\.cache|var/cache/ldconfig/.*"),
    ("the image's manifest", r"etc/rocstack/manifest\.json"),
    ("accounts", r"etc/(passwd|group|shadow|gshadow|subuid|subgid)-?"),
    ("dpkg's database", r"var/lib/(dpkg|apt)/.*|var/cache/(apt|debconf)/.*"),
    ("machine's identity", r"etc/(machine-id|hostname|hosts|resolv\.conf)|etc/ssh/ssh_host_.*|var/lib/systemd/.*seed"),
)
OTHER = "other"


class FileDifference(Value):
    """One path. `differs` are the names of what differs: kind, content, mode, owner, attributes."""

    path: str
    how: How
    differs: tuple[str, ...] = ()
    cause: str = OTHER


class LayerDifference(Value):
    """One layer of both images. `times` counts files of which only the time of change differs, and what one of the two
    only repeats as it lies below: Docker writes a layer as its engine kept it, or by what differs from the layers below
    (github.com/moby/moby, overlay2, Diff)."""

    layer: int  # from 1, the lowest
    files: int
    times: int = 0
    found: tuple[FileDifference, ...] = ()

    @property
    def same(self) -> bool:
        """By every byte."""
        return not (self.times or self.found)


class MergedLayers:
    """The files of layers that lie one on top of the other."""

    def __init__(self) -> None:
        self._files: dict[str, LayerFile] = {}
        self._filled: set[str] = set()  # folders with something in them

    def add(self, layer: LayerFiles) -> None:
        hides = _hides(layer)
        kept = {path: file for path, file in self._files.items() if not hides(path)}
        own = {path: file for path, file in layer.files.items() if not _is_mark(path)}
        self._files = kept | own
        self._filled = {folder for path in self._files for folder in _above(path)}

    def says(self, path: str, file: LayerFile) -> bool:
        """Whether a layer on top with this file, or mark, would change nothing but times."""
        folder, name = posixpath.split(path)
        if name == EMPTIED:
            return folder not in self._filled
        if name.startswith(GONE):
            return _target(path) not in self._files.keys() | self._filled
        return path in self._files and not [*_differs(self._files[path], file)]


def _hides(layer: LayerFiles) -> Callable[[str], bool]:
    """Whether the layer takes away what lies below it at a path."""
    gone, emptied = set[str](), set[str]()
    for path in layer.files:
        folder, name = posixpath.split(path)
        if name == EMPTIED:
            emptied.add(folder)
        elif _is_mark(path):
            gone.add(_target(path))
    taken = gone | emptied
    return lambda path: path in gone or not taken.isdisjoint(_above(path))


def _is_mark(path: str) -> bool:
    return posixpath.basename(path).startswith(GONE)


def _above(path: str) -> Iterator[str]:
    at = path.rfind("/")
    while at > 0:
        yield path[:at]
        at = path.rfind("/", 0, at)


def _target(path: str) -> str:
    folder, name = posixpath.split(path)
    return posixpath.join(folder, name.removeprefix(GONE))


def compare(
    layer: int, first: LayerFiles, second: LayerFiles, changed: Mapping[str, str], owners: Mapping[str, str],
    below: tuple[MergedLayers, MergedLayers] | None = None,
) -> LayerDifference:  # fmt: skip
    """One layer of two images, and what lies `below` it in each. `changed` says of packages at other versions which,
    `owners` whose a path is."""
    found, times = [], 0
    under_first, under_second = below or (MergedLayers(), MergedLayers())
    first_hides, second_hides = _hides(first), _hides(second)

    def again(path: str, file: LayerFile, under: MergedLayers, hides: Callable[[str], bool]) -> bool:
        return under.says(path, file) and (_is_mark(path) or not hides(path))

    for path in sorted(first.files.keys() | second.files.keys()):
        one, two = first.files.get(path), second.files.get(path)
        if one and two:
            differs = tuple(_differs(one, two))
            if not differs:
                times += one.modified != two.modified
                continue
            found.append(FileDifference(path=path, how="changed", differs=differs))
        elif (one and again(path, one, under_second, second_hides)) or (
            two and again(path, two, under_first, first_hides)
        ):
            times += 1
        else:
            found.append(FileDifference(path=path, how="only in the first" if one else "only in the second"))
    caused = (each.model_copy(update={"cause": _cause(each.path, changed, owners)}) for each in found)
    number = len(first.files.keys() | second.files.keys())
    return LayerDifference(layer=layer, files=number, times=times, found=tuple(caused))


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Packages and wheels at other versions, and these."""
    names = sorted(before.keys() | after.keys())
    return {
        name: f"{before.get(name, 'not there')} -> {after.get(name, 'not there')}"
        for name in names
        if before.get(name) != after.get(name)
    }


def pairs(first: Sequence[str], second: Sequence[str]) -> Iterator[tuple[int, str | None, str | None]]:
    """The layers of both by their place, from 1, those that are the same by every byte left out."""
    for at, (one, two) in enumerate(zip_longest(first, second), 1):
        if one != two:
            yield at, one, two


def by_cause(layers: Sequence[LayerDifference]) -> dict[str, tuple[FileDifference, ...]]:
    """The cause with most files first."""
    every = sorted((each for layer in layers for each in layer.found), key=lambda each: each.cause)
    groups = {cause: tuple(each) for cause, each in groupby(every, key=lambda each: each.cause)}
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))


def _differs(one: LayerFile, two: LayerFile) -> Iterator[str]:
    if one.kind != two.kind:
        yield "kind"
    if (one.size, one.content) != (two.size, two.content):
        yield "content"
    if one.mode != two.mode:
        yield "mode"
    if one.owner != two.owner:
        yield "owner"
    if one.more != two.more:
        yield "attributes"


def _cause(path: str, changed: Mapping[str, str], owners: Mapping[str, str]) -> str:
    path = re.sub(r"(^|/)\.wh\.(?!\.wh\.)|/\.wh\.\.wh\.\.opq$", r"\1", path)  # marks of what is gone
    list_of = re.fullmatch(r"var/lib/dpkg/info/([a-z0-9.+-]+)(?::[a-z0-9]+)?\.[a-z0-9]+", path)
    name = list_of[1] if list_of else owners.get(path) or owners.get(path.removeprefix("usr/"), "")  # merged /usr
    if name in changed:
        return f"{name}: {changed[name]}"
    return next((cause for cause, pattern in CAUSES if re.fullmatch(pattern, path)), OTHER)

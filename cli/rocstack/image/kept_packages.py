"""Kept packages: the .debs, source packages, wheels and archives of a build in a folder, from which it can be made
again when the mirror has moved on.

The folder is a part of the mirror with its signed indexes: apt checks all of it in a build as it checks the mirror.
Wheels, archives and the keys of repositories are compared with the lock.
"""

from __future__ import annotations

import filecmp
import os
import re
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import unquote

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.base.tar_stream import open_tar
from rocstack.base.words import Value
from rocstack.edge import files
from rocstack.image import in_base, pinning, sources
from rocstack.image.base_image import BaseImage
from rocstack.node import files as node_files
from rocstack.settings.site import Site
from rocstack.stack.lock import Lock, source_sha256
from rocstack.stack.resolve import Resolved
from rocstack.stack.stack import SourceArchive

MIRROR, KEYS, WHEELS, SOURCES = "mirror", "keys", "wheels", "sources"
LARGEST, FILES = 16 << 30, 200_000  # bytes of one file, and files and folders of all: a stack has some thousand
SPARE = 1 << 30  # bytes of the disk that stay free, whatever comes
MOST_LINES = 64 << 20  # bytes of a list, which is read whole: a package has some 200
PADDING = 1 << 20  # bytes behind the end of a tar
_INSTALL = re.compile(r"/run/rocstack/build/apt-install((?: \\\n +[^\s\\]+)+)")
_INDEX = re.compile(r"(InRelease|Release|Release\.gpg)")
_DIR = "/tmp/kept"  # in the container
Say = Callable[[str], None]


class KeptPackages(Value):
    """What is in a folder now, and how much of it came with this."""

    debs: int
    wheels: int
    archives: int
    new: int
    size: int  # bytes of all


@dataclass(frozen=True)
class _Row:
    """A package of the mirror, as apt names it."""

    file: str
    sha256: str
    path: str


def sets(dockerfile: str) -> tuple[tuple[str, ...], ...]:
    """What a Dockerfile of ours asks apt for, at each place at which it does. Pure."""
    found = (tuple(re.findall(r"[^\s\\]+", each)) for each in _INSTALL.findall(dockerfile))
    return tuple(dict.fromkeys(found))


def script(
    resolved: Resolved,
    site: Site,
    asked: Iterable[Iterable[str]],
    have: Iterable[str],
    archives: Mapping[SourceArchive, str | None],
) -> str:
    """What runs inside the base image: its output is a tar file. `archives` are fetched, with their sha256. Pure."""
    first, *lines = pinning.preparation(resolved, site)
    before = "cat /etc/apt/sources.list /etc/apt/sources.list.d/* >/tmp/before 2>/dev/null || true"
    out = [first, before, *lines]
    if repo := resolved.nic_repository:
        names = " ".join(resolved.package_names())
        words = [repo.name, repo.uri, repo.suite, " ".join(repo.components), repo.key]
        words += [repo.key_sha256 or "first-use", repo.origin, str(repo.priority), names]
        out += [
            f"{shlex.join(['/run/rocstack/build/apt-repository', *words])} >&2",
            "/run/rocstack/build/apt-update >&2",
        ]
    texts = {
        "sets": "".join(f"{' '.join(each)}\n" for each in asked),
        "sources": "".join(f"{p.choice.source} {p.choice.version}\n" for p in resolved.parts if p.choice.source),
        "have": "".join(f"{each}\n" for each in have),
    }
    out += [f"cat >/tmp/{name} <<'ROCSTACK_END_OF_FILE'\n{text}ROCSTACK_END_OF_FILE" for name, text in texts.items()]
    out.append(f"/run/rocstack/build/keep-packages /tmp/sets /tmp/sources /tmp/have /tmp/before {_DIR} >&2")
    if any(archive.url.startswith("https:") for archive in archives):
        out.append("/run/rocstack/build/apt-install ca-certificates >&2")
    for archive, sha256 in archives.items():
        words = ["/run/rocstack/build/fetch", archive.url, f"{_DIR}/{SOURCES}/{archive.file}"]
        out.append(f"mkdir -p {_DIR}/{SOURCES}; {shlex.join([*words, *([f'SHA256:{sha256}'] if sha256 else [])])} >&2")
    out.append(f"tar -C {_DIR} -c .")
    return "\n".join(out) + "\n"


def keep(
    resolved: Resolved,
    lock: Lock | None,
    dockerfile: str,
    base: BaseImage,
    site: Site,
    folder: Path,
    say: Say,
    given: Path | None = None,
) -> KeptPackages:
    """Brings into `folder` what this Dockerfile takes from mirrors and indexes. What is there already stays and is not
    sent again, archives that are in the folder `given` are copied; nothing is changed before all of it came.

    Raises:
        BadInput: the folder has packages of another state of the mirror, or can't be written.
        CheckFailed: a mirror or index does not answer; it has other packages than the lock names; apt keeps no index.
    """
    refuse_place(folder)
    present = _files(folder / MIRROR)
    say(f"keeping packages in {folder}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _beside(folder) as fresh:
        (fresh / MIRROR).mkdir()
        archives = _archives(resolved, lock, folder / SOURCES, given, fresh / SOURCES)
        _from_mirror(script(resolved, site, sets(dockerfile), present, archives), base, fresh)
        rows, own = _said(fresh)
        if not any(each.name == "Packages" for each in (fresh / MIRROR).rglob("*")):
            raise CheckFailed.of("kept-without-index", base=base.reference)
        if lock:
            _refuse_other(rows, lock)
            _wheels(resolved, lock, site, fresh / WHEELS, folder / WHEELS)
        for file in _files(fresh):
            before = folder / file
            indexed = _INDEX.fullmatch(before.name) and before.exists()
            if indexed and not filecmp.cmp(before, fresh / file, shallow=False):
                raise BadInput.of("kept-other-state", folder)
            if not before.resolve().is_relative_to(folder.resolve()):  # by a link that lies in the folder
                raise BadInput.of("kept-leads-out", before)
        new = 0
        for file in _files(fresh):
            new += not (folder / file).exists()
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(fresh / file, folder / file)
        for place in own[1:]:
            _link((folder / MIRROR).resolve(), place, own[0])
    found = [folder / file for file in _files(folder)]
    kinds = [PurePosixPath(each.relative_to(folder)).parts[0] for each in found]
    debs = sum(each.suffix == ".deb" for each in found)
    size = sum(each.stat().st_size for each in found)
    return KeptPackages(debs=debs, wheels=kinds.count(WHEELS), archives=kinds.count(SOURCES), new=new, size=size)


def check(folder: Path, lock: Lock | None) -> None:
    """Whether it is such a folder, and fits the lock as far as can be said without reading all of it.

    Raises:
        BadInput: it isn't, or lacks something.
    """
    if not (folder / MIRROR).is_dir():
        raise BadInput.of("no-kept-packages", folder)
    wheels = {_wheel_name(each.name) for each in (folder / WHEELS).glob("*.whl")}
    missing = [each for each in (lock.wheels if lock else ()) if (each.name, each.version) not in wheels]
    if missing:
        names = ", ".join(f"{each.name} {each.version}" for each in missing[:5])
        raise BadInput.of("kept-lacks-wheels", folder, names=names)


def refuse_place(folder: Path) -> None:
    """
    Raises:
        BadInput: something else is there, or it can't be written.
    """
    parent = next(each for each in folder.absolute().parents if each.exists())
    if not os.access(folder if folder.is_dir() else parent, os.W_OK):
        raise BadInput.of("no-access", folder, why="it can't be written")
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MIRROR).is_dir())):
        raise BadInput.of("kept-elsewhere", folder)


def _files(folder: Path) -> list[str]:
    return [str(each.relative_to(folder)) for each in sorted(folder.rglob("*")) if each.is_file()]


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """A folder for what comes, which goes in the end; those that killed processes left go as well."""
    files.sweep(folder)
    with tempfile.TemporaryDirectory(prefix=files.prefix(folder), dir=folder.absolute().parent) as place:
        handle = os.open(place, os.O_RDONLY)
        try:
            node_files.hold(handle)
            yield Path(place)
        finally:
            os.close(handle)


def _said(folder: Path) -> tuple[list[_Row], list[PurePosixPath]]:
    """What the base image says of the packages, and of the places that the mirror stands for.

    Raises:
        CheckFailed: it can't be read.
    """
    try:
        rows = [_Row(*line.split(" ", 2)) for line in _lines(folder / "list")]
        return rows, _places(_lines(folder / "own"))
    except (OSError, TypeError, ValueError) as error:  # TypeError: a line of fewer words
        raise CheckFailed.of("packages-unresolved", error=f"its list of packages can't be read: {error}") from None


def _lines(file: Path) -> list[str]:
    """Of a file beside the mirror, which is not kept."""
    if file.stat().st_size > MOST_LINES:
        raise ValueError(f"more than {MOST_LINES >> 20} MB")
    lines = file.read_text(encoding="utf-8").splitlines()
    file.unlink()
    return lines


def _places(lines: Iterable[str]) -> list[PurePosixPath]:
    """Of what the base image says nothing leads elsewhere."""
    paths = [PurePosixPath(line) for line in lines]
    return [each for each in paths if each.parts and not each.is_absolute() and ".." not in each.parts]


def _link(mirror: Path, own: PurePosixPath, of: PurePosixPath) -> None:
    """Several hosts of the base stand for one mirror: what came from it is found below each of them. Below a link of
    before, this one would lie elsewhere, and lead out of the folder from there."""
    place, first = mirror / own, mirror / of
    if place.parent.resolve() != place.parent or first.resolve() != first:
        return
    if not first.is_dir() or place.is_symlink() or place.is_relative_to(first) or first.is_relative_to(place):
        return
    if place.is_dir():  # kept before without that mirror
        for file in _files(place):
            (first / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(place / file, first / file)
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(os.path.relpath(first, place.parent))


def _archives(
    resolved: Resolved, lock: Lock | None, kept: Path, given: Path | None, to: Path
) -> dict[SourceArchive, str | None]:
    """The archives that must be fetched, with the sha256 that is known. What is in `given` alone comes into `to`."""
    missing: dict[SourceArchive, str | None] = {}
    for part in resolved.parts:
        for archive in part.choice.archives:
            sha256 = source_sha256(part.name, archive, lock)
            if _is(kept / archive.file, sha256):
                continue
            if given and _is(given / archive.file, sha256):
                to.mkdir(exist_ok=True)
                shutil.copyfile(given / archive.file, to / archive.file)
            else:
                missing[archive] = sha256
    return missing


def _is(file: Path, *sha256: str | None) -> bool:
    return file.is_file() and sources.sha256_of(file) in sha256


def _from_mirror(text: str, base: BaseImage, folder: Path) -> None:
    problem = ""
    try:
        with in_base.running(text, base) as script:
            _receive(script.out, folder)
            if len(script.out.read(PADDING + 1)) > PADDING:
                raise tarfile.ReadError("it sends more than a mirror's files")
    except tarfile.TarError as error:
        problem = str(error)
    if script.code or problem:
        raise CheckFailed.of("packages-unresolved", error=(*script.errors, problem)[0])


def _receive(stream: IO[bytes], folder: Path) -> None:
    for name, data, size in _members(stream, folder):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(data, file, 1 << 20)
        if target.stat().st_size != size:
            raise tarfile.ReadError("it was cut off")


def _members(stream: IO[bytes], to: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    """The plain files of a tar stream that go `to` a folder; a name that leads elsewhere is none of ours."""
    with open_tar(stream) as tar:
        for number, each in enumerate(tar):
            path = PurePosixPath(each.name)
            if each.isdir() and number <= FILES:
                continue
            if not each.isreg() or path.is_absolute() or ".." in path.parts or each.size > LARGEST:
                raise tarfile.ReadError(f"{each.name[:80]} is no file of a mirror")
            if number > FILES or shutil.disk_usage(to).free < each.size + SPARE:
                raise tarfile.ReadError(f"{each.name[:80]} is one file too many, or the disk has no room for it")
            data = tar.extractfile(each)
            assert data is not None
            yield str(path), data, each.size


def _refuse_other(rows: Iterable[_Row], lock: Lock) -> None:
    """Of a name there may be several versions (a NIC's repository has its own): one of them must be the locked one."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if row.file.endswith(".deb"):
            found.setdefault(row.file.partition("_")[0], set()).add(row.sha256)
    wanted = {each.name: each for each in lock.packages if each.sha256}
    moved = [name for name, sums in found.items() if name in wanted and wanted[name].sha256 not in sums]
    if moved:
        first = wanted[moved[0]]
        raise CheckFailed.of("kept-moved-on", what=f"{first.name} {first.version}", more=len(moved) - 1)


def _wheels(resolved: Resolved, lock: Lock, site: Site, folder: Path, kept: Path) -> None:
    folder.mkdir()
    there = [(_wheel_name(each.name), each) for each in kept.glob("*.whl")]
    indexes: dict[str | None, list[str]] = {}
    for wheel in lock.wheels:
        if any(name == (wheel.name, wheel.version) and _is(file, *wheel.sha256) for name, file in there):
            continue
        hashes = " ".join(f"--hash=sha256:{value}" for value in wheel.sha256)
        indexes.setdefault(wheel.index, []).append(f"{wheel.name}=={wheel.version} {hashes}")
    for index, lines in indexes.items():
        asked = folder / "requirements.txt"
        asked.write_text("\n".join(lines) + "\n")
        words = ("download", "--quiet", "--no-deps", "--require-hashes", "--dest", str(folder), "-r", str(asked))
        ran = pinning.run_pip(pinning.pip_command(resolved.stack, *words), index, site)
        asked.unlink()
        if ran.returncode:
            errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()
            raise CheckFailed.of("wheels-unresolved", error=errors[-1] if errors else "no message")


def _wheel_name(file: str) -> tuple[str, str]:
    """Name and version (packaging.python.org, binary distribution format)."""
    name, _, rest = file.partition("-")
    return re.sub(r"[-_.]+", "-", name).lower(), unquote(rest.partition("-")[0])

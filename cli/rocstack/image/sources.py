"""A stack's upstream archives from a folder: for sites without internet, and for archives that a site keeps."""

import hashlib
import shutil
from pathlib import Path

from rocstack.base.errors import BadInput
from rocstack.stack.lock import Lock, source_sha256
from rocstack.stack.resolve import Part, Resolved
from rocstack.stack.stack import SourceArchive

# How what `tar` unpacks begins: gzip, xz, bzip2, zstd.
_PACKED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", b"(\xb5/\xfd")


def check(resolved: Resolved, lock: Lock | None, folder: Path) -> tuple[Path, ...]:
    """The archives of all components, each with the sha256 that the stack or the lock names.

    Raises:
        BadInput: no such folder; archives that are not in it; one that is another.
    """
    wanted = {
        archive.file: (part, archive, source_sha256(part.name, archive, lock)) for part, archive in _all(resolved)
    }
    _refuse_missing(resolved, folder, {file: sha256 for file, (_, _, sha256) in wanted.items()})
    for file, (part, archive, sha256) in wanted.items():
        found = sha256_of(folder / file)
        if found != sha256:
            which = f"{part.name} {part.choice.version}"
            raise BadInput.of("other-source", folder / file, which=which, found=found, sha256=sha256, url=archive.url)
    return tuple(folder / file for file in wanted)


def pinned(resolved: Resolved, folder: Path) -> Resolved:
    """The same with the sha256 that the folder's archives have, wherever the stack names none: what a lock pins.

    Raises:
        BadInput: no such folder; archives that are not in it; one that is no archive. A copied rocstack.yml could name
            a folder of keys, and its stack one of them: what is pinned the images' steps read.
    """
    unknown = [archive for _, archive in _all(resolved) if not archive.sha256]
    _refuse_missing(resolved, folder, {archive.file: None for archive in unknown})
    for archive in unknown:
        with (folder / archive.file).open("rb") as file:
            if not file.read(6).startswith(_PACKED):
                raise BadInput.of("no-archive", folder / archive.file)
    sums = {archive.url: sha256_of(folder / archive.file) for archive in unknown}

    def with_sums(part: Part) -> Part:
        choice = part.choice
        beside = tuple(e.model_copy(update={"sha256": e.sha256 or sums[e.url]}) for e in choice.beside)
        own = {"sha256": choice.sha256 or sums[choice.url]} if choice.url else {}
        return part.model_copy(update={"choice": choice.model_copy(update={**own, "beside": beside})})

    return resolved.model_copy(update={"parts": tuple(with_sums(part) for part in resolved.parts)})


def place(files: tuple[Path, ...], folder: Path) -> Path:
    """Copies the archives, and nothing else of where they lie, to `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in files:
        shutil.copyfile(file, folder / file.name)
    return folder


def _all(resolved: Resolved) -> list[tuple[Part, SourceArchive]]:
    return [(part, archive) for part in resolved.parts for archive in part.choice.archives]


def _refuse_missing(resolved: Resolved, folder: Path, files: dict[str, str | None]) -> None:
    if not folder.is_dir():
        raise BadInput.of("no-sources-folder", folder)
    missing = [
        (archive, part)
        for part, archive in _all(resolved)
        if archive.file in files and not (folder / archive.file).is_file()
    ]
    if missing:
        names = ", ".join(f"{archive.file} ({part.name} {part.choice.version})" for archive, part in missing)
        urls = "; ".join(
            f"{archive.url} as {archive.file}" + (f" (sha256 {files[archive.file]})" if files[archive.file] else "")
            for archive, _ in missing
        )
        raise BadInput.of("no-source", folder, names=names, urls=urls)


def sha256_of(file: Path) -> str:
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()

"""Sources of providers: releases of Broadcom's bnxt_re library, found in what the vendor delivers, checked, chosen by
the host's driver; and a newer rdma-core."""

import hashlib
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from rocstack.base.errors import BadInput, RocstackError, Where
from rocstack.nic import vendor_archive
from rocstack.nic.vendor_archive import MIB, Budget, shown

LIBRARY = re.compile(r"libbnxt_re-(\d+(?:\.\d+){3})\.tar\.gz", re.ASCII)
PACKAGE = re.compile(r"bnxt-rocelib_(\d+(?:\.\d+){3})(?:-[\w.+~]+)?_amd64\.deb", re.ASCII)
RDMA_CORE = re.compile(r"rdma-core[-_](\d+(?:\.\d+)+)(?:\.orig)?\.tar\.(?:gz|xz)", re.ASCII)
# How Broadcom calls its bundles, and people the folders that they keep them in (bcm5760x_230.2.52.0a.zip,
# /opt/bcm_232.1.132.8c; /opt/broadcom and /opt/bnxt-bundles of AMD's Primus). The rest of a usual folder isn't opened.
VENDOR = re.compile(r"(bcm|bnxt|brcm|broadcom|nxe|netxtreme|libbnxt_re-)", re.IGNORECASE)
USUAL_FOLDERS = ("/opt", "/usr/src", "~/Downloads", "~")
MAX_DEPTH = 4  # archives in one another
MAX_NESTED = 1024 * MIB  # of all that are open at a time
IN_MEMORY = 32 * MIB  # of each of them; what is larger goes through a file without a name
MAX_RDMA_CORE = 64 * MIB  # 65.0 has 2 MB
MAX_RELEASE = 32 * MIB  # 232.0.164.5 has 1.3 MB
Skipped = Callable[[RocstackError], None]
_RDMA_CORE_VERSION = re.compile(r'^set\(PACKAGE_VERSION "([\d.]+)"\)', re.MULTILINE)
_DEFINE = r"^[ \t]*#[ \t]*define[ \t]+{}[ \t]+\"?([\w.]+)\"?[ \t]*$"


@dataclass(frozen=True)
class VendorRelease:
    """One release: its source, or (`deb`) the vendor's package, which is only reported. `kernel_abi` is
    BNXT_RE_ABI_VERSION of src/abi.h; None where that isn't one plain number, and for rdma-core."""

    name: str  # of the file
    version: str
    kernel_abi: int | None
    sha256: str
    where: str  # "bundle.zip > inner.tar.gz > libbnxt_re-....tar.gz"
    kind: Literal["source", "deb"] = "source"
    data: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        abi = f" (kernel ABI {self.kernel_abi})" if self.kernel_abi is not None else ""
        return f"{self.version}{abi}: {self.where}"


def find(source: Path, skipped: Skipped = lambda _: None) -> tuple[VendorRelease, ...]:
    """Every release in `source`: the library's tarball itself, a bundle, or a folder of them. In a folder, what can't
    be read and isn't called as Broadcom calls it is left out; `skipped` is told.

    Raises:
        BadInput: nothing is there, no release is in it, or an archive is damaged, encrypted or made to do harm.
    """
    source, where = source.expanduser(), shown(str(source))
    if not os.path.exists(source):
        raise BadInput.of("no-nic-source", where=where)
    releases = tuple(_on_disk(source, Budget(), skipped=skipped))
    if not releases:
        raise BadInput.of("no-release-inside", where=where)
    return releases


def find_usual(folders: Iterable[str] = USUAL_FOLDERS, skipped: Skipped = lambda _: None) -> tuple[VendorRelease, ...]:
    """Releases in what is called as Broadcom calls it, directly in one of `folders`; `skipped` is told what can't be
    read there."""
    releases: list[VendorRelease] = []
    for folder in folders:
        for path in _children(Path(folder).expanduser(), strict=False):
            if VENDOR.match(path.name):
                try:
                    releases += _on_disk(path, Budget())
                except BadInput as error:
                    skipped(error)
    return tuple(releases)


def pick(releases: Iterable[VendorRelease], wanted: str | None, accept: str | None = None) -> VendorRelease:
    """The release that is the host driver's own, or that a person accepts by its version. Where neither is known: the
    only one.

    Raises:
        BadInput: none is, or two that differ are; with the list of all.
    """
    releases = tuple(releases)
    sources = {each.sha256: each for each in releases if each.kind == "source"}.values()
    version = accept or wanted
    matching = [each for each in sources if version in (None, each.version)]
    if len(matching) == 1:
        return matching[0]
    if matching and version:
        claims = "; ".join(f"{each.where} (sha256 {each.sha256[:12]})" for each in matching)
        raise BadInput.of("two-releases", count=len(matching), version=version, claims=claims)
    if accept:
        what = f"there is no libbnxt_re {accept} to accept"
    elif wanted:
        what = f"the host's driver is {wanted}, and no libbnxt_re {wanted} was found"
    else:
        what = "which libbnxt_re is wanted is not known" if matching else "no libbnxt_re was found"
    steps = ["give the bundle that the host's driver came from with --nic-source"]
    if any(each.kind == "deb" and each.version == version for each in releases):
        steps.insert(0, "take the way `package`, which installs the vendor's Debian package")
    if sources and not accept:
        newest = max((each.version for each in sources), key=lambda text: [int(n) for n in text.split(".")])
        steps.append(f"accept another by its version: --nic-accept {newest}")
    found = "found: " + "; ".join(map(str, releases)) if releases else "no release was found"
    raise BadInput.of("no-release", what=what, found=found, steps="; or ".join(steps))


def inspect(name: str, data: bytes, where: str) -> VendorRelease:
    """A release from its tarball's name and bytes. Pure.

    Raises:
        BadInput: the content is not what the name says, or no archive that may be unpacked.
    """
    named = LIBRARY.fullmatch(name)
    if not named:
        raise vendor_archive.bad(f"'{shown(name)}' is no name of a release", where, "wanted: libbnxt_re-A.B.C.D.tar.gz")
    version, top = named[1], f"libbnxt_re-{named[1]}"
    texts = {"configure.ac": "", "src/version.h": "", "src/abi.h": ""}
    for member in vendor_archive.members(io.BytesIO(data), name, where, Budget(10_000, 512 * MIB), plain=True):
        path = member.name.removeprefix("./").rstrip("/")
        folder, _, inner = path.partition("/")
        if path not in ("", ".") and folder != top:
            raise _other(f"it holds '{shown(path)}', and all of a release is in {top}/", where)
        if inner in texts and member.is_file:
            texts[inner] = member.read(MIB).decode("utf-8", "replace")
    if not texts["configure.ac"]:
        raise _other(f"it has no {top}/configure.ac to build from", where)
    said = _defined(texts["src/version.h"], "LIBBNXT_RE_BUILD_VERSION")
    if said - {version}:
        raise _other(f"its src/version.h says {', '.join(sorted(said))}", where)
    abis = _defined(texts["src/abi.h"], "BNXT_RE_ABI_VERSION")
    abi = int(abis.pop()) if len(abis) == 1 and re.fullmatch(r"\d{1,4}", min(abis), re.ASCII) else None
    return VendorRelease(name, version, abi, hashlib.sha256(data).hexdigest(), where, data=data)


def _defined(header: str, name: str) -> set[str]:
    """All values that a header gives `name`; comments don't count."""
    bare = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header, flags=re.DOTALL)
    return set(re.findall(_DEFINE.format(name), bare, re.MULTILINE))


def _other(what: str, where: str) -> BadInput:
    return BadInput.of("renamed-release", Where(where), what=what)


def _on_disk(path: Path, budget: Budget, depth: int = 0, skipped: Skipped | None = None) -> Iterator[VendorRelease]:
    """Releases in a file or folder; links to folders are not followed."""
    where = shown(str(path))
    if path.is_dir():
        budget.member(where)
        if depth <= 12 and not (depth and path.is_symlink()):
            for child in _children(path, strict=depth == 0):
                try:
                    yield from _on_disk(child, budget, depth + 1, skipped)
                except BadInput as error:
                    if skipped is None or child.is_dir() or VENDOR.match(child.name):
                        raise
                    skipped(error)
    elif path.is_file() and (depth == 0 or _wanted(path.name)):
        try:
            with path.open("rb") as file:
                yield from in_file(path.name, where, file, budget)
        except OSError as error:
            raise BadInput.of("unreadable-source", where=where, reason=error.strerror) from None


def _children(folder: Path, strict: bool) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        if strict:
            raise BadInput.of("unreadable-source", where=shown(str(folder)), reason=error.strerror) from None
        return []


def _wanted(name: str) -> bool:
    return bool(vendor_archive.ending(name) or PACKAGE.fullmatch(name))


def in_file(
    name: str, where: str, file: IO[bytes], budget: Budget, depth: int = 0, room: int = MAX_NESTED
) -> Iterator[VendorRelease]:
    """Releases in one file: it may be one itself, or an archive that holds some. `room` is what archives inside it may
    have, one in another.

    Raises:
        BadInput: damaged, encrypted, made to do harm, or not what its name says.
    """
    package = PACKAGE.fullmatch(name)
    if package or LIBRARY.fullmatch(name):
        data = file.read(MAX_RELEASE + 1)
        if len(data) > MAX_RELEASE:
            raise vendor_archive.bad(f"larger than {MAX_RELEASE // MIB} MB", where, "a release has about one")
        if package:
            yield VendorRelease(name, package[1], None, hashlib.sha256(data).hexdigest(), where, "deb")
        else:
            yield inspect(name, data, where)
        return
    if depth == MAX_DEPTH:
        raise vendor_archive.hostile(f"archives nested deeper than {MAX_DEPTH}", where)
    for member in vendor_archive.members(file, name, where, budget):
        inner = re.split(r"[/\\]", member.name)[-1]
        if member.is_file and _wanted(inner):
            known = LIBRARY.fullmatch(inner) or PACKAGE.fullmatch(inner)
            with tempfile.SpooledTemporaryFile(IN_MEMORY, prefix="rocstack-") as copy:
                for piece in member.pieces(MAX_RELEASE if known else room):
                    copy.write(piece)
                left = room - copy.tell()
                copy.seek(0)
                yield from in_file(inner, member.where, copy, budget, depth + 1, left)


def rdma_core(path: Path | None) -> VendorRelease:
    """A newer rdma-core, as its source archive: for hosts whose kernel ABI is 1 and whose distribution's release fails.

    Raises:
        BadInput: no such file, not rdma-core's source, damaged, or another version than its name says.
    """
    if path is None:
        raise BadInput.of("no-rdma-core")
    path = path.expanduser()
    named = RDMA_CORE.fullmatch(path.name)
    if not path.is_file() or not named:
        raise BadInput.of("other-rdma-core" if path.is_file() else "absent-rdma-core", path=path)
    if path.stat().st_size > MAX_RDMA_CORE:
        raise vendor_archive.bad(f"larger than {MAX_RDMA_CORE // MIB} MB", str(path), "a release has about two")
    data, version = path.read_bytes(), ""
    for member in vendor_archive.members(io.BytesIO(data), path.name, str(path), Budget(20_000, 512 * MIB), plain=True):
        if member.is_file and re.fullmatch(r"(\./)?[^/]+/CMakeLists\.txt", member.name):
            version = "".join(_RDMA_CORE_VERSION.findall(member.read(MIB).decode("utf-8", "replace")))
    if version != named[1]:
        raise BadInput.of("renamed-rdma-core", path, name=named[1], version=version or "nothing")
    return VendorRelease(path.name, version, None, hashlib.sha256(data).hexdigest(), str(path), data=data)

"""libibverbs and its providers as found on the node, and Slingshot's libraries by their place."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any, Protocol

from .profile import Library
from .recording import Recording

DRIVER_FILES = "/etc/libibverbs.d"
MOST = 100  # libraries of a node that are read; rdma-core has some 20 providers
_PROVIDER = re.compile(r"lib(.+)-rdmav\d+\.so")
_VERBS = re.compile(r"libibverbs\.so\.1(\.[0-9.]+)?")
_NAMED = re.compile(r"lib(cxi|fabric|json-c)\.so(?:\.(\d[0-9.]*))?")  # Slingshot's
_DRIVERS = {"fabric": "libfabric"}  # as SLINGSHOT_FILES has them; the others by their own name


class ReadLibrary(Protocol):
    """Gives private_abi, kernel_abi, build_id, glibc and fabric as attributes.

    Raises:
        ValueError: no library at all.
    """

    def __call__(self, data: bytes, is_libibverbs: bool) -> Any: ...


def driver_files(rec: Recording) -> tuple[str, ...] | None:
    """The names in /etc/libibverbs.d; a path stands there without "-rdmav34.so" (libibverbs/dynamic_driver.c). None:
    not all of them could be read, or nothing of libibverbs is there."""
    installed = rec.exists(DRIVER_FILES) or any("libibverbs" in path for path in rec.blobs)
    if not installed or any(path.startswith(DRIVER_FILES) for path in rec.unread):
        return None
    texts = [rec.text(f"{DRIVER_FILES}/{name}") or "" for name in rec.names(DRIVER_FILES)]
    named = re.findall(r"^driver[ \t]+(\S+)", "\n".join(texts), re.MULTILINE)
    return tuple(dict.fromkeys(named))


def libraries(rec: Recording, read: ReadLibrary | None = None) -> tuple[Library, ...]:
    """libibverbs first. Without `read` the ABIs stay unread, and so do those of more libraries than any node has."""
    packages = _packages(rec)
    names: dict[str, list[str]] = {path: [path.rpartition("/")[2]] for path in rec.blobs}
    for link in rec.links:  # the names of the links that lead to a file are its own, too
        names.setdefault(rec.real(link), []).append(link.rpartition("/")[2])
    rows: list[Library] = []
    for path in rec.blobs:
        provider = next((match[1] for match in map(_PROVIDER.fullmatch, names[path]) if match), None)
        if provider or any(map(_VERBS.fullmatch, names[path])):
            version = _vendor_version(names[path], provider) or packages.get(path)
            rows.append(_library(rec, path, provider, version, read if len(rows) < MOST else None))
    linked = {target for link, target in rec.links.items() if _NAMED.fullmatch(link.rpartition("/")[2])}
    for path in sorted({*linked, *rec.blobs}):
        named = _NAMED.fullmatch(path.rpartition("/")[2])
        if named:
            at = re.search(r"/libfabric/(\d[^/]*)/", path)  # /opt/cray/libfabric/1.22.0/lib64
            driver, version = _DRIVERS.get(named[1], named[1]), at[1] if at else named[2]
            is_read = bool(rec.blobs.get(path))
            known = read if len(rows) < MOST else None
            rows.append(_library(rec, path, driver, version, known) if is_read else Library(path, driver, version))
    return tuple(sorted(rows, key=lambda library: (library.driver is not None, library.driver or "", library.path)))


def _library(rec: Recording, path: str, driver: str | None, version: str | None, read: ReadLibrary | None) -> Library:
    data = rec.blobs[path]
    library = Library(path, driver, version, sha256=hashlib.sha256(data).hexdigest())
    if read is None:
        return library
    try:
        facts = read(data, driver is None)
    except ValueError:  # no library at all
        return library
    return replace(
        library,
        private_abi=facts.private_abi,
        kernel_abi=facts.kernel_abi,
        glibc=facts.glibc,
        build_id=facts.build_id,
        fabric=facts.fabric or None,
    )


def _vendor_version(names: list[str], driver: str | None) -> str | None:
    """Of a vendor's own build, whose file holds no version: libbnxt_re-a.b.c.d.so leads to it."""
    pattern = re.compile(rf"lib{re.escape(driver or '')}-(\d+(?:\.\d+){{3}})\.so")
    return next((match[1] for match in map(pattern.fullmatch, names) if match), None)


def _packages(rec: Recording) -> dict[str, str]:
    """File -> version of the package that it came with."""
    versions = package_versions(rec)
    by_file = {}
    for listed in rec.names("/var/lib/dpkg/info"):
        package = listed.partition(".list")[0].partition(":")[0]
        for path in (rec.text(f"/var/lib/dpkg/info/{listed}") or "").splitlines():
            if package in versions:
                by_file[rec.real(path)] = versions[package]
    for line, answer in rec.commands.items():
        if line.startswith("rpm -qf "):  # a line for each file; without a tab where no package owns it
            files = [word for word in line.split() if word.startswith("/")]
            for file, row in zip(files, answer.out.splitlines()):  # noqa: B905
                if "\t" in row:
                    by_file[file] = row.partition("\t")[2]
    return by_file


def package_versions(rec: Recording) -> dict[str, str]:
    """Of the packages asked for, those that are installed: `dpkg-query -W` and rpm answer "name<TAB>version"."""
    lines = ("dpkg-query -W ", "rpm -q ")
    said = "\n".join(answer.out for line, answer in rec.commands.items() if line.startswith(lines))
    return dict(re.findall(r"^([a-z0-9.+_-]+)(?::\w+)?\t(\S+)$", said, re.MULTILINE))

"""What a verbs provider library needs and supports, read from the file: nothing in it is loaded or run.

The private ABI is the N of the symbol version IBVERBS_PRIVATE_N. The kernel-ABI range stands in the provider's
`struct verbs_device_ops` (rdma-core, libibverbs/driver.h), whose first fields are the same from private ABI 16
(rdma-core 16) to 65:

    0 const char *name   8 uint32_t match_min_abi_version   12 uint32_t match_max_abi_version   16 match_table
    24 static_providers (from 21 on)   then functions: match_device, alloc_context, ..., uninit_device

It is found as the loader finds it: a constructor in DT_INIT_ARRAY calls verbs_register_driver_N(&ops) (driver.h,
PROVIDER_DRIVER). Only the structure whose address is the argument of that call counts, and only if the constructor
has no other address that it could pass, so a look-alike is never read. x86_64 and aarch64; stripped or not.

With shared_library.py it also runs beside Debian's python3-pyelftools in an image build (Python 3.10).

    python3 -m rocstack.nic.elf FILE...    one JSON object per line and file
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocstack.nic.shared_library import SONAME, SharedLibrary, UnreadableLibrary

ANY_ABI = 0x7FFFFFFF  # INT_MAX: how cxgb4, hfi1verbs, hns and ipathverbs say "no upper end"
HIGHEST_ABI = 1000  # no kernel driver comes near; more is a misreading
OLDEST_PRIVATE_ABI = 16  # rdma-core 15 registered a name and a function, without a range


@dataclass(frozen=True)
class LibraryAbi:
    """What was read. `reasons` has a line "field: why" for every None that should have been a value."""

    private_abi: int | None = None
    kernel_abi: tuple[int, int] | None = None  # lowest and highest abi_version; ANY_ABI is "no upper end"
    driver: str | None = None
    build_id: str | None = None
    glibc: str | None = None  # the newest symbol version of glibc that is needed: "2.34"
    sha256: str = ""
    soname: str | None = None
    fabric: str = ""  # of a libfabric: the newest of its own symbol versions, "1.8"
    reasons: tuple[str, ...] = ()


def device_ops(library: SharedLibrary, address: int) -> tuple[str, int, int] | None:
    """(name, lowest, highest) if a `struct verbs_device_ops` stands at this address."""

    def function(slot: int) -> bool | None:  # None: neither a pointer to code nor NULL
        if slot in library.pointers:
            return library.is_code(library.pointers[slot]) or None
        return None if library.is_relocated(slot) or any(library.read(slot, 8)) else False

    try:
        if address % 8 or not library.is_constant(address, 64) or library.is_relocated(address + 8):
            return None
        functions = [function(address + at) for at in (32, 40, 48, 56)]
        if None in functions or functions.count(True) < 2:  # at least alloc_context and alloc_device
            return None
        if address + 16 in library.pointers:
            library.segment(library.pointers[address + 16])
        elif library.is_relocated(address + 16) or not (function(address + 24) or functions[0]):
            return None  # without a table it takes match_device (libibverbs/init.c), at 24 or 32
        name = library.pointers.get(address, -1)
        if not library.is_constant(name, 1) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,63}", library.string(name)):
            return None
        return library.string(name), *library.unpack("<II", address + 8)
    except UnreadableLibrary:
        return None


def registered(library: SharedLibrary) -> tuple[str, tuple[int, int]]:
    """The name and the range of the driver that the library registers."""
    number = private_abi(library)
    if number < OLDEST_PRIVATE_ABI:
        raise UnreadableLibrary(f"private ABI {number}: libraries have a range from {OLDEST_PRIVATE_ABI} on")
    passed = library.passed_to(f"verbs_register_driver_{number}")
    if not passed:
        raise UnreadableLibrary(f"no constructor seen that calls verbs_register_driver_{number}")
    drivers = {ops for address in passed if (ops := device_ops(library, address))}
    if len(drivers) != 1:
        several = ", ".join(f"{name} {lowest}-{highest}" for name, lowest, highest in sorted(drivers))
        raise UnreadableLibrary(
            f"several drivers: {several}" if drivers else "the constructor registers no verbs_device_ops"
        )
    ((name, lowest, highest),) = drivers
    if lowest > min(highest, HIGHEST_ABI) or HIGHEST_ABI < highest != ANY_ABI:
        raise UnreadableLibrary(f"implausible range {lowest}-{highest}")
    return name, (lowest, highest)


def private_abi(library: SharedLibrary, *, defined: bool = False) -> int:
    versions = {v for of, v in library.versions(defined=defined) if defined or of == "libibverbs.so.1"}
    private = [version for version in sorted(versions) if version.startswith("IBVERBS_PRIVATE_")]
    number = re.fullmatch(r"IBVERBS_PRIVATE_([1-9][0-9]{0,3})", ",".join(private))
    if not number:
        raise UnreadableLibrary(f"{'defines' if defined else 'needs'} {', '.join(private) or 'no IBVERBS_PRIVATE_N'}")
    return int(number[1])


def glibc(library: SharedLibrary) -> str:
    """glibc names its versions by release, and the RELR format, which came with 2.36, by a word."""
    needed = {v.removeprefix("GLIBC_") for _, v in library.versions(defined=False) if v.startswith("GLIBC_")}
    numbers = [re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", "2.36" if v == "ABI_DT_RELR" else v) for v in needed]
    known = [number for number in numbers if number]
    if not known or len(known) != len(needed):
        raise UnreadableLibrary(f"no release in the versions {sorted(needed)}")
    return max(known, key=lambda number: (int(number[1]), int(number[2]), number[3] or ""))[0]


def newest(data: bytes, family: str, *, defined: bool = False) -> str | None:
    """The newest symbol version of a family (FABRIC_1.8: "1.8") that a library needs, or has itself; None where there
    is none, or it can't be read."""
    try:
        return _newest(SharedLibrary(data), family, defined)
    except UnreadableLibrary:
        return None


def _newest(library: SharedLibrary, family: str, defined: bool) -> str | None:
    names = [name for _, name in library.versions(defined=defined)]
    numbers = [match[1] for match in (re.fullmatch(rf"{family}_(\d+(?:\.\d+)*)", name) for name in names) if match]
    return max(numbers, key=lambda text: [int(part) for part in text.split(".")], default=None)


def build_id(library: SharedLibrary) -> str:
    if len(library.build_ids) != 1:
        raise UnreadableLibrary(f"{len(library.build_ids)} build ids")
    return next(iter(library.build_ids))


def soname(library: SharedLibrary) -> str:
    if SONAME not in library.dynamic:
        raise UnreadableLibrary("the library has none")
    return library.name(library.tag(SONAME))


def _read(data: bytes, **fields: Callable[[SharedLibrary], Any]) -> LibraryAbi:
    if data[:4] != b"\x7fELF":
        raise ValueError(f"not an ELF file: it starts with {data[:4]!r}")
    values: dict[str, Any] = {"sha256": hashlib.sha256(data).hexdigest()}
    if b"FABRIC_1." in data:
        values["fabric"] = newest(data, "FABRIC", defined=True) or ""
    fields.update(build_id=build_id, glibc=glibc, soname=soname)
    try:
        library = SharedLibrary(data)
    except UnreadableLibrary as e:
        return LibraryAbi(**values, reasons=tuple(f"{field}: {e}" for field in fields))
    reasons = []
    for field, read in fields.items():
        try:
            values[field] = read(library)
        except UnreadableLibrary as e:
            reasons.append(f"{field}: {e}")
    return LibraryAbi(**values, reasons=tuple(reasons))


def read_provider(data: bytes) -> LibraryAbi:
    """The ABI of a provider; what cannot be read for certain is None, with a reason.

    Raises:
        ValueError: The bytes are no ELF file at all.
    """
    return _read(
        data,
        private_abi=private_abi,
        kernel_abi=lambda library: registered(library)[1],
        driver=lambda library: registered(library)[0],
    )


def read_libibverbs(data: bytes) -> LibraryAbi:
    """The private ABI that a libibverbs offers its providers. It has no kernel ABI and no driver.

    Raises:
        ValueError: The bytes are no ELF file at all.
    """
    return _read(data, private_abi=lambda library: private_abi(library, defined=True))


def main(files: list[str]) -> None:
    for file in files:
        data = Path(file).read_bytes()
        abi = read_provider(data)
        if (abi.soname or "").startswith("libibverbs.so"):
            abi = read_libibverbs(data)
        sys.stdout.write(json.dumps({"file": file, **asdict(abi)}) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (OSError, ValueError) as e:
        sys.exit(f"elf.py: {e}")

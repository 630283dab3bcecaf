"""Vendor bundles: what is found in them, what is chosen, and what is refused. Archives are made here, byte by byte."""

from __future__ import annotations

import gzip
import io
import lzma
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from archives import Edit, entry, raw_tar, tar_gz
from cli_run import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstack.base.errors import BadInput, RocstackError
from rocstack.nic import vendor_archive, vendor_release
from rocstack.nic.vendor_archive import MAX_INDEX

V1, V2 = "232.0.164.5", "235.2.86.0"


def name_of(version: str) -> str:
    return f"libbnxt_re-{version}.tar.gz"


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in files.items():
            target.writestr(name, data)
    return out.getvalue()


def library_files(
    version: str = V1, *, top: str | None = None, says: str | None = None, abi: str = "6"
) -> dict[str, bytes]:
    top = top or f"libbnxt_re-{version}"
    return {
        f"{top}/configure.ac": b"AC_INIT\n",
        f"{top}/autogen.sh": b"#!/bin/sh\n",
        f"{top}/src/version.h": f"#define LIBBNXT_RE_BUILD_VERSION {says or version}\n".encode(),
        f"{top}/src/abi.h": f"/* #define BNXT_RE_ABI_VERSION 1 */\n#define BNXT_RE_ABI_VERSION {abi}\n".encode(),
    }


def library(version: str = V1, edit: Edit | None = None, **options: str) -> bytes:
    return tar_gz(library_files(version, **options), edit)


def adding(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    """A release with one member more."""
    return library(edit=lambda tar: tar.addfile(*entry(name, data, kind, link)))


INNER = f"drivers_linux/bnxt_rocelib/{name_of(V1)}"
TOP = f"libbnxt_re-{V1}"


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return folder


# Name of the source -> its bytes; each holds the release V1 and nothing else.
DELIVERIES: dict[str, bytes] = {
    name_of(V1): library(),
    "bcm5760x_230.2.52.0a.zip": zipped({f"bcm5760x_230.2.52.0a/{INNER}": library(), "bcm/readme®.txt": b"x"}),
    "nxe.zip": zipped({"Linux/inner.zip": zipped({"a/b.tgz": tar_gz({f"x/{INNER}": library()})})}),
    "bcm.tar.gz": tar_gz({"bcm/linux.zip": zipped({INNER: library()})}),
    "bcm.tgz": tar_gz({INNER: library(), "z": b"after it"}),
    "bcm.tar.xz": lzma.compress(raw_tar({INNER: library()})),
    "bcm.tar": raw_tar({INNER: library()}),
    "BCM.ZIP": zipped({"windows\\" + name_of(V1): library()}),
}


@pytest.mark.parametrize("name", DELIVERIES)
def test_found_in(name: str, tmp_path: Path) -> None:
    source = write(tmp_path, {name: DELIVERIES[name]}) / name
    (found,) = vendor_release.find(source)
    assert (found.version, found.kernel_abi, found.kind, found.name) == (V1, 6, "source", name_of(V1))
    assert found.data == library()
    assert found.where.startswith(str(source))
    assert found.where.endswith(name_of(V1))
    (again,) = vendor_release.find(tmp_path)
    assert again == found, "the folder gives the same"


def test_where_names_every_step(tmp_path: Path) -> None:
    write(tmp_path, {"nxe.zip": DELIVERIES["nxe.zip"]})
    (found,) = vendor_release.find(tmp_path)
    assert found.where == f"{tmp_path}/nxe.zip > Linux/inner.zip > a/b.tgz > x/{INNER}"


def test_an_unpacked_bundle(tmp_path: Path) -> None:
    write(tmp_path, {f"bcm/{INNER}": library(), "bcm/other/notes.txt": b"", "bcm/fw.pkg": b"\0" * 100})
    write(tmp_path, {f"bcm/debs/bnxt-rocelib_{V2}_amd64.deb": b"!<arch>\n"})
    (tmp_path / "bcm" / "loop").symlink_to(tmp_path)
    deb, source = vendor_release.find(tmp_path / "bcm")
    assert (deb.kind, deb.version, deb.kernel_abi, deb.data) == ("deb", V2, None, b"")
    assert (source.kind, source.version) == ("source", V1)


@pytest.mark.parametrize(
    ("abi", "expected"),
    [
        ("6", 6),
        ("0x6", None),
        ("6\n#define BNXT_RE_ABI_VERSION 6", 6),
        ("6\n#define BNXT_RE_ABI_VERSION 7", None),
        ("X", None),
    ],
)
def test_kernel_abi_is_read_or_unknown(abi: str, expected: int | None) -> None:
    assert vendor_release.inspect(name_of(V1), library(abi=abi), "here").kernel_abi == expected


def test_a_release_without_the_two_headers_is_known_by_its_folder() -> None:
    files = {path: data for path, data in library_files().items() if "/src/" not in path}
    found = vendor_release.inspect(name_of(V1), tar_gz(files), "here")
    assert (found.version, found.kernel_abi) == (V1, None)


# Which release


def release(version: str, sha256: str = "a", kind: str = "source", abi: int | None = 6) -> vendor_release.VendorRelease:
    name = name_of(version) if kind == "source" else f"bnxt-rocelib_{version}_amd64.deb"
    return vendor_release.VendorRelease(name, version, abi, sha256 * 64, f"/x/{sha256}.zip > {name}", kind)  # type: ignore[arg-type]


def test_the_drivers_own_is_picked() -> None:
    both = [release(V1, "a"), release(V2, "b")]
    assert vendor_release.pick(both, V2).version == V2
    assert vendor_release.pick(both, V2, accept=V1).version == V1
    assert vendor_release.pick([release(V1, "a"), release(V1, "a")], V1).sha256 == "a" * 64, (
        "the same file twice is one"
    )
    assert vendor_release.pick([release(V1), release(V1, "d", "deb")], None).kind == "source", "the only source"


@pytest.mark.parametrize(
    ("found", "wanted", "accept", "code", "words"),
    [
        ([release(V1)], V2, None, "no-release", [f"is {V2}", f"{V1} (kernel ABI 6): /x/a.zip", f"--nic-accept {V1}"]),
        ([release("9.0.0.0"), release("10.0.0.0", "b")], V2, None, "no-release", ["--nic-accept 10.0.0.0"]),
        ([release(V1), release(V2, "b")], None, None, "no-release", ["not known", V1, V2]),
        ([release(V1)], V1, V2, "no-release", [f"no libbnxt_re {V2} to accept", V1]),
        ([], V1, None, "no-release", ["no release was found", "--nic-source"]),
        ([], None, None, "no-release", ["no libbnxt_re was found", "--nic-source"]),
        ([release(V1, kind="deb")], V1, None, "no-release", ["way `package`"]),
        ([release(V1), release(V1, "b")], V1, None, "two-releases", ["2 different", "/x/a.zip", "/x/b.zip", "bbbb"]),
        ([release(V1), release(V1, "b")], None, V1, "two-releases", ["--nic-source"]),
    ],
)  # fmt: skip
def test_no_pick(
    found: list[vendor_release.VendorRelease], wanted: str | None, accept: str | None, code: str, words: list[str]
) -> None:
    error = refusal(lambda: vendor_release.pick(found, wanted, accept))
    assert error is not None
    assert error.code == code
    text = f"{error.what}. {error.cause}. {error.next_step}"
    assert [word for word in words if word not in text] == []


# Where it is looked for


def test_the_usual_folders(tmp_path: Path) -> None:
    write(tmp_path / "opt", {f"bcm_232.1.132.8c/{INNER}": library(), "other/bcm.zip": b"not opened"})
    write(tmp_path / "downloads", {"bcm_half.zip": b"PK\3\4", "photos.zip": b"not opened", name_of(V2): library(V2)})
    skipped: list[RocstackError] = []
    folders = [str(tmp_path / name) for name in ("opt", "downloads", "missing")]
    found = vendor_release.find_usual(folders, skipped.append)
    assert [each.version for each in found] == [V1, V2]
    (error,) = skipped
    assert error.code == "bad-archive"
    assert str(error.where).endswith("bcm_half.zip")


@pytest.mark.parametrize(
    ("files", "source", "code"),
    [
        ({}, "missing", "no-file"),
        ({}, "", "no-library"),
        ({"bcm/readme.txt": b""}, "bcm", "no-library"),
        ({"bcm.zip": zipped({"drivers_linux/other.txt": b""})}, "bcm.zip", "no-library"),
        ({"bcm.zip": zipped({})}, "bcm.zip", "no-library"),
        ({"libbnxt_re.so": b"\x7fELF"}, "libbnxt_re.so", "bad-archive"),
    ],
)
def test_nothing_there(files: dict[str, bytes], source: str, code: str, tmp_path: Path) -> None:
    error = refusal(lambda: vendor_release.find(write(tmp_path, files) / source))
    assert error is not None
    assert error.code == code
    assert str(tmp_path) in f"{error.what} {error.where}"
    assert error.next_step


# What is refused


def encrypted() -> bytes:
    """The flag that says a password is needed, set in the local header and in the list of members."""
    data = bytearray(zipped({INNER: library()}))
    data[6] |= 1
    data[data.rindex(b"PK\1\2") + 8] |= 1
    return bytes(data)


def zip_entry(name: str, mode: int, data: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as target:
        info = zipfile.ZipInfo(name)
        info.create_system, info.external_attr = 3, mode << 16
        target.writestr(info, data)
    return out.getvalue()


def header(name: bytes, size: bytes, kind: bytes) -> bytes:
    """A tar header that no tool would write."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108], block[124:136], block[156:157] = b"0000644\0", size, kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def deep(levels: int) -> bytes:
    data = library()
    name = name_of(V1)
    for level in range(levels):
        data, name = zipped({name: data}), f"{level}.zip"
    return data


def symlink(target: str) -> bytes:
    return adding(f"{TOP}/l", kind=tarfile.SYMTYPE, link=target)


def hard_link(target: str) -> bytes:
    return adding(f"{TOP}/l", kind=tarfile.LNKTYPE, link=target)


def special(kind: bytes) -> bytes:
    return adding(f"{TOP}/d", kind=kind)


def odd_header(name: str, size: bytes, kind: bytes, behind: int = 2048) -> bytes:
    return gzip.compress(header(name.encode(), size, kind) + bytes(behind), 1)


def cut(size: int, behind: bytes = b"") -> bytes:
    return gzip.compress(raw_tar(library_files())[:size] + behind)


def many(tar: tarfile.TarFile) -> None:
    for number in range(10_100):
        tar.addfile(*entry(f"{TOP}/{number}"))


def one(name: str, kind: bytes, link: str = "") -> bytes:
    return tar_gz({}, lambda tar: tar.addfile(*entry(name, kind=kind, link=link)))


def long_list(*, hidden: bool) -> bytes:
    """Of more bytes than any; `hidden`: only the record that larger archives have says so."""
    plain = zipped({"a": b""})
    start, end = plain.index(b"PK\1\2"), plain.index(b"PK\5\6")
    rows = plain[start:end] * (MAX_INDEX // (end - start) + 1)
    size, place = len(rows), start + len(rows)
    record = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, size, start)
    record += struct.pack("<4sIQI", b"PK\6\7", 0, place, 1)
    own = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, end - start if hidden else size, start, 0)
    return plain[:start] + rows + (record if hidden else b"") + own


METHOD_9 = zipped({"x.zip": b"a" * 100}).replace(b"\x14\0\0\0\x08\0", b"\x14\0\0\0\x09\0")
LIBRARY = library()
Made = bytes | Callable[[], bytes]  # the large ones when they are wanted
# File name, error code -> case -> bytes, and what the message must hold.
REFUSED: dict[tuple[str, str], dict[str, tuple[Made, str]]] = {
    (name_of(V1), "hostile-archive"): {
        "up": (adding(f"{TOP}/../../etc/cron.d/x"), "outside"),
        "absolute": (adding("/etc/passwd"), "outside"),
        "drive": (adding("C:/x"), "outside"),
        "backslashes": (adding(f"{TOP}\\..\\..\\x"), "outside"),
        "symlink up": (symlink("../../x"), "link"),
        "symlink absolute": (symlink("/etc"), "link"),
        "symlink through another": (symlink("src/.."), "link"),
        "hard link up": (hard_link("../etc/shadow"), "link"),
        "hard link absolute": (hard_link("/etc/shadow"), "link"),
        "block device": (special(tarfile.BLKTYPE), "device"),
        "character device": (special(tarfile.CHRTYPE), "device"),
        "pipe": (special(tarfile.FIFOTYPE), "special"),
        "unknown kind": (special(b"Z"), "special"),
        "newline in a name": (adding(f"{TOP}/a\nb"), r"a\nb"),
        "escape in a name": (adding(f"{TOP}/\x1b[2Jb"), r"\x1b"),
        "shell in a name": (adding(f"{TOP}/$(reboot)"), "odd"),
        "not ASCII in a name": (adding(f"{TOP}/ä"), "odd"),
        "no UTF-8 in a name": (adding(f"{TOP}/\udcff"), "odd"),
        "bomb": (lambda: adding(f"{TOP}/zeros", bytes(65 << 20)), "200 times"),
        "many members": (lambda: library(edit=many), "too many"),
    },
    (name_of(V1), "wrong-release"): {
        "other top folder": (library(top="libbnxt_re-1.2.3.4"), "libbnxt_re-1.2.3.4"),
        "second top folder": (adding("elsewhere/x"), "elsewhere/x"),
        "other version inside": (library(says=V2), V2),
        "two versions inside": (library(says=f"{V1}\n#define LIBBNXT_RE_BUILD_VERSION 2"), "says 2"),
        "nothing to build": (tar_gz({f"{TOP}/README": b""}), "configure.ac"),
        "empty tar": (tar_gz({}), "configure.ac"),
    },
    (name_of(V2), "wrong-release"): {"renamed": (LIBRARY, TOP)},
    (name_of(V1), "bad-archive"): {
        "empty file": (b"", "no tar.gz"),
        "zip called tar.gz": (zipped({"a": b""}), "no tar.gz"),
        "tar called tar.gz": (raw_tar({"a": b""}), "no tar.gz"),
        "web page": (b"\n<!DOCTYPE html><html>login", "web page"),
        "gzip of nothing": (gzip.compress(b""), "damaged"),
        "gzip of text": (gzip.compress(b"no tar" * 1000), "damaged"),
        "cut in the stream": (LIBRARY[: len(LIBRARY) // 2], "damaged"),
        "cut in the checksum": (LIBRARY[:-4], "damaged"),
        "cut in a member": (cut(2600), "damaged"),
        "cut after a member": (cut(1024), "damaged"),
        "broken header": (cut(1024, b"x" * 10240), "damaged"),
        "wrong checksum": (LIBRARY[:-8] + bytes(4) + LIBRARY[-4:], "damaged"),
        "junk behind": (LIBRARY + b"junk", "damaged"),
        "sparse": (odd_header(f"{TOP}/s", b"00000000000\0", b"S"), "a sparse file"),
        "size of 8 GB": (odd_header(f"{TOP}/a", b"77777777777\0", b"0"), "damaged"),
        "size below 0": (odd_header(f"{TOP}/a", b"\xff" * 12, b"0"), "header of -1 bytes"),
        "long extended header": (odd_header("a", b"00100000000\0", b"x", 17 << 20), "header of 16777216 bytes"),
        "large": (lambda: b"\x1f\x8b" + bytes(33 << 20), "32 MB"),
    },
    ("bcm.zip", "hostile-archive"): {
        "zip up": (zipped({"../../x": b""}), "outside"),
        "zip absolute": (zipped({"/etc/x": b""}), "outside"),
        "zip backslashes": (zipped({"a\\..\\..\\x": b""}), "outside"),
        "zip control character": (zipped({"a\x1b[2J": b""}), r"\x1b"),
        "zip right to left": (zipped({"a\u202egpj.exe": b""}), r"\u202e"),
        "zip symlink": (zip_entry("a/l", stat.S_IFLNK | 0o777, b"../../etc"), "link"),
        "zip device": (zip_entry("a/d", stat.S_IFBLK | 0o600), "device"),
        "zip bomb": (lambda: zipped({"zeros.zip": bytes(70 << 20)}), "200 times"),
        "zip in zip and so on": (deep(5), "deeper than 4"),
        "hostile inside a bundle": (zipped({INNER: adding("/etc/passwd")}), "outside"),
    },
    ("bcm.zip", "bad-archive"): {
        "zip encrypted": (encrypted(), "encrypted"),
        "zip cut": (zipped({INNER: LIBRARY})[:-30], "damaged"),
        "zip with a long list": (partial(long_list, hidden=False), "list of members"),
        "zip with a hidden list": (partial(long_list, hidden=True), "list of members"),
        "zip of another method": (METHOD_9, "packed in a way"),
        "zip with a broken zip": (zipped({"x.zip": b"PK\3\4 and no more"}), "damaged"),
    },
    ("bcm.zip", "wrong-release"): {"renamed inside a bundle": (zipped({INNER: library(V2)}), V2)},
    ("bcm.tgz", "hostile-archive"): {
        "device in a bundle": (one("sda", tarfile.BLKTYPE), "device"),
        "link out of a bundle": (one("a/l", tarfile.SYMTYPE, "../../x"), "link"),
    },
}
CASES = {case: (*key, *row) for key, rows in REFUSED.items() for case, row in rows.items()}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, tmp_path: Path) -> None:
    name, code, made, word = CASES[case]
    source = write(tmp_path, {name: made if isinstance(made, bytes) else made()}) / name
    error = refusal(lambda: vendor_release.find(source))
    assert error is not None, "it was taken"
    text = f"{error.what}. {error.cause}"
    assert error.code == code, text
    assert word in text
    assert text.isprintable()
    assert str(error.where).startswith(str(source))
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing was written"


def test_links_that_stay_inside_are_fine(tmp_path: Path) -> None:
    assert vendor_release.inspect(name_of(V1), symlink("src/abi.h"), "here").version == V1
    assert vendor_release.inspect(name_of(V1), hard_link(f"{TOP}/src/abi.h"), "here")
    data = tar_gz({INNER: LIBRARY}, lambda tar: tar.addfile(*entry("a/b/l", kind=tarfile.SYMTYPE, link="../c")))
    assert vendor_release.find(write(tmp_path, {"bcm.tgz": data}))


def test_a_bomb_takes_little_memory(tmp_path: Path) -> None:
    """Two gigabytes of zeros, in one member of a bundle that is only passed over, and in a header."""
    zeros = gzip.compress(bytes(64 << 20), 9)
    for index, kind in enumerate((b"0", b"x")):
        big = gzip.compress(header(b"zeros", b"%011o\0" % (10 << 30) if kind == b"x" else b"77777777777\0", kind))
        source = write(tmp_path, {f"bcm{index}.tgz": big + zeros * 32}) / f"bcm{index}.tgz"
        tracemalloc.start()
        error = refusal(lambda source=source: vendor_release.find(source))  # type: ignore[misc]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert error is not None
        assert error.code in ("hostile-archive", "bad-archive")
        assert peak < 64 << 20


# Whatever the bytes are, the answer is a release or a BadInput.

PROPERTY = settings(max_examples=200, deadline=None)
BUNDLES = {"bcm.zip": DELIVERIES["nxe.zip"], "bcm.tgz": DELIVERIES["bcm.tgz"], "bcm.tar": DELIVERIES["bcm.tar"]}


def nested(levels: int, size: int) -> bytes:
    """Archives in one another, each `size` bytes larger than the one inside it."""
    name, data = name_of(V1), library()
    for level in range(levels):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as target:
            target.writestr("firmware", bytes(size))
            target.writestr(f"bcm/{name}", data)
        name, data = f"bcm{level}.zip", out.getvalue()
    return data


def test_archives_in_one_another_take_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendor_release, "IN_MEMORY", 1 << 20)
    source = write(tmp_path, {"bcm.zip": nested(4, 12 << 20)}) / "bcm.zip"
    tracemalloc.start()
    try:
        (found,) = vendor_release.find(source)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.version == V1
    assert peak < 12 << 20, "not even one of them was held whole"
    assert [path.name for path in tmp_path.iterdir()] == ["bcm.zip"]


def test_archives_in_one_another_have_one_limit() -> None:
    """What they take together while all are open, not each for itself."""
    whole, each = nested(4, 2 << 20), 2 << 20
    for room, taken in ((7 * each, True), (5 * each, False)):
        found = vendor_release.in_file("bcm.zip", "bcm.zip", io.BytesIO(whole), vendor_archive.Budget(), room=room)
        error = refusal(lambda found=found: list(found))  # type: ignore[misc]
        assert (error is None) == taken
        assert error is None or (error.code, error.what) == ("bad-archive", "larger than 3 MB")


def search(name: str, data: bytes) -> tuple[vendor_release.VendorRelease, ...] | BadInput:
    try:
        return tuple(vendor_release.in_file(name, "here", io.BytesIO(data), vendor_archive.Budget()))
    except BadInput as error:
        return error


@PROPERTY
@given(st.sampled_from(sorted(BUNDLES)), st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8))
def test_changed_bytes(name: str, place: int, patch: bytes) -> None:
    data = bytearray(BUNDLES[name])
    place %= len(data)
    data[place : place + len(patch)] = patch
    found = search(name, bytes(data))
    if not isinstance(found, BadInput):
        content = {gzip.decompress(each.data) for each in found}  # gzip's own header has no checksum
        assert content <= {raw_tar(library_files())}, "a changed release was taken"


@PROPERTY
@given(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8))
def test_changed_headers(place: int, patch: bytes) -> None:
    """Behind the compression, where tarfile itself reads."""
    data = bytearray(raw_tar(library_files()))
    place %= 4096
    data[place : place + len(patch)] = patch
    found = search(name_of(V1), gzip.compress(bytes(data), 1))
    assert isinstance(found, BadInput) or [each.version for each in found] == [V1]


@PROPERTY
@given(st.sampled_from(sorted(BUNDLES)), st.integers(0, 1 << 20))
def test_cut_anywhere(name: str, place: int) -> None:
    data = BUNDLES[name]
    found = search(name, data[: place % len(data)])
    # Of the zeros that end a tar some may be missing.
    assert isinstance(found, BadInput) or [each.data for each in found] == [LIBRARY]


@PROPERTY
@given(
    st.text("ab./\\~- ", min_size=1, max_size=12),
    st.sampled_from([tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]),
    st.text("ab./\\~-", max_size=12),
)
def test_any_name_and_link(name: str, kind: bytes, link: str) -> None:
    """What is accepted lies in its folder wherever it is unpacked."""
    data = library(edit=lambda tar: tar.addfile(*entry(f"{TOP}/{name}", kind=kind, link=link)))
    if isinstance(search(name_of(V1), data), BadInput):
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for info in tar:
            assert tarfile.data_filter(info, "/somewhere").name.startswith(TOP)


def extended(record: bytes) -> bytes:
    """A tar of one member, with an extended header of this record."""
    header, member = tarfile.TarInfo("pax"), tarfile.TarInfo("member")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    return header.tobuf() + record + bytes(-len(record) % 512) + member.tobuf() + bytes(1024)


def large() -> bytes:
    member = tarfile.TarInfo("member")
    member.size = 1 << 44
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (extended(b"3012 comment" + b"1" * 2990 + b"=abcdefg\n"), "a number of more than 32 digits"),
        (extended(b"23 size=17592186044416\n"), "a member of 17592186044416 bytes"),
        (large(), "a header of 17592186044416 bytes"),
    ],
)
def test_what_the_standard_library_would_read_for_hours(data: bytes, cause: str) -> None:
    """Digits in a square of their number, and a member's bytes one by one, although the file has no more."""
    with pytest.raises(BadInput) as refused:
        list(vendor_archive.members(io.BytesIO(data), "x.tar", "x.tar", vendor_archive.Budget()))
    assert cause in str(refused.value.finding.cause)

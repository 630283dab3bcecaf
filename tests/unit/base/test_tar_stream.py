"""Headers of tars that others made: bounded in number, size and what they say; and nothing else opens a tar to read."""

from __future__ import annotations

import ast
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rocstack.base import tar_stream
from rocstack.base.tar_stream import Pieces, open_tar

CLI = Path(tar_stream.__file__).parents[1]


def header(name: str = "a", kind: bytes = b"0", size: bytes = b"00000000000\0", data: bytes = b"") -> bytes:
    """One header with the size that it claims, and the data behind it, padded."""
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data + bytes(-len(data) % 512)


def extended(text: str, kind: bytes = b"x") -> bytes:
    line = f" {text}\n".encode()
    size = len(line) + 1
    while len(line) + len(str(size)) != size:
        size += 1
    data = str(size).encode() + line
    return header("x", kind, b"%011o\0" % len(data), data)


def huge(power: int) -> bytes:
    return b"\x80" + (1 << power).to_bytes(11, "big")


END = bytes(1024)


def names(data: bytes, step: int = 700) -> list[str]:
    with open_tar(Pieces(data[at : at + step] for at in range(0, len(data), step))) as tar:
        return [member.name for member in tar]


def test_usual_tars_are_read() -> None:
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as tar:
            for name in ("short", "long/" * 30 + "er"):
                tar.addfile(tarfile.TarInfo(name))
        assert names(out.getvalue()) == ["short", "long/" * 30 + "er"]
        assert names(out.getvalue() + bytes(5000)) == ["short", "long/" * 30 + "er"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        # tarfile steps over these block by block, 2**60 times, though nothing is there any more.
        (lambda: header("d", b"Z", huge(80)), "a header of 1208925819614629174706176 bytes"),
        (lambda: header("d", b"0", huge(80)), "a header of 1208925819614629174706176 bytes"),
        (lambda: header("d", b"0", b"\xff" * 12), "a header of -1 bytes"),
        (lambda: extended("size=-512") + header(), "a member of -512 bytes"),
        (lambda: extended(f"size={1 << 60}") + header(), "a member of 1152921504606846976 bytes"),
        # What it would read into memory.
        (lambda: header("n", b"L", b"77777777777\0"), "a header of 8589934591 bytes"),
        (lambda: header("n", b"K", b"00100000000\0"), "a header of 16777216 bytes"),
        (lambda: header("n", b"x", b"00100000000\0"), "a header of 16777216 bytes"),
        (lambda: header("n", b"g", b"00100000000\0"), "a header of 16777216 bytes"),
        (lambda: extended("path=" + "a/" * 2100) + header(), "a name of 4199"),
        (lambda: header("l", b"L", b"00000010000\0", b"a" * 4096) + header(), None),
        (lambda: header("l", b"L", b"00000010001\0", b"a" * 4097) + header(), "a name of 4097"),
        (lambda: header("s", b"S"), "a sparse file"),
        (lambda: extended("GNU.sparse.major=1") + header(), None),
        (lambda: extended("GNU.sparse.map=0,1") + header(), "a sparse file"),
        (lambda: extended("GNU.sparse.size=1") + header(), "a sparse file"),
        # Each calls itself once more, and what is said for all is kept.
        (lambda: extended("comment=x") * 2000 + header(), "more than 8 headers before a member"),
        (lambda: header("l", b"L", b"00000000001\0", b"a") * 2000 + header(), "more than 8 headers before a member"),
        (lambda: b"".join(extended(f"k{at}=x", b"g") + header() for at in range(65)), "more than 64 extended"),
        (lambda: extended("comment=" + "1" * 3000) + header(), "more than 32 digits"),
        # Where it would see an end, and another reader more files.
        (lambda: header() + b"x" * 512 + header("hidden") + END, "a damaged header"),
        (lambda: header(), "it ends in the middle"),
        (lambda: header()[:300], "damaged"),
        (lambda: b"hello" * 1000, "damaged"),
        (lambda: b"", "ends in the middle"),
    ],
)
def test_headers_that_are_refused(data: Callable[[], bytes], why: str | None) -> None:
    if why is None:
        assert names(data() + END)
        return
    with pytest.raises(tarfile.TarError, match=why):
        names(data())


def test_a_member_after_many_headers_begins_anew() -> None:
    assert len(names((extended("comment=x") * 7 + header()) * 50 + END)) == 50


def test_nothing_else_opens_a_tar_to_read() -> None:
    """Whoever opens one, by another module or without the limits, is found here."""
    found = []
    for path in CLI.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tarfile.open", "tarfile.TarFile", "TarFile"):
                mode = next((ast.unparse(each.value) for each in node.keywords if each.arg == "mode"), "'r'")
                if mode.strip("'")[0] != "w":
                    found.append(path.relative_to(CLI).as_posix())
    assert found == ["base/tar_stream.py"]

"""rdma-core's source archive, as somebody downloaded it: its name and its content must say the same version."""

from __future__ import annotations

import hashlib
import lzma
import tarfile
from pathlib import Path

import pytest
from archives import entry, raw_tar, tar_gz
from cli_run import refusal

from rocstack.base.errors import BadInput
from rocstack.nic import vendor_release
from rocstack.nic.vendor_release import VendorRelease

NAME, TOP = "rdma-core-65.0.tar.gz", "rdma-core-65.0"
CMAKE = b'cmake_minimum_required(VERSION 3.18.1)\nset(PACKAGE_NAME "RDMA")\nset(PACKAGE_VERSION "65.0")\n'
FILES = {
    f"{TOP}/CMakeLists.txt": CMAKE,
    f"{TOP}/libibverbs/CMakeLists.txt": b'set(PACKAGE_VERSION "1.0")\n',
    f"{TOP}/a.c": b"int a;",
}


def read(folder: Path, data: bytes | None, name: str = NAME) -> VendorRelease:
    path = folder / name
    if data is not None:
        path.write_bytes(data)
    return vendor_release.rdma_core(path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (NAME, tar_gz(FILES)),
        ("rdma-core_65.0.orig.tar.xz", lzma.compress(raw_tar(FILES))),
        (NAME, tar_gz({f"./{name}": data for name, data in FILES.items()})),
    ],
)
def test_a_release(name: str, data: bytes, tmp_path: Path) -> None:
    found = read(tmp_path, data, name)
    assert (found.version, found.name, found.data) == ("65.0", name, data)
    assert found.sha256 == hashlib.sha256(data).hexdigest()
    assert repr(data) not in repr(found)


def link(name: str, target: str) -> bytes:
    return tar_gz(FILES, lambda tar: tar.addfile(*entry(name, kind=tarfile.SYMTYPE, link=target)))


def with_member(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    return tar_gz(FILES, lambda tar: tar.addfile(*entry(name, kind=kind)))


@pytest.mark.parametrize(
    ("name", "data", "code", "words"),
    [
        (NAME, None, "no-file", "is not an rdma-core-VERSION.tar.gz"),
        ("rdma-core.tar.gz", tar_gz(FILES), "no-library", "is not an rdma-core-VERSION.tar.gz"),
        ("rdma-core-65.0.zip", tar_gz(FILES), "no-library", "is not an rdma-core-VERSION.tar.gz"),
        ("rdma-core-65.tar.gz", tar_gz(FILES), "no-library", "is not an rdma-core-VERSION.tar.gz"),
        ("rdma-core-65.0.tar.gz.part", tar_gz(FILES), "no-library", "is not an rdma-core-VERSION.tar.gz"),
        ("xrdma-core-65.0.tar.gz", tar_gz(FILES), "no-library", "is not an rdma-core-VERSION.tar.gz"),
        ("libbnxt_re-232.0.164.5.tar.gz", tar_gz(FILES), "no-library", "is not an rdma-core-VERSION.tar.gz"),
        ("rdma-core-64.0.tar.gz", tar_gz(FILES), "wrong-release", "named 64.0, but its CMakeLists.txt says 65.0"),
        ("rdma-core-65.0.1.tar.gz", tar_gz(FILES), "wrong-release", "named 65.0.1, but its CMakeLists.txt says 65.0"),
        (NAME, tar_gz({f"{TOP}/a.c": b""}), "wrong-release", "says nothing"),
        (NAME, tar_gz({f"{TOP}/CMakeLists.txt": b"# " + CMAKE.splitlines()[-1]}), "wrong-release", "says nothing"),
        (NAME, tar_gz({f"{TOP}/CMakeLists.txt": CMAKE + CMAKE.replace(b"65", b"64")}), "wrong-release", "65.064.0"),
        (NAME, tar_gz({f"{TOP}/libibverbs/CMakeLists.txt": CMAKE}), "wrong-release", "says nothing"),
        (NAME, b"", "bad-archive", "no tar.gz file inside"),
        (NAME, b"<!DOCTYPE html><html>log in</html>", "bad-archive", "no tar.gz file inside"),
        (NAME, tar_gz(FILES)[:-20], "bad-archive", "damaged or cut off"),
        (NAME, tar_gz(FILES)[:60], "bad-archive", "damaged or cut off"),
        (NAME, with_member("../../etc/cron.d/x"), "hostile-archive", "written outside"),
        (NAME, with_member("/etc/cron.d/x"), "hostile-archive", "written outside"),
        (NAME, with_member(f"{TOP}/null", tarfile.CHRTYPE), "hostile-archive", "a device or other special file"),
        (NAME, link(f"{TOP}/out", "/etc"), "hostile-archive", "a link that leads outside"),
        (NAME, link(f"{TOP}/out", "../etc"), "hostile-archive", "a link that leads outside"),
        (NAME, link(f"{TOP}/out", "../../etc"), "hostile-archive", "a link that leads outside"),
        (NAME, tar_gz({**FILES, f"{TOP}/zeros": bytes(80 << 20)}), "hostile-archive", "times its size"),
    ],
)  # fmt: skip
def test_refused(name: str, data: bytes | None, code: str, words: str, tmp_path: Path) -> None:
    error = refusal(lambda: read(tmp_path, data, name))
    assert error is not None
    assert error.code == code
    assert words in error.what
    assert name in f"{error.what} {error.where}"
    assert error.next_step


def test_nothing_given() -> None:
    error = refusal(lambda: vendor_release.rdma_core(None))
    assert error is not None
    assert error.code == "no-library"
    assert "--nic-source" in str(error.next_step)


def test_a_folder_or_a_huge_file(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(BadInput, match=r"is not an rdma-core-VERSION\.tar\.gz"):
        vendor_release.rdma_core(tmp_path / NAME)
    with (tmp_path / "rdma-core-65.1.tar.gz").open("wb") as file:
        file.truncate(vendor_release.MAX_RDMA_CORE + 1)
    with pytest.raises(BadInput, match="larger than 64 MB"):
        vendor_release.rdma_core(tmp_path / "rdma-core-65.1.tar.gz")


@pytest.mark.parametrize("cut", range(0, 100, 7))
def test_every_cut_is_noticed(cut: int, tmp_path: Path) -> None:
    data = tar_gz(FILES)
    error = refusal(lambda: read(tmp_path, data[: len(data) * cut // 100]))
    assert error is not None
    assert error.code == "bad-archive"

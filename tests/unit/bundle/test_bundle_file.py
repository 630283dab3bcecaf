"""The file: its one form, and whatever somebody made of it, refused by name."""

from __future__ import annotations

import errno
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bundled import KEY, TinySite, edited, members, packed, tiny_site
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocstack.base.errors import BadInput, Missing, RocstackError
from rocstack.bundle import format as form
from rocstack.bundle.check import check
from rocstack.bundle.file import BundleFile, read_record
from rocstack.bundle.format import BundleMember, BundleRecord
from rocstack.bundle.write import BundlePart, write


@pytest.fixture(scope="module")
def site() -> Iterator[TinySite]:
    with tiny_site() as site:
        site.publish()
        yield site


@pytest.fixture(scope="module")
def original(site: TinySite, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "site.bundle"
    site.bundle(path)
    return path


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    path = tmp_path / "site.bundle"
    path.write_bytes(original.read_bytes())
    return path


def refused(path: Path) -> RocstackError:
    with pytest.raises(RocstackError) as caught, BundleFile.open(path) as bundle:
        check(bundle, [KEY.public])
    assert caught.value.what
    assert caught.value.next_step
    return caught.value


def test_a_tar_of_which_the_script_is_the_first_member(original: Path) -> None:
    with tarfile.open(original) as archive:
        names = archive.getnames()
        assert names[:2] == ["install", "bundle.json"]
        assert names[2:] == sorted(names[2:])
        assert {(each.mtime, each.uid, each.uname, each.isreg()) for each in archive} == {(0, 0, "", True)}
    with BundleFile.open(original) as bundle:
        checked = check(bundle, [KEY.public])
    assert checked.proved.signers == (KEY.public.fingerprint,)
    assert [image.role for image in checked.proved.release.images] == ["worker", "control"]


def test_the_same_release_gives_the_same_bytes(site: TinySite, original: Path, tmp_path: Path) -> None:
    site.bundle(tmp_path / "again.bundle")
    assert (tmp_path / "again.bundle").read_bytes() == original.read_bytes()


def test_a_shared_layer_is_there_once_and_little_else_is_there(original: Path) -> None:
    layers = [data for name, data in members(original).items() if data.startswith(b"\x28\xb5\x2f\xfd")]
    assert len(layers) == 4  # base, rocm, trainer, slurm
    assert len(set(layers)) == 4


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_cut_off_anywhere_it_is_refused(original: Path, copy: Path, data: st.DataObject) -> None:
    whole = original.stat().st_size
    at = data.draw(st.integers(0, whole - 1))
    copy.write_bytes(original.read_bytes()[:at])
    assert refused(copy).code == ("bundle-truncated" if at >= form.BLOCK else "no-bundle")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_noticed(original: Path, copy: Path, data: st.DataObject) -> None:
    content = bytearray(original.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    copy.write_bytes(content)
    refused(copy)


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, **more: str) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT)


ADDED: dict[str, tuple[str, bytes]] = {
    "a file": ("bundle-unlisted", header("evil", size=3) + b"abc" + bytes(509)),
    "a link": ("bundle-odd-member", header("evil", tarfile.SYMTYPE, linkname="/etc/passwd")),
    "a hard link": ("bundle-odd-member", header("evil", tarfile.LNKTYPE, linkname="install")),
    "a folder": ("bundle-odd-member", header("evil/", tarfile.DIRTYPE)),
    "a device": ("bundle-odd-member", header("evil", tarfile.CHRTYPE)),
    "an absolute path": ("bundle-unsafe-path", header("/etc/cron.d/evil")),
    "a path upwards": ("bundle-unsafe-path", header("a/../../evil")),
    "a link upwards": ("bundle-unsafe-path", header("../evil", tarfile.SYMTYPE, linkname="x")),
    "a member of its own once more": ("bundle-damaged", header("index.json")),
    "a long name": ("bundle-unlisted", header("x" * 300)),
    "an extended header": ("bundle-unlisted", header("pax", tarfile.XHDTYPE)),
    "no member": ("bundle-damaged", b"x" * 512),
}


@pytest.mark.parametrize("case", ADDED)
def test_what_was_added_is_refused_by_name(copy: Path, case: str) -> None:
    code, extra = ADDED[case]
    packed(copy, members(copy), listed=False, extra=extra)
    assert refused(copy).code == code


@pytest.mark.parametrize("case", ADDED)
def test_what_stands_in_the_place_of_a_member_is_refused_by_name(copy: Path, case: str) -> None:
    code, extra = ADDED[case]
    content = copy.read_bytes()
    with tarfile.open(copy) as archive:
        at = archive.getmember("oci-layout").offset
    copy.write_bytes(content[:at] + extra + content[at:])
    assert refused(copy).code == code


def test_bytes_behind_its_end(copy: Path) -> None:
    with copy.open("ab") as file:
        file.write(bytes(512))
    assert refused(copy).code == "bundle-unlisted"


def listing(change: Callable[[dict[str, object]], object]) -> Callable[[dict[str, bytes]], object]:
    def edit(contents: dict[str, bytes]) -> None:
        record = json.loads(contents["bundle.json"])
        change(record)
        contents["bundle.json"] = json.dumps(record).encode()

    return edit


def first(record: dict[str, object]) -> dict[str, object]:
    found: dict[str, object] = record["members"][0]  # type: ignore[index]
    return found


LISTED = {
    "a larger size": ("bundle-other-size", listing(lambda r: first(r).update(size=10**9))),
    "a negative size": ("bundle-unreadable", listing(lambda r: first(r).update(size=-1))),
    "an enormous size": ("bundle-unreadable", listing(lambda r: first(r).update(size=10**18))),
    "an absolute path": ("bundle-unreadable", listing(lambda r: first(r).update(path="/etc/passwd"))),
    "a path upwards": ("bundle-unreadable", listing(lambda r: first(r).update(path="../x"))),
    "a blob under another name": ("bundle-unreadable", listing(lambda r: first(r).update(sha256="0" * 64))),
    "a member twice": ("bundle-unreadable", listing(lambda r: r["members"].append(first(r)))),  # type: ignore[attr-defined]
    "an unknown key": ("bundle-unreadable", listing(lambda r: r.update(more=1))),
    "a newer form": ("bundle-unreadable", listing(lambda r: r.update(schema_version=2))),
    "something left out of no bundle": ("bundle-unreadable", listing(lambda r: r.update(absent=[first(r)]))),
    "no JSON": ("bundle-unreadable", lambda contents: contents.update({"bundle.json": b"{"})),
    "another script": ("bundle-differs", lambda contents: contents.update(install=b"rm -rf /")),
    "another machine": ("bundle-other-machine", listing(lambda r: r.update(architecture="riscv64"))),
    "another release": ("bundle-incoherent", listing(lambda r: r.update(release="2027.01"))),
}


@pytest.mark.parametrize("case", LISTED)
def test_what_bundle_json_says_is_checked(copy: Path, case: str) -> None:
    code, change = LISTED[case]
    edited(copy, change, listed=False)
    assert refused(copy).code == code


def test_a_changed_member_is_named(copy: Path) -> None:
    content = copy.read_bytes()
    with tarfile.open(copy) as archive:
        at = archive.getmember("locks/debian-13-tcp.lock").offset_data
    copy.write_bytes(content[:at] + b"!" + content[at + 1 :])
    error = refused(copy)
    assert error.code == "bundle-differs"
    assert "locks/debian-13-tcp.lock" in error.what


@pytest.mark.parametrize("content", [b"", b"hello", b"{}", bytes(10_240), b"\x1f\x8b\x08" + bytes(600)])
def test_no_bundle_at_all(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert refused(path).code == "no-bundle"


def test_a_pipe_or_folder_is_no_bundle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "nothing"):
        with pytest.raises(BadInput, match="no bundle"), BundleFile.open(path):
            pass


def test_an_ordinary_tar_is_no_bundle(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("hello"), io.BytesIO())
    assert refused(tmp_path / "x.tar").code == "no-bundle"


def test_its_record_is_read_from_the_bundle_or_alone(original: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_bytes(members(original)["bundle.json"])
    assert read_record(tmp_path / "bundle.json") == read_record(original)


# Writing


def record_of(*parts: BundlePart) -> BundleRecord:
    chosen = tuple(part.member for part in parts)
    return BundleRecord(
        release="x", created="x", rocstack="0", architecture="x86_64", glibc="2.31", python="3.11", install="0" * 64,
        members=chosen,
    )  # fmt: skip


def test_a_part_that_turns_out_as_another_leaves_no_file(tmp_path: Path) -> None:
    part = BundlePart.of("a", b"abc")
    for other in (b"abd", b"ab", b"abcd"):
        wrong = BundlePart(part.member, lambda data=other: iter((data,)))  # type: ignore[misc]
        with pytest.raises(RocstackError) as caught:
            write(tmp_path / "b", record_of(part), b"", {"a": wrong})
        assert caught.value.code == "bundle-source-differs"
        assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("before")

    def pieces() -> Iterator[bytes]:
        yield b"ab"
        raise KeyboardInterrupt

    part = BundlePart(BundlePart.of("a", b"abc").member, pieces)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "b", record_of(part), b"", {"a": part})
    assert [file.name for file in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").read_text() == "before"


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    large = BundlePart(BundleMember(path="a", size=1 << 49, sha256="0" * 64), lambda: iter(()))
    with pytest.raises(Missing) as caught:
        write(tmp_path / "b", record_of(large), b"", {"a": large})
    assert caught.value.code == "bundle-no-room"
    assert "562949953 MB" in caught.value.what
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_that_fills_while_it_is_written_leaves_the_file_that_was_there(tmp_path: Path, number: int) -> None:
    """Somebody else writes, too; or there is a quota, of which nothing was said before."""
    (tmp_path / "b").write_text("before")

    def pieces() -> Iterator[bytes]:
        yield b"ab"
        raise OSError(number, os.strerror(number))

    part = BundlePart(BundlePart.of("a", b"abc").member, pieces)
    with pytest.raises(Missing) as caught:
        write(tmp_path / "b", record_of(part), b"", {"a": part})
    assert caught.value.code == "bundle-no-room"
    assert [file.name for file in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").read_text() == "before"


def test_sizes_beyond_8_gb_have_a_header() -> None:
    data = form.header("a", 20 << 30)
    assert tarfile.TarInfo.frombuf(data, "utf-8", "strict").size == 20 << 30

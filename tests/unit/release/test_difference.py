"""What two layers differ in: each way in which a file can, and what it is put down to."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import Any

import pytest

from rocstack.release import difference, layer_files
from rocstack.release.difference import by_cause, changed, compare, pairs
from rocstack.release.layer_files import LayerFiles


def layer(*members: tuple[str, bytes | None, dict[str, Any]]) -> LayerFiles:
    """A layer as an engine gives it: a tar of files, of which some have other fields than usual."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data, fields in members:
            info = tarfile.TarInfo(name)
            info.size = len(data or b"")
            info.mtime = 1_577_836_800
            for key, value in fields.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data or b""))
    data = out.getvalue()
    return layer_files.read(data[at : at + 1000] for at in range(0, len(data), 1000))


def one(first: LayerFiles, second: LayerFiles, versions: dict[str, str] | None = None) -> Any:
    owners = {**first.packages, **second.packages}
    (found,) = compare(1, first, second, versions or {}, owners).found
    return found


PLAIN = ("etc/x", b"x", {"mode": 0o644})


def test_a_layer_is_read_by_its_files() -> None:
    found = layer(
        ("./usr", None, {"type": tarfile.DIRTYPE, "mode": 0o755}),
        ("usr/a", b"a" * 3000, {"mode": 0o640, "uid": 7, "gid": 8}),
        ("usr/b", None, {"type": tarfile.SYMTYPE, "linkname": "a"}),
        ("usr/c", None, {"type": tarfile.LNKTYPE, "linkname": "usr/a"}),
        ("dev/d", None, {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("var/lib/dpkg/info/libx:amd64.list", b"/.\n/usr/a\n", {}),
    )
    files = found.files
    assert [(each.kind, each.content) for each in files.values()] == [
        ("folder", ""),
        ("file", hashlib.sha256(b"a" * 3000).hexdigest()),
        ("link", "a"),
        ("hard link", "usr/a"),
        ("device", "1:3"),
        ("file", hashlib.sha256(b"/.\n/usr/a\n").hexdigest()),
    ]
    assert (files["usr/a"].mode, files["usr/a"].owner, files["usr/a"].size) == (0o640, "7:8", 3000)
    assert found.packages["usr/a"] == "libx"


def test_what_is_no_tar_is_refused() -> None:
    with pytest.raises(ValueError, match="no tar"):
        layer_files.read([b"hello" * 1000])
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        info = tarfile.TarInfo("x")
        info.size = 5000
        archive.addfile(info, io.BytesIO(bytes(5000)))
    with pytest.raises(ValueError, match="no tar"):
        layer_files.read([whole.getvalue()[:2000]])


def test_of_too_many_files_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_files, "MOST", 2)
    with pytest.raises(ValueError, match="more than 2 files"):
        layer(("a", b"", {}), ("b", b"", {}), ("c", b"", {}))


def test_of_too_many_letters_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, attributes, and the lists of packages, each of which is small."""
    monkeypatch.setattr(layer_files, "TEXT", 1000)
    layer(("a", b"x" * 5000, {}))
    for members in (
        [("a" * 300, b"", {}), ("b" * 800, b"", {})],
        [("a", b"", {"pax_headers": {"SCHILY.xattr.user.x": "y" * 1000}})],
        [(f"var/lib/dpkg/info/lib{each}.list", b"/a\n" * 100, {}) for each in range(3)],
    ):
        with pytest.raises(ValueError, match="letters"):
            layer(*members)


def test_lists_of_packages_name_no_more_files_than_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_files, "MOST", 5)
    with pytest.raises(ValueError, match="more than 5 files"):
        layer(("var/lib/dpkg/info/libx.list", b"".join(b"/%d\n" % each for each in range(6)), {}))


def test_a_header_that_no_layer_has_is_refused() -> None:
    """The first once made the comparison run for ever: 2**80 bytes of a file that is none."""
    block = bytearray(tarfile.TarInfo("x").tobuf())
    block[156:157] = b"Z"
    block[124:136] = b"\x80" + (1 << 80).to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(ValueError, match="no tar: a header of"):
        layer_files.read([bytes(block) + bytes(1024)])


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        (("etc/x", b"y", {"mode": 0o644}), ("content",)),
        (("etc/x", b"x", {"mode": 0o600}), ("mode",)),
        (("etc/x", b"x", {"mode": 0o644, "uid": 1}), ("owner",)),
        (("etc/x", b"x", {"mode": 0o644, "gid": 1}), ("owner",)),
        (("etc/x", None, {"mode": 0o644, "type": tarfile.SYMTYPE, "linkname": "x"}), ("kind", "content")),
        (
            ("etc/x", b"x", {"mode": 0o644, "pax_headers": {"SCHILY.xattr.security.capability": "net"}}),
            ("attributes",),
        ),
    ],
)
def test_each_way_in_which_a_file_differs(other: tuple[str, bytes, dict[str, Any]], differs: tuple[str, ...]) -> None:
    found = one(layer(PLAIN), layer(other))
    assert (found.path, found.how, found.differs, found.cause) == ("etc/x", "changed", differs, "other")


def test_files_of_one_side_are_named() -> None:
    assert one(layer(PLAIN), layer()).how == "only in the first"
    assert one(layer(), layer(PLAIN)).how == "only in the second"


def test_the_time_of_change_is_no_content() -> None:
    found = compare(3, layer(PLAIN), layer(("etc/x", b"x", {"mode": 0o644, "mtime": 5})), {}, {})
    assert (found.layer, found.files, found.times, found.found, found.same) == (3, 1, 1, (), False)
    assert compare(1, layer(PLAIN), layer(PLAIN), {}, {}).same


FOLDER = {"type": tarfile.DIRTYPE, "mode": 0o755}


def test_what_an_engine_writes_again_is_no_content() -> None:
    """As overlay2 gives a layer: files that were opened and left as they were, folders, and marks that nothing is
    below them."""
    odd = ("//abs/x", b"", {})
    lower = layer(("etc", None, FOLDER), ("etc/x", b"x", {}), ("etc/old", b"", {}), ("opt/full/a", b"", {}), odd)
    again = layer(
        ("etc", None, {**FOLDER, "mtime": 7}), ("etc/x", b"x", {"mtime": 7}), ("usr/new/.wh..wh..opq", b"", {}),
        ("usr/.wh.never", b"", {}), ("usr/new/a", b"a", {}),
    )  # fmt: skip
    plain = layer(("usr/new/a", b"a", {}))
    below = difference.MergedLayers(), difference.MergedLayers()
    for tree in below:
        tree.add(lower)
    for pair in ((plain, again), (again, plain)):
        found = compare(2, *pair, {}, {}, below)
        assert (found.times, found.found, found.same) == (4, (), False)
    for member in (("etc/x", b"y", {}), ("etc/.wh.old", b"", {}), ("opt/full/.wh..wh..opq", b"", {}), ("z", b"", {})):
        found = compare(2, plain, layer(("usr/new/a", b"a", {}), member), {}, {}, below)
        assert [each.path for each in found.found] == [member[0]]
    emptied = ("opt/full/.wh..wh..opq", b"", {})
    kept, lost = layer(emptied, ("opt/full/a", b"", {})), layer(emptied, ("opt/full/new", b"", {}))
    assert [each.path for each in compare(2, kept, lost, {}, {}, below).found] == ["opt/full/a", "opt/full/new"]
    for tree in below:
        tree.add(layer(("etc/.wh.old", b"", {}), ("opt/full/.wh..wh..opq", b"", {}), ("opt/full/b", b"", {})))
    said = [
        below[0].says(name, lower.files["etc/old"]) for name in ("etc/old", "opt/full/a", "opt/full/b", "etc/.wh.old")
    ]
    assert said == [False, False, True, True]


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("usr/bin/fio", "fio: 1 -> 2"),
        ("usr/lib/libfio.so", "fio: 1 -> 2"),  # dpkg lists it below /lib
        ("var/lib/dpkg/info/fio.md5sums", "fio: 1 -> 2"),
        ("usr/bin/.wh.fio", "fio: 1 -> 2"),
        ("usr/bin/fio/.wh..wh..opq", "fio: 1 -> 2"),
        ("usr/bin/other", "other"),
        ("usr/local/lib/python3.13/dist-packages/my_wheel/a.py", "my-wheel (wheel): 1 -> 2"),
        ("usr/local/lib/python3.13/dist-packages/My_Wheel-2.dist-info/RECORD", "my-wheel (wheel): 1 -> 2"),
        ("usr/local/bin/my-wheel", "my-wheel (wheel): 1 -> 2"),
        ("usr/local/lib/python3.13/dist-packages/my_wheel/b.py", "other"),  # no list has it
        ("usr/lib/x/__pycache__/a.cpython-313.pyc", "byte code"),
        ("var/log/x", "log"),
        ("etc/ld.so.cache", "the loader's cache"),
        ("etc/shadow", "accounts"),
        ("var/lib/dpkg/status", "dpkg's database"),
        ("etc/rocstack/manifest.json", "the image's manifest"),
        ("etc/machine-id", "machine's identity"),
    ],
)
def test_a_difference_has_a_cause(path: str, cause: str) -> None:
    lists = ("var/lib/dpkg/info/fio.list", b"/usr/bin/fio\n/lib/libfio.so\n", {})
    site = "usr/local/lib/python3.13/dist-packages"
    record = b"my_wheel/a.py,sha256=x,1\nMy_Wheel-2.dist-info/RECORD,,\n../../../bin/my-wheel,sha256=y,2\n"
    wheel = (f"{site}/My_Wheel-2.dist-info/RECORD", record, {})
    same = [each for each in (lists, wheel) if each[0] != path]
    versions = changed(
        {"fio": "1", "same": "1", "my-wheel (wheel)": "1"}, {"fio": "2", "same": "1", "my-wheel (wheel)": "2"}
    )
    own = record if path == wheel[0] else b""
    assert one(layer(*same, (path, own + b"1", {})), layer(*same, (path, own + b"2", {})), versions).cause == cause


def test_packages_that_came_or_went_are_changes() -> None:
    assert changed({"a": "1"}, {"b": "2"}) == {"a": "1 -> not there", "b": "not there -> 2"}


def test_layers_are_paired_by_place_and_equal_ones_are_not_read() -> None:
    assert list(pairs(["1", "2", "3"], ["1", "x"])) == [(2, "2", "x"), (3, "3", None)]


def test_causes_are_told_by_how_many_files_they_explain() -> None:
    first = layer(("var/log/a", b"", {}), ("etc/x", b"", {}), ("etc/y", b"", {}))
    found = by_cause([compare(1, first, difference.NOTHING, {}, {})])
    assert [(cause, [each.path for each in files]) for cause, files in found.items()] == [
        ("other", ["etc/x", "etc/y"]),
        ("log", ["var/log/a"]),
    ]

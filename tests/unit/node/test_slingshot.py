"""Slingshot's libraries on a node: which are read, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocstack.node import node_command
from rocstack.node.collect import collect
from rocstack.node.gate import FITS, LIBRARIES, UNFIT, UNKNOWN
from rocstack.node.image_facts import ImageFacts
from rocstack.node.parse_libraries import libraries
from rocstack.node.profile import Library, NodeProfile, Unread
from rocstack.node.recording import Recording
from rocstack.probe.recordings import probe_host

FABRIC = "/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1.26.0"
CXI, JSON = "/usr/lib64/libcxi.so.1", "/usr/lib64/libjson-c.so.3.0.1"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    for path in (FABRIC, CXI, JSON):
        file = tmp_path / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\x7fELF, and nothing else")
    for path in (FABRIC, JSON):
        link = (tmp_path / path[1:]).parent / ".".join(Path(path).name.split(".")[:3])
        link.symlink_to(Path(path).name)
    return tmp_path


def found(node: Path) -> tuple[Library, ...]:
    return libraries(Recording.from_dict(collect(str(node), run=False)))


def test_they_are_read_where_there_is_slingshot(node: Path) -> None:
    (node / "dev").mkdir()
    (node / "dev/cxi0").touch()
    assert [(library.driver, library.path, library.version) for library in found(node)] == [
        ("cxi", CXI, "1"),
        ("json-c", JSON, "3.0.1"),
        ("libfabric", FABRIC, "1.22.0"),
    ]
    assert all(library.sha256 for library in found(node))
    # What can't be read is unread, not wrong.
    assert {(library.glibc, library.fabric) for library in probe_host(str(node)).libraries} == {(None, None)}


def test_elsewhere_only_their_names_are(node: Path) -> None:
    """Their bytes are megabytes, and nobody asks for them."""
    assert [(library.path, library.sha256) for library in found(node)] == [(JSON, None), (FABRIC, None)]


def test_an_empty_one_has_no_hash(node: Path) -> None:
    (node / "dev").mkdir()
    (node / "dev/cxi0").touch()
    (node / CXI[1:]).write_bytes(b"")
    assert [library.sha256 for library in found(node) if library.driver == "cxi"] == [None]


@pytest.mark.parametrize(
    ("names", "result", "says"),
    [
        (
            {"cxi": "libc.so.6", "libfabric": "libm.so.6"},
            FITS,
            "n1: 1 Slingshot device, and the host's libfabric loads",
        ),
        ({"cxi": "libcxi.so.none", "libfabric": "libm.so.6"}, UNFIT, "libcxi.so.none: cannot open shared object file"),
    ],
)
def test_in_the_image_they_are_loaded(
    names: dict[str, str], result: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_command, "SLINGSHOT_FILES", names)
    monkeypatch.setattr(node_command, "PLUGIN_FOLDER", tmp_path)
    image, unread = ImageFacts("i", "slingshot"), (Unread(LIBRARIES, "the image has its own"),)
    verdict = node_command.read_verdict(image, NodeProfile(1, "n1", cxi=("/dev/cxi0",), unread=unread))
    assert verdict.result == result
    assert says in verdict.sentence
    assert node_command.read_verdict(image, NodeProfile(1, "n1", unread=unread)).result == UNFIT
    assert node_command.read_verdict(ImageFacts("i", "ainic"), NodeProfile(1, "n1", unread=unread)).result == UNKNOWN


def test_in_the_image_the_plugin_is_loaded_with_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "librccl-net.so").write_text("no library")
    monkeypatch.setattr(node_command, "SLINGSHOT_FILES", {"cxi": "libc.so.6", "libfabric": "libm.so.6"})
    monkeypatch.setattr(node_command, "PLUGIN_FOLDER", tmp_path)
    unread = (Unread(LIBRARIES, "the image has its own"),)
    verdict = node_command.read_verdict(
        ImageFacts("i", "slingshot"), NodeProfile(1, "n1", cxi=("/dev/cxi0",), unread=unread)
    )
    assert verdict.result == UNFIT
    assert "librccl-net.so: file too short; start it with `rocstack run`" in verdict.sentence

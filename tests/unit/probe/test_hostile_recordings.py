"""A recording from a stranger is written below its folder, or not at all."""

from __future__ import annotations

import json
import random
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_run import Cli, listing

from rocstack.base.errors import BadInput
from rocstack.nic.elf import LibraryAbi
from rocstack.node.parse import parse
from rocstack.node.parse_libraries import MOST
from rocstack.node.recording import MOST_NAMES, RecordedAnswer, Recording
from rocstack.probe.redact import mask
from rocstack.steps.probe import write_recordings

UP = "../" * 9
PLAIN = Recording(host="n1", files={"/sys/a/b": "1\n"}, links={"/sys/c": "/sys/a"})
HOSTS = [
    ":/../../../.docker/config",
    "../x",
    "/x",
    "..",
    ".",
    "a/b",
    "x" * 65,
    "a\0b",
    "-n",
    "ä",
    "a b",
    "",
    ":",
    "a:b",
]
AIMS = [
    "/sys/" + UP + "sys/kernel/x",
    UP + "etc",
    "..",
    "/etc/passwd",
    "/sys/../etc",
    "a",
    "",
    "/",
    "/sys",
    "/sys/a/../../x",
]


def document(**fields: Any) -> dict[str, Any]:
    return {**PLAIN.to_dict(), **fields}


@pytest.mark.parametrize("host", [host for host in HOSTS if host])
def test_a_host_s_name_that_is_a_path_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="not a recording"):
        Recording.from_dict(document(host=host))


@pytest.mark.parametrize("aim", AIMS[:3])
def test_a_link_s_target_is_normal(aim: str) -> None:
    with pytest.raises(ValueError, match="not a recording"):
        Recording.from_dict(document(links={"/sys/x": aim}))


@pytest.mark.parametrize("host", HOSTS)
def test_no_name_of_a_host_is_written_as_a_path(host: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        write_recordings([replace(PLAIN, host=host)], tmp_path / "a/b/out")
    assert refused.value.code == "bad-recording"
    assert listing(tmp_path) == {}


@pytest.mark.parametrize("names", [("n", "n"), ("n", "N"), ("n", "n.json"), ("n.JSON", "n")])
def test_two_recordings_are_never_one_file(names: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no name of one"):
        write_recordings([replace(PLAIN, host=name) for name in names], tmp_path / "out")
    assert listing(tmp_path) == {}


def test_what_is_there_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("n1", "n1.json"):
        out = tmp_path / f"out-{name}"
        out.mkdir()
        (out / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(BadInput) as refused:
            write_recordings([PLAIN], out)
        assert refused.value.code == "no-access"
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("a", "file"):
        (tree / name).symlink_to(tmp_path / "elsewhere")
    for files in ({"/sys/a/b": "x"}, {"/sys/file": "x"}):
        with pytest.raises(OSError, match=r"irectory|links"):
            Recording(files=files).write_tree(tree)
    with pytest.raises(OSError, match=r"irectory|links"):
        Recording(folders=("/sys/a/b",)).write_tree(tree)
    assert listing(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize("line", ["..", ".", "", "x" * 300, "a\0b"])
def test_a_command_that_is_no_file_s_name(line: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        write_recordings([replace(PLAIN, commands={line: RecordedAnswer(0, "x")})], tmp_path / "out")
    assert listing(tmp_path) == {}


@pytest.mark.parametrize("host", ["b", "12", "10.0.0.9", "fe80::1", ":/../x", "a:b", "n1.example.com"])
def test_every_host_gets_a_stand_in(host: str) -> None:
    """Also one whose name can't be told from other words, or that is an address."""
    (masked,) = mask([Recording(host=host)], b"0" * 32)
    assert masked.host == "node-1"


def test_a_node_can_t_take_another_s_name() -> None:
    """By calling itself so."""
    both = [Recording(host="n1"), Recording(host="n2")]
    masked = mask(both, b"0" * 32, {"n1": "real", "n2": "n1"})
    assert [each.host for each in masked] == ["node-1", "node-2"]


def test_no_more_libraries_are_read_than_a_node_has() -> None:
    """Each may be made to take long."""
    names = {f"/usr/lib/lib{number}-rdmav34.so": b"\x7fELF%d" % number for number in range(MOST + 20)}
    linked = {f"/opt/{number}/libfabric.so.1": b"\x7fELF" for number in range(20)}
    read: list[bytes] = []

    def note(data: bytes, is_libibverbs: bool) -> LibraryAbi:
        read.append(data)
        return LibraryAbi()

    profile = parse(Recording(host="n1", blobs=names | linked), read_library=note)
    assert len(read) == MOST
    assert len(profile.libraries) == MOST + 40


@pytest.mark.parametrize("folder", MOST_NAMES)
def test_a_node_with_more_cards_than_any_is_refused(folder: str) -> None:
    """They are compared with each other."""
    real = f"/sys/real{folder}"
    files = {f"{real}/{number}/x": "1" for number in range(MOST_NAMES[folder])}
    given = document(files=files, links={folder: real})
    assert Recording.from_dict(given).names(folder)
    given["files"][f"{real}/one more"] = "1"
    with pytest.raises(ValueError, match=f"{folder} has more than {MOST_NAMES[folder]} names"):
        Recording.from_dict(given)


def packed(nodes: list[dict[str, Any]]) -> bytes:
    packer = zlib.compressobj(wbits=31)
    light = {"schema": 1, "rocstack": "1", "when": "x", "nodes": [{"recording": each, "traits": {}} for each in nodes]}
    return packer.compress(json.dumps(light).encode()) + packer.flush()


LINKED = {"/sys/class": "/sys/" + UP + "outside"}
ATTACKS: dict[str, list[dict[str, Any]]] = {
    "a link out": [document(links=LINKED)],
    "through the first's link": [document(links=LINKED), document(files={"/sys/class/x": "owned"}, links={})],
    "one name": [document(), document(host="N1", files={"/sys/c/x": "owned"}, links={})],
    "a path as a name": [document(host=":/../../../.docker/config")],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_replay_and_probe_write_nothing_outside_their_folder(name: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "light.json.gz").write_bytes(packed(ATTACKS[name]))
    (tmp_path / "taken").mkdir()
    for number, each in enumerate(ATTACKS[name]):
        (tmp_path / f"taken/{number}.json").write_text(json.dumps(each))
    before = listing(tmp_path)
    ran = cli("replay", "light.json.gz", "--out", "x/y/out", "--json")
    assert (ran.code, ran.json()["error"]["code"]) == (2, "bad-first-light")
    if name != "one name":  # these have other names afterwards
        ran = cli("probe", "--replay", "taken", "--record", "x/y/out", "--json")
        assert (ran.code, ran.json()["error"]["code"]) == (2, "bad-recording")
    assert listing(tmp_path) == before


def test_whatever_stands_in_a_recording_stays_in_its_folder(tmp_path: Path) -> None:
    draw = random.Random(3)
    parts = ["sys", "..", ".", "", "a", "b", "devices/virtual/rocstack", "commands", "root", "\0", "A", "fs/cgroup"]

    def path() -> str:
        return draw.choice(["/", "/sys/", ""]) + "/".join(draw.choice(parts) for _ in range(draw.randint(1, 6)))

    written = 0
    for number in range(200):
        place = tmp_path / str(number)
        out = place / "1/2/3/out"
        out.parent.mkdir(parents=True)
        nice = draw.random() < 0.7
        recordings = [
            Recording(
                host=draw.choice(["n1", "n2", "a.b", *([] if nice else HOSTS)]),
                files={draw.choice(["/sys/a/x", "/sys/b", path()]) if nice else path(): "x"},
                links={draw.choice(["/sys/l", "/sys/a/l", path()]): draw.choice([*AIMS, "/sys/b", "/sys/l", path()])},
                folders=(draw.choice(["/sys/a/l/x", "/sys/f"]) if nice else path(),),
                commands={draw.choice(["a", path()]): RecordedAnswer(0, "")},
            )
            for _ in range(draw.randint(1, 2))
        ]
        with suppress(BadInput):
            write_recordings(recordings, out)
            written += 1
        found = [each for each in place.rglob("*") if each not in out.parents]
        assert all(each.is_relative_to(out) for each in found), recordings
        for each in found:
            if each.is_symlink():
                aim = each.parent.resolve() / each.readlink()
                with suppress(RuntimeError, OSError):
                    assert aim.resolve().is_relative_to(out.resolve()), recordings
    assert written > 10

"""The file of node profiles: what is written is read again, and anything else is refused with its place."""

from __future__ import annotations

import copy
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import recorded_nodes

from rocstack.base.errors import BadInput
from rocstack.node.parse import parse
from rocstack.node.profile import NodeProfile
from rocstack.probe import profiles, recordings
from rocstack.probe import schema as profile_schema
from rocstack.probe.profiles import Profiles, read_profiles, to_dict, write_profiles
from rocstack.virtual import machine, model, tree

SCHEMA = Path(__file__).resolve().parents[3] / "docs" / "node-profile.schema.json"
CASES = recorded_nodes.names()


def virtual(name: str, node: int = 1) -> NodeProfile:
    return recordings.profiles([tree.record(machine.expand(model.load(name), node))])[0]


@pytest.fixture(scope="module")
def fleet() -> tuple[NodeProfile, ...]:
    return tuple(virtual(name, number) for number, name in enumerate(model.names(), 1))


def test_written_is_read(fleet: tuple[NodeProfile, ...], tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    ten = replace(fleet[0], name="n10")
    write_profiles(file, (ten, *reversed(fleet)))
    assert read_profiles(file) == (*fleet, ten), "sorted as people count"
    assert [path.name for path in tmp_path.iterdir()] == ["nodes.json"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    before = file.read_bytes()
    write_profiles(file, (*fleet, ten))
    assert file.read_bytes() == before


def test_a_failed_write_leaves_the_old_file(
    fleet: tuple[NodeProfile, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "nodes.json"
    file.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_profiles(file, fleet)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("nodes.json", "old")]


def test_the_published_schema_is_current() -> None:
    assert SCHEMA.read_text() == profile_schema.text(Profiles)


def test_profiles_fulfil_the_published_schema(fleet: tuple[NodeProfile, ...]) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    mine = [parse(recorded_nodes.recording(name), recorded_nodes.KINDS) for name in CASES]
    data = json.loads(json.dumps(to_dict([*fleet, *mine, recordings.probe_host()])))
    check.validate(data)
    next(each for each in data["profiles"] if each["gpus"])["gpus"][0]["colour"] = "red"
    assert not check.is_valid(data)
    about = schema["$defs"]["Gpu"]["properties"]
    assert about["render_minor"]["description"] == "/dev/dri/renderD<minor>", "the code's comments explain the fields"


def first(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["profiles"][0]
    return found


Edit = Callable[[dict[str, Any]], object]
# What was done to a good file -> the error's code and what it must say.
EDITS: dict[str, tuple[Edit, str, str]] = {
    "schema of the file": (lambda d: d.update(schema=2), "profile-schema", "the file: schema 2, this rocstack reads 1"),
    "no schema": (lambda d: d.pop("schema"), "profile-schema", "schema null"),
    "schema of a profile": (lambda d: first(d).update(schema=3), "profile-schema", "n1: schema 3"),
    "schema as text": (lambda d: d.update(schema="1"), "profile-schema", 'schema "1"'),
    "unknown key": (lambda d: first(d).update(color=1), "bad-profile", "n1: color: unknown key"),
    "misspelt key": (
        lambda d: first(d)["gpus"][2].update(rendr_minor=1),
        "bad-profile",
        "n1: gpus[2].rendr_minor: unknown key, did you mean 'render_minor'?",
    ),
    "text for a number": (lambda d: first(d)["gpus"][1].update(numa="0"), "bad-profile", "n1: gpus[1].numa: "),
    "number for a text": (lambda d: first(d)["system"].update(kernel=6.8), "bad-profile", "n1: system.kernel: "),
    "float for a number": (lambda d: first(d)["gpus"][0].update(index=0.5), "bad-profile", "n1: gpus[0].index: "),
    "missing": (lambda d: first(d)["nics"][0].pop("pci"), "bad-profile", "n1: nics[0].pci: missing"),
    "no name": (lambda d: first(d).update(name=""), "bad-profile", "name: empty"),
    "null for a list": (lambda d: first(d).update(gpus=None), "bad-profile", "n1: gpus: "),
    "object for a list": (lambda d: d.update(profiles={}), "bad-profile", "profiles: "),
    "a profile that is none": (lambda d: d["profiles"].append(7), "bad-profile", "profiles[2]: "),
    "two of one name": (
        lambda d: d["profiles"].append(copy.deepcopy(first(d))),
        "bad-profile",
        "2 profiles of the name",
    ),
    "empty": (lambda d: d.update(profiles=[]), "no-profiles", "no node profile"),
    "escape sequence": (lambda d: first(d).update(name="n1\x1b[2J"), "bad-profile", "control character"),
    "GPU twice": (lambda d: first(d)["gpus"].append(first(d)["gpus"][0]), "bad-profile", "gpus: the same one twice"),
    "affinity with nobody": (lambda d: first(d)["gpus"].pop(), "bad-profile", "affinity: GPU 7"),
    "ABI range turned round": (
        lambda d: first(d)["libraries"].append({"path": "/x.so", "driver": "x", "kernel_abi": [6, 1]}),
        "bad-profile",
        "kernel_abi 6 to 1",
    ),
}


@pytest.mark.parametrize("case", EDITS)
def test_edited_files_are_refused(case: str, fleet: tuple[NodeProfile, ...], tmp_path: Path) -> None:
    edit, code, says = EDITS[case]
    two = (replace(fleet[2], name="n1"), fleet[1])
    data = json.loads(json.dumps(to_dict(two)))
    edit(data)
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps(data))
    with pytest.raises(BadInput) as error:
        read_profiles(file)
    assert says in error.value.what
    assert error.value.code == code
    assert str(error.value.where) == str(file)
    assert "probe again" in str(error.value.next_step)


TEXTS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not JSON"),
    "cut off": (b'{"schema": 1,\n "profiles": [', "not JSON"),
    "list": (b"[]", "not a file of node profiles"),
    "another JSON": (b'{"a": 1}', "not a file of node profiles"),
    "a recording": (
        b'{"schema": 1, "host": "n1", "files": {}, "links": {}}',
        "a recording, not a file of node profiles",
    ),
    "key twice": (b'{"schema": 1, "schema": 1, "profiles": []}', "key 'schema' appears twice"),
    "NaN": (b'{"schema": 1, "profiles": [NaN]}', "NaN is no number"),
    "not UTF-8": (b'{"schema": "\xff"}', "not UTF-8"),
    "half a character": (b'{"schema": 1, "profiles": [{"schema": 1, "name": "\\ud800"}]}', ""),
    "deep": (b'{"profiles":' + b"[" * 200_000, "nested too deep"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_what_is_no_profile_file(case: str, tmp_path: Path) -> None:
    raw, says = TEXTS[case]
    file = tmp_path / "nodes.json"
    file.write_bytes(raw)
    with pytest.raises(BadInput) as error:
        read_profiles(file)
    assert says in error.value.what
    assert error.value.code == "bad-profile"
    if case == "cut off":
        assert str(error.value.where) == f"{file}:2"


def test_no_file_and_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="can't read") as none:
        read_profiles(tmp_path / "nope.json")
    assert none.value.code == "no-file"
    with pytest.raises(BadInput, match="Is a directory"):
        read_profiles(tmp_path)
    monkeypatch.setattr(profiles, "MAX_BYTES", 1_000_000)
    (tmp_path / "big.json").write_bytes(b" " * 1_000_001)
    with pytest.raises(BadInput, match="more than 1 MB") as big:
        read_profiles(tmp_path / "big.json")
    assert big.value.code == "too-large"

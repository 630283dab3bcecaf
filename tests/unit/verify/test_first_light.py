"""The file of `rocstack first-light`: what names a site is not in it, verdicts are the same without that, and a file
that somebody made up does no harm."""

from __future__ import annotations

import json
import random
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import evidence_replay
import pytest
from cli_run import Cli
from made_runs import run
from pydantic import ValidationError

from rocstack.base.errors import BadInput
from rocstack.node.recording import Recording
from rocstack.probe.redact import Redaction
from rocstack.verify import first_light
from rocstack.verify.first_light import FirstLight, Node, Step
from rocstack.virtual import machine, model, tree

KEY = b"0" * 32
CASES = Path(__file__).parents[1] / "data/first-light"  # to add one is to put a file there
HOSTS = [("n1", "10.213.213.11"), ("n2", "10.213.213.12")]  # of the recorded evidence


@cache
def recorded() -> tuple[Recording, ...]:
    return tuple(tree.record(machine.expand(model.load("mi300x-thor2"), number)) for number in (1, 2))


def light(**more: Any) -> FirstLight:
    redaction = Redaction(KEY, recorded(), HOSTS)
    masked = [redaction.recording(each) for each in recorded()]
    nodes = tuple(Node(recording=each, traits=first_light.conclusions(each)) for each in masked)
    values = {"schema": 1, "rocstack": "1", "when": "2026-11-23T00:00:00Z", "nodes": nodes, **more}
    return FirstLight(**values)


def packed(document: object) -> bytes:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = light(steps=(Step(name="probe", state="done", said={"a": [1]}, log="x\n"),))
    file = tmp_path / "light.json.gz"
    first_light.write(file, written)
    assert first_light.read(file) == written
    assert file.stat().st_mode & 0o777 == 0o600
    assert written.virtual


def test_half_characters_of_a_hostile_node_are_written(tmp_path: Path) -> None:
    said = Redaction(KEY).value({"a\ud800": ["b\udfff"]})
    first_light.write(tmp_path / "x", light(steps=(Step(name="probe", state="done", said=said),), evidence=said))
    assert first_light.read(tmp_path / "x").evidence == {"a?": ["b?"]}


def test_verdicts_are_the_same_without_names() -> None:
    """The recorded run on two virtual nodes, all levels of it."""
    good = evidence_replay.good()
    masked = Redaction(KEY, recorded(), HOSTS).value(good)
    before, after = evidence_replay.replay(good), evidence_replay.replay(masked)
    assert evidence_replay.states(after) == evidence_replay.states(before)
    names = {"n1": "node-1", "n2": "node-2", "": ""}
    for name, result in before.items():
        states = sorted((names[each.node], each.state) for each in result.measures)
        assert sorted((each.node, each.state) for each in after[name].measures) == states, name


@pytest.mark.parametrize("file", sorted(CASES.glob("*.json.gz")), ids=lambda file: file.name.partition(".")[0])
def test_what_nodes_sent_is_judged_as_it_was(file: Path) -> None:
    found = first_light.judge(first_light.read(file))
    assert found.ok, found.to_dict()


def test_replay_names_what_is_concluded_otherwise() -> None:
    then = light()
    assert first_light.judge(then).ok
    node = then.nodes[0]
    other = node.model_copy(update={"traits": {**node.traits, "amdgpu": "1.2.3", "of old": "a trait"}})
    found = first_light.judge(then.model_copy(update={"nodes": (other, then.nodes[1])}))
    assert [(each.node, each.what, each.then) for each in found.differences] == [
        ("node-1", "amdgpu", "1.2.3"),
        ("node-1", "of old", "a trait"),
    ]
    assert found.checks is None


def test_a_report_that_says_otherwise_is_a_difference() -> None:
    masked = Redaction(KEY, recorded(), HOSTS).value(evidence_replay.good())
    results = evidence_replay.replay(masked, "munge*", 1)
    report = json.loads(run(*results.values(), only="munge*").dumps())
    same = light(evidence=masked, report=report)
    assert first_light.judge(same).differences == ()
    assert first_light.judge(same).checks == len(results)
    report["results"][0]["state"] = "failed"
    found = first_light.judge(light(evidence=masked, report=report)).differences
    assert [(each.then, each.now) for each in found] == [("failed", "passed")]


HEAD = {"schema": 1, "rocstack": "1", "when": "x"}
WRONG: dict[str, Any] = {
    "empty": b"",
    "no gzip": b"{}",
    "breaks off": packed({"schema": 1})[:-9],
    "no JSON": packed(b"{"),
    "another document": packed({"schema": 1, "profiles": []}),
    "a list": packed([]),
    "deep": packed(b"[" * 100_000),
    "a newer one": packed({"schema": 2, "rocstack": "1", "when": "x"}),
    "an unknown key": packed({**HEAD, "run": "rm"}),
    "a step's name is a path": packed({**HEAD, "steps": [{"name": "../x", "state": "done"}]}),
    "an unknown state": packed({**HEAD, "steps": [{"name": "x", "state": "good"}]}),
    "no recording": packed({**HEAD, "nodes": [{"recording": {}, "traits": {}}]}),
    "too many steps": packed({**HEAD, "steps": [{"name": "x", "state": "done"}] * 21}),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_such_file_is_refused(name: str, tmp_path: Path) -> None:
    file = tmp_path / "light.json.gz"
    file.write_bytes(WRONG[name])
    with pytest.raises(BadInput) as refused:
        first_light.read(file)
    assert refused.value.code == "bad-first-light"


def test_a_file_that_unpacks_to_more_than_any_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "light.json.gz"
    file.write_bytes(packed(b" " * 100_000))
    monkeypatch.setattr(first_light, "LARGEST", 10_000)
    with pytest.raises(BadInput, match="larger"):
        first_light.read(file)
    monkeypatch.setattr(first_light, "PACKED", 10)
    with pytest.raises(BadInput, match="larger"):
        first_light.read(file)


def test_a_small_file_of_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of nothing takes 3 bytes there, and 64 here."""
    file = tmp_path / "light.json.gz"
    file.write_bytes(packed({**HEAD, "evidence": {"x": [[]] * 5_000}}))
    monkeypatch.setattr(first_light, "MOST_VALUES", 9_000)
    with pytest.raises(BadInput, match="more than 9,000 values"):
        first_light.read(file)


@pytest.mark.parametrize("host", ["../../x", "/etc/x", "a/b", "", "a b", "ä", "x" * 64])
def test_a_recording_is_named_so_that_a_file_can_be(host: str) -> None:
    recording = {**light().nodes[0].recording.to_dict(), "host": host}
    with pytest.raises(ValidationError):
        Node(recording=recording, traits={})


def test_a_damaged_file_is_refused_or_read(tmp_path: Path) -> None:
    """Whatever stands in it: nothing but BadInput comes out."""
    file, draw = tmp_path / "light.json.gz", random.Random(1)
    whole = json.dumps({**json.loads(light().model_dump_json(by_alias=True)), "nodes": []}).encode()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        file.write_bytes(packed(bytes(data)))
        with suppress(BadInput):
            first_light.read(file)


def test_replay_unpacks_into_an_empty_folder_only(cli: Cli, tmp_path: Path) -> None:
    file, out = tmp_path / "light.json.gz", tmp_path / "out"
    first_light.write(file, light(steps=(Step(name="probe", state="done"),)))
    done = cli("replay", str(file), "--out", str(out), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["nodes"] == 2
    assert {path.name for path in out.iterdir()} == {"nodes", "probe.json"}
    assert cli("probe", "--replay", str(out / "nodes"), "--json").code == 0
    assert cli("replay", str(file), "--out", str(out)).code == 2


def test_a_difference_ends_with_1(cli: Cli, tmp_path: Path) -> None:
    file, whole = tmp_path / "light.json.gz", light()
    node = whole.nodes[0].model_copy(update={"traits": {"amdgpu": "\x1b[2Jother"}})
    first_light.write(file, whole.model_copy(update={"nodes": (node,)}))
    done = cli("replay", str(file))
    assert done.code == 1
    assert "\x1b[2J" not in done.out
    assert "1 difference" in done.out

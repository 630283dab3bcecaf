"""The facts of nodes as values: what they answer, how late, and answers that are damaged."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocstack.deploy.read import facts
from rocstack.deploy.read.facts import Gathered
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.edge import ansible
from rocstack.edge.ansible import HostRun
from rocstack.probe import recordings

DATA = Path(__file__).parents[1] / "data/facts"
HOSTS = [InventoryHost(f"n{i}", f"10.0.0.{i}", f"10.0.0.{i}") for i in (1, 2, 10)]
INVENTORY = Inventory(Path("inv"), HOSTS[0], tuple(HOSTS[1:]))


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "n1.json").read_text())
    return found


def packed(data: Any) -> str:
    text = data if isinstance(data, str) else json.dumps(data)
    return base64.b64encode(gzip.compress(text.encode())).decode()


def gather(monkeypatch: pytest.MonkeyPatch, *runs: HostRun) -> Gathered:
    def run(*_: Any, on_event: ansible.OnEvent, **__: Any) -> tuple[HostRun, ...]:
        for each in runs:
            on_event(each.host, "started")
            on_event(each.host, each.state)
        return runs

    monkeypatch.setattr(ansible, "run", run)
    return facts.gather(INVENTORY)


def without(path: str) -> dict[str, Any]:
    data = recorded()
    *way, last = path.split(".")
    at = data
    for step in way:
        at = at[step]
    del at[last]
    return data


def changed(key: str, value: Any) -> dict[str, Any]:
    data = recorded()
    data["deploy"][key] = value
    return data


ANSWERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "no text": {"facts": 17},
    "not packed": {"facts": "hello"},
    "cut off": {"facts": packed(recorded())[:-400]},
    "not JSON": {"facts": packed("[17")},
    "deep": {"facts": packed("[" * 200_000)},
    "a list": {"facts": packed([])},
    "no recording": {"facts": packed(without("recording"))},
    "no facts": {"facts": packed(without("deploy"))},
    "a list of facts": {"facts": packed({**recorded(), "deploy": []})},
    "no engine": {"facts": packed(without("deploy.engine"))},
    "a word more": {"facts": packed(changed("surprise", 1))},
    "of another version": {"facts": packed(changed("schema", 9))},
    "engine of nonsense": {"facts": packed(changed("engine", {"problem": "odd"}))},
    "images of nonsense": {"facts": packed(changed("images", [{"id": 3}]))},
    "a clock of nonsense": {"facts": packed(changed("began", "noon"))},
    "asked of nonsense": {"facts": packed(recorded()), "asked": "noon"},
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_damaged_answer_is_that_nodes_failure_alone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = gather(
        monkeypatch,
        HostRun("n10", "ok", results={facts.TASK: ANSWERS[case]}),
        HostRun("n2", "ok", results={facts.TASK: {"facts": packed(recorded()), "asked": 1.0}}),
        HostRun("n1", "unreachable", "no route"),
    )
    assert [node.name for node in found.nodes] == ["n2"]
    assert [(each.node, each.state) for each in found.failures] == [("n1", "unreachable"), ("n10", "failed")]
    assert found.failures[1].reason.startswith("its answer can't be read: ")


def test_a_name_on_a_node_need_not_be_text(monkeypatch: pytest.MonkeyPatch) -> None:
    data = recorded()
    data["recording"]["links"]["/sys/class/net/\udcff"] = "/sys/devices/virtual/net/\udcff"
    found = gather(monkeypatch, HostRun("n2", "ok", results={facts.TASK: {"facts": packed(data), "asked": 1.0}}))
    assert [node.name for node in found.nodes] == ["n2"]


def test_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "LARGEST", 1000)
    found = gather(monkeypatch, HostRun("n1", "ok", results={facts.TASK: {"facts": packed(recorded())}}))
    assert "more than" in found.failures[0].reason


def test_what_was_answered() -> None:
    node = facts.of_dict("n7", recorded())
    assert (node.name, node.profile.name, node.profile.virtual) == ("n7", "n7", "mi300x-thor2")
    assert node.engine.version == "26.1.5+dfsg1"
    assert len(node.profile.gpus) == 8
    assert node.container("rocstack-worker") is None
    host = node.host()
    assert host.kfd is not None
    assert len(host.gpus) == 8
    assert (host.limits["memlock"], host.raises_limits) == (8388608, False), "the engine's, whatever the model says"


def test_the_clock_is_known_within_bounds() -> None:
    data = recorded()
    began, ended = data["deploy"]["began"], data["deploy"]["ended"]
    on_time = facts.of_dict("n1", data, asked=began - 0.5, answered_at=ended + 0.7)
    assert (on_time.behind, on_time.ahead) == (pytest.approx(-0.7), pytest.approx(0.5))
    ahead = facts.of_dict("n1", data, asked=began - 100.5, answered_at=ended - 99.0)
    assert (ahead.behind, ahead.ahead) == (pytest.approx(99.0), pytest.approx(100.5))


def test_who_is_asked_what() -> None:
    asked = facts.questions(INVENTORY, {"slurm": 64030})
    assert asked["reach"] == {
        "n1": ["10.0.0.2:6818", "10.0.0.10:6818"],
        "n2": ["10.0.0.1:6817"],
        "n10": ["10.0.0.1:6817"],
    }
    assert asked["ports"] == [6817, 6818, 6819, 6820]
    racks = replace(INVENTORY, workers=(replace(HOSTS[1], rack_registry="rack7"), HOSTS[2]))
    assert facts.questions(racks, {}, [5050])["ports"] == [443, 444, 5050, 6817, 6818, 6819, 6820]
    assert asked["names"] == ["n1"]
    assert (asked["uids"], asked["users"]) == ([64030], ["slurm"])


@pytest.mark.parametrize("surplus", [{}, {"since": "2027"}])
def test_what_an_earlier_or_newer_deploy_left_is_read(surplus: dict[str, Any]) -> None:
    """node.json outlives the rocstack that wrote it."""
    gres = [{"type": "mi300x", "count": 8, "files": "/dev/dri/renderD[128-135]"}]
    machine = {"name": "n2", "address": "10.0.0.2", "cpus": 96, "memory": 1000, "topology": [2, 24, 2], "gres": gres}
    state = {"cluster": "hpc", "images": {"control": "sha256:a"}, "slurm": "25.05.3", "keys": {"munge_key": "ab"}}
    left = {**state, "machines": {"n2": {**machine, **surplus}}, **surplus}
    known = facts.of_dict("n1", changed("state", left)).state
    assert known is not None
    assert (known.cluster, known.slurm, known.keys) == ("hpc", "25.05.3", {"munge_key": "ab"})
    assert (known.machines["n2"].topology, known.machines["n2"].gpus) == ((2, 24, 2), 8)

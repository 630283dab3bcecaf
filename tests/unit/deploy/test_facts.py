"""The facts of nodes as values: what they answer, how late, and answers that are damaged."""

from __future__ import annotations

import base64
import gzip
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import hostile
import pytest

from rocstack.deploy.plan import checks_cluster, checks_node
from rocstack.deploy.plan.scope import NODE_RULES, Scope
from rocstack.deploy.read import facts, inventory
from rocstack.deploy.read.facts import Gathered
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.edge import ansible, ssh
from rocstack.edge.ansible import HostRun
from rocstack.node.recording import pack
from rocstack.probe import recordings
from rocstack.probe.recordings import ProbeFailure

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
    def run(*_: Any, on_task: ansible.OnTask, **__: Any) -> tuple[HostRun, ...]:
        for each in runs:
            on_task(each.host, facts.TASK, "started", {})
            said = each.results.get(facts.TASK, {})
            on_task(each.host, facts.TASK, "failed" if "msg" in said else each.state, said)
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


@pytest.mark.parametrize("key", ["facts", "asked", *recorded(), *recorded()["deploy"]])
def test_whatever_a_node_answers_the_others_are_read(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ansible handed over, what was packed in it, and each of its facts."""
    answers = []
    for value in (*hostile.values(), "9" * 5000, "[" * 3000):
        if key in ("facts", "asked"):
            answers.append({"facts": packed(recorded()), key: value})
        elif key in recorded():
            answers.append({"facts": packed({**recorded(), key: value})})
        else:
            answers.append({"facts": packed(changed(key, value))})
    hosts = [HostRun(f"n{number}", "ok", results={facts.TASK: each}) for number, each in enumerate(answers)]
    found = gather(monkeypatch, HostRun("good", "ok", results={facts.TASK: {"facts": packed(recorded())}}), *hosts)
    assert "good" in [node.name for node in found.nodes]
    assert len(found.nodes) + len(found.failures) == len(hosts) + 1
    assert any(each.reason.startswith("its answer can't be read: ") for each in found.failures)
    known = [InventoryHost(name, "10.0.0.1", "10.0.0.1") for name in ("good", *(f"n{i}" for i in range(len(hosts))))]
    scope = Scope(Inventory(Path("inv"), known[0], tuple(known[1:])), found, {}, ())
    of_facts = {checks_node.__name__, checks_cluster.__name__}  # the others need images, too
    rules = [rule for rule in NODE_RULES.values() if rule.__module__ in of_facts]
    assert len(rules) > 10
    for node in found.nodes:
        for rule in rules:
            list(rule(node, scope))


def test_no_answer_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small as they are on the way; a path's folders are kept one by one, and a list of nothing has 64 bytes."""
    deep, many, blobs = recorded(), recorded(), recorded()
    deep["recording"]["files"]["/sys" + "/a" * 20_000] = "x"
    many["recording"]["folders"] += [f"/{number}" + "/a" * 1000 for number in range(100)]
    blobs["recording"]["blobs"] = {f"/lib/{number}": pack(bytes(16 << 20)) for number in range(5)}
    texts = {"deep": deep, "many": many, "blobs": blobs, "wide": [[]] * 200_000, "long": "x" * (recordings.LARGEST + 1)}
    hosts = [HostRun(name, "ok", results={facts.TASK: {"facts": packed(data)}}) for name, data in texts.items()]
    tracemalloc.start()
    found = gather(monkeypatch, *hosts)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    reasons = {each.node: each.reason.partition("read: ")[2] for each in found.failures}
    size = "more than 32 MiB, or 100000 values"
    assert reasons["wide"] == reasons["long"] == size
    assert "is no path" in reasons["deep"]
    assert "more than 50000 folders" in reasons["many"]
    assert "are more than" in reasons["blobs"]
    assert most < 300 << 20


@pytest.mark.parametrize(
    "said", ["Error processing keyword 'become': no bool", {"connection": "docker", "become": False}]
)
def test_wrong_variables_of_a_host_are_that_hosts_failure_alone(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good = HostRun("n1", "ok", results={facts.TASK: {"facts": packed(recorded())}})
    connection = {"become_method": "sudo", "become_user": "", "python": "", **said} if isinstance(said, dict) else said
    reason = said if isinstance(said, str) else "module"
    bad = HostRun("n2", "failed", reason, results={ssh.TASK: {"msg": connection}})
    gathered = gather(monkeypatch, good, bad)
    assert [node.name for node in gathered.nodes] == ["n1"]
    assert [(each.node, each.state) for each in gathered.failures] == [("n2", "variables")]
    assert (said if isinstance(said, str) else "n2 has connection 'docker'") in gathered.failures[0].reason


def test_a_node_whose_facts_failed_has_failed_though_its_connection_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"connection": "local", "become": False, "become_user": "", "python": ""}
    said = {facts.TASK: {"msg": "no python3"}, ssh.TASK: {"msg": connection}}
    gathered = gather(monkeypatch, HostRun("n2", "ok", results=said))
    assert gathered.failures == (ProbeFailure("n2", "failed", "no python3"),)


def test_how_ssh_gets_there_is_not_worked_out_for_nodes_that_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs more than to find out that they do: of a thousand, a minute and a half of two cores."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "inventory"
    file.write_text(
        "[control]\nn1 ansible_connection=local\n[workers]\nn2 ansible_host=127.0.0.1 ansible_port=1\n"
        "n3 ansible_connection=local ansible_python_interpreter=/nonexistent\n"
    )
    seen: list[tuple[str, str]] = []
    found = facts.gather(inventory.load(file), lambda *event: seen.append(event))
    assert [node.name for node in found.nodes] == ["n1"]
    assert {each.node: each.state for each in found.failures} == {"n2": "unreachable", "n3": "failed"}
    assert "/nonexistent" in found.failures[1].reason
    assert found.ssh_hosts.keys() == {"n1", "n3"}
    assert sorted(seen) == sorted(
        [(name, "started") for name in ("n1", "n2", "n3")] + [("n1", "ok"), ("n2", "unreachable"), ("n3", "failed")]
    )


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
    assert asked["reach"] == {"n1": ["10.0.0.2:298", "10.0.0.10:298"]}
    assert asked["reach_otherwise"] == ["10.0.0.1:297"]
    assert asked["ports"] == [297, 298, 299, 300, 6818]
    racks = replace(INVENTORY, workers=(replace(HOSTS[1], rack_registry="rack7"), HOSTS[2]))
    assert facts.questions(racks, {}, [5050])["ports"] == [297, 298, 299, 300, 443, 444, 5050, 6818]
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

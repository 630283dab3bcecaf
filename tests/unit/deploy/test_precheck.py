"""What is checked before a deploy: each case of data/precheck changes the recorded facts of two nodes and names every
finding, so each finding is seen where it should be and nowhere else."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gate_cases
import pytest
import yaml

from rocstack.base import finding_texts
from rocstack.base.findings import Finding
from rocstack.cluster.service import ClusterService
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.plan import prepare
from rocstack.deploy.plan.prepare import PreparedDeploy
from rocstack.deploy.plan.scope import CLUSTER_RULES, NODE_RULES, Scope
from rocstack.deploy.read import facts
from rocstack.deploy.read.facts import Gathered, NodeFacts
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.deploy.read.journal import VerifiedLevel
from rocstack.node.image_facts import LABEL_PREFIX
from rocstack.probe.recordings import ProbeFailure
from rocstack.stack import component

ROOT = Path(__file__).resolve().parents[3]
DATA = Path(__file__).parents[1] / "data"
CASES = sorted(file.stem for file in (DATA / "precheck").glob("*.yml"))
LABELS = {
    "stack": "debian-13",
    "gfx": "gfx942",
    "component.slurm": "24.11.5",
    "component.rocm": "6.1.2",
    "control": "2",
}
MODEL = "/sys/devices/virtual/rocstack/model"


@cache
def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"facts/{name}.json").read_text())
    return found


def case(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DATA / f"precheck/{name}.yml").read_text())
    return found


def own_address(name: str) -> str:
    """As the other of both tried to reach it."""
    other = {"n1": "n2", "n2": "n1"}[name]
    (tried,) = recorded(other)["deploy"]["reach"]
    return str(tried).partition(":")[0]


def edited(name: str, edits: dict[str, Any], real: bool, unlimited: bool) -> dict[str, Any]:
    data = copy.deepcopy(recorded(name))
    if real:
        data["recording"]["files"].pop(MODEL)
    if unlimited:
        data["deploy"]["engine"]["memlock"] = -1
    for path, value in edits.items():
        if path == "without":
            without_cards(data["recording"], f"0x{value}")
            continue
        part, table, *rest = path.split(".", 2)
        at, last = (data[part][table], rest[0]) if rest else (data[part], table)
        if value is None and part == "recording":
            assert at.pop(last, None) is not None, path
        else:
            at[last] = value
    return data


def without_cards(recording: dict[str, Any], vendor: str) -> None:
    """Takes the GPUs away, as the kernel shows them."""
    files = recording["files"]
    gone = [path.rpartition("/")[0] for path, text in files.items() if path.endswith("/vendor") and text[:6] == vendor]
    for table in ("files", "links"):
        recording[table] = {
            path: value
            for path, value in recording[table].items()
            if "/kfd/" not in path and not any(path.startswith(folder + "/") or value == folder for folder in gone)
        }
    assert gone


def placed(value: Any) -> Any:
    """N1 and N2 in addresses stand for those of the recorded nodes."""
    names = {"N1": own_address("n1"), "N2": own_address("n2")}
    return json.loads(re.sub(r"\bN[12]\b", lambda found: names[found[0]], json.dumps(value)))


def image(role: str, given: Any, labels: dict[str, str]) -> Image:
    nic = gate_cases.labels(given) if isinstance(given, str) else {LABEL_PREFIX + "nic": "tcp"}
    own = given if isinstance(given, dict) else {}
    own_labels = {**LABELS, "role": role, **labels}
    all_labels = {**nic, **{LABEL_PREFIX + key: value for key, value in own_labels.items() if value is not None}}
    return Image(
        role, f"sha256:{role}", f"rocstack/{role}:1", all_labels, own.get("size", 0), tuple(own.get("layers", ()))
    )


def scope_of(data: dict[str, Any]) -> Scope:
    failures = tuple(ProbeFailure(name, "unreachable", why) for name, why in data.get("failures", {}).items())
    failures += tuple(ProbeFailure(name, facts.VARIABLES, why) for name, why in data.get("misdescribed", {}).items())
    nodes = []
    for name in ("n1", "n2"):
        if name not in {each.node for each in failures}:
            edits = placed(data.get("nodes", {}).get(name, {}))
            nodes.append(of(name, edited(name, edits, data.get("real", False), data.get("unlimited", False))))
            if name in data.get("clocks", {}):
                behind, ahead = data["clocks"][name]
                nodes[-1] = nodes[-1].model_copy(update={"behind": behind, "ahead": ahead})
    variables = {name: {"ansible_host": own_address(name), **data.get("variables", {}).get(name, {})} for name in NAMES}
    hosts = [
        InventoryHost(name, given.get("rocstack_address", own_address(name)), own_address(name), variables=given)
        for name, given in variables.items()
    ]
    given = data.get("images", {})
    wanted = {
        "worker": image("worker", given.get("worker"), data.get("labels", {})),
        "control": image("control", None, data.get("control_labels", {})),
    }
    if service := data.get("service"):
        wanted["service"] = image("service", None, service["labels"])
    layers = (given.get("worker") or {}).get("bytes", {}) if isinstance(given.get("worker"), dict) else {}
    return Scope(
        Inventory(Path("inv.yml"), hosts[0], tuple(hosts), warnings=tuple(data.get("warnings", ()))),
        Gathered(tuple(nodes), failures),
        wanted,
        nics=component.nic_profiles(),
        gate=data.get("gate", "refuse"),
        memlock=data.get("memlock", False),
        uids=data.get("uids", {}),
        layer_bytes=layers,
        ports=data.get("ports", {}),
        registries=tuple(data.get("registries", ())),
        service=ClusterService.model_validate_json(json.dumps(data["service"]["settings"]))
        if "service" in data
        else None,
        rehearsal=data.get("rehearsal", False),
        require=data.get("require"),
        insist=data.get("insist", True),
        proved=tuple(VerifiedLevel(**each) for each in data.get("proved", [])),
        trust=tuple(data.get("trust", ())),
        replaces=tuple(data.get("replaces", ())),
        level=data.get("level"),
        cluster=data.get("cluster", ""),
        munge=data.get("munge", ""),
    )


NAMES = ("n1", "n2")
CODES = {*NODE_RULES, *CLUSTER_RULES, *prepare.UNREAD}


def of(name: str, data: dict[str, Any]) -> NodeFacts:
    return facts.of_dict(name, data)


def found(name: str) -> tuple[Finding, ...]:
    return prepare.precheck(scope_of(case(name)))


@pytest.mark.parametrize("name", CASES)
def test_every_case(name: str) -> None:
    wanted = placed(case(name)["finds"])
    said = found(name)
    assert [[each.node, each.level, each.code] for each in said] == [row[:3] for row in wanted], said
    for each, (*_, text) in zip(said, wanted, strict=True):
        assert text in each.what
        assert each.cause
        assert each.next
        assert each.source
        assert not re.search(r"\{\w*\}", f"{each.what} {each.cause} {each.next}".replace("{playbooks}", "{"))


def test_every_finding_has_a_case_and_a_rule() -> None:
    assert set(finding_texts.load()) >= CODES
    seen = {row[2] for name in CASES for row in case(name)["finds"]}
    assert seen >= CODES


def test_every_finding_is_in_the_documentation() -> None:
    text = (ROOT / "docs/deploy.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (error|warning|note) \|", text, re.MULTILINE))
    assert rows == {code: entry.level for code, entry in finding_texts.load().items() if code in CODES}
    assert list(rows) == sorted(rows)


def test_a_node_with_an_error_is_blocked_and_the_others_are_not() -> None:
    def left(name: str) -> set[str]:
        nodes: Any = SimpleNamespace(node_specs=lambda: dict.fromkeys(NAMES))
        none: Any = None
        return {*PreparedDeploy(none, {}, none, none, none, found(name), nodes).node_specs}

    assert left("engine-old") == {"n2"}
    assert left("all-at-once") == set()
    assert left("same-machine") == {"n1"}, "the control node stays"
    assert left("disk-tight") == {"n1", "n2"}


def test_a_control_node_that_does_not_work_needs_no_gpu() -> None:
    scope = scope_of({**case("kfd-missing"), "nodes": {"n1": {"recording.devices./dev/kfd": None}}})
    apart = replace(scope, inventory=replace(scope.inventory, workers=scope.inventory.workers[1:]))
    assert [each.code for each in prepare.precheck(scope)] == ["kfd-missing"]
    assert prepare.precheck(apart) == ()

"""What is made of a deployed cluster, recorded from two virtual nodes; a case of data/status changes something of it
and names all that is then not in order."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.deploy.plan import services
from rocstack.deploy.plan.services import CONTAINERS, SERVICES
from rocstack.deploy.read import facts, journal
from rocstack.deploy.read.facts import Gathered
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.deploy.state import status
from rocstack.deploy.state.cluster_state import ClusterState, SlurmState
from rocstack.deploy.state.status import Status
from rocstack.node import slurm_state
from rocstack.probe.recordings import ProbeFailure

DATA = Path(__file__).parents[1] / "data"
CASES = {file.stem: yaml.safe_load(file.read_text()) for file in sorted((DATA / "status").glob("*.yml"))}
HOSTS = (InventoryHost("n1", "10.0.0.1", "10.0.0.1"), InventoryHost("n2", "10.0.0.2", "10.0.0.2"))


@cache
def _node(name: str) -> Any:
    return json.loads((DATA / f"facts/{name}.json").read_text())


@cache
def _recorded() -> Any:
    return json.loads((DATA / "status/recorded.json").read_text())


def looked(case: dict[str, Any]) -> ClusterState:
    """`set`: path -> value in recorded.json (containers by their service, None takes away); `unreached`: node -> why;
    `slurm`: why it says nothing; `deploying`, `without_registry`."""
    data = copy.deepcopy(_recorded())
    for node in data["nodes"].values():
        node["containers"] = {row["service"]: row for row in node["containers"]}
    for path, value in case.get("set", {}).items():
        *way, last = path.split(".")
        at = data
        for step in way:
            at = at[int(step)] if isinstance(at, list) else at[step]
        if value is None:
            del at[last]
        else:
            at[last] = value
    nodes, unreached = [], case.get("unreached", {})
    for name, node in data["nodes"].items():
        if name not in unreached:
            said = {**_node(name)["deploy"], **node, "containers": list(node["containers"].values())}
            nodes.append(facts.of_dict(name, {**_node(name), "deploy": said}))
    silent = case.get("slurm", "")
    return ClusterState(
        Inventory(Path("inventory.yml"), HOSTS[0], HOSTS),
        Gathered(tuple(nodes), tuple(ProbeFailure(name, "unreachable", why) for name, why in unreached.items())),
        SlurmState(None if silent else data["slurm"], silent, case.get("deploying", "")),
        journal.loads(None if "n1" in unreached else data["nodes"]["n1"]["journal"]),
        own_registry=not case.get("without_registry", False),
        offers_gpus=case.get("offers_gpus", True),
    )


def found(name: str) -> Status:
    return status.status(looked(CASES[name]))


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    case, seen = CASES[name], found(name)
    said = [f"{finding.node or 'cluster'} {finding.level} {finding.code}" for finding in seen.findings]
    assert said == case.get("findings", [])
    assert seen.ok == (not any(" error " in line for line in said))
    rows = {node.name: node for node in seen.nodes}
    for path, value in case.get("rows", {}).items():
        node, _, key = path.partition(".")
        assert getattr(rows[node], key) == (tuple(value) if isinstance(value, list) else value), path
    for finding in seen.findings:
        assert finding.what
        assert finding.next or finding.level == "note", "whoever reads it knows what to do"
    json.dumps(seen.to_dict())


def test_a_cluster_in_order() -> None:
    seen = status.status(looked({}))
    assert seen.ok
    assert [(image.role, image.nodes, bool(image.digest)) for image in seen.images] == [
        ("worker", 2, True),
        ("control", 1, False),
    ]
    assert [(node.name, node.roles, node.slurm, node.gpus, node.gres, node.health) for node in seen.nodes] == [
        ("n1", ("control", "worker"), "idle", 8, 8, "healthy"),
        ("n2", ("worker",), "idle", 8, 8, "healthy"),
    ]
    assert {node.virtual for node in seen.nodes} == {"mi300x-thor2"}, "virtual nodes are said to be virtual"
    assert seen.nodes[0].image != seen.images[1].id, "a node of both roles is shown with the worker's image"


def test_one_node_does_not_say_for_all_what_their_image_is() -> None:
    state = looked({})
    last = state.gathered.nodes[-1]
    claim = {"stack": "evil", "nic": "evil", "digests": ("evil@sha256:" + "e" * 64,)}
    lies = tuple(image.model_copy(update=claim) for image in last.images)
    nodes = (*state.gathered.nodes[:-1], last.model_copy(update={"images": lies}))
    seen = status.status(replace(state, gathered=replace(state.gathered, nodes=nodes)))
    assert seen.images == status.status(state).images


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("", 0),
        ("gpu:8", 8),
        ("gpu:mi300x:8(S:0-1)", 8),
        ("gpu:mi300x:4,gpu:mi210:2", 6),
        ("nic:2,gpu:1", 1),
        ("gpu:mi300x:no_consume:8", 8),
        ("gpu:no_consume:4(S:0)", 4),
        ("mygpu:3", 0),
    ],
)
def test_gpus_of_slurm(gres: str, count: int) -> None:
    assert slurm_state.gres_gpus(gres) == count


def test_services_may_do_the_least() -> None:
    ports = {services.CONTROL: {"NET_BIND_SERVICE"}}
    for each in (services.registry("i", 1), services.database("i"), services.controller("n", "i", (), None, 1 << 34)):
        assert {"--security-opt=no-new-privileges", "--cap-drop=ALL"} <= set(each.args)
        added = {arg.removeprefix("--cap-add=") for arg in each.args if arg.startswith("--cap-add=")}
        least = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"}
        assert added == least | ports.get(each.name, set()), each.name


def test_services_and_containers_are_the_same() -> None:
    assert sorted(SERVICES.values()) == sorted(name for names in CONTAINERS.values() for name in names)
    made = (
        services.registry("i", 1), services.database("i", serves=True), services.service("i", (), oidc=()),
        services.controller("n", "i", (), None, 1 << 34), services.tokens("i", ca=False),
    )  # fmt: skip
    assert {each.name: each.service for each in made} == {
        name: service for service, name in SERVICES.items() if service != "worker"
    }
    volumes = {
        arg.removeprefix("--volume=").partition(":")[0]
        for each in made
        for arg in each.args
        if arg.startswith("--volume=rocstack-")
    }
    assert volumes == set(services.VOLUMES), "`down --data` removes what deploys make"

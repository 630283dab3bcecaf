"""What nodes are to be when some of them can't be read, are new, or leave."""

from __future__ import annotations

import copy
import dataclasses
import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rocstack.cluster.settings import ClusterSettings
from rocstack.container.run_line import RunProfile
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.plan import plan, secrets, services
from rocstack.deploy.plan.desired import DesiredCluster
from rocstack.deploy.read import facts
from rocstack.deploy.read.facts import Gathered
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.deploy.read.journal import JournalImages
from rocstack.node.image_facts import LABEL_PREFIX
from rocstack.probe.recordings import ProbeFailure

DATA = Path(__file__).parents[1] / "data"
HOSTS = tuple(InventoryHost(f"n{number}", f"10.0.0.{number}", f"10.0.0.{number}") for number in (1, 2, 3))
LABELS = {LABEL_PREFIX + "nic": "tcp", LABEL_PREFIX + "component.slurm": "24.11.5"}
IMAGES = {role: Image(role, f"sha256:{role}", role, LABELS) for role in ("worker", "control")}
SILENT = {"problem": "silent", "error": "no answer within 10 s", "cgroup": 0, "cgroup_writable": False}


@cache
def recorded(name: str) -> Any:
    return json.loads((DATA / f"facts/{name}.json").read_text())


@cache
def keys() -> secrets.Secrets:
    return secrets.read(Path("/nonexistent/rocstack-secrets.yml"))


def wanted(
    nodes: dict[str, dict[str, Any]],
    state: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    **more: Any,
) -> DesiredCluster:
    """`nodes` are those that are reached, n1 the control node, with what their engines say otherwise; `state` is n1's
    from the last deploy."""
    found = []
    for name, engine in nodes.items():
        data = copy.deepcopy(recorded("n1" if name == "n1" else "n2"))
        data["deploy"]["engine"] |= engine
        data["deploy"]["state"] = state if name == "n1" else None
        found.append(facts.of_dict(name, data))
    gone = tuple(ProbeFailure(host.name, "unreachable", "no route") for host in HOSTS if host.name not in nodes)
    return DesiredCluster(
        Inventory(Path("inventory.yml"), HOSTS[0], HOSTS),
        ClusterSettings.model_validate(cluster or {}),
        RunProfile(),
        keys(),
        IMAGES,
        Gathered(tuple(found), gone),
        datetime.now(UTC),
        **more,
    )


def deployed() -> dict[str, Any]:
    """The state that a deploy of three nodes leaves on the control node."""
    state = wanted({"n1": {}, "n2": {}, "n3": {}}).node_specs()["n1"].state
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


def test_an_engine_that_says_nothing_takes_no_cgroups_away() -> None:
    before = wanted({"n1": {}, "n2": {}, "n3": {}})
    now = wanted({"n1": {}, "n2": SILENT, "n3": {}}, deployed())
    assert before.slurm.cgroups.used
    assert now.slurm == before.slurm
    assert now.plan_notes == before.plan_notes == ()
    assert set(now.node_specs()) == {"n1", "n3"}
    assert now.node_specs()["n3"].containers == before.node_specs()["n3"].containers


def test_a_new_node_whose_engine_says_nothing_waits() -> None:
    now = wanted({"n1": {}, "n2": SILENT, "n3": {}})
    assert (list(now.machines), now.absent, now.slurm.cgroups.used) == (["n1", "n3"], ("n2",), True)
    assert now.plan_notes == ("Slurm doesn't know n2 yet, of which nothing could be read: the next deploy adds it",)


def test_cgroups_are_not_lost_silently() -> None:
    lost = wanted({"n1": {}, "n2": {}, "n3": {"cgroup_writable": False}}, deployed()).plan_notes
    assert "because of n3" in lost[0]
    assert lost[1].startswith("jobs will no longer be held in cgroups because of n3, and every worker is replaced")
    assert len(wanted({"n1": {}, "n2": {}, "n3": {"cgroup_writable": False}}).plan_notes) == 1, "there was no cluster"


def test_a_worker_that_was_never_read_may_be_named() -> None:
    cluster = {"partitions": {"train": {"nodes": ["n[1-2]"]}, "late": {"nodes": ["n2"]}}}
    text = wanted({"n1": {}, "n3": {}}, cluster=cluster).slurm.texts["slurm.conf"]
    assert "PartitionName=train Nodes=n1 " in text
    assert 'PartitionName=late Nodes="" ' in text


@pytest.mark.parametrize(
    ("settings", "said"), [({}, b"drain\n"), ({"drain": True}, b"drain\n"), ({"drain": False}, b"say\n")]
)
def test_whether_an_ill_node_drains_itself(settings: dict[str, Any], said: bytes) -> None:
    spec = wanted({"n1": {}, "n2": {}}, cluster={"health": settings}).node_specs()["n2"]
    assert [file.content for file in spec.files if file.path == f"{services.CLUSTER}/health"] == [said]


def test_images_stay_under_the_names_that_a_deploy_gave_them() -> None:
    """containerd's store has ids of its own."""
    ident = f"sha256:{'ab' * 32}"
    kept = wanted({"n1": {}, "n2": {}, "n3": {}}, keep=frozenset({ident})).node_specs()["n2"].keep
    assert kept is not None
    assert {ident, "rocstack/worker:abababababab", "rocstack/control:abababababab"} <= {*kept}


@pytest.mark.parametrize(("store", "ships"), [("containerd", False), ("graph", True)])
def test_an_image_that_is_only_known_by_name(store: str, ships: bool) -> None:
    """A release's layers are not in the journal, so in containerd's store its name says that it is there."""
    now = wanted({"n1": {}, "n2": {"store": store}, "n3": {}})
    spec, found = now.node_specs()["n2"], now.facts.node("n2")
    assert found is not None
    there = {
        "id": "sha256:manifest",
        "names": [spec.images[0].name_on_node],
        "digests": [],
        "layers": ["sha256:l"],
        "size": 1,
    }
    about = {"created": "", "role": "worker", "content": "", "stack": "", "nic": "tcp"}
    images = (facts.NodeImage.model_validate({**there, **about}, strict=False),)
    made = plan.changes(spec, found.model_copy(update={"images": images}))
    assert any(change.kind == "ship" for change in made) == ships


def test_registries_and_their_ports() -> None:
    nodes: dict[str, dict[str, Any]] = {"n1": {}, "n2": {}, "n3": {}}
    assert wanted(nodes, cluster={"ship": {"port": 5050}}).registries == {"n1": 5050}
    assert wanted(nodes, cluster={"ship": {"registry": "reg.example.org/site"}}).registries == {}
    racks = wanted(nodes)
    rack = dataclasses.replace(HOSTS[1], rack_registry="10.0.0.2:5443")
    racks = dataclasses.replace(racks, inventory=dataclasses.replace(racks.inventory, workers=(HOSTS[0], rack)))
    assert racks.registries == {"n1": 5000, "n2": 5443}


def test_the_controllers_slurm_is_known_later() -> None:
    assert deployed()["slurm"] == "24.11.5"
    release = JournalImages.of(IMAGES)
    assert release.by_role()["control"].slurm == "24.11.5"
    assert release.model_copy(update={"control_labels": {}}).by_role()["control"].slurm == ""

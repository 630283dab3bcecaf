"""A deploy's steps before anything is asked of a node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.cluster.settings import ClusterSettings
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.runs import DeployEvents
from rocstack.deploy.plan import prepare
from rocstack.deploy.plan.prepare import DeployRequest
from rocstack.deploy.read import facts
from rocstack.deploy.read.facts import Gathered
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.deploy.read.journal import Journal, JournalImages, Release
from rocstack.edge import engine
from rocstack.probe.recordings import ProbeFailure
from rocstack.steps import deploy as steps
from rocstack.steps.options import DeployOptions

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def absent(*_: Any) -> NoReturn:
        raise Missing.of("silent-engine", host="here")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "connect", absent)
    return tmp_path


def test_the_inventory_is_judged_before_an_engine_or_images_are_asked_for(place: Path) -> None:
    (place / "inventory.yml").write_text(
        "control: {hosts: {c1: }}\nworkers: {hosts: {w1: }}\nworkers: {hosts: {w2: }}\n"
    )
    with pytest.raises(BadInput, match="'workers' is there twice"):
        steps.plan_deploy(DeployOptions(inventory=Path("inventory.yml")))


def test_a_plan_leaves_the_log_of_the_last_deploy(place: Path) -> None:
    (place / "inventory.yml").write_text("control: {hosts: {c1: }}\nworkers: {hosts: {w1: }}\n")
    log = steps.log_file()
    log.parent.mkdir(parents=True)
    log.write_text("what Ansible said\n")
    with pytest.raises(Missing):
        steps.plan_deploy(DeployOptions(inventory=Path("inventory.yml")))
    request: Any = type("Request", (), {"inventory": type("Inventory", (), {"nodes": ()})()})()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "prepare", lambda *_: type("Prepared", (), {"plan": None})())
        patch.setattr(steps.work, "refused", lambda _: "")
        steps._preview(request, None)
    assert log.read_text() == "what Ansible said\n"


@pytest.mark.parametrize(("command", "resume"), [("rollback", False), ("deploy", True)])
def test_without_the_control_node_nobody_knows_the_releases(
    command: str, resume: bool, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = InventoryHost("c1", "192.0.2.1", "192.0.2.1")
    gathered = Gathered((), (ProbeFailure("c1", "unreachable", "ssh: No route to host"),))
    monkeypatch.setattr(facts, "gather", lambda *_, **__: gathered)
    nodes = Inventory(place / "inventory.yml", host, (host,))
    request = DeployRequest(nodes, ClusterSettings(), lambda journal: {}, command=command, resume=resume)
    with pytest.raises(CheckFailed, match="control node c1 can't be read: ssh: No route to host") as error:
        prepare.prepare(request, DeployEvents())
    assert error.value.next_step


def test_where_the_journal_says_that_images_lie_no_node_hears_of(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control node wrote it. An engine with containerd's store knows images by that digest, and would run another
    one that it still has than the one whose signature was checked."""
    data = json.loads((DATA / "facts/n1.json").read_text())
    other = f"10.0.0.1:5000/rocstack-worker@sha256:{'e' * 64}"
    mine = JournalImages(worker_id=f"sha256:{'a' * 64}", control_id=f"sha256:{'c' * 64}")
    lied = mine.model_copy(update={"worker_id": f"sha256:{'b' * 64}", "worker_reference": other})
    lied = lied.model_copy(update={"control_reference": other})
    now = [Release(images=images, when="2026-11-20", who="me", healthy=True) for images in (lied, mine)]
    data["deploy"] |= {"state": None, "journal": json.loads(Journal(releases=tuple(now)).dumps())}
    host = InventoryHost("n1", "10.0.0.1", "10.0.0.1")
    monkeypatch.setattr(facts, "gather", lambda *_, **__: Gathered((facts.of_dict("n1", data),)))

    def choose(known: Journal) -> Mapping[str, Image]:
        target = known.rollback_target()
        assert target
        return target.images.by_role()

    nodes = Inventory(place / "inventory.yml", host, (host,))
    prepared = prepare.prepare(DeployRequest(nodes, ClusterSettings(), choose, command="rollback"), DeployEvents())
    assert prepared.images["worker"].reference == other, "it may be found there, and is compared then"
    assert prepared.desired
    assert [(each.id, each.reference) for each in prepared.desired.node_specs()["n1"].images] == [
        (lied.control_id, None), (lied.worker_id, None),
    ]  # fmt: skip
    ready = {**prepared.images, "worker": prepared.images["worker"].at("compared")}
    later = prepared.with_images(ready).desired
    assert later
    assert [each.reference for each in later.node_specs()["n1"].images] == [None, "compared"]

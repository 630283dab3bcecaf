"""A deploy's steps before anything is asked of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.cluster.settings import ClusterSettings
from rocstack.deploy.nodes.runs import DeployEvents
from rocstack.deploy.plan import prepare
from rocstack.deploy.plan.prepare import DeployRequest
from rocstack.deploy.read import facts
from rocstack.deploy.read.facts import Gathered
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.edge import engine
from rocstack.probe.recordings import ProbeFailure
from rocstack.steps import deploy as steps
from rocstack.steps.options import DeployOptions


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

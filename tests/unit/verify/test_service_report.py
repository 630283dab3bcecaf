"""The report of a run on its way to the control node: whose it is there, and when it doesn't come."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from made_runs import on, result, run

from rocstack.base.errors import CheckFailed
from rocstack.edge import ssh
from rocstack.edge.ssh import SshHost
from rocstack.verify import service_report
from rocstack.verify.result import Run
from rocstack.verify.service_report import SHOWN

INVENTORY = Path("inventory.yml")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """/etc/rocstack/service of a control node that is this machine."""
    (settings := tmp_path / "service.json").write_text("{}")
    monkeypatch.setattr(service_report, "SERVICE_SETTINGS", str(settings))
    monkeypatch.setattr(service_report, "REPORTS", str(tmp_path / "reports"))
    monkeypatch.setattr(service_report, "SERVICE_UID", os.getgid())
    monkeypatch.setattr(ssh, "ssh_hosts", lambda inventory, hosts: {host: SshHost(host) for host in hosts})
    return tmp_path


def good(**about: Any) -> Run:
    return run(result(on("n1"), on("n2")), **about)


def test_it_comes_whole_for_the_service_alone(node: Path) -> None:
    assert service_report.give(good(id="first"), INVENTORY) == SHOWN
    assert service_report.give(good(id="'; touch x; $(id)"), INVENTORY) == SHOWN
    assert service_report.give(good(id="deep", level=3), INVENTORY) == SHOWN
    folder = node / "reports"
    assert sorted(os.listdir(folder)) == ["level-1.json", "level-3.json"]
    assert (folder / "level-1.json").read_text() == good(id="'; touch x; $(id)").dumps()
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "level-1.json")] == [0o750, 0o640]


@pytest.mark.parametrize(
    "found",
    [good(complete=False), good(only="one"), run(result(state="skipped", why="all workers are busy with jobs"))],
    ids=["interrupted", "a part", "busy"],
)
def test_a_run_that_tells_too_little_takes_no_place(node: Path, found: Run) -> None:
    assert service_report.give(found, INVENTORY) == ""
    assert not (node / "reports").exists()


def test_a_cluster_without_a_service_gets_none(node: Path) -> None:
    (node / "service.json").unlink()
    assert service_report.give(good(), INVENTORY) == ""
    assert os.listdir(node) == []


def test_half_a_report_leaves_the_one_that_was_there(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service_report.give(good(id="first"), INVENTORY)

    def cut(ssh_host: Any, command: list[str], text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, input=text[:100], capture_output=True, text=True, check=False)

    monkeypatch.setattr(ssh, "run", cut)
    assert "the connection broke" in service_report.give(good(id="second"), INVENTORY)
    assert os.listdir(node / "reports") == ["level-1.json"]
    assert Run.model_validate_json((node / "reports/level-1.json").read_text()).id == "first"


def test_what_goes_wrong_is_said_and_fails_nothing(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (node / "reports").write_text("")
    assert "reports" in service_report.give(good(), INVENTORY)
    monkeypatch.setattr(service_report, "REPORT_MIB", 0)
    assert "has 1 MB, and 0 are the most" in service_report.give(good(), INVENTORY)
    monkeypatch.undo()

    def away(inventory: Path, hosts: list[str]) -> Any:
        raise CheckFailed.of("ssh-failed", failed="no way to", host="n1", reason="timeout", cause="", address="n1")

    monkeypatch.setattr(ssh, "ssh_hosts", away)
    assert service_report.give(good(), INVENTORY).startswith("the service doesn't show this report: ")

"""Which nodes are drained, which are left alone, and when it is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from runs_by_level import NAMES, failed

from rocstack.base.errors import CheckFailed
from rocstack.deploy.state import cluster_state
from rocstack.deploy.state.cluster_state import SlurmState
from rocstack.edge import ssh
from rocstack.node import slurm_state
from rocstack.verify import drain


def rows(**states: str) -> dict[str, dict[str, Any]]:
    """n2="DRAIN: fan"; idle else."""
    found = {}
    for name in NAMES:
        state, _, reason = states.get(name, "IDLE").partition(": ")
        found[name] = {"state": ["IDLE", state] if state == "DRAIN" else [state], "reason": reason}
    return found


def test_what_fails_is_drained_with_the_reason() -> None:
    found = drain.decide({"n2": "munge: no\n round trip"}, (), rows())
    assert found.drained == {"n2": "rocstack-verify: munge: no round trip"}
    assert found.kept == {}


def test_a_reason_is_never_one_that_a_deploy_takes_back() -> None:
    (reason,) = drain.decide({"n2": "x" * 500}, (), rows()).drained.values()
    assert len(reason) == drain.LENGTH
    assert not slurm_state.drained_by_deploy({"reason": reason})


def test_what_somebody_drained_stays_so() -> None:
    found = drain.decide({"n2": "w", "n9": "w"}, (), rows(n2="DRAIN: fan"))
    assert found.drained == {}
    assert found.kept == {"n2": "it is idle+drain (fan)", "n9": "Slurm doesn't know it"}


def test_half_of_the_workers_and_no_more() -> None:
    assert len(drain.decide({"n1": "w", "n2": "w"}, (), rows()).drained) == 2
    with pytest.raises(CheckFailed, match="n1, n2, n3 would be drained, and 3 of 4") as refused:
        drain.decide(dict.fromkeys(("n1", "n2", "n3"), "w"), (), rows())
    assert refused.value.code == "drain-refused"
    assert len(drain.decide(dict.fromkeys(("n1", "n2", "n3"), "w"), (), rows(), force=True).drained) == 3


@pytest.mark.parametrize("state", ["DRAIN: fan", "DOWN"])
def test_what_is_out_of_service_already_counts(state: str) -> None:
    with pytest.raises(CheckFailed, match="3 of 4 workers") as refused:
        drain.decide({"n1": "w"}, (), rows(n3=state, n4=state))
    assert refused.value.cause is not None
    assert "n3, n4" in refused.value.cause


def test_a_node_that_passes_again_is_named_and_not_resumed() -> None:
    shut = rows(n1="DRAIN: rocstack-verify: munge: no", n2="DRAIN: fan")
    assert drain.decide({}, ("n1", "n2", "n3"), shut).passing == ("n1",)


class Node:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, known: Mapping[str, Any] | None, code: int = 0) -> None:
        self.commands: list[list[str]] = []
        self.code = code
        monkeypatch.setattr(ssh, "ssh_hosts", lambda inventory, hosts: dict.fromkeys(hosts, "n1"))
        monkeypatch.setattr(cluster_state, "read_slurm", lambda ssh_host: SlurmState(known, "no answer"))
        monkeypatch.setattr(ssh, "run", self.run)

    def run(self, ssh_host: Any, command: list[str]) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        return subprocess.CompletedProcess(command, self.code, "", "slurm_update error: no\n")


def test_one_command_for_nodes_with_one_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, rows())
    drain.drain(failed(n1="it's", n2="it's"), Path("i"))
    line = """scontrol update NodeName=n1,n2 State=drain 'Reason=rocstack-verify: munge: it'"'"'s'"""
    assert node.commands == [["docker", "exec", "rocstack-control", "sh", "-c", line]]


def test_nothing_to_drain_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, rows())
    assert drain.drain(failed(), Path("i")).drained == {}
    assert node.commands == []


@pytest.mark.parametrize(("known", "code"), [(None, 0), (rows(), 1)])
def test_a_controller_that_says_no(known: Any, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Node(monkeypatch, known, code)
    with pytest.raises(CheckFailed) as refused:
        drain.drain(failed(n1="w"), Path("i"))
    assert refused.value.code == "slurm-failed"

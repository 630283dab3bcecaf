"""A run that has lost its lock ends: the next one's work is not to meet its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstack.base.errors import CheckFailed
from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns
from rocstack.edge import ansible


@pytest.mark.parametrize("lost", [True, False])
def test_what_runs_on_nodes_looks_at_the_lock(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def check() -> None:
        calls.append("lock")
        if lost:
            raise CheckFailed("another run has the lock", code="lock-lost")

    def run(*_: Any, watch: ansible.Watch, **more: Any) -> tuple[()]:
        assert more["variables"]["fence"] == {"number": 7}
        watch()
        return ()

    monkeypatch.setattr(ansible, "run", run)
    held: Any = SimpleNamespace(check=check, fence={"number": 7})
    runs = NodeRuns(Path("i.yml"), Path("log"), DeployEvents(), held=held, watch=lambda: calls.append("own"))
    if lost:
        with pytest.raises(CheckFailed, match="another run has the lock"):
            runs.send("x.yml", {"n1": {}})
        assert calls == ["lock"]
    else:
        runs.send("x.yml", {"n1": {}})
        assert calls == ["lock", "own"]

"""A cluster from nothing, by `rocstack deploy` on two virtual nodes with real engines, Slurm and MariaDB."""

from __future__ import annotations

import pytest
from deployed import Deployed

pytestmark = pytest.mark.engine


def test_deployed(deployed: Deployed) -> None:
    said = deployed.first.json
    assert (said["ok"], said["failed"], said["stopped"]) == (True, {}, "")
    assert said["ready"] == ["n1", "n2"]
    print(f"first deploy: {deployed.first.seconds:.1f} s")
    assert deployed.nodes() == {"n1": "idle", "n2": "idle"}

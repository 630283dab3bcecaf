"""rocstack-preflight in real jobs, on nodes that are well and on some that aren't."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from deployed_cluster import DeployedCluster, until

pytestmark = pytest.mark.engine
SEEN = "/run/rocstack/devices"


def worker(deployed: DeployedCluster, node: str, command: str, check: bool = True) -> str:
    return deployed.ssh(node, f"docker exec rocstack-worker {command}", check)


def preflight(deployed: DeployedCluster, how: str = "rocstack-preflight") -> tuple[int, str, str]:
    """(exit status, stdout, stderr) in a job of alice on both nodes."""
    script = f"#!/bin/bash\ncd /tmp\n{how} >/tmp/unfit 2>/tmp/why\necho $? >/tmp/code\n"
    line = "sbatch --wait --parsable --nodes=2 --ntasks-per-node=1 --mem=800 --chdir=/tmp --output=/dev/null --time=10"
    deployed.ssh("n1", f"docker exec -i --user alice rocstack-control {line} <<'EOS'\n{script}EOS")
    code, out, err = (worker(deployed, "n1", f"cat /tmp/{name}") for name in ("code", "unfit", "why"))
    return int(code), out.strip(), err


@pytest.mark.parametrize("how", ["rocstack-preflight", "srun rocstack-preflight"])
def test_nodes_that_are_well(deployed: DeployedCluster, how: str) -> None:
    deployed.idle()
    code, out, err = preflight(deployed, how)
    assert (code, out) == (0, ""), err
    assert "the job has no GPUs: none was tried" in err
    assert "2 of 2 nodes are fit" in err


def test_one_that_has_lost_a_device(deployed: DeployedCluster) -> None:
    deployed.idle()
    worker(deployed, "n2", f"sh -c 'echo /dev/gone >>{SEEN}'")
    try:
        code, out, err = preflight(deployed)
    finally:
        worker(deployed, "n2", f"sed -i '\\,^/dev/gone$,d' {SEEN}")
    assert (code, out) == (1, "n2"), err
    assert "n2: device gone: /dev/gone" in err
    assert "1 of 2 nodes are fit" in err


def test_one_that_falls_silent(deployed: DeployedCluster) -> None:
    """Its daemon is frozen as the program begins: the other one isn't blamed for it."""
    deployed.idle()
    worker(deployed, "n1", "rm -f /tmp/ready /tmp/go")
    how = "touch /tmp/ready; until [ -e /tmp/go ]; do sleep 0.2; done; rocstack-preflight"
    with ThreadPoolExecutor() as pool:
        job = pool.submit(preflight, deployed, how)
        until(lambda: "ready" in worker(deployed, "n1", "ls /tmp"), 90)
        worker(deployed, "n2", "pkill -STOP -f ^slurmd")
        try:
            worker(deployed, "n1", "touch /tmp/go")
            code, out, err = job.result()
        finally:
            worker(deployed, "n2", "pkill -CONT -f ^slurmd")
    assert (code, out) == (1, "n2"), err
    assert "n2: no answer" in err
    deployed.idle()

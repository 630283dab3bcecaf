"""Jobs that meet a bad node, lack their data on one, near the end of their time or run again: on two deployed nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deployed_cluster import DeployedCluster, until

pytestmark = pytest.mark.engine

CPUS = ("--gpus-per-node", "0")
DATA = "/tmp/test-runs.bin"
LOST = "/run/rocstack/devices"  # what a worker's health check looks for
OWN = """\
---
about: says what happens to it
job: {{{job}}}
---
{{% extends "_job" %}}
{{% block commands %}}
exec srun "${{srun[@]}}" bash -c '{commands}'
{{% endblock %}}
"""
WARNED = 'trap "echo warned; exit 0" USR1; sleep 120 & wait'
TWICE = (
    '[ -z "${SLURM_RESTART_COUNT:-}" ] || { echo second; exit 4; }; trap "echo first; exit 3" TERM; sleep 300 & wait'
)


def inside(deployed: DeployedCluster, node: str, command: str) -> str:
    return deployed.ssh(node, f"docker exec rocstack-worker sh -c '{command}'")


def test_the_preflight_leaves_out_a_bad_node(deployed: DeployedCluster) -> None:
    deployed.idle()
    inside(deployed, "n2", f"echo /dev/gone >>{LOST}")
    try:
        line = ("submit", "mine", *CPUS, "--preflight", "--follow")
        done = deployed.run(*line, "--nodes", "1", "--spare", "1", "--", "hostname")
        none = deployed.run(*line, "--nodes", "2", "--", "hostname", code=1)
    finally:
        inside(deployed, "n2", f'sed -i "\\,^/dev/gone$,d" {LOST}')
    assert "n2: device gone: /dev/gone" in done.out
    assert "n1" in done.out.splitlines()
    assert "1 of the job's 2 nodes are fit, 2 are needed; not fit: n2" in none.out


def test_which_node_lacks_the_data(deployed: DeployedCluster) -> None:
    inside(deployed, "n1", f"head -c 200000 /dev/zero >{DATA}")
    inside(deployed, "n2", f"rm -f {DATA}")
    try:
        line = ("submit", "trainer", "--nodes", "2", *CPUS, "--follow", "--set", f"data={DATA}", "--set", "steps=2")
        done = deployed.run(*line, code=1)
    finally:
        inside(deployed, "n1", f"rm -f {DATA}")
    # Either task may be the first that ends: all raise what one of them met.
    assert " first: Exited with exit code" in done.out
    assert f"error: rank 1 on n2: data.path: {DATA}" in done.out.partition("its last lines:")[2]


@pytest.mark.slow
def test_a_sites_own_recipes_are_warned_and_run_again(deployed: DeployedCluster, tmp_path: Path) -> None:
    """A job that is requeued waits two minutes, until its credential has expired."""
    (tmp_path / "recipes").mkdir()
    for name, job, commands in (
        ("warned", "warn: 30, time: 1m", WARNED),
        ("twice", "requeue: true", TWICE),
    ):
        (tmp_path / f"recipes/{name}.sbatch.j2").write_text(OWN.format(job=job, commands=commands))
    line = ("submit", "--overlay", str(tmp_path), *CPUS)
    twice = str(json.loads(deployed.run(*line, "twice", "--json").out)["id"])
    until(lambda: deployed.state(twice) == "RUNNING", 60)
    deployed.run("job", "requeue", twice)
    warned = deployed.run(*line, "warned", "--follow")
    assert "warned" in warned.out.splitlines()
    shown = deployed.slurm(f"scontrol show job {warned.err.split()[1]}")
    assert " Requeue=0 " in shown, "Slurm reads #SLURM, too"
    until(lambda: deployed.state(twice) == "FAILED", 300, most_s=5)
    failed = deployed.json("job", "show", twice, code=1)["failed"]
    assert (failed["how"], failed["lines"]) == ("Exited with exit code 4", ["second"])
    log = deployed.run("job", "logs", twice).out.splitlines()
    assert log.index("first") < log.index("rocstack: the job begins again") < log.index("second")

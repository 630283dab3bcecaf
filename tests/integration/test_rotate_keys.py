"""New keys for a cluster on which jobs run: none is lost, and nobody gets in with the old ones."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from deployed_cluster import INVENTORY, DeployedCluster, until

from rocstack.deploy.plan.key_rotation import ROTATED

pytestmark = pytest.mark.engine

LOST = "Unable to .*(Connection reset|Zero Bytes)"

# A step that lasts all the time, and short ones, one after the other. Slurm answers a request for a step with a reset
# connection where it comes just as the controller stops (docs/operations.md): that alone is tried again.
JOB = """\
step() {{ srun --ntasks=1 --cpus-per-task=1 --mem=50 --overlap "$@"; }}
step sleep 90 &
for _ in $(seq {steps}); do
    step true 2>$SLURM_JOB_ID.said && continue
    cat $SLURM_JOB_ID.said
    grep -qE "{lost}" $SLURM_JOB_ID.said && step true || exit 1
done
wait %1
"""


def secrets(deployed: DeployedCluster) -> dict[str, Any]:
    file = deployed.workspace.folder / INVENTORY.with_name("rocstack-secrets.yml")
    assert file.stat().st_mode & 0o777 == 0o600
    values: dict[str, Any] = yaml.safe_load(file.read_text())
    return values


def submit(deployed: DeployedCluster, script: str, *flags: str) -> int:
    line = " ".join(("sbatch --parsable --chdir=/tmp --output=/tmp/%j.out", *flags))
    said = deployed.ssh(
        "n1", f"docker exec -i --user alice rocstack-control {line} <<'EOS'\n#!/bin/bash\n{script}\nEOS"
    )
    return int(said)


def ended(deployed: DeployedCluster, job: int) -> list[tuple[str, str]]:
    """(step, state) as accounting has them."""
    line = f"sacct --noheader --parsable2 --jobs={job} --format=JobID,State"
    return [(name, state) for name, _, state in (row.partition("|") for row in deployed.slurm(line).split())]


def registry(deployed: DeployedCluster, port: int, user: str, password: str) -> str:
    """The HTTP status that n1's registry gives to that account, asked on n1."""
    script = (
        "import base64, ssl, sys, urllib.error, urllib.request as u\n"
        "word = base64.b64encode(sys.stdin.read().encode()).decode()\n"
        f"asked = u.Request('https://127.0.0.1:{port}/v2/', headers={{'Authorization': 'Basic ' + word}})\n"
        "try: print(u.urlopen(asked, timeout=20, context=ssl._create_unverified_context()).status)\n"
        "except urllib.error.HTTPError as error: print(error.code)\n"
    )
    return deployed.ssh("n1", f"printf %s '{user}:{password}' | python3 -c \"{script}\"").strip()


def pull_accounts(deployed: DeployedCluster) -> dict[str, str]:
    """Of n1's registry: node -> password."""
    lines = deployed.ssh("n1", "cat /etc/rocstack/pulls/accounts").split()
    return {name: password for name, _, password in (line.partition(":") for line in lines)}


def rest(deployed: DeployedCluster, token: str) -> str:
    ask = "GET /slurm/v0.0.41/nodes HTTP/1.0\\r\\nX-SLURM-USER-TOKEN: " + token + "\\r\\n\\r\\n"
    line = f"exec 3<>/dev/tcp/127.0.0.1/300; printf '{ask}' >&3; timeout 20 head -n 1 <&3"
    return deployed.ssh("n1", f'bash -c "{line}"')


def token(deployed: DeployedCluster) -> str:
    return deployed.slurm("scontrol token username=alice lifespan=600").strip().removeprefix("SLURM_JWT=")


@pytest.fixture
def patient(deployed: DeployedCluster) -> Iterator[None]:
    """As docs/operations.md says: a step that begins while the controller is away waits for it."""
    settings = deployed.workspace.folder / "rocstack.yml"
    before = settings.read_text()
    settings.write_text(before + "  slurm: {MessageTimeout: 100}\n")
    deployed.run("deploy")
    yield
    settings.write_text(before)
    deployed.run("deploy")


@pytest.mark.usefixtures("patient")
def test_jobs_run_on_and_old_keys_are_worth_nothing(deployed: DeployedCluster) -> None:
    deployed.idle()
    before, old_token, old_accounts = secrets(deployed), token(deployed), pull_accounts(deployed)
    credential = deployed.ssh("n2", "docker exec rocstack-worker munge -n").strip()
    workers = {node: deployed.containers(node)["rocstack-worker"] for node in ("n1", "n2")}
    jobs = [
        submit(deployed, JOB.format(steps=60, lost=LOST), f"--nodelist={node} --ntasks=2 --mem=200")
        for node in ("n1", "n2")
    ]
    queued = submit(deployed, "srun true", f"--dependency=afterok:{jobs[0]}:{jobs[1]} --ntasks=1 --mem=50")
    until(lambda: [deployed.jobs().get(job) for job in jobs] == ["RUNNING", "RUNNING"], 60, deployed.jobs)
    done = deployed.run("rotate-keys", str(INVENTORY), "--json")
    print(f"rotation: {done.seconds:.1f} s")
    assert (done.json["ok"], done.json["failed"], done.json["resumed"]) == (True, {}, False)
    running = deployed.jobs()
    after = secrets(deployed)
    assert {name for name in before if before[name] != after[name]} == set(ROTATED)
    assert {node: deployed.containers(node)["rocstack-worker"] for node in ("n1", "n2")} == workers

    assert "Invalid credential" in deployed.ssh(
        "n2", f"docker exec rocstack-worker sh -c 'echo {credential} | unmunge' 2>&1 || true"
    )
    assert " 200 " in rest(deployed, token(deployed))
    assert " 200 " not in rest(deployed, old_token)
    assert registry(deployed, 5001, "rocstack", after["registry_password"]) == "200"
    assert registry(deployed, 5001, "rocstack", before["registry_password"]) == "401"
    for node, password in pull_accounts(deployed).items():
        assert registry(deployed, 5000, node, password) == "200"
        assert registry(deployed, 5000, node, old_accounts[node]) == "401"
    everywhere = "grep -rlF -e {} /etc/rocstack /var/lib/rocstack || true"
    for node in ("n1", "n2"):
        for name in ("database_password", "registry_password"):
            assert deployed.ssh(node, everywhere.format(before[name])).strip() == ""

    said = {
        job: deployed.ssh(node, f"docker exec rocstack-worker cat /tmp/{job}.out")
        for node, job in zip(("n1", "n2"), jobs, strict=True)
    }
    assert [running.get(job) for job in jobs] == ["RUNNING", "RUNNING"], f"or the test proves nothing: {said}"
    wanted = "sacct --noheader --parsable2 --allocations --format=State --jobs={}"
    until(
        lambda: deployed.slurm(wanted.format(queued)).split() == ["COMPLETED"],
        180,
        lambda: [ended(deployed, job) for job in jobs],
    )
    for job in jobs:
        steps = ended(deployed, job)
        assert [state for _, state in steps].count("COMPLETED") >= 62, steps
        # The answer to one may have been lost after it had begun.
        assert len([name for name, state in steps if state != "COMPLETED"]) <= len(re.findall(LOST, said[job])), steps
    plan = deployed.json("deploy", "--plan")
    assert plan["changes"] == 0, plan


def test_one_that_was_killed_goes_on(deployed: DeployedCluster) -> None:
    deployed.idle()
    before = secrets(deployed)
    job = submit(deployed, "srun sleep 60", "--nodelist=n2 --ntasks=1 --mem=50")
    until(lambda: deployed.jobs().get(job) == "RUNNING", 60, deployed.jobs)
    process = deployed.workspace.start("rotate-keys", str(INVENTORY))
    until(lambda: "rocstack-control" not in deployed.containers("n1"), 60, most_s=0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    between = secrets(deployed)
    assert set(between.pop("next")) == set(ROTATED)
    coming = secrets(deployed)["next"]
    assert between == before
    assert deployed.refused("deploy", "--plan") == (2, "rotation-unfinished")
    done = deployed.json("rotate-keys", str(INVENTORY))
    assert (done["ok"], done["resumed"]) == (True, True)
    assert secrets(deployed) == {**before, **coming}
    deployed.run("deploy")
    until(lambda: ended(deployed, job)[0][1] == "COMPLETED", 120, lambda: ended(deployed, job))

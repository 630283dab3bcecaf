"""Where Slurm is the host's own: what `export --format oci` writes, as a bundle under `srun --container` by runc."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_containers import Node, until
from workspace import REPO, Built, engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]

START = Path(__file__).parent / "data/host-slurm/start.sh"
ALICE = ("setpriv", "--reuid=2000", "--regid=2000", "--clear-groups", "env", "--chdir=/home/alice", "HOME=/home/alice")
SAVES = 'trap "echo saved; exit 3" TERM; echo begun; sleep 300 & wait'


def oci_conf() -> str:
    """What the page tells people to write."""
    found = re.search(r"```text\n# oci\.conf\n(.*?)```", (REPO / "docs/run.md").read_text(), re.DOTALL)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def host(built: Built, base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("host")
    (folder / "oci.conf").write_text(oci_conf())
    done = built.workspace.run("export", "--format", "oci", "-o", str(folder / "worker-oci"))
    assert done.code == 0, done.err
    folder.chmod(0o755)
    node = Node(f"rocstack-host-{secrets.token_hex(4)}")
    # It stands for a machine, on which runc makes namespaces.
    line = ["--detach", "--privileged", "--hostname=host", f"--volume={folder}:/given", f"--name={node.name}"]
    engine("run", *line, "--entrypoint=sleep", base, "infinity")
    try:
        started = engine("exec", "--interactive", node.name, "sh", input=START.read_text(), check=False)
        if node.run("sh", "-c", "type umoci", check=False).returncode:
            pytest.skip(f"Debian's archive isn't reached from containers: {started.stderr.strip()[-300:]}")
        assert started.returncode == 0, started.stderr
        until(lambda: node.run("sinfo", "--noheader", "--format=%T", check=False).stdout.strip(), "idle", node)
        tag = built.workspace.reference("worker").rpartition(":")[2]
        node.run(*ALICE, "umoci", "unpack", "--rootless", "--image", f"/given/worker-oci:{tag}", "bundle")
        yield node
    finally:
        node.remove()
        shutil.rmtree(folder, ignore_errors=True)  # 1.2 GB


def test_ranks_of_a_bundle_train(host: Node) -> None:
    line = ("srun", "--ntasks=2", "--container=/home/alice/bundle", "rocstack-train", "--config", "tiny", "--steps=2")
    said = host.run(*ALICE, *line).stdout
    assert "2 rank(s) by srun" in said
    assert "done: step 2" in said


def test_a_job_that_is_cancelled_is_told_and_leaves_no_container(host: Node) -> None:
    script = f"#!/bin/sh\nexec srun --container=/home/alice/bundle bash -c '{SAVES}'\n"
    engine("exec", "--interactive", host.name, "sh", "-c", "cat >/home/alice/job.sh", input=script)
    job = host.run(*ALICE, "sbatch", "--parsable", "--output=log", "job.sh").stdout.strip()
    log = ("cat", "/home/alice/log")
    until(lambda: host.run(*log, check=False).stdout, "begun\n", host)
    host.run(*ALICE, "scancel", job)
    until(lambda: host.run("squeue", "--noheader").stdout, "", host)
    assert "saved" in host.run(*log).stdout
    assert host.run(*ALICE, "runc", "--root=/run/user/2000", "list", "--quiet").stdout == ""

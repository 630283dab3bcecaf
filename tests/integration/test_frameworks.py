"""Frameworks from PyPI on two deployed nodes with two ranks each, as a person runs them: from a virtual environment in
a folder that all nodes see. And MPICH, which Slurm starts by PMI-2."""

from __future__ import annotations

import re
import shutil
import signal
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from deployed_cluster import DeployedCluster, deploy, until
from workspace import Built, Workspace

pytestmark = [pytest.mark.engine, pytest.mark.slow]

DATA = Path(__file__).parent / "data/frameworks"
# The image has neither pip nor compilers. What this machine trusts, PyPI's certificate may need.
ENVIRONMENT = """
set -e
apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv >/dev/null
python3 -m venv --system-site-packages venv
venv/bin/pip install -q --no-deps setuptools wheel
venv/bin/pip install -q --no-build-isolation deepspeed jax
"""
COMPILE = """
set -e
apt-get update -qq && apt-get install -qq -y --no-install-recommends gcc libc6-dev libmpich-dev libpmi2-0-dev >/dev/null
gcc -o ring ring.c -lpmi2
mpicc.mpich -o sum sum.c -Wl,-rpath,'$ORIGIN' && cp -L /usr/lib/x86_64-linux-gnu/libmpich.so.12 .
"""


@dataclass(frozen=True)
class FrameworkCluster:
    """`folder` has the programs of DATA; all nodes see it."""

    deployed: DeployedCluster
    folder: Path
    base: str

    def submit(self, recipe: str, *words: str, **parameters: str | Path) -> list[str]:
        """What the ranks said, followed to the job's end."""
        given = [word for name, value in parameters.items() for word in ("--set", f"{name}={value}")]
        asked = ["--nodes", "2", "--gpus-per-node", "0", "--follow", *given]
        said = self.deployed.run("submit", recipe, *asked, *words).out
        # Two ranks of one task may print into one line.
        return sorted(re.findall(r"(?:rank|sum) \d(?:(?!rank \d)[^\n])*", said))

    def venv(self) -> Path:
        """With frameworks; made once."""
        made = self.folder / "venv"
        if not made.exists():
            done = self.inside(self.deployed.workspace.reference("worker"), ENVIRONMENT)
            if done.returncode:
                shutil.rmtree(made, ignore_errors=True)
                pytest.skip(f"PyPI or Debian's archive isn't reached from containers: {done.stderr.strip()[-300:]}")
        return made

    def inside(self, image: str, script: str) -> subprocess.CompletedProcess[str]:
        """In a container of its own, in the folder."""
        trusted, place = ssl.get_default_verify_paths().cafile, "/run/trusted.crt"
        ca = ["--volume", f"{trusted}:{place}:ro", "--env", f"PIP_CERT={place}"] if trusted else []
        here = ["--volume", f"{self.folder}:{self.folder}", "--workdir", str(self.folder)]
        line = ["docker", "run", "--rm", "--interactive", "--entrypoint", "sh", *here, *ca, image]
        return subprocess.run(line, input=script, capture_output=True, text=True, check=False, timeout=900)


@pytest.fixture(scope="module")
def cluster(built: Built, base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrameworkCluster]:
    folder = Path(tempfile.mkdtemp(prefix="rocstack-frameworks-"))
    workspace = Workspace(tmp_path_factory.mktemp("frameworks"), built.workspace.prefix, made=built.workspace.made)
    try:
        shutil.copytree(DATA, folder, dirs_exist_ok=True)
        folder.chmod(0o755)
        with deploy(workspace, folder) as deployed:
            yield FrameworkCluster(deployed, folder, base)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_accelerate_trains_alike_on_all_ranks(cluster: FrameworkCluster) -> None:
    """It is in the image."""
    said = cluster.submit("accelerate", script=cluster.folder / "by_accelerate.py", processes="2", precision="no")
    assert said == [f"rank {rank} of 4 on cpu:0: weights of 1 kind, loss fell" for rank in range(4)]


def test_deepspeed_shares_the_states_of_its_optimizer(cluster: FrameworkCluster) -> None:
    given = {"script": cluster.folder / "by_deepspeed.py", "config": cluster.folder / "zero.json"}
    said = cluster.submit("deepspeed", **given, processes="2", venv=cluster.venv())
    assert said == [f"rank {rank} of 4 with ZeRO 1: weights of 1 kind, loss fell" for rank in range(4)]


def test_jax_meets_without_an_argument(cluster: FrameworkCluster) -> None:
    python = cluster.venv() / "bin/python3"
    said = cluster.submit("mine", "--tasks-per-node", "2", "--", str(python), str(cluster.folder / "by_jax.py"))
    assert said == [f"rank {rank} of 4 with 4 devices: sum 6" for rank in range(4)]


def test_slurm_starts_mpich_and_what_is_linked_with_its_pmi2(cluster: FrameworkCluster) -> None:
    done = cluster.inside(cluster.base, COMPILE)
    if not (cluster.folder / "sum").exists():
        pytest.skip(f"Debian's archive isn't reached from containers: {done.stderr.strip()[-300:]}")
    by_pmi2 = ("mine", "--tasks-per-node", "2", "--set", "mpi=pmi2", "--")
    assert cluster.submit(*by_pmi2, str(cluster.folder / "sum")) == ["sum 6 of 4 on n1"] * 2 + ["sum 6 of 4 on n2"] * 2
    said = cluster.submit(*by_pmi2, str(cluster.folder / "ring"))
    assert said == [f"rank {rank} of 4, next is {(rank + 1) % 4}" for rank in range(4)]


def test_scaling_is_a_rehearsal_here_and_stops_with_what_it_has(cluster: FrameworkCluster) -> None:
    words = ("scale", "trainer", "--nodes", "1,2", "--weak", "--gpus-per-node", "0", "--set", "batch=8")
    found = cluster.deployed.json(*words, "--set", "steps=4", "--tasks-per-node", "2")
    assert [(each["nodes"], each["ranks"], each["batch"]) for each in found["points"]] == [(1, 2, 8), (2, 4, 16)]
    assert all(each["tokens_per_s"] > 0 for each in found["points"])
    assert (found["cluster"], found["hosts"], found["virtual"]) == (False, 1, ["mi300x-thor2"])
    assert "<svg" in (cluster.deployed.workspace.folder / found["picture"]).read_text()
    jobs = cluster.deployed.json("jobs")["jobs"]
    process = cluster.deployed.workspace.start(*words, "--set", "steps=100000")
    assert process.stderr is not None
    job = next(line.split()[1].rstrip(":") for line in process.stderr if line.startswith("job "))
    until(lambda: cluster.deployed.state(job) == "RUNNING", 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    until(lambda: cluster.deployed.state(job) == "CANCELLED", 60)
    assert job not in {each["id"] for each in jobs}

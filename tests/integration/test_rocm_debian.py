"""Debian's ROCm 7.2 for real, for MI300X: 6 GB of packages; UCX, PMIx, OpenMPI, Slurm, roctracer and the tools from
source; JAX with its plugin. An hour on two cores. Set ROCSTACK_SOURCES to a folder with the ten archives that the
stack names, where their projects are not reached."""

from __future__ import annotations

import os

import pytest
import trainer_suite
from workspace import Workspace, engine, inspect

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="module")
def worker(prefix: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The worker image; its smoke test has passed, or there would be none."""
    given = {name: value for name, value in os.environ.items() if name == "ROCSTACK_SOURCES"}
    workspace = Workspace(tmp_path_factory.mktemp("rocm"), prefix, env=given, made=made)
    arguments = ["--stack", "rocm-7.2-debian", "--gfx", "gfx942", "--nic", "tcp", "--role", "worker"]
    done = workspace.run("build", "--json", *arguments, timeout=5400)
    assert done.code == 0, done.err + done.failures()
    return f"{prefix}/worker:rocm-7.2-debian-tcp"


def test_the_labels_say_what_has_code_for_which_gpu(worker: str) -> None:
    labels = inspect(worker)["Config"]["Labels"]
    for part in ("hip", "rocblas", "jax"):
        assert "gfx942" in labels[f"io.rocstack.gfx.{part}"].split(","), part
    assert "gfx942" not in labels["io.rocstack.gfx.hipblaslt"].split(",")


def test_one_hip_runtime(worker: str) -> None:
    """Debian's UCX would bring HIP 6 in beside HIP 7."""
    command = ["find", "/usr/lib", "/opt", "-name", "libamdhip64.so.*"]
    found = engine("run", "--rm", "--entrypoint", command[0], worker, *command[1:]).stdout
    assert {name.rpartition("/")[2].split(".")[2] for name in found.split()} == {"7"}


def test_what_only_builds_is_not_shipped(worker: str) -> None:
    listed = engine("run", "--rm", "--entrypoint", "sh", worker, "-c", "command -v hipcc g++ cmake || true").stdout
    assert listed == ""


def test_the_trainer_shards_a_model(worker: str) -> None:
    """Debian 13's PyTorch can't take our sum between replicas; this one can."""
    with trainer_suite.with_pytest(worker, f"{worker.partition('/')[0]}/trainer-tests:rocm") as image:
        trainer_suite.run(image, "", 20, "test_sharding.py")

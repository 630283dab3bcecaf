"""MaxText under Slurm on two virtual nodes, on processors: the image of stack maxtext-rocm-7.2, which is also what
compiles for GPUs that aren't there and what trains on those that are. Half an hour on two cores; set ROCSTACK_SOURCES
to a folder with the archives that the stack names, where their projects aren't reached."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
from deployed_cluster import DeployedCluster, deploy
from workspace import Workspace

from rocstack.verify.result import Run

pytestmark = [pytest.mark.engine, pytest.mark.slow]

OUTPUT = "/home/alice/maxtext"
TINY = (
    "base_emb_dim=64", "base_num_query_heads=2", "base_num_kv_heads=2", "base_num_decoder_layers=2", "base_mlp_dim=128",
    "head_dim=32", "vocab_size=256", "max_target_length=64", "enable_checkpointing=false",
    "attention=dot_product", "ici_fsdp_parallelism=1", "ici_data_parallelism=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(prefix: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedCluster]:
    given = {name: value for name, value in os.environ.items() if name == "ROCSTACK_SOURCES"}
    own = {**given, "ROCSTACK_STACK": "maxtext-rocm-7.2", "ROCSTACK_NIC": "tcp"}
    workspace = Workspace(tmp_path_factory.mktemp("maxtext-cluster"), prefix, env=own, made=made)
    done = workspace.run("build", "--json", timeout=5400)
    assert done.code == 0, done.err + done.failures()
    with deploy(workspace) as deployed:
        yield deployed


def test_a_tiny_model_learns_on_two_nodes(cluster: DeployedCluster) -> None:
    parameters = (f"output={OUTPUT}", "model=default", "steps=4", "batch=2")
    line = ["submit", "maxtext", "--nodes", "2", "--gpus-per-node", "0", "--follow"]
    line += [word for each in parameters for word in ("--set", each)]
    done = cluster.workspace.run(*line, "--", *TINY, timeout=1200)
    assert done.code == 0, done.out + done.err
    losses = {}
    for node, step, loss in re.findall(r"(\d): .*completed step: (\d), .* loss: ([0-9.]+)", done.out):
        losses[int(node), int(step)] = float(loss)
    assert {step for _, step in losses} == {0, 1, 2, 3}
    assert losses[0, 3] < losses[0, 0]


def test_verify_takes_jax_where_there_is_no_mpi(cluster: DeployedCluster) -> None:
    done = cluster.workspace.run("verify", "--level", "4", "--json", timeout=1800)
    states = {each["check"]["name"]: each["state"] for each in done.json["results"]}
    assert {name for name, state in states.items() if state in ("failed", "error")} == set(), done.err
    assert {states[name] for name in ("parts", "pmix", "training-on-nodes", "soak")} == {"passed"}
    assert states["mpi-launch"] == "skipped"
    assert Run.model_validate_json(done.out).proved == 1

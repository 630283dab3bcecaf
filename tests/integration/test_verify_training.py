"""Training on two deployed nodes with the trainer of one of them made wrong: the check that is about it turns red, and
no other. What a red check makes meaningless is skipped."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deployed_cluster import INVENTORY, DeployedCluster

from rocstack.verify import result
from rocstack.verify.result import CheckResult

pytestmark = pytest.mark.engine
TRAINER = "/usr/local/lib/python3.13/dist-packages/rocstack_trainer"  # in the worker image
CHECKS = {f"training-{name}" for name in ("one-rank", "in-node", "on-nodes", "weights", "data", "restart")}

# Put at the end of a file of the trainer. After the ranks have compared their weights, one of them changes.
OTHER_WEIGHTS = """
_build = build
def build(config, rank, *more):
    net = _build(config, rank, *more)
    with torch.no_grad():
        next(net.parameters()).view(-1)[0] += rank.rank
    return net
"""
ANOTHER_SHARD = """
_ids = Samples.ids
Samples.ids = lambda self, step, rank, world, *groups: (
    _ids(self, step, rank % 2 if world == 4 else rank, world, *groups)
)
"""
NEVER_DAMAGED = """
damage = lambda *_: ""
"""
MOMENTS_LOST = """
_resume = Checkpoints.resume
def resume(self, state):
    step = _resume(self, state)
    for moments in state.optimizer.state.values():
        moments["exp_avg"].zero_()
    return step
Checkpoints.resume = resume
"""
# Changes a byte of the newest checkpoint once it is there.
SPOIL = """\
until file=$(ls /tmp/rocstack-verify-*/run/step-00000009/*.distcp 2>/dev/null); do sleep 0.1; done
printf '\\377' | dd of="$file" bs=1 seek=4000 conv=notrunc status=none
"""


def verify(deployed: DeployedCluster, folder: Path) -> dict[str, CheckResult]:
    """Check -> what it says; the nodes are left as they were."""
    deployed.run("verify", "--only", "training-*", "--level", "1", "--report", str(folder), code=1)
    for node in ("n1", "n2"):
        # All but the temporary folder that each user has.
        assert inside(deployed, node, "find /tmp -name 'rocstack-*' -not -name 'rocstack-[0-9]*'") == ""
    return {each.check.name: each for each in result.read(folder).results}


@contextmanager
def faulty(deployed: DeployedCluster, file: str, fault: str, *nodes: str) -> Iterator[None]:
    for node in nodes:
        inside(
            deployed, node, f"cp -p {TRAINER}/{file} /root/kept && printf %s {shlex.quote(fault)} >>{TRAINER}/{file}"
        )
    try:
        yield
    finally:
        for node in nodes:
            inside(deployed, node, f"mv /root/kept {TRAINER}/{file}")


def inside(deployed: DeployedCluster, node: str, command: str) -> str:
    return deployed.ssh(node, f"docker exec rocstack-worker sh -c {shlex.quote(command)}")


def test_a_rank_with_other_weights(deployed: DeployedCluster, tmp_path: Path) -> None:
    with faulty(deployed, "models/model.py", OTHER_WEIGHTS, "n2"):
        found = verify(deployed, tmp_path)
    states = {name: each.state for name, each in found.items()}
    assert states == dict.fromkeys(CHECKS, "passed") | {
        "training-weights": "failed",
        "training-on-nodes": "skipped",
        "training-restart": "skipped",
    }
    assert {m.node: m.state for m in found["training-weights"].measures} == {"n1": "passed", "n2": "failed"}
    assert "has other weights at the start" in found["training-weights"].why
    assert {m.node: m.state for m in found["training-in-node"].measures if m.state != "measured"} == {
        "n1": "passed",
        "n2": "skipped",
    }


@pytest.mark.slow
def test_a_shard_that_two_ranks_have(deployed: DeployedCluster, tmp_path: Path) -> None:
    with faulty(deployed, "data/samples.py", ANOTHER_SHARD, "n2"):
        found = verify(deployed, tmp_path)
    states = {name: each.state for name, each in found.items()}
    assert states == dict.fromkeys(CHECKS, "passed") | {"training-data": "failed", "training-on-nodes": "skipped"}
    whys = [(m.node, m.why) for m in found["training-data"].measures]
    assert whys == [
        ("n2", "rank 2 has 2,048 samples that rank 0 has too"),
        ("n2", "rank 3 has 2,047 samples that rank 1 has too"),
        ("", "4,095 of 8,191 samples are no rank's"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "fault", "says"),
    [
        ("saving/folder.py", NEVER_DAMAGED, "with the newest damaged: "),
        pytest.param(
            "saving/checkpoint.py", MOMENTS_LOST, "after the kill: it ended with other weights", marks=pytest.mark.slow
        ),
    ],
)
def test_a_checkpoint_that_is_not_read_as_it_was_written(
    deployed: DeployedCluster, tmp_path: Path, file: str, fault: str, says: str
) -> None:
    with faulty(deployed, file, fault, "n1", "n2"):
        found = verify(deployed, tmp_path)
    states = {name: each.state for name, each in found.items()}
    assert states == dict.fromkeys(CHECKS, "passed") | {"training-restart": "failed"}
    assert says in found["training-restart"].why


@pytest.mark.slow
def test_a_checkpoint_that_changes_before_it_is_read(deployed: DeployedCluster, tmp_path: Path) -> None:
    config = deployed.workspace.folder / INVENTORY.with_name("ssh_config")
    line = ["ssh", "-F", str(config), "n1", f"docker exec rocstack-worker timeout 300 sh -c {shlex.quote(SPOIL)}"]
    with subprocess.Popen(line) as spoiling:
        found = verify(deployed, tmp_path)
        assert spoiling.wait(10) == 0
    states = {name: each.state for name, each in found.items()}
    assert states == dict.fromkeys(CHECKS, "passed") | {"training-restart": "failed"}
    assert found["training-restart"].why == "after the kill: it went on from step 6, not 9"


@pytest.mark.slow
def test_a_node_on_which_nothing_trains(deployed: DeployedCluster, tmp_path: Path) -> None:
    """It is named, and the other one verified."""
    with faulty(deployed, "train.py", "\nraise ImportError('no libtorch.so')\n", "n2"):
        found = verify(deployed, tmp_path)
    states = {name: each.state for name, each in found.items()}
    assert states == dict.fromkeys(CHECKS, "passed") | {
        "training-one-rank": "failed",
        "training-on-nodes": "skipped",
    }
    assert found["training-one-rank"].why == "rank 0: ImportError: no libtorch.so"
    assert {m.node for m in found["training-restart"].measures if m.state == "skipped"} == {"n2"}

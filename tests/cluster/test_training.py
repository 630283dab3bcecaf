"""Training: on one rank, on several in a node, on several nodes; the model and the data shared out as they should be;
killed and started again. On CPUs, and on GPUs where the nodes really have them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from experiments import training
from experiments.ranks import Row, alone, apart, ill, misplaced, of, speed, strangers, unlearned, unlike

from rocstack.base.errors import RocstackError
from rocstack.base.text import count
from rocstack.node.image_facts import from_labels
from rocstack.verify.evidence import CheckSkipped, ClusterEvidence
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder, without

# By which share losses may differ from those of one rank: the sums are in another order, and on GPUs of bf16.
NEAR = {"cpu": 1e-4, "gpu": 2e-2}
FOR_ROCM = "framework:rocm"  # the trainer with PyTorch, or programs/jax_check.py with JAX
ALONE = "not even one rank trains there: see training-one-rank"
STRANGERS = "its ranks have different weights: see training-weights"
OTHERS = "Slurm gave the node to other jobs"
TrainingRuns = dict[str, Any]


@pytest.fixture(scope="session")
def on_cpus(
    evidence: Any, cluster: Any, cluster_evidence: ClusterEvidence, request: pytest.FixtureRequest
) -> TrainingRuns:
    def fetch() -> Any:
        asked = any("tried" in getattr(item, "fixturenames", ()) for item in request.session.items)
        if asked and not cluster.slurm.gpus:
            with suppress(RocstackError, CheckSkipped):  # it is told where it is asked for
                request.getfixturevalue("tried")
        if "part:trainer" in without(cluster_evidence.labels):
            return training.on_cpus_by_jax(cluster)
        return training.on_cpus(cluster)

    return dict(evidence.take("training", fetch))


@pytest.fixture(scope="session")
def on_gpus(evidence: Any, cluster: Any, cluster_evidence: ClusterEvidence) -> TrainingRuns:
    framework = from_labels("the worker image", cluster_evidence.labels).framework
    return dict(evidence.take("training_gpus", lambda: training.on_gpus(cluster, framework)))


@check(
    name="training-one-rank",
    title="One rank trains on each node, with the same result on all",
    cannot="GPUs: it computes on CPUs; rare wrong bits",
    level=1,
    item=15,
    needs=("jobs", "training"),
    cause="PyTorch, the trainer or JAX doesn't work on the node, or its CPU or memory computes wrong results",
    next_step=(
        "read the rank's last words in the evidence, or run `srun -w NODE rocstack-train --steps 3` if the image has "
        "it; test the hardware of a node with another result"
    ),
)
def test_one_rank(record: Recorder, on_cpus: TrainingRuns) -> None:
    one_rank(record, on_cpus, "cpu")


@check(
    name="training-in-node",
    title="Several ranks of a node train together with the result of one",
    cannot="GPUs and RCCL: it sums over gloo; speed",
    level=1,
    item=16,
    needs=("jobs", "training"),
    cause="the node's ranks can't reach each other, or their sums are wrong",
    next_step=(
        "read the ranks' last words in the evidence, or run `srun -w NODE rocstack-train --ranks 2 --steps 3` if the "
        "image has it"
    ),
)
def test_in_node(record: Recorder, on_cpus: TrainingRuns) -> None:
    in_node(record, on_cpus, "cpu")


@check(
    name="training-on-nodes",
    title="Ranks on all nodes train together with the result of one",
    cannot="GPUs and RCCL: it sums over gloo; speed",
    level=1,
    item=17,
    needs=("jobs", "nodes:2", "training"),
    cause="ranks of different nodes can't reach each other, or their sums are wrong",
    next_step=(
        "read the ranks' last words in the evidence, or run `srun -N2 rocstack-train --steps 3` if the image has it; "
        "the mpi-* checks tell which link is at fault"
    ),
)
def test_on_nodes(record: Recorder, on_cpus: TrainingRuns) -> None:
    on_nodes(record, on_cpus, "cpu")


@check(
    name="training-one-gpu",
    title="One GPU trains on each node, with the same result on all",
    cannot="single wrong bits: GPUs may sum in any order, so losses may differ by 2 %",
    level=2,
    item=15,
    needs=("jobs", "gpu", "real", "training", FOR_ROCM),
    cause="PyTorch or JAX doesn't see the GPU, or the GPU computes another result than the others",
    next_step=(
        "read the rank's last words in the evidence, or run `srun -w NODE --gpus=1 rocstack-train --steps 3` if the "
        "image has it"
    ),
)
def test_one_gpu(record: Recorder, on_gpus: TrainingRuns) -> None:
    one_rank(record, on_gpus, "gpu")


@check(
    name="training-gpus-in-node",
    title="A node's GPUs train together with the result of one",
    cannot="single wrong bits, as losses may differ by 2 %; speed",
    level=2,
    item=16,
    needs=("jobs", "gpu", "real", "training", FOR_ROCM),
    cause="RCCL doesn't work between the node's GPUs",
    next_step=(
        "run with NCCL_DEBUG=INFO to see which path RCCL takes; `rocstack doctor --log FILE` explains its lines"
    ),
)
def test_gpus_in_node(record: Recorder, on_gpus: TrainingRuns) -> None:
    in_node(record, on_gpus, "gpu")


@check(
    name="training-gpus-on-nodes",
    title="The GPUs of all nodes train together with the result of one",
    cannot="single wrong bits, as losses may differ by 2 %; speed",
    level=2,
    item=17,
    needs=("jobs", "gpu", "real", "nodes:2", "training", FOR_ROCM),
    cause="RCCL doesn't work between the nodes",
    next_step="run with NCCL_DEBUG=INFO to see which NIC RCCL takes; `rocstack doctor --log FILE` explains its lines",
)
def test_gpus_on_nodes(record: Recorder, on_gpus: TrainingRuns) -> None:
    on_nodes(record, on_gpus, "gpu")


@check(
    name="training-weights",
    title="All ranks have the same weights when training starts and when it ends",
    cannot="weights between the first and the last step",
    level=1,
    item=14,
    needs=("jobs", "training"),
    cause="the model didn't reach all ranks unchanged, or the sums of their gradients differ",
    next_step="drain the named node and test it: its memory, network or collectives are at fault",
)
def test_weights(record: Recorder, on_cpus: TrainingRuns) -> None:
    rows = [row for row in of(on_cpus, "node", "all") if "before" in row]
    others = strangers(rows)
    for name in taking_part(record, on_cpus):
        digests = {row["before"] for row in rows if row["node"] == name}
        if name in others:
            record.failed(name, others[name], evidence="sha256 " + " ".join(sorted(digests)))
        elif not digests:
            record.skipped(name, "its ranks didn't train together")
        else:
            record.passed(name, on_cpus["ranks"], "ranks", evidence="sha256 " + " ".join(digests))


@check(
    name="training-data",
    title="Every sample of an epoch goes to exactly one rank",
    cannot="whether a user's own data loader does the same",
    level=1,
    item=18,
    needs=("jobs", "training"),
    cause="a rank takes itself for another one, or the nodes run different trainers",
    next_step="check with `rocstack status` that all nodes have the same image",
)
def test_data(record: Recorder, on_cpus: TrainingRuns) -> None:
    if not taking_part(record, on_cpus):
        return
    rows = [row for row in of(on_cpus, "all") if row.get("ids")]
    if len(rows) < on_cpus["ranks"] * len(on_cpus["nodes"]):
        record.skipped("", "not all ranks trained together")
        return
    wrong = misplaced(rows)
    for node, why, number in wrong:
        record.failed(node, why, number, "samples")
    if not wrong:
        text = f"{len(rows)} ranks on {count(len(on_cpus['nodes']), 'node')}"
        record.passed("", rows[0]["samples"], "samples", wanted="each of one rank", evidence=text)


@check(
    name="training-restart",
    title="After a rank is killed, training resumes from the newest complete checkpoint and reaches the same weights",
    cannot="a node that is lost, or a file system: one rank is killed and one file damaged",
    level=1,
    item=13,
    needs=("jobs", "part:trainer"),
    cause="checkpoints aren't written or aren't read back unchanged, or a lost rank isn't noticed",
    next_step="check the file system of the checkpoints; `rocstack-train` prints which ones it skips, and why",
)
def test_restart(record: Recorder, on_cpus: TrainingRuns) -> None:
    if not taking_part(record, on_cpus):
        return
    ranks = on_cpus["ranks"] * len(on_cpus["nodes"])
    whole, killed = of(on_cpus, "all"), of(on_cpus, "killed")
    if ill(whole, ranks)[1] or strangers(whole):
        record.skipped("", "the uninterrupted run failed already")
        return
    victim = next((row for row in killed if row["code"] == -9), None)
    if not victim:
        node, why, text = ill(killed, ranks)
        record.failed(node, f"before its step {on_cpus['kill']}: {why}", evidence=text or on_cpus["said"])
        return
    newest = on_cpus["kill"] // on_cpus["every"] * on_cpus["every"]
    for run, start in (("restart", newest), ("damaged", newest - on_cpus["every"])):
        what = "with the newest damaged" if run == "damaged" else "after the kill"
        more: TrainingRuns = {"wanted": f"from step {start}, to the weights of the run that nobody interrupts"}
        rows = of(on_cpus, run)
        node, why, text = ill(rows, ranks)
        others = [] if why else [row for row in rows if row["after"] != whole[0]["after"]]
        if why:
            record.failed(node, f"{what}: {why}", evidence=text, **more)
        elif rows[0]["from"] != start:
            record.failed("", f"{what}: it went on from step {rows[0]['from']}, not {start}", **more)
        elif others:
            record.failed("", f"{what}: it ended with other weights", evidence=others[0]["after"], **more)
        elif run == "damaged":
            record.passed("", start, "step", evidence="64 bytes of the newest checkpoint were changed", **more)
        else:
            seconds = next(row["first"] for row in rows if row["rank"] == victim["rank"]) - victim["last"]
            place = f"below {on_cpus['below']}" + ("" if on_cpus["shared"] else " of one node: no folder is shared")
            text = f"rank {victim['rank']} was killed on {victim['node']}; checkpoints were {place}"
            record.passed("", seconds, "s", evidence=text, **more)


def taking_part(record: Recorder, runs: TrainingRuns) -> list[str]:
    """The nodes that trained; of the others it is written down why they didn't."""
    for node in record.nodes:
        if node.name not in runs["nodes"]:
            record.skipped(node.name, ALONE if node.name in runs["asked"] else runs.get("left_out", OTHERS))
    return [node.name for node in record.nodes if node.name in runs["nodes"]]


def one_rank(record: Recorder, runs: TrainingRuns, kind: str) -> None:
    """To the bit on CPUs; GPUs may sum in another order each time."""
    rows = {row["node"]: row for row in of(runs, "start", "alone")}
    odd: dict[str, tuple[dict[str, float], str]] = {}
    for name in [node.name for node in record.nodes]:
        row = rows.get(name)
        _, why, text = ill([row] if row else [], 1)
        if name not in runs["asked"]:
            record.skipped(name, runs.get("left_out", OTHERS))
            continue
        if row is None or why:
            record.failed(name, why, evidence=text or runs["said"])
            continue
        if row["device"] not in odd:
            odd[row["device"]] = unlike(runs, row["device"], NEAR[kind], to_the_bit=kind == "cpu")
        strange, many = odd[row["device"]]
        if name in strange and kind == "cpu":
            why = f"it ends with other weights than {many} nodes with such a device"
        elif name in strange:
            why = f"its losses differ from those of {many} nodes with such a device by up to {strange[name]:.2%}"
        if why := why or unlearned(row):
            record.failed(name, why, row["losses"][-1], "nats", evidence=row["device"])
        else:
            record.passed(name, row["losses"][-1], "nats", evidence=row["device"])
            record.measured(name, speed(row), "tokens/s")


def in_node(record: Recorder, runs: TrainingRuns, kind: str) -> None:
    """What goes wrong with weights has a check of its own on CPUs; on GPUs it has not."""
    for name in taking_part(record, runs):
        rows = of(runs, "node", node=name)
        _, why, text = ill(rows, runs["ranks"])
        if runs["ranks"] < 2:
            record.skipped(name, "it has one GPU")
        elif others := strangers(rows):
            record.failed(name, others[name]) if kind == "gpu" else record.skipped(name, STRANGERS)
        elif why:
            record.failed(name, why, evidence=text or runs["said"])
        else:
            alike(record, name, rows[0], alone(runs), kind)


def on_nodes(record: Recorder, runs: TrainingRuns, kind: str) -> None:
    """As `in_node`; and so it is with the data."""
    names = taking_part(record, runs)
    rows = of(runs, "all")
    node, why, text = ill(rows, runs["ranks"] * len(names))
    if len(names) < 2:
        record.skipped("", f"{len(names)} of the nodes can take part")
    elif (others := strangers(rows)) and kind == "gpu":
        for name, why in others.items():
            record.failed(name, why)
    elif others:
        record.skipped("", STRANGERS)
    elif why:
        record.failed(node, why, evidence=text or runs["said"])
    elif (wrong := misplaced(rows)) and kind == "gpu":
        for node, why, number in wrong:
            record.failed(node, why, number, "samples")
    elif wrong:
        record.skipped("", "its ranks don't share the data as they should: see training-data")
    else:
        alike(record, "", rows[0], alone(runs), kind)


def alike(record: Recorder, name: str, row: Row, one: Row, kind: str) -> None:
    """Of several ranks: they learn, and what one rank learns."""
    share = apart(row, one)
    more = {"wanted": f"losses within {NEAR[kind]:g} of one rank's", "evidence": f"{row['world']} ranks"}
    if why := unlearned(row):
        record.failed(name, why, row["losses"][-1], "nats")
    elif not share <= NEAR[kind]:
        record.failed(
            name, f"its losses differ from one rank's by up to {share:.2%}", row["losses"][-1], "nats", **more
        )
    else:
        record.passed(name, row["losses"][-1], "nats", **more)
        record.measured(name, speed(row), "tokens/s")

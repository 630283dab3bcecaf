"""The trainer on the cluster: one rank on each node, several in each, ranks on all nodes; and there killed, and started
again. One step imports PyTorch once for all runs up to the killed one, a second one for those that go on."""

from __future__ import annotations

import json
import math
import secrets
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments import rccl
from experiments.performance import whole

from rocstack.container.mount import parse_mount
from rocstack.verify import recorder
from rocstack.verify.slurm_session import StepOutput

PROGRAM = Path(__file__).parents[1] / "programs/training.py"
JAX = PROGRAM.with_name("jax_check.py")
RANKS = 2  # of a node, on CPUs
STEPS, EVERY, KILL = 12, 3, 10  # of a run; between checkpoints; after which a rank is killed
SECONDS = 60  # that a run may take, and one more for each node
JAX_SECONDS = 120  # of JAX, which each rank of each run imports and compiles anew
# Nothing that is measured at the start may choose how gradients travel: two runs are to end with the same bits.
SETTINGS = [
    "--config=tiny", "--model.hidden_size=64", "--model.intermediate_size=128", "--model.num_hidden_layers=2",
    f"--train.steps={STEPS}", "--train.lr=1e-2", "--train.warmup=2",
    "--parallel.algorithm=flat", "--parallel.compress=none", "--parallel.lost_after_s=30",
]  # fmt: skip


def on_cpus(cluster: Any) -> dict[str, Any]:
    """All runs. `shared`: whether all nodes see the folder of the checkpoints, which is `below`."""
    nodes = lasting(cluster)
    folder, shared = scratch(cluster, nodes)
    try:
        private = [temporary(folder), *([] if shared else [folder])]
        results = run(cluster.slurm, nodes, RANKS, "gloo", folder, private)
        return results | {"shared": shared, "below": str(Path(folder).parent)}
    finally:
        if left := cluster.slurm.kept(nodes):
            cluster.slurm.step("rm", "-rf", folder, temporary(folder), nodes=left, independent=True)


def on_cpus_by_jax(cluster: Any) -> dict[str, Any]:
    """Of an image without the trainer. None is killed."""
    return run_jax(cluster.slurm, lasting(cluster), RANKS, "cpu")


def temporary(folder: str) -> str:
    """Where the ranks have their temporary files, of which those that are killed remove none."""
    return f"/tmp/{Path(folder).name}-tmp"


def on_gpus(cluster: Any, framework: str | None = None) -> dict[str, Any]:
    """Without those that are killed, on as many ranks as a node has GPUs; with what the image has for GPUs."""
    nodes = lasting(cluster)
    if not cluster.slurm.gpus:
        why = "no GPU was allocated: not every worker has one"
        return {"asked": [], "nodes": [], "answers": [], "ranks": 0, "said": "", "left_out": why}
    if framework in recorder.JAX:
        return run_jax(cluster.slurm, nodes, cluster.slurm.gpus)
    return run(cluster.slurm, nodes, cluster.slurm.gpus, "nccl")


def lasting(cluster: Any) -> Sequence[str]:
    """The nodes, for as long as all runs may take."""
    nodes: Sequence[str] = whole(cluster, math.ceil(8 * (SECONDS + len(cluster.allocated())) / 60))
    return nodes


def run(
    slurm: Any, nodes: Sequence[str], ranks: int, backend: str, folder: str = "", private: Sequence[str] = ()
) -> dict[str, Any]:
    """The answers of all ranks; without a folder none is killed. A node on which one of `private` is another user's
    takes no part. Nodes on which not even one rank trains are left out
    of what all do together. `said`: how the step ended, for those that gave no answer."""
    world = len(nodes) * ranks
    settings = [*SETTINGS, f"--parallel.backend={backend}", f"--train.batch={world * math.ceil(8 / world)}"]
    saving = [*settings, f"--checkpoint.every={EVERY}", f"--checkpoint.dir={folder}/run"]
    of_run = {"seconds": SECONDS + len(nodes), "settings": settings}
    runs = [
        of_run | {"name": "alone", "over": "alone"},
        of_run | {"name": "node", "over": "node"},
        of_run | {"name": "all", "over": "all", "ids": True},
    ]
    if folder:
        runs += [of_run | {"name": "killed", "over": "all", "settings": saving, "kill": KILL}]
    env = {"TMPDIR": temporary(folder)} if folder else {}
    step = _launch(slurm, nodes, ranks, runs, env, private=list(private))
    answers = _of_ranks(step.answers, ranks)
    well = {row["node"] for row in answers if row["run"] == "alone" and row["code"] == 0}
    if well and len(well) < len(nodes):
        ill = [row for row in answers if row["node"] not in well and row["run"] in ("start", "alone")]
        results = run(slurm, [node for node in nodes if node in well], ranks, backend, folder, private)
        return results | {"asked": list(nodes), "answers": [*ill, *results["answers"]], "said": step.said}
    if any(row["run"] == "killed" for row in answers):
        copied = [*saving, f"--checkpoint.dir={folder}/damaged"]
        damaged = {"from": f"{folder}/run", "to": f"{folder}/damaged"}
        again = [
            of_run | {"name": "restart", "over": "all", "settings": saving},
            of_run | {"name": "damaged", "over": "all", "settings": copied, "damage": damaged},
        ]
        answers = [*answers, *_of_ranks(_launch(slurm, nodes, ranks, again, env, private=list(private)).answers, ranks)]
    results = {"asked": list(nodes), "nodes": sorted(well), "ranks": ranks, "answers": answers, "said": step.said}
    return results | {"every": EVERY, "kill": KILL}


def run_jax(slurm: Any, nodes: Sequence[str], ranks: int, platform: str = "gpu") -> dict[str, Any]:
    """As `run`, with JAX: none is killed."""
    world = len(nodes) * ranks
    of_run = {"seconds": JAX_SECONDS + len(nodes), "steps": STEPS, "platform": platform}
    of_run |= {"batch": world * math.ceil(8 / world)}
    runs = [of_run | {"name": name, "over": name} for name in ("alone", "node", "all")]
    runs[-1]["ids"] = True
    step = _launch(slurm, nodes, ranks, runs, {}, jax=JAX.read_text(encoding="utf-8"))
    answers = _of_ranks(step.answers, ranks)
    well = {row["node"] for row in answers if row["run"] == "alone" and row["code"] == 0}
    if well and len(well) < len(nodes):
        ill = [row for row in answers if row["node"] not in well and row["run"] in ("start", "alone")]
        results = run_jax(slurm, [node for node in nodes if node in well], ranks, platform)
        return results | {"asked": list(nodes), "answers": [*ill, *results["answers"]], "said": step.said}
    return {"asked": list(nodes), "nodes": sorted(well), "ranks": ranks, "answers": answers, "said": step.said}


def _of_ranks(answers: Iterable[dict[str, Any]], ranks: int) -> list[dict[str, Any]]:
    """At most one for each rank of a node in a run: more would stand for those of a node that gave none."""
    rows: dict[Any, dict[int, dict[str, Any]]] = {}
    for row in answers:
        of_node = rows.setdefault((row["run"], row["node"]), {})
        if len(of_node) < ranks:
            of_node.setdefault(row["rank"], row)
    return [row for of_node in rows.values() for row in of_node.values()]


def _launch(
    slurm: Any,
    nodes: Sequence[str],
    ranks: int,
    runs: Sequence[dict[str, Any]],
    env: dict[str, str],
    **more: Any,
) -> StepOutput:
    """A task on each node, which starts the node's ranks. That one dies ends no other: they have to notice."""
    seconds = SECONDS + sum(each["seconds"] for each in runs)
    options = [f"--cpus-per-task={ranks}", "--kill-on-bad-exit=0", f"--wait={SECONDS}"]
    plan = json.dumps({"ranks": ranks, "runs": runs, **more})
    env = {"OMP_NUM_THREADS": "1", **rccl.ENV, **env}  # RCCL says which way data take
    step: StepOutput = slurm.python(PROGRAM, plan, nodes=nodes, seconds=seconds, env=env, options=options)
    return step


def scratch(cluster: Any, nodes: Sequence[str]) -> tuple[str, bool]:
    """A new folder for checkpoints, and whether all nodes see it: below a folder that the cluster has in every
    container, if the user may write there; else each node's own."""
    name = f"rocstack-verify-{secrets.token_hex(4)}"
    mounts = [parse_mount(text, base=Path("/")) for text in cluster.settings.mounts]
    for folder in [f"{mount.target}/{name}" for mount in mounts if not mount.read_only]:
        if cluster.slurm.step("mkdir", "--mode=0700", folder, nodes=nodes[:1]).code:
            continue
        if cluster.slurm.step("sh", "-c", f"cd {shlex.quote(folder)} && touch $SLURM_NODEID", nodes=nodes).code == 0:
            return folder, True
        cluster.slurm.step("rm", "-rf", folder, nodes=nodes[:1])
    return f"/tmp/{name}", len(nodes) == 1

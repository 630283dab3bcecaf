"""Jobs that ask for one GPU, and for all of a node; and what slurmd itself finds."""

from __future__ import annotations

import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rocstack.verify.evidence import ControllerAnswer
from rocstack.verify.slurm_session import FOLDER, INDEPENDENT, StepOutput

PROGRAM = Path(__file__).parent.parent / "programs/gpus.py"
SECONDS = 90
WAIT = 60  # for GPUs that others use
# From the settings that slurmd has already: asking the controller again, it would retry for ever.
DETECTED = "exec timeout 20 slurmd -G -f /run/slurm/conf/slurm.conf 2>&1"


def gres(text: str) -> dict[str, int]:
    """Type -> count, of "gpu:mi300x:8(S:0-1)"."""
    counts: dict[str, int] = defaultdict(int)
    for kind, count in re.findall(r"\bgpu:(?:([\w.-]+):)?(\d+)", text):
        counts[kind] += int(count)
    return dict(counts)


def run(cluster: Any, controller: ControllerAnswer) -> dict[str, Any]:
    """Node -> {"all", "one": the answer of programs/gpus.py, or {"error": why}; "detected": what slurmd -G says}."""
    counted = {row.name: sum(gres(row.gres or "").values()) for row in controller.nodes}
    alike = defaultdict(list)
    for name in cluster.allocated():
        alike[counted.get(name, 0)].append(name)
    most = cluster.slurm.gpus  # that the suite's allocation has
    wanted = [(names, min(count, most) if most else count, ()) for count, names in alike.items() if count]
    wanted += [([name for names, *_ in wanted for name in names], 1, ("env",))] if wanted else []
    detected = cluster.in_workers(DETECTED, seconds=30)
    with ThreadPoolExecutor(1 if most else 4) as pool:
        answers = list(pool.map(lambda each: _job(cluster, *each), wanted))
    answers_of = {name: {"detected": done.stdout.strip()} for name, done in detected.items()}
    for (names, _, words), output in zip(wanted, answers, strict=True):
        for name in names:
            answers_of.setdefault(name, {})["one" if words else "all"] = output.get(name, {"error": output["error"]})
    return answers_of


def _job(cluster: Any, names: list[str], count: int, words: tuple[str, ...]) -> dict[str, Any]:
    """In the suite's own allocation where that has the GPUs, else in a job of its own."""
    options = [f"--gres=gpu:{count}"]
    if cluster.slurm.gpus:
        step = cluster.slurm.python(PROGRAM, *words, nodes=names, seconds=SECONDS, options=options, independent=True)
    else:
        line = [
            "srun",
            f"--job-name={cluster.slurm.name}",
            f"--immediate={WAIT}",
            "--time=5",
            f"--chdir={FOLDER}",
            *options,
        ]
        line += INDEPENDENT
        line += [f"--nodes={len(names)}", f"--nodelist={','.join(names)}", "--ntasks-per-node=1", "--input=none"]
        line += [f"--partition={cluster.slurm.partition}"] if cluster.slurm.partition else []
        source = PROGRAM.read_text(encoding="utf-8")
        done = cluster.slurm.run(*line, "python3", "-c", source, *words, seconds=WAIT + SECONDS)
        step = StepOutput(done.rc, done.stdout, done.stderr)
    why = step.said or f"it ended with {step.code} and said nothing"
    return {"error": why, **{answer["node"]: answer for answer in step.answers}}

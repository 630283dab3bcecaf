"""Jobs that ask for one GPU, for all of a node, and for each alone; and what slurmd itself finds."""

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
    """Node -> {"all", "one": the answer of programs/gpus.py, "each": those of "tasks" tasks with one GPU each, or
    {"error": why}; "detected": what slurmd -G says}."""
    counted = {row.name: sum(gres(row.gres or "").values()) for row in controller.nodes}
    alike = defaultdict(list)
    for name in cluster.allocated():
        alike[counted.get(name, 0)].append(name)
    most = cluster.slurm.gpus  # that the suite's allocation has
    groups = [(names, min(count, most) if most else count) for count, names in alike.items() if count]
    wanted = [(kind, names, count) for names, count in groups for kind in ("all", "each")]
    wanted += [("one", [name for names, _ in groups for name in names], 1)] if groups else []
    detected = cluster.in_workers(DETECTED, seconds=30)
    with ThreadPoolExecutor(1 if most else 4) as pool:
        answers = list(pool.map(lambda each: _job(cluster, *each), wanted))
    answers_of: dict[str, Any] = {name: {"detected": done.stdout.strip()} for name, done in detected.items()}
    for (kind, names, count), output in zip(wanted, answers, strict=True):
        for name in names:
            own = [answer for answer in output.answers if answer["node"] == name]
            why = output.said or f"it ended with {output.code} and said nothing"
            found = answers_of.setdefault(name, {})
            found |= {"tasks": count} if kind == "each" else {}
            found[kind] = {"error": why} if not own else own if kind == "each" else own[-1]
    return answers_of


def _job(cluster: Any, kind: str, names: list[str], count: int) -> StepOutput:
    """In the suite's own allocation where that has the GPUs, else in a job of its own."""
    tasks, words = count if kind == "each" else 1, () if kind == "all" else ("env",)
    # --gpus-per-task, which binds each task to a GPU of its own, wants to know how many tasks there are.
    options = [f"--ntasks={tasks * len(names)}", "--gpus-per-task=1"] if kind == "each" else [f"--gres=gpu:{count}"]
    if cluster.slurm.gpus:
        step = {"nodes": names, "tasks": tasks, "seconds": SECONDS, "options": options, "independent": True}
        said: StepOutput = cluster.slurm.python(PROGRAM, *words, **step)
        return said
    line = ["srun", f"--job-name={cluster.slurm.name}", f"--immediate={WAIT}", "--time=5", f"--chdir={FOLDER}"]
    line += [*options, *INDEPENDENT, f"--nodes={len(names)}", f"--nodelist={','.join(names)}", "--input=none"]
    line += [f"--ntasks-per-node={tasks}", "--label", *(["--distribution=block"] if tasks > 1 else [])]
    line += [f"--partition={cluster.slurm.partition}"] if cluster.slurm.partition else []
    source = PROGRAM.read_text(encoding="utf-8")
    done = cluster.slurm.run(*line, "python3", "-c", source, *words, seconds=WAIT + SECONDS)
    said = cluster.slurm.heard(done, names, tasks)
    return said

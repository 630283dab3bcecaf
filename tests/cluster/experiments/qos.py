"""A QoS with limits, made for the moment: what is over a limit is refused, or waits, and what is within runs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from experiments.scheduling import TIMEOUT_S, end, remove_qos, started, watch

from rocstack.base.errors import CheckFailed
from rocstack.verify.slurm_session import SlurmSession


def run(slurm: SlurmSession, exclude: Sequence[str], *, gpus: bool, threads: int = 1) -> dict[str, Any]:
    """{"over", "over_gpus", "within_gpus": why a job that asks for so much was refused, "" where it was accepted;
    "first", "second": two jobs that are within the limits one by one, together beyond; "then": the second when the
    first had ended}.

    Args:
        exclude: nodes on which no job can start.
        gpus: whether Slurm counts GPUs.
        threads: of a core, which is the least that a job gets.
    """
    try:
        _make(slurm, threads)
        return _try(slurm, [f"--exclude={','.join(exclude)}"] if exclude else [], gpus, threads)
    finally:
        remove_qos(slurm, slurm.name)


def _try(slurm: SlurmSession, where: list[str], gpus: bool, threads: int) -> dict[str, Any]:
    jobs: dict[str, str] = {}

    def job(name: str, script: str, *options: str, cpus: int = threads) -> str:
        words = [
            f"--qos={slurm.name}",
            "--ntasks=1",
            f"--cpus-per-task={cpus}",
            "--no-requeue",
            "--time=5",
            *where,
            *options,
        ]
        try:
            jobs[name] = slurm.submit(script, *words)
        except CheckFailed as error:
            return error.what.partition("sbatch: ")[2]
        return ""

    try:
        results: dict[str, Any] = {"over": job("over", "true", "--hold", cpus=2 * threads)}
        if gpus:
            results["over_gpus"] = job("over_gpus", "true", "--hold", "--gpus=2")
            results["within_gpus"] = job("within_gpus", "true", "--hold", "--gpus=1")
        refused = job("first", "sleep 300") or job("second", "sleep 300")
        if refused:
            return {**results, "problem": f"a job within the limits was refused: {refused}"}
        two = {name: jobs[name] for name in ("first", "second")}
        now = watch(slurm, two, lambda now: started(now["first"]) and now["second"]["reason"] != "None")
        end(slurm, {"first": jobs["first"]})
        # Until its node has cleaned up, its CPUs count: that takes as long as it takes on a busy node.
        watch(slurm, two, lambda now: now["first"]["state"] not in ("RUNNING", "COMPLETING"), 2 * TIMEOUT_S)
        then = watch(slurm, two, lambda now: started(now["second"]))
        return {**results, "first": now["first"], "second": now["second"], "then": then["second"]}
    finally:
        end(slurm, jobs)


def _make(slurm: SlurmSession, threads: int) -> None:
    do = "sacctmgr --immediate"
    limits = f"GrpTRES=cpu={threads} MaxTRESPerUser=gres/gpu=1 Flags=DenyOnLimit"
    lines = [
        f"{do} add qos name={slurm.name}",
        f"{do} modify qos where name={slurm.name} set {limits}",
        f"{do} modify user where name={shlex.quote(slurm.user)} set QosLevel+={slurm.name}",
    ]
    done = slurm.admin("sh", "-c", " && ".join(lines))
    if done.rc:
        raise CheckFailed(
            f"the QoS {slurm.name} can't be made: {(done.stderr or done.stdout).strip()}", code="step-failed"
        )

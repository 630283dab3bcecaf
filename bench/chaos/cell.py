"""One deploy, disturbed once, and how it ended."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from cluster import Cluster, differences
from faults import Disturbed, Fault

# The journal's steps, as an update of two workers comes to them; `waves` is the journal when all nodes are done and
# Slurm's accounts, and the release's entry, are still to come.
STEPS = ("pending", "shipped", "started", "drained", "done", "waves")
TRIES = 3


@dataclass
class Result:
    """`deploy`: how the disturbed one ended. `next`: what had to be run then. `wrong`: what isn't as undisturbed."""

    fault: str
    step: str
    release: str
    deploy: str = ""
    next: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    jobs: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return not self.wrong

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "good": self.good}


def reached(journal: dict[str, Any], step: str) -> bool:
    """Whether the journal of a deploy under way has come to it."""
    steps = [node["step"] for node in ((journal.get("current") or {}).get("nodes") or {}).values()]
    if step == "waves":
        return bool(steps) and set(steps) == {"done"}
    return bool(steps) and (set(steps) == {"pending"} if step == "pending" else step in steps)


def disturb(cluster: Cluster, fault: Fault, step: str) -> Result:
    """From a known state to the other release."""
    began = time.monotonic()
    release = "B" if cluster.release == "A" else "A"
    result = Result(fault.name, step, release)
    cluster.sweep()
    # A worker is `started` where none ran; the other one is updated in a wave.
    jobs = cluster.submit()
    time.sleep(fault.age)
    cluster.prepare(release, missing="n1" if step == "started" else "")
    cluster.release = release  # whatever becomes of it, that is where it has to go
    deploy = Disturbed(cluster, cluster.deploy(release), release, step)
    if not _comes_to(deploy, step):
        out, err, code = cluster.ended(deploy.process)
        result.wrong.append(f"never at {step}, ended with {code}: {(out + err)[-800:]}")
        return result
    try:
        fault.begin(deploy)
        cluster.open_gate()
        end = time.monotonic() + fault.hold
        while time.monotonic() < end and deploy.process.poll() is None:
            time.sleep(0.2)
        fault.end(deploy)
        cluster.open_gate()
        out, err, code = cluster.ended(deploy.process)
    finally:
        deploy.process.kill()
    result.deploy = _ending(out, err, code)
    result.said, result.wrong = deploy.said, deploy.wrong
    if "Traceback" in err:
        result.wrong.append(f"a traceback: {err[-600:]}")
    _bring_home(deploy, result, code)
    result.jobs = cluster.job_states(jobs)
    result.wrong += [f"job {job} is {state}" for job, state in result.jobs.items() if state != "COMPLETED"]
    keys, files = cluster.left_here()
    result.wrong += keys
    result.said += files
    result.seconds = round(time.monotonic() - began, 1)
    return result


def _comes_to(deploy: Disturbed, step: str) -> bool:
    """Polls the journal from outside, as fast as a file can be read."""
    cluster, before = deploy.cluster, deploy.cluster.journal().get("current")
    opened = False
    while deploy.process.poll() is None:
        journal = cluster.journal()
        if journal.get("current") != before and reached(journal, step):
            return True
        if step == "waves" and not opened and reached(journal, "done"):
            cluster.open_gate()  # the second wave waits for the job
            opened = True
        time.sleep(0.01)
    return False


def _bring_home(deploy: Disturbed, result: Result, code: int) -> None:
    """The documented next step, until all is as after an undisturbed deploy: `--resume` where the deploy failed, else a
    deploy as before."""
    cluster, resume = deploy.cluster, code != 0
    problems = ["the deploy failed"] if resume and "stopped" not in result.fault else _problems(deploy)
    while problems and len(result.next) < TRIES:
        words = ("--resume",) if resume else ()
        cluster.open_gate()
        out, err, code = cluster.ended(cluster.deploy(deploy.release, *words))
        why = _ending(out, err, code)
        if "deploy-running" in why:  # until the lock has expired
            result.said.append("waited for the lock")
            time.sleep(5)
            continue
        if resume and "nothing-to-resume" in why:
            resume = False
            continue
        result.next.append(f"{'--resume' if resume else 'deploy'}: {why}")
        resume = code != 0
        problems = [f"the deploy ended: {why}"] if code else _problems(deploy)
        if not code and (drained := cluster.drained_by_slurm()):
            # Not by a deploy, so no deploy takes it back: `status` says what to type.
            for node, reason in drained.items():
                cluster.slurm(f"scontrol update nodename={node} state=resume")
                result.next.append(f"scontrol: {node} was drained, {reason}")
            problems = _problems(deploy)
    result.wrong += problems


def _problems(deploy: Disturbed) -> list[str]:
    """What isn't as after an undisturbed deploy."""
    cluster = deploy.cluster
    for _ in range(2):  # a job may run on a node for a moment more
        if not cluster.idle():
            return [f"nodes: {cluster.slurm('sinfo --noheader --Node --long', check=False)}"]
        if not (found := list(differences(cluster.look(), cluster.reference[deploy.release])) + cluster.status()):
            return []
        time.sleep(3)
    return found


def _ending(out: str, err: str, code: int) -> str:
    """In a few words."""
    if code == 0:
        return "ended well"
    try:
        said = json.loads(out)
    except ValueError:
        said = {}
    if error := said.get("error"):
        return f"{error['code']}: {error['what']}"
    if failed := said.get("failed"):
        return f"failed: {failed}"
    return f"exit {code}: {' '.join((err or out).split())[-300:]}" if code > 0 else f"signal {-code}"

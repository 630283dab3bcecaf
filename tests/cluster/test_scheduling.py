"""Whose job starts first, who makes room, and whether limits hold: tried with small jobs of the suite's own."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from experiments import accounting, scheduling

from rocstack.verify.evidence import ControllerAnswer
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder

LAMINI = "Lamini, multi-node training: the tests of a cluster"
MULTIFACTOR = "priority/multifactor"
SLURM = (
    "run `rocstack deploy` to rewrite slurm.conf; "
    "check `rocstack shell CONTROL --service controller -- scontrol show config`"
)


@pytest.fixture(scope="session")
def competed(evidence: Any, tried: dict[str, Future[Any]]) -> dict[str, Any]:
    results: dict[str, Any] = evidence.take("competed", lambda: tried["competed"].result())
    return results


@pytest.fixture(scope="session")
def limited(evidence: Any, tried: dict[str, Future[Any]]) -> dict[str, Any]:
    results: dict[str, Any] = evidence.take("limited", lambda: tried["limited"].result())
    return results


@pytest.fixture(scope="session")
def recorded(evidence: Any, cluster: Any, competed: Any) -> dict[str, Any]:
    """Job -> what accounting has of it."""
    results: dict[str, Any] = evidence.take(
        "recorded", lambda: accounting.run(cluster.slurm, competed.get("numbers", {}))
    )
    return results


@check(
    name="scheduling",
    title="Of two waiting jobs, the one with the higher QoS starts first",
    cannot="fair share and age over days: it is two jobs of different QoS",
    level=1,
    item=11,
    needs=("jobs",),
    scope="cluster",
    cause="PriorityType isn't multifactor, or PriorityWeightQOS is 0 or too small",
    next_step=f"`priorities` of rocstack.yml; {SLURM}",
    source=LAMINI,
)
def test_scheduling(record: Recorder, competed: dict[str, Any], controller: ControllerAnswer) -> None:
    kind = controller.settings.get("PriorityType")
    if "problem" not in competed or kind != MULTIFACTOR:  # the setting alone proves nothing
        record.equal("", kind, MULTIFACTOR)
    if _untried(record, competed):
        return
    low, high, weighed, jobs = (competed[key] for key in ("low", "high", "priorities", "jobs"))
    text = f"priorities {weighed}; {jobs}"
    more = weighed.get("high", 0) - weighed.get("low", 0)
    if more > 0:
        record.passed("", more, "points", wanted=f"{high} above {low}", evidence=text)
    else:
        record.failed("", f"a job of {high} has no higher priority than one of {low}", more, "points", evidence=text)
    if jobs["low"]["state"] not in scheduling.STARTED:
        record.failed("", f"a job of {low} never started: {jobs['low']['reason']}", evidence=text)
    elif jobs["high"]["state"] in scheduling.STARTED and jobs["high"]["started"] <= jobs["low"]["started"]:
        record.passed("", high, wanted=f"{high} before {low}", evidence=text)
    else:
        record.failed("", f"the job of {low} started before that of {high}", low, wanted=high, evidence=text)


@check(
    name="preemption",
    title="A job is preempted by one whose QoS may preempt it",
    cannot="whether a preempted user's job can go on later",
    level=1,
    item=11,
    needs=("jobs",),
    scope="cluster",
    cause="PreemptType isn't qos, or that QoS may not be preempted",
    next_step=f"`qos` of rocstack.yml: preempts, preempt_mode; {SLURM}",
    source=LAMINI,
)
def test_preemption(record: Recorder, competed: dict[str, Any]) -> None:
    if _untried(record, competed):
        return
    low, high = competed["low"], competed["high"]
    preempts = next(each["preempts"] for each in competed["qos"] if each["name"] == high)
    if low not in preempts:
        record.skipped("", f"the QoS {high} preempts no {low}")
        return
    record.equal("", competed["made_room"], True, why=f"a job of {low} ran on while one of {high} waited")


@check(
    name="qos",
    title="A job beyond its QoS limits is refused or waits; one within them runs",
    cannot="limits other than CPUs and GPUs of a job and of a QoS",
    level=1,
    item=12,
    needs=("jobs",),
    scope="cluster",
    cause="AccountingStorageEnforce lacks `limits` and `qos`, or slurmctld can't reach its database",
    next_step=SLURM,
    source=LAMINI,
)
def test_qos(record: Recorder, limited: dict[str, Any]) -> None:
    for name, what in (("over", "CPUs"), ("over_gpus", "GPUs")):
        if name not in limited:
            record.skipped("", "Slurm counts no GPUs")
        elif "QOS" in limited[name]:
            record.passed("", limited[name][:80], wanted=f"refused: too many {what}")
        else:
            why = limited[name] or "it was accepted"
            record.failed("", f"a job with more {what} than its QoS allows was not refused for that: {why}")
    if limited.get("within_gpus"):
        record.failed("", f"a job with the GPUs that its QoS allows was refused: {limited['within_gpus']}")
    if "problem" in limited:
        record.failed("", limited["problem"])
        return
    first, second, then = (limited[key] for key in ("first", "second", "then"))
    if first["state"] not in scheduling.STARTED:
        record.skipped("", f"no CPU was free for a job of one core: {first['reason']}")
        return
    record.equal("", second["reason"], "QOSGrpCpuLimit", why=f"beyond the limit of the QoS, a job is {_says(second)}")
    why = f"a job within the limit doesn't start: it is {_says(then)}"
    record.equal("", then["state"] in scheduling.STARTED, True, why=why)


@check(
    name="accounting",
    title="Accounting records jobs that ended",
    cannot="jobs of other users, and what is kept for how long",
    level=1,
    needs=("jobs",),
    scope="cluster",
    cause="slurmdbd or its database doesn't answer",
    next_step="read `rocstack logs CONTROL --service controller` and `--service db`",
)
def test_accounting(record: Recorder, recorded: dict[str, Any]) -> None:
    if not recorded:
        record.skipped("", "no job of the suite has ended")
    for name, row in recorded.items():
        text = f"job {row['job']}"
        if row["state"]:
            record.passed("", row["state"], wanted=f"the end of the job '{name}'", evidence=text)
        else:
            record.failed("", f"{text} has ended, but accounting doesn't show it", evidence=text)


def _untried(record: Recorder, competed: dict[str, Any]) -> bool:
    if "problem" in competed:
        record.skipped("", competed["problem"])
    return "problem" in competed


def _says(job: dict[str, str]) -> str:
    return f"{job['state'].lower() or 'gone'} ({job['reason']})"

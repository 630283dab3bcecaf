"""What Slurm says of jobs, in forms recorded on two virtual nodes with Slurm 24.11."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cli_run import Cli

from rocstack.base import paths
from rocstack.jobs import slurm
from rocstack.steps import jobs as steps

DATA = Path(__file__).parent / "data"
MARK = "5f0c "
ROW = (
    MARK
    + "16\x1fPENDING\x1falice\x1ftrain\x1fnormal\x1f2\x1f0:00\x1fUNLIMITED\x1f{start}\x1f100\x1f{reason}\x1f\x1f{name}"
)


def row(reason: str = "Resources", start: str = "N/A", name: str = "wrap") -> str:
    return ROW.format(reason=reason, start=start, name=name)


def test_a_line_of_the_queue() -> None:
    (job,) = slurm.queue(row(start="2026-11-24T16:00:00"), MARK)
    assert (job.id, job.user, job.state, job.nodes, job.priority) == ("16", "alice", "PENDING", 2, 100)
    assert job.why == "it is next; it waits until enough nodes are free"
    assert job.start == "2026-11-24T16:00:00"
    assert slurm.queue(row(), MARK)[0].start == ""


def test_a_name_holds_what_its_owner_wrote_and_no_other_job() -> None:
    hostile = "x\x1f17\x1fRUNNING \x1b[2J <b>"
    (job,) = slurm.queue(row(name=hostile), MARK)
    assert job.name == hostile
    assert slurm.queue("slurm_load_jobs error: nothing\n\n" + row() + "\nshort\x1fline", MARK) == slurm.queue(
        row(), MARK
    )


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x1e", "\x85", "\u2028"])
def test_a_name_of_several_lines_is_no_second_job(end: str) -> None:
    other = row("None", name="payroll").replace("alice", "root").removeprefix(MARK)
    found = slurm.queue(row(name=f"x{end}{other}{end}y") + "\n" + row(name="next"), MARK)
    assert [(job.user, job.name[0]) for job in found] == [("alice", "x"), ("alice", "n")]


def test_what_verify_made_is_told_from_peoples_jobs() -> None:
    rows = (row(), row(name="rocstack-verify-3f"), row().replace("alice", "rocstack-verify"), row(name="my-verify"))
    assert [job.of_verify for job in slurm.queue("\n".join(rows), MARK)] == [False, True, True, False]


def test_the_list_says_that_verify_ended_its_jobs_on_purpose(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = row("None", name="rocstack-verify-3f").replace("PENDING", "PREEMPTED")
    found = slurm.queue("\n".join((own, own.replace("PREEMPTED", "RUNNING"), row())), MARK)
    monkeypatch.setattr(steps, "queue", lambda *_: found)
    said = [line.split("  ")[-1].strip() for line in cli("jobs").out.splitlines()]
    assert said[1:] == [
        "(of `rocstack verify`, which ended it on purpose)",
        "(of `rocstack verify`)",
        "it is next; it waits until enough nodes are free",
    ]


def test_one_that_runs_does_not_wait() -> None:
    (job,) = slurm.queue(row("None").replace("PENDING", "RUNNING"), MARK)
    assert job.why == ""
    assert job.reason == ""


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("Priority", "jobs with a higher priority are before it"),
        ("None", "it was just submitted: Slurm hasn't looked at it yet"),
        (
            "(ReqNodeNotAvail, UnavailableNodes:n2)",
            "a node that it asks for is down, takes no new jobs, or is reserved",
        ),
        (
            "(Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions)",
            "nodes that it needs are down, take no new jobs, or are kept for others",
        ),
        ("QOSMaxGRESPerUser", "the limit of its QoS for one user is reached: GPUs"),
        ("QOSMaxJobsPerUserLimit", "the limit of its QoS for one user is reached: jobs"),
        ("QOSGrpNodeLimit", "the limit of its QoS for all jobs together is reached: nodes"),
        ("AssocGrpGRES", "the limit of its account or owner is reached: GPUs"),
        ("QOSMinGRES", "Slurm says QOSMinGRES"),
    ],
)
def test_why_a_job_waits(reason: str, says: str) -> None:
    assert slurm.waits_for(reason) == says


def test_every_reason_is_a_sentence() -> None:
    reasons = yaml.safe_load((paths.images() / "job-reasons.yml").read_text())["reasons"]
    assert [
        text for text in reasons.values() if text.endswith(".") or (text[0].isupper() and "Slurm" not in text)
    ] == []


@pytest.mark.parametrize("file", sorted(DATA.glob("sacct-*.json")), ids=lambda file: file.stem)
def test_a_record(file: Path) -> None:
    found = slurm.record(file.read_text())
    assert found
    expected = yaml.safe_load(file.with_suffix(".yml").read_text())
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"jobs": 3}', '{"jobs": [7]}', "not JSON"])
def test_an_answer_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|jobs|object|Expecting|answer"):
        slurm.record(text)


def test_a_job_that_is_unknown_has_no_record() -> None:
    assert slurm.record('{"jobs": []}') is None


def test_damaged_fields_are_empty_and_no_crash() -> None:
    found = slurm.record(
        json.dumps({"jobs": [{"job_id": [], "state": 3, "time": None, "exit_code": "x", "nodes": {}}]})
    )
    assert found
    assert found.id == "0"
    assert found.state == "UNKNOWN"
    assert not found.over


LOG = """\
0: step=1
1: Traceback (most recent call last):
1: ValueError: no
1: slurmstepd-n2: error: common_file_write_uints: unable to open '/sys/fs/cgroup/cpuacct/cgroup.procs' for writing
1: slurmstepd-n2: error: Unable to move pid 275 to root cgroup
srun: error: n2: task 1: Exited with exit code 3
srun: Terminating StepId=24.0
0: step=2
srun: error: n1: task 0: Terminated
"""


def test_the_first_task_that_failed_and_its_last_lines() -> None:
    failed = slurm.failed_task(LOG)
    assert failed
    assert (failed.node, failed.task, failed.how) == ("n2", "1", "Exited with exit code 3")
    assert failed.lines == ("Traceback (most recent call last):", "ValueError: no")


def test_of_a_job_that_began_again_its_last_run_counts() -> None:
    again = "rocstack: the job begins again\n"
    failed = slurm.failed_task(f"{LOG}{again}0: other\nsrun: error: n1: task 0: Exited with exit code 5\n")
    assert failed
    assert (failed.node, failed.how, failed.lines) == ("n1", "Exited with exit code 5", ("other",))
    assert slurm.failed_task(f"{LOG}{again}0: other\n") is None
    assert slurm.failed_task(f"0: {again}{LOG}") == slurm.failed_task(LOG), "a task wrote it"


def test_of_a_script_that_failed_by_itself_its_last_lines() -> None:
    record = slurm.record((DATA / "sacct-completed.json").read_text())
    assert record
    record = replace(record, state="FAILED", exit_code=127, where="n[2-3]")
    noise = "slurmstepd-n2: error: Unable to move pid 275 to root cgroup"
    log = f"old\nrocstack: the job begins again\n{noise}\n/x: not found\n"
    failed = slurm.failed_script(log, record)
    assert failed
    assert (failed.node, failed.task, failed.how) == ("n2", "", "Exited with exit code 127")
    assert failed.lines == ("/x: not found",)
    assert slurm.failed_script(log, replace(record, state="TIMEOUT")) is None
    assert slurm.failed_script("", record) is None


def test_what_a_task_wrote_may_come_after_its_end() -> None:
    failed = slurm.failed_task("srun: error: n2: task 1: Exited with exit code 3\n1: the reason\n0: step=2\n")
    assert failed
    assert failed.lines == ("the reason",)


@pytest.mark.parametrize(
    ("line", "how"),
    [
        ("srun: error: n2: tasks 2-3: Exited with exit code 1", "Exited with exit code 1"),
        ("srun: error: n[2,5-6]: tasks 2-9: Exited with exit code 1", "Exited with exit code 1"),
        ("srun: error: gpu-01.x: task 0: Killed", "Killed"),
        ("srun: error: n1: task 5: Segmentation fault (core dumped)", "Segmentation fault (core dumped)"),
    ],
)
def test_forms_of_a_failed_task(line: str, how: str) -> None:
    noise = "slurmstepd-n2: error: Unable to move pid 275 to root cgroup"
    failed = slurm.failed_task(f"\nsomething\n{noise}\n{line}\n")
    assert failed
    assert failed.how == how
    assert failed.lines == ("something",)


def test_a_log_without_a_failed_task() -> None:
    assert slurm.failed_task("step=1\nsrun: error: Unable to create step\n") is None


def test_the_lines_of_one_rank() -> None:
    assert list(slurm.labelled(iter([" 1: a", "0: b", "11: c", "1: d: e", "srun: x"]), 1)) == ["a", "d: e"]


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 10**17, -1, "x", None, 1e300])
@pytest.mark.parametrize("word", ["submission", "start", "end"])
def test_a_time_that_no_calendar_has_is_none(word: str, value: object) -> None:
    answer = json.loads((DATA / "sacct-completed.json").read_text())
    answer["jobs"][-1]["time"][word] = value
    found = slurm.record(json.dumps(answer))
    assert found
    assert {"submission": found.submitted, "start": found.began, "end": found.ended}[word] == 0

"""What Slurm says of jobs, read: squeue's list, sacct's record of one, why a job waits. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import yaml

from rocstack.base import paths
from rocstack.base.text import from_json
from rocstack.cluster.settings import VERIFY
from rocstack.node import hostlist

# squeue(1), --format: job, state, user, partition, qos, nodes, time used, limit, start, priority, reason, where; and
# the name last, since its owner chose it.
SQUEUE = "%i\x1f%T\x1f%u\x1f%P\x1f%q\x1f%D\x1f%M\x1f%l\x1f%S\x1f%Q\x1f%r\x1f%N\x1f%j"
ENDED = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"),
    "PREEMPTED",  # of one that isn't requeued; else it waits again
}
WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
_GPUS = re.compile(r"gpu(?::([A-Za-z0-9_.-]+))?[:=](\d{1,4})")
USERS = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
# srun's own words for a task that failed: `srun: error: n2: tasks 2-3: Exited with exit code 1`
_FAILED = re.compile(
    r"^(?:\d+: )?srun: error: (?P<node>[\w.,\[\]-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>[A-Z][\w ()]+)$",
    re.MULTILINE,
)
# By recipes/_job.sbatch.j2. Runs of one job write to one log.
_AGAIN = re.compile(r"^rocstack: the job begins again$", re.MULTILINE)
# At each end of a step in a container that may not write the host's cgroups (version 1): nothing of it failed.
_NOISE = re.compile(
    r"slurmstepd\S*: error: (common_file_write_uints: unable to open '/sys/fs/cgroup/|Unable to move pid)"
)
LAST_DAY = 253_370_764_800  # seconds from 1970 to the year 9999
LAST = 12  # lines of a rank that failed


@dataclass(frozen=True)
class Job:
    """A line of the queue. `why` says in words why it waits. `of_verify`: `rocstack verify` made it, to see whether
    Slurm lets jobs wait, ends them and lets them give way."""

    id: str
    name: str
    state: str
    user: str
    partition: str
    qos: str
    nodes: int
    used: str  # D-HH:MM:SS
    limit: str
    start: str  # when it began; of one that waits, when it is expected to, or ""
    priority: int
    reason: str
    where: str  # node list
    why: str = ""
    of_verify: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class JobRecord:
    """One job, as accounting has it, ended ones too."""

    id: str
    name: str
    state: str
    user: str
    account: str
    partition: str
    qos: str
    where: str
    nodes: int
    submitted: int  # seconds since 1970; 0: not yet
    began: int
    ended: int
    exit_code: int
    signal: int
    restarts: int
    folder: str
    log: str  # its file, on the first of its nodes
    reason: str = ""
    why: str = ""

    @property
    def over(self) -> bool:
        return self.state in ENDED

    @property
    def ok(self) -> bool:
        return self.state == "COMPLETED" or not self.over

    @property
    def first_node(self) -> str:
        try:
            return hostlist.first(self.where)
        except ValueError:
            return ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class FailedTask:
    """The first task of a job that ended badly, by srun's words, and what it wrote last. Without a task's number it is
    the batch script itself."""

    node: str
    task: str
    how: str
    lines: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def queue(output: str, mark: str) -> list[Job]:
    """squeue's answer to `mark` and SQUEUE, in its order. A name may go on in further lines, and look like other jobs
    there: a job's own line is one that begins with the mark, which no owner of a job knew."""
    lines = (line.removeprefix(mark) for line in output.split("\n") if line.startswith(mark))
    return [job for line in lines if (job := _job(line.split("\x1f", 12)))]


def _job(cells: list[str]) -> Job | None:
    if len(cells) < 13 or not re.fullmatch(r"\d+(_[\w\[\]%,-]+)?(\+\d+)?", cells[0]):
        return None
    number, state, user, partition, qos, nodes, used, limit, start, priority, reason, where, name = cells
    waits = state in WAITING
    return Job(
        *(number, name, state, user, partition, qos, _number(nodes), used, limit),
        start="" if start == "N/A" else start,
        priority=_number(priority),
        reason="" if reason == "None" else reason,
        where=where,
        why=waits_for(reason) if waits else "",
        of_verify=VERIFY in (user, name[: len(VERIFY)]),
    )


def record(output: str) -> JobRecord | None:
    """The newest run of the job in the answer of `sacct --json`; None where it knows none.

    Raises:
        ValueError: it is not such an answer.
    """
    document = from_json(output)
    jobs = document.get("jobs") if isinstance(document, Mapping) else None
    if not isinstance(jobs, list):
        raise ValueError("no jobs in sacct's answer")
    if not jobs:
        return None
    job = jobs[-1]
    if not isinstance(job, Mapping):
        raise ValueError("a job in sacct's answer is not an object")
    state, time, code = (_map(job.get(key)) for key in ("state", "time", "exit_code"))
    current, reason = state.get("current"), str(state.get("reason", ""))
    name = str(current[0]) if isinstance(current, list) and current else "UNKNOWN"
    where = str(job.get("nodes", ""))
    return JobRecord(
        id=str(_number(job.get("job_id"))),
        name=str(job.get("name", "")),
        state=name,
        user=str(job.get("user", "")),
        account=str(job.get("account", "")),
        partition=str(job.get("partition", "")),
        qos=str(job.get("qos", "")),
        where="" if where == "None assigned" else where,
        nodes=_number(job.get("allocation_nodes")),
        submitted=_seconds(time.get("submission")),
        began=_seconds(time.get("start")),
        ended=_seconds(time.get("end")),
        exit_code=_number(_map(code.get("return_code")).get("number")),
        signal=_number(_map(_map(code.get("signal")).get("id")).get("number")),
        restarts=_number(job.get("restart_cnt")),
        folder=str(job.get("working_directory", "")),
        log=str(job.get("stdout_expanded", "")),
        reason="" if reason == "None" else reason,
        why=waits_for(reason) if name in WAITING else "",
    )


def last_run(log: str) -> str:
    """What a job that began again wrote since."""
    return _AGAIN.split(log)[-1]


def failed_task(log: str) -> FailedTask | None:
    """By srun's first complaint about a task, in the job's last run. The last lines are those of that task where the
    job labels them."""
    log = last_run(log)
    if not (found := _FAILED.search(log)):
        return None
    task = re.match(r"\d+", found["tasks"])
    number = task[0] if task else ""
    before, after = log[: found.start()].splitlines(), log[found.end() :].splitlines()
    # srun may hear of a quick end before it hears what the task wrote.
    lines = _of_task(number, before) or _of_task(number, after) or _said(before)
    return FailedTask(found["node"], number, found["how"], tuple(lines[-LAST:]))


def failed_script(log: str, record: JobRecord) -> FailedTask | None:
    """Of a script that failed before it had a task, or behind it: what the job's last run wrote last."""
    lines = _said(last_run(log).splitlines())
    if record.state != "FAILED" or not lines:
        return None
    return FailedTask(record.first_node, "", f"Exited with exit code {record.exit_code}", tuple(lines[-LAST:]))


def _said(lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip() and not _NOISE.match(line)]


def _of_task(number: str, lines: list[str]) -> list[str]:
    own = (line.partition(": ")[2] for line in lines if line.lstrip().startswith(f"{number}: "))
    return [line for line in own if not _NOISE.match(line)]


def waits_for(reason: str, description: str = "") -> str:
    """In words; Slurm's own word where there is none. A `description` that Slurm has beside its word says more."""
    word, said = (each.split(",")[0].strip("() ") for each in (reason, description))
    if not word or word == "None":
        return "it was just submitted: Slurm hasn't looked at it yet"
    return _in_words(said) or _in_words(word) or f"Slurm says {word}"


def _in_words(word: str) -> str:
    known = _reasons()
    for pattern, words in known["reasons"].items():
        if found := re.fullmatch(pattern, word):
            amount = found[1] if found.re.groups else ""
            what = next((each for begin, each in known["amounts"].items() if amount.startswith(begin)), amount)
            return words.format(what=what)
    return ""


@cache
def _reasons() -> dict[str, dict[str, str]]:
    loaded: dict[str, dict[str, str]] = yaml.safe_load((paths.images() / "job-reasons.yml").read_text(encoding="utf-8"))
    return loaded


def gpus(gres: str) -> int:
    """Of a node, as Slurm has its generic resources: `gpu:mi300x:8(S:0-1)` is 8."""
    return sum(int(number) for _, number in _GPUS.findall(gres))


def gpu_kind(gres: str) -> str:
    """Of `gpu:mi300x:8(S:0-1)` it is mi300x; empty where there is none, or several."""
    kinds = {kind.lower() for kind, _ in _GPUS.findall(gres)}
    return kinds.pop() if len(kinds) == 1 else ""


def labelled(lines: Iterator[str], rank: int) -> Iterator[str]:
    """Of a log whose lines `srun --label` begins with the task's number, those of one task, without it."""
    for line in lines:
        number, mark, rest = line.lstrip().partition(": ")
        if mark and number == str(rank):
            yield rest


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> int:
    try:
        return int(str(value)) if not isinstance(value, bool) else 0
    except ValueError:
        return 0


def _seconds(value: object) -> int:
    """Since 1970; 0 where no calendar has such a day."""
    seconds = _number(value)
    return seconds if 0 <= seconds < LAST_DAY else 0

"""What slurmrestd says, as values of ours. All of it is data: bounded, and of the type that is expected. Pure."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rocstack.jobs.slurm import ENDED, WAITING, gpu_kind, gpus, waits_for

MOST = 2000  # characters of a text


@dataclass(frozen=True)
class SlurmJob:
    """Times are seconds since 1970, 0: not yet. `why` says in words why it waits."""

    id: int
    name: str
    user: str
    state: str
    reason: str
    why: str
    partition: str
    account: str
    qos: str
    nodes: int
    where: str  # node list
    gpus: int  # that it has or, while it waits, asks for; of all nodes together
    submitted: int
    start: int  # of one that waits: when Slurm expects it to start, or 0
    ended: int
    exit_code: int
    signal: int
    restarts: int
    priority: int
    minutes: int  # its limit; 0: none
    comment: str

    @property
    def over(self) -> bool:
        return self.state in ENDED

    @property
    def waits(self) -> bool:
        return self.state in WAITING

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "SlurmJob":
        """Of slurmctld's list."""
        state, reason = first(row.get("job_state")), text(row.get("state_reason"))
        description = text(row.get("state_description"))
        over = state in ENDED
        return cls(
            id=whole(row.get("job_id")),
            name=text(row.get("name")),
            user=text(row.get("user_name")),
            state=state,
            reason="" if reason == "None" else reason,
            why=waits_for(reason, description) if state in WAITING else "",
            partition=text(row.get("partition")),
            account=text(row.get("account")),
            qos=text(row.get("qos")),
            nodes=whole(row.get("node_count")),
            where=text(row.get("nodes")),
            gpus=_all_gpus(row.get("tres_alloc_str")) or _all_gpus(row.get("tres_req_str")),
            submitted=whole(row.get("submit_time")),
            start=whole(row.get("start_time")),
            ended=whole(row.get("end_time")) if over else 0,  # of one that runs, it is its limit
            priority=whole(row.get("priority")),
            minutes=whole(row.get("time_limit")),
            restarts=whole(row.get("restart_cnt")),
            comment=text(row.get("comment")),
            **_code(row),
        )

    @classmethod
    def of_accounting(cls, row: Mapping[str, Any]) -> "SlurmJob":
        """Of slurmdbd's."""
        state, times = map_of(row.get("state")), map_of(row.get("time"))
        name, reason = first(state.get("current")), text(state.get("reason"))
        where = text(row.get("nodes"))
        return cls(
            id=whole(row.get("job_id")),
            name=text(row.get("name")),
            user=text(row.get("user")),
            state=name,
            reason="" if reason == "None" else reason,
            why=waits_for(reason) if name in WAITING else "",
            partition=text(row.get("partition")),
            account=text(row.get("account")),
            qos=text(row.get("qos")),
            nodes=whole(row.get("allocation_nodes")),
            where="" if where == "None assigned" else where,
            gpus=_counted(map_of(row.get("tres")), "allocated") or _counted(map_of(row.get("tres")), "requested"),
            submitted=whole(times.get("submission")),
            start=whole(times.get("start")),
            ended=whole(times.get("end")),
            priority=whole(row.get("priority")),
            minutes=whole(times.get("limit")),
            restarts=whole(row.get("restart_cnt")),
            comment=text(map_of(row.get("comment")).get("job")),
            **_code(row),
        )


@dataclass(frozen=True)
class ClusterNode:
    name: str
    address: str
    state: tuple[str, ...]
    reason: str  # why it is drained or down
    partitions: tuple[str, ...]
    cpus: int
    memory_mib: int
    gpus: int
    gpus_used: int
    version: str
    gpu: str  # what kind they are; empty where Slurm wasn't told

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def usable(self) -> bool:
        return not {"DOWN", "DRAIN", "FAIL", "NOT_RESPONDING", "UNKNOWN", "FUTURE", "PLANNED_DOWN"} & set(self.state)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "ClusterNode":
        return cls(
            name=text(row.get("name")),
            address=text(row.get("address")) or text(row.get("name")),
            state=words(row.get("state")),
            reason=text(row.get("reason")),
            partitions=words(row.get("partitions")),
            cpus=whole(row.get("cpus")),
            memory_mib=whole(row.get("real_memory")),
            gpus=gpus(text(row.get("gres"))),
            gpus_used=gpus(text(row.get("gres_used"))),
            version=text(row.get("version")),
            gpu=gpu_kind(text(row.get("gres"))),
        )


@dataclass(frozen=True)
class SlurmQos:
    name: str
    about: str
    priority: int
    preempts: tuple[str, ...]
    max_minutes: int  # of a job; 0: no limit
    max_jobs: int  # of a person; 0: no limit

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "SlurmQos":
        most = map_of(map_of(row.get("limits")).get("max"))
        jobs = map_of(map_of(map_of(most.get("jobs")).get("active_jobs")).get("per")).get("user")
        return cls(
            name=text(row.get("name")),
            about=text(row.get("description")),
            priority=whole(row.get("priority")),
            preempts=words(map_of(row.get("preempt")).get("list")),
            max_minutes=whole(map_of(map_of(most.get("wall_clock")).get("per")).get("job")),
            max_jobs=whole(jobs),
        )


@dataclass(frozen=True)
class SlurmReservation:
    name: str
    nodes: str
    start: int
    end: int
    users: str
    accounts: str
    partition: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "SlurmReservation":
        return cls(
            name=text(row.get("name")),
            nodes=text(row.get("node_list")),
            start=whole(row.get("start_time")),
            end=whole(row.get("end_time")),
            users=text(row.get("users")),
            accounts=text(row.get("accounts")),
            partition=text(row.get("partition")),
        )


def _all_gpus(tres: object) -> int:
    """`cpu=384,node=2,gres/gpu=16,gres/gpu:mi300x=16` is 16."""
    found = re.search(r"(?:^|,)gres/gpu=(\d{1,7})(?:,|$)", text(tres))
    return int(found[1]) if found else 0


def _counted(tres: Mapping[str, Any], key: str) -> int:
    rows = rows_of(tres, key)
    return next((whole(row.get("count")) for row in rows if (row.get("type"), row.get("name")) == ("gres", "gpu")), 0)


def rows_of(said: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = said.get(key)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def map_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def text(value: object) -> str:
    return str(value)[:MOST] if isinstance(value, str | int) and not isinstance(value, bool) else ""


def words(value: object) -> tuple[str, ...]:
    return tuple(text(each) for each in value) if isinstance(value, list) else ()


def first(value: object) -> str:
    """Of a state, which may have flags behind it."""
    found = words(value) or ((text(value),) if isinstance(value, str) else ())
    return found[0] if found else "UNKNOWN"


def whole(value: object) -> int:
    """A number, or Slurm's {set, infinite, number}; 0 where it isn't set or has no end."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") and not value.get("infinite") else 0
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 60 else 0


def _code(row: Mapping[str, Any]) -> dict[str, int]:
    code = map_of(row.get("exit_code"))
    return {
        "exit_code": whole(code.get("return_code")),
        "signal": whole(map_of(code.get("signal")).get("id")),
    }

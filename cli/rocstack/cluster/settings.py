"""`cluster:` of rocstack.yml: the Slurm cluster that `deploy` makes. What is not named has a sensible value."""

from collections.abc import Collection, Iterable, Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from rocstack.base import document
from rocstack.base.levels import Level
from rocstack.base.words import (
    Address,
    Duration,
    EnvName,
    EnvValue,
    Hostlist,
    Moment,
    MountText,
    SlurmFlag,
    SlurmKey,
    SlurmName,
    SlurmText,
    User,
    Value,
)
from rocstack.cluster.operation import Count, Health, Rest, RolloutSettings, Ship, Some, Timeouts
from rocstack.node import hostlist

ROOT = "root"  # the account above all others; Slurm makes it
NORMAL = "normal"  # the QoS that Slurm makes
VERIFY = "rocstack-verify"  # the acceptance suite's user, account and (hidden) partition, in every cluster
VERIFY_UID = 42433
# uids in the images
TAKEN = {42430: "munge", 42431: "mysql", 42432: "docker-registry", VERIFY_UID: VERIFY, 64030: "slurm", 65534: "nobody"}
Limit = Annotated[int, Field(ge=-1)]


def _hostlists(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        hostlist.expand(text)
    return texts


Nodes = Annotated[
    tuple[Hostlist, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    AfterValidator(_hostlists),
]


class Partition(Value):
    """Nodes that jobs are submitted to."""

    nodes: Nodes = ("all",)  # all; node names, hostlists or groups of the inventory
    default: bool = False  # where jobs go that name no partition; without any, the first
    max_time: Duration = "infinite"  # of a job
    qos: SlurmName | None = None  # whose limits hold for the partition as a whole
    accounts: tuple[SlurmName, ...] = ()  # that may use it; empty: all
    tier: Annotated[int, Field(ge=0, le=65533)] = 1  # jobs of a higher tier are looked at first
    state: Literal["up", "down", "drain", "inactive"] = "up"


class Qos(Value):
    """A quality of service: what a job may have and whom it may preempt. What is not named is left as it is; -1 takes
    a limit away."""

    priority: Count | None = None
    preempts: tuple[SlurmName, ...] | None = None  # QoS whose jobs make room
    preempt_mode: Literal["requeue", "cancel"] | None = None  # what happens to its own jobs then
    grace: Duration | None = None  # that a preempted job has between SIGTERM and its end
    max_gpus: Limit | None = None  # of all jobs together
    max_gpus_per_account: Limit | None = None
    max_gpus_per_user: Limit | None = None
    max_gpus_per_job: Limit | None = None
    max_nodes: Limit | None = None  # of a job
    max_jobs: Limit | None = None  # that a user may have running
    max_wall: Duration | None = None  # of a job
    flags: tuple[SlurmFlag, ...] | None = None  # DenyOnLimit, NoReserve ... of sacctmgr(1)


class Account(Value):
    """Who pays: a team or project."""

    parent: SlurmName | None = None  # default: root
    qos: tuple[SlurmName, ...] | None = None  # that its jobs may ask for; default: all of `qos`
    default_qos: SlurmName | None = None
    fairshare: Count | None = None  # its part among its siblings
    max_gpus: Limit | None = None  # of all its jobs together; -1: no limit


class Person(Value):
    """Somebody who submits jobs; made with this uid in every container."""

    uid: int = Field(ge=1000, le=4294967293)
    gid: Annotated[int, Field(ge=100, le=4294967293)] | None = None  # default: the uid
    accounts: tuple[SlurmName, ...] = ()  # the first is the default one; empty: the first of `accounts`
    admin: Literal["none", "operator", "admin"] | None = None  # in Slurm's accounting; default: left as it is

    @field_validator("uid")
    @classmethod
    def _free(cls, uid: int) -> int:
        if uid in TAKEN:
            raise ValueError(f"{uid} is {TAKEN[uid]} in the images")
        return uid


class Priorities(Value):
    """Weights of a job's priority; the QoS counts most."""

    age: Count = 1000
    fairshare: Count = 10000
    qos: Count = 100000
    size: Count = 500
    partition: Count = 1000


class Reservation(Value):
    """Capacity that only these accounts or users have; with both named, these users in these accounts."""

    nodes: Nodes = ()  # these nodes ...
    count: Some | None = None  # ... or so many; one that fails is replaced
    accounts: tuple[SlurmName, ...] = ()
    users: tuple[User, ...] = ()
    start: Moment = "now"
    duration: Duration = "infinite"
    partition: SlurmName | None = None  # that `count` chooses from
    magnetic: bool = True  # their jobs go there without --reservation

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.nodes) == bool(self.count):
            raise ValueError("nodes: name either `nodes` or a `count`")
        if not self.accounts and not self.users:
            raise ValueError("accounts: nobody could use it: name `accounts` or `users`")
        if self.start == "now" and self.duration != "infinite":
            raise ValueError("duration: one that ends needs a `start`, or every deploy would make it again")
        return self


class ClusterSettings(Value):
    """A map that is given replaces ours as a whole."""

    name: SlurmName = "rocstack"  # what accounting knows it by: not to be changed later
    control_address: Address | Literal[""] = ""  # of the control node, for the nodes; default: the inventory's
    partitions: Annotated[dict[SlurmName, Partition], Field(min_length=1)] = {"train": Partition()}
    qos: dict[SlurmName, Qos] = {
        "low": Qos(priority=10, preempt_mode="requeue"),
        NORMAL: Qos(priority=100, preempts=("low",)),
        "high": Qos(priority=1000, preempts=("low",)),
    }
    accounts: Annotated[dict[SlurmName, Account], Field(min_length=1)] = {"default": Account()}
    users: dict[User, Person] = {}
    priorities: Priorities = Priorities()
    reservations: dict[SlurmName, Reservation] = {}  # dedicated capacity
    timeouts: Timeouts = Timeouts()
    health: Health = Health()
    slurm: dict[SlurmKey, SlurmText | int | bool] = {}  # more lines of slurm.conf
    cgroup: Literal["auto", "v1", "v2", "disabled"] = "auto"  # auto: what all workers allow
    gres: Literal["auto", "off"] = "auto"  # auto: GPUs as they were probed
    mounts: tuple[MountText, ...] = ()  # shared folders of the nodes, in every container
    env: dict[EnvName, EnvValue] = {}  # of the workers
    rest: Rest = Rest()
    ship: Ship = Ship()
    rollout: RolloutSettings = RolloutSettings()
    keep_images: Some = 2  # of each role, on a node
    require: Level | None = None  # of the acceptance suite, that new images must have passed

    @property
    def default_partition(self) -> str:
        return next((name for name, each in self.partitions.items() if each.default), next(iter(self.partitions)))

    def accounts_of(self, user: str) -> tuple[str, ...]:
        return self.users[user].accounts or (next(iter(self.accounts)),)

    def with_suite(self) -> Self:
        """With the account and the user of the acceptance suite, which every cluster has."""
        # Not validated: its uid is one that nobody else may have.
        person = Person.model_construct(uid=VERIFY_UID, gid=None, accounts=(VERIFY,), admin=None)
        update = {"accounts": {**self.accounts, VERIFY: Account()}, "users": {**self.users, VERIFY: person}}
        return self.model_copy(update=update)

    def user_lines(self) -> str:
        """`name uid gid` of everybody, as the containers read it."""
        users = self.with_suite().users
        rows = sorted((name, each.uid, each.gid or each.uid) for name, each in users.items())
        return "".join(f"{name} {uid} {gid}\n" for name, uid, gid in rows)

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, value: object) -> object:
        return {} if value is None else document.tuples(value)  # `cluster:` with all lines below it commented out

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for key, problem in self._problems():
            raise ValueError(f"{key}: {problem}")
        return self

    def _problems(self) -> Iterator[tuple[str, str]]:
        qos, accounts = {*self.qos, NORMAL}, {*self.accounts, ROOT}
        if sum(each.default for each in self.partitions.values()) > 1:
            yield "partitions", "only one can be the default"
        if self.rest.port in (*range(6817, 6821), self.ship.port, self.ship.port + 1):
            yield "rest", f"port {self.rest.port} is Slurm's own, or the registry's"
        for name, part in self.partitions.items():
            yield from _unknown("partitions", name, "QoS", [part.qos], qos)
            yield from _unknown("partitions", name, "account", part.accounts, accounts)
        for name, each in self.qos.items():
            yield from _unknown("qos", name, "QoS", each.preempts or (), qos)
        for name, account in self.accounts.items():
            yield from _unknown("accounts", name, "account", [account.parent or ROOT], accounts)
            yield from _unknown("accounts", name, "QoS", [*(account.qos or ()), account.default_qos], qos)
            if name in self.ancestors(name):
                yield "accounts", f"{name} is its own parent"
        for name, person in self.users.items():
            yield from _unknown("users", name, "account", person.accounts, accounts)
            twin = next((other for other, it in self.users.items() if it.uid == person.uid and other != name), None)
            if twin:
                yield "users", f"{twin} and {name} have one uid, {person.uid}"
        for name, reservation in self.reservations.items():
            yield from _unknown("reservations", name, "account", reservation.accounts, accounts)
            yield from _unknown("reservations", name, "partition", [reservation.partition], self.partitions)

    def ancestors(self, account: str) -> list[str]:
        """From the parent up, the root left out; ends where it comes back."""
        result: list[str] = []
        parent = self.accounts[account].parent or ROOT
        while parent in self.accounts and parent not in result:
            result.append(parent)
            parent = self.accounts[parent].parent or ROOT
        return result


def _unknown(
    key: str, name: str, noun: str, wanted: Iterable[str | None], known: Collection[str]
) -> Iterator[tuple[str, str]]:
    for each in wanted:
        if each and each not in known:
            yield key, f"{name} names the {noun} '{each}', which is not there (known: {', '.join(sorted(known))})"

"""`cluster:` of rocstack.yml: the Slurm cluster that `deploy` makes. What is not named has a sensible value."""

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from rocstack.base import document, environment
from rocstack.base.errors import BadInput, did_you_mean
from rocstack.base.levels import Level
from rocstack.base.words import (
    Address,
    AtKey,
    Duration,
    EnvName,
    EnvValue,
    Moment,
    MountText,
    SlurmFlag,
    SlurmKey,
    SlurmName,
    SlurmText,
    User,
    Value,
)
from rocstack.cluster import service as services
from rocstack.cluster import slurm_syntax
from rocstack.cluster.operation import MOST, Count, Health, Rest, RolloutSettings, Ship, Some, Timeouts, seconds
from rocstack.cluster.service import ClusterService
from rocstack.cluster.topology import Nodes, SwitchTopology
from rocstack.container.mount import Mount, parse_mount

ROOT = "root"  # the account above all others; Slurm makes it
NORMAL = "normal"  # the QoS that Slurm makes
VERIFY = "rocstack-verify"  # the acceptance suite's user, account and (hidden) partition, in every cluster
VERIFY_UID = 42433
# Slurm's programs ask nobody who answers at a port. Only root may take one below 1024, so that no job gets that of a
# daemon that is away. 288 to 307 are nobody's (IANA's registry of ports), and a client of NFS takes its own above 600.
SLURM_PORTS = SLURMCTLD, SLURMD, SLURMDBD, SLURMRESTD = 297, 298, 299, 300
# uids in the images
SYSTEM = {  # users of the images
    "_apt", "backup", "bin", "daemon", "docker-registry", "games", "irc", "list", "lp", "mail", "man", "munge", "mysql",
    "news", "nobody", "proxy", "root", VERIFY, "slurm", "sync", "sys", "uucp", "www-data",
}  # fmt: skip
TAKEN = {  # and their numbers; hitch's is a number alone
    42430: "munge", 42431: "mysql", 42432: "docker-registry", VERIFY_UID: VERIFY, 64030: "slurm", 65533: "hitch",
    65534: "nobody",
}  # fmt: skip
LONGEST_TOKEN, LONGEST_JOB = 90 * 86400, 3650 * 86400  # seconds
MOMENT = "%Y-%m-%dT%H:%M"
Limit = Annotated[int, Field(ge=-1, le=MOST)]
_IMAGES_OWN = ("bin", "boot", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "usr", "var")


def _off(value: object) -> object:
    """YAML reads `off` as false."""
    return "off" if value is False else value


class Partition(Value):
    """Nodes that jobs are submitted to."""

    nodes: Nodes = ("all",)  # all; node names, hostlists or groups of the inventory
    default: bool = False  # where jobs go that name no partition; without any, the first
    max_time: Duration = "infinite"  # of a job; infinite is a year
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
    max_submitted: Limit | None = None  # that a user may have running and waiting
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

    @field_validator("uid", "gid")
    @classmethod
    def _free(cls, number: int | None) -> int | None:
        if number in TAKEN:
            raise ValueError(f"{number} is {TAKEN[number]} in the images")
        return number


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

    @field_validator("start")
    @classmethod
    def _a_day_that_is(cls, text: str) -> str:
        try:
            return text if text == "now" else datetime.strptime(text, MOMENT).strftime(MOMENT)
        except ValueError as error:
            raise ValueError(f"there is no such time as {text}: {error}") from None

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
    topology: SwitchTopology | None = None  # of the network; default: all nodes are equally near
    timeouts: Timeouts = Timeouts()
    health: Health = Health()
    slurm: dict[SlurmKey, SlurmText | int | bool] = {}  # more lines of slurm.conf
    cgroup: Literal["auto", "v1", "v2", "disabled"] = "auto"  # auto: what all workers allow
    gres: Annotated[Literal["auto", "off"], BeforeValidator(_off)] = "auto"  # auto: GPUs as they were probed
    mounts: tuple[MountText, ...] = ()  # shared folders of the nodes, in every container
    env: dict[EnvName, EnvValue] = {}  # of the workers
    rest: Rest = Rest()
    service: Annotated[ClusterService | None, BeforeValidator(services.switch)] = None  # `on`, or a mapping
    ship: Ship = Ship()
    rollout: RolloutSettings = RolloutSettings()
    keep_images: Some = 2  # of each role, on a node
    require: Level | None = None  # of the acceptance suite, that new images must have passed

    @field_validator("name")
    @classmethod
    def _of_tables(cls, name: str) -> str:
        if len(name) > 40 or "." in name:
            raise ValueError(f"'{name}' names tables of Slurm's database, so it has at most 40 letters and no '.'")
        return name

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
        for loc, problem in self._problems():
            raise AtKey(loc, problem)
        return self

    def _problems(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        qos, accounts = {*self.qos, NORMAL}, {*self.accounts, ROOT}
        by_uid: dict[int, str] = {}
        defaults = [name for name, each in self.partitions.items() if each.default]
        for name in defaults[1:]:
            yield ("partitions", name, "default"), f"only one can be the default, and {defaults[0]} is"
        yield from self._taken_names()
        yield from self._mounted()
        if self.rest.port in (*SLURM_PORTS, self.ship.port, self.ship.port + 1):
            yield ("rest", "port"), f"port {self.rest.port} is Slurm's own, or the registry's"
        yield from self._of_service()
        for loc, problem in self.topology.problems() if self.topology else ():
            yield ("topology", *loc), problem
        for name, part in self.partitions.items():
            if (seconds(part.max_time) or 0) > LONGEST_JOB:
                yield ("partitions", name, "max_time"), f"a job runs for {LONGEST_JOB // 86400}d at most"
            if not part.nodes:
                yield ("partitions", name, "nodes"), "it names no node: name some, or all"
            yield from _unknown(("partitions", name, "qos"), "QoS", part.qos, qos)
            yield from _unknown(("partitions", name, "accounts"), "account", part.accounts, accounts)
        for name, each in self.qos.items():
            yield from _unknown(("qos", name, "preempts"), "QoS", each.preempts, qos)
            known = slurm_syntax.qos_flags()
            flags = [flag for flag in each.flags or () if flag.lower() not in {word.lower() for word in known}]
            yield from _unknown(("qos", name, "flags"), "flag", flags, known)
            if name in self._preempted(name):
                yield (
                    ("qos", name, "preempts"),
                    f"'{name}' would preempt itself{self._through(name)}: Slurm refuses a loop",
                )
        for name, account in self.accounts.items():
            yield from _unknown(("accounts", name, "parent"), "account", account.parent, accounts)
            yield from _unknown(("accounts", name, "qos"), "QoS", account.qos, qos)
            yield from _unknown(("accounts", name, "default_qos"), "QoS", account.default_qos, qos)
            if account.qos is not None and account.default_qos and account.default_qos not in account.qos:
                yield ("accounts", name, "default_qos"), f"'{account.default_qos}' is not among its `qos`"
            if name in self.ancestors(name):
                yield ("accounts", name, "parent"), f"{name} is its own parent"
        for name, person in self.users.items():
            yield from _unknown(("users", name, "accounts"), "account", person.accounts, accounts)
            twin = by_uid.setdefault(person.uid, name)
            if twin != name:
                yield ("users", name, "uid"), f"{twin} and {name} have one uid, {person.uid}"
        for name, reservation in self.reservations.items():
            at = ("reservations", name)
            yield from _unknown((*at, "accounts"), "account", reservation.accounts, accounts)
            yield from _unknown((*at, "users"), "user", reservation.users, {*self.users, ROOT})
            yield from _unknown((*at, "partition"), "partition", reservation.partition, self.partitions)
        for name in self.env:
            if why := environment.misspelt(name):
                yield ("env", name), why
        words = {True: "YES", False: "NO"}
        for key, value in self.slurm.items():
            said = words[value] if isinstance(value, bool) else str(value)
            if why := slurm_syntax.complaint(slurm_syntax.CONF, key, said):
                yield ("slurm", key), why

    def _taken_names(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        of_suite = "is the acceptance suite's, in every cluster"
        for field, names in (("partitions", self.partitions), ("accounts", self.accounts)):
            if VERIFY in names:
                yield (field, VERIFY), f"'{VERIFY}' {of_suite}: take another name"
        if ROOT in self.accounts:
            yield ("accounts", ROOT), f"'{ROOT}' is the account above all others, which Slurm makes: take another name"
        if "default" in self.partitions:
            yield ("partitions", "default"), "Slurm reads 'default' as the default of all partitions: take another name"
        for name in self.users:
            if name in SYSTEM:
                yield ("users", name), f"'{name}' {of_suite if name == VERIFY else 'is a user of the images'}"

    def _of_service(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.service is None:
            return
        ports = {*SLURM_PORTS, self.ship.port, self.ship.port + 1, self.rest.port or 0}
        yield from services.problems(self.service, self.parsed_mounts, ports)
        for name, person in self.users.items():
            for own, uid in services.own_users(self.service).items():
                if name == own or uid in (person.uid, person.gid):
                    yield ("users", name), f"'{own}' with {uid} is the user of cluster.service"

    @property
    def parsed_mounts(self) -> tuple[Mount, ...]:
        return tuple(parse_mount(text, base=Path("/")) for text in self.mounts)

    def _mounted(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        targets: dict[str, str] = {}
        for index, text in enumerate(self.mounts):
            at = ("mounts", index)
            if ".." in re.split("[/:]", text):
                yield at, f"'{text}' has '..': write the path itself"
                continue
            try:
                mount = parse_mount(text, base=Path("/"))
            except BadInput as error:
                yield at, error.what
                continue
            top, _, rest = mount.target.lstrip("/").partition("/")
            if (top in _IMAGES_OWN and not rest) or mount.target.startswith(
                ("/etc/rocstack", "/etc/slurm", "/run/rocstack")
            ):
                yield at, f"it would hide {mount.target} of the images: mount it elsewhere, SRC:DST"
            if targets.setdefault(mount.target, text) != text or text in self.mounts[:index]:
                yield at, f"{mount.target} is mounted above already"

    def _preempted(self, name: str, seen: tuple[str, ...] = ()) -> set[str]:
        """The QoS that it preempts, and that they preempt."""
        own = self.qos[name].preempts or () if name in self.qos else ()
        return {*own}.union(*(self._preempted(each, (*seen, name)) for each in own if each not in (*seen, name)))

    def _through(self, name: str) -> str:
        others = [each for each in self.qos[name].preempts or () if each != name and name in self._preempted(each)]
        return f" through '{others[0]}'" if others else ""

    def ancestors(self, account: str) -> list[str]:
        """From the parent up, the root left out; ends where it comes back."""
        result: list[str] = []
        parent = self.accounts[account].parent or ROOT
        while parent in self.accounts and parent not in result:
            result.append(parent)
            parent = self.accounts[parent].parent or ROOT
        return result


def _unknown(
    loc: tuple[str, ...], noun: str, wanted: str | Iterable[str] | None, known: Collection[str]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for index, each in [(None, wanted)] if isinstance(wanted, str) else enumerate(wanted or ()):
        if each not in known:
            hint = did_you_mean(each, known) or f"known: {', '.join(sorted(known))}"
            yield (loc if index is None else (*loc, index)), f"there is no {noun} '{each}': {hint}"

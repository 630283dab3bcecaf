"""QoS, accounts, users and reservations: the commands that make them what rocstack.yml says. What it doesn't name is
left as it is, and said. Pure; when all is so already there is no command."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rocstack.base.text import listed
from rocstack.cluster import reservations
from rocstack.cluster.operation import seconds
from rocstack.cluster.settings import NORMAL, ROOT, Account, ClusterSettings, Qos
from rocstack.cluster.slurm_records import Row, SlurmRecords, names, tres

Command = tuple[str, ...]
_DO = ("sacctmgr", "--immediate")
_GPU = "gres/gpu"
_ADMIN = {"none": "None", "operator": "Operator", "admin": "Administrator"}


@dataclass(frozen=True)
class SlurmChanges:
    """Commands for the control container, in their order, and what the person should know."""

    commands: tuple[Command, ...] = ()
    notes: tuple[str, ...] = ()


def changes(
    cluster: ClusterSettings,
    records: SlurmRecords,
    *,
    workers: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    now: datetime,
    absent: Sequence[str] = (),
) -> SlurmChanges:
    """From what is found to what is wanted. The users must be known in the control container before the commands run:
    slurmctld looks up a user's uid when it hears of the user.

    Args:
        now: the control node's own clock and zone, without a zone.
        absent: those of `workers` that Slurm doesn't know yet.

    Raises:
        BadInput: a reservation names nodes that are not there.
    """
    reserved = reservations.changes(
        cluster, records.reservations, workers=workers, groups=groups, now=now, absent=absent
    )
    commands = [*_qos(cluster, records), *_accounts(cluster, records), *_users(cluster, records), *reserved.commands]
    return SlurmChanges(tuple(commands), (*_left(cluster, records), *reserved.notes))


def _qos(cluster: ClusterSettings, records: SlurmRecords) -> Iterator[Command]:
    for name in cluster.qos:
        if name not in records.qos:
            yield (*_DO, "add", "qos", f"name={name}")
    for name, desired in cluster.qos.items():
        words = _differing(_desired_qos(desired), _recorded_qos(records.qos.get(name, {})))
        if words:
            yield (*_DO, "modify", "qos", "where", f"name={name}", "set", *words)


def _desired_qos(qos: Qos) -> dict[str, str | None]:
    """By sacctmgr's keyword, TRES behind a second '='; None is not named."""
    grace = None if qos.grace is None else seconds(qos.grace)
    return {
        "Priority": _text(qos.priority),
        "Preempt": None if qos.preempts is None else names(",".join(qos.preempts)),
        "PreemptMode": qos.preempt_mode,
        "GraceTime": _text(grace),
        f"GrpTRES={_GPU}": _text(qos.max_gpus),
        f"MaxTRESPerAccount={_GPU}": _text(qos.max_gpus_per_account),
        f"MaxTRESPerUser={_GPU}": _text(qos.max_gpus_per_user),
        f"MaxTRESPerJob={_GPU}": _text(qos.max_gpus_per_job),
        "MaxTRESPerJob=node": _text(qos.max_nodes),
        "MaxJobsPerUser": _text(qos.max_jobs),
        "MaxWall": None if qos.max_wall is None else _minutes(qos.max_wall),
        "Flags": None if qos.flags is None else names(",".join(qos.flags)),
    }


def _recorded_qos(row: Row) -> dict[str, str]:
    grouped, account, user, job = (tres(row.get(key, "")) for key in ("GrpTRES", "MaxTRESPA", "MaxTRESPU", "MaxTRES"))
    return {
        "Priority": row.get("Priority") or "0",
        "Preempt": names(row.get("Preempt", "")),
        "PreemptMode": row.get("PreemptMode", ""),
        "GraceTime": str(_span(row.get("GraceTime") or "00:00:00")),
        f"GrpTRES={_GPU}": grouped.get(_GPU, "-1"),
        f"MaxTRESPerAccount={_GPU}": account.get(_GPU, "-1"),
        f"MaxTRESPerUser={_GPU}": user.get(_GPU, "-1"),
        f"MaxTRESPerJob={_GPU}": job.get(_GPU, "-1"),
        "MaxTRESPerJob=node": job.get("node", "-1"),
        "MaxJobsPerUser": row.get("MaxJobsPU") or "-1",
        "MaxWall": str(_span(row["MaxWall"]) // 60) if row.get("MaxWall") else "-1",
        "Flags": names(row.get("Flags", "")),
    }


def _accounts(cluster: ClusterSettings, records: SlurmRecords) -> Iterator[Command]:
    for name in sorted(cluster.accounts, key=lambda each: len(cluster.ancestors(each))):  # parents first
        account, row = cluster.accounts[name], records.accounts.get(name)
        if row is None:
            about = ("description=rocstack", "organization=rocstack")
            parent = account.parent or ROOT
            yield (*_DO, "add", "account", f"name={name}", f"parent={parent}", *about)
            row = {"ParentName": parent}
        has = tres(row.get("GrpTRES", ""))
        words = _differing(
            {
                "Parent": account.parent,
                "Fairshare": _text(account.fairshare),
                "QosLevel": None if account.qos is None else names(",".join(account.qos)),
                "DefaultQOS": account.default_qos,
                f"GrpTRES={_GPU}": _text(account.max_gpus),
            },
            {
                "Parent": row.get("ParentName", ""),
                "Fairshare": row.get("Share", "1"),
                "QosLevel": names(row.get("QOS", "")),
                "DefaultQOS": row.get("DefaultQOS", ""),
                f"GrpTRES={_GPU}": has.get(_GPU, "-1"),
            },
        )
        words += _more_qos(account, cluster, row)
        if words:
            yield (*_DO, "modify", "account", "where", f"name={name}", "set", *words)


def _more_qos(account: Account, cluster: ClusterSettings, row: Row) -> list[str]:
    """Where no list is given: ours beside what the account has."""
    has = row.get("QOS", "").split(",")
    missing = [name for name in sorted({*cluster.qos, NORMAL}) if name not in has]
    return [f"QosLevel+={','.join(missing)}"] if missing and account.qos is None else []


def _users(cluster: ClusterSettings, records: SlurmRecords) -> Iterator[Command]:
    """One command for all who are added to the same account."""
    new: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(cluster.users):
        for number, account in enumerate(cluster.accounts_of(name)):
            if (account, name) not in records.members:
                first = number == 0 and name not in records.users
                words = (f"account={account}", *([f"defaultaccount={account}"] if first else []))
                new.setdefault(words, []).append(name)
    # A user's first account comes first, or another would become the default one.
    for words, users in sorted(new.items(), key=lambda item: -len(item[0])):
        yield (*_DO, "add", "user", f"name={','.join(users)}", *words)
    for name, person in sorted(cluster.users.items()):
        row = records.users.get(name, {"DefaultAccount": cluster.accounts_of(name)[0], "AdminLevel": "None"})
        default = person.accounts[0] if person.accounts else None
        admin = _ADMIN[person.admin] if person.admin else None
        changed = _differing(
            {"DefaultAccount": default, "AdminLevel": admin},
            {"DefaultAccount": row["DefaultAccount"], "AdminLevel": row["AdminLevel"]},
        )
        if changed:
            yield (*_DO, "modify", "user", "where", f"name={name}", "set", *changed)


def _differing(desired: Mapping[str, str | None], records: Mapping[str, str]) -> list[str]:
    """KEY=VALUE of what is named and not so. Flags are taken away with -1, all else with nothing."""
    changed = {key: value for key, value in desired.items() if value is not None and value != records[key]}
    return [f"{key}={'-1' if key == 'Flags' and not value else value}" for key, value in changed.items()]


def _left(cluster: ClusterSettings, records: SlurmRecords) -> Iterator[str]:
    """What rocstack.yml doesn't name."""
    desired = {(account, user) for user in cluster.users for account in cluster.accounts_of(user)}
    others = sorted(pair for pair in records.members - desired if pair[1] in cluster.users)
    yield from _note("QoS", set(records.qos) - {*cluster.qos, NORMAL})
    yield from _note("account", set(records.accounts) - {*cluster.accounts, ROOT})
    yield from _note("user", set(records.users) - {*cluster.users, ROOT})
    yield from _note("reservation", set(records.reservations) - set(cluster.reservations))
    yield from (
        f"{user} is also in account {account}, which rocstack.yml doesn't say: left" for account, user in others
    )


def _note(noun: str, left: Iterable[str]) -> Iterator[str]:
    if left := sorted(left):
        yield f"{noun} {listed(left)}: not in rocstack.yml, left as it is"


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _minutes(text: str) -> str:
    whole = seconds(text)
    return "-1" if whole is None else str(max(whole // 60, 1))


def _span(text: str) -> int:
    """Seconds of D-HH:MM:SS or HH:MM:SS."""
    days, _, clock = text.rpartition("-")
    hours, minutes, rest = map(int, clock.split(":"))
    return (int(days or 0) * 24 + hours) * 3600 + minutes * 60 + rest

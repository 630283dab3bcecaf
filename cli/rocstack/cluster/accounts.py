"""QoS, accounts, users and reservations: the commands that make them what rocstack.yml says. What it doesn't name is
left as it is, and said. Pure; when all is so already there is no command."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rocstack.base.text import listed
from rocstack.cluster.operation import minutes, seconds
from rocstack.cluster.settings import NORMAL, ROOT, ClusterSettings
from rocstack.cluster.slurm_files import members
from rocstack.cluster.slurm_records import Row, SlurmRecords, names, tres
from rocstack.node import hostlist

Command = tuple[str, ...]
_DO = ("sacctmgr", "--immediate")
_GPU = "gres/gpu"
_TRES = ("GrpTRES", "MaxTRESPA", "MaxTRESPU", "MaxTRES")
_ADMIN = {"none": "None", "operator": "Operator", "admin": "Administrator"}
FOREVER = "3650-00:00:00"  # Slurm's own UNLIMITED ends after a year
_MOMENT = "%Y-%m-%dT%H:%M:%S"


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
    notes = list(_left(cluster, records))
    commands = [*_qos(cluster, records), *_accounts(cluster, records), *_users(cluster, records)]
    for name, reservation in sorted(cluster.reservations.items()):
        start = None if reservation.start == "now" else datetime.strptime(reservation.start, "%Y-%m-%dT%H:%M")
        lasts = seconds(reservation.duration)
        end = start + timedelta(seconds=lasts) if start and lasts else None  # None: never
        if end and end <= now:
            notes.append(f"reservation {name} ended {end:%Y-%m-%d %H:%M}: remove it from rocstack.yml")
            continue
        named = members(reservation.nodes, workers, groups, ("reservations", name, "nodes"))
        nodes = [each for each in named if each not in absent]
        if len(nodes) < len(named):
            lacking = hostlist.fold(each for each in named if each in absent)
            notes.append(f"reservation {name}: without {lacking}, which Slurm doesn't know yet")
        if nodes or not named:
            # Slurm takes no start in the past.
            first = f"{start:{_MOMENT}}" if start and start > now else "now"
            words = {"StartTime": first, **({"EndTime": f"{end:{_MOMENT}}"} if end else {"Duration": FOREVER})}
            commands += _reservation(cluster, name, words, nodes, records.reservations.get(name))
    return SlurmChanges(tuple(commands), tuple(notes))


def _qos(cluster: ClusterSettings, records: SlurmRecords) -> Iterator[Command]:
    for name in cluster.qos:
        if name not in records.qos:
            yield (*_DO, "add", "qos", f"name={name}")
    for name, qos in cluster.qos.items():
        row = records.qos.get(name, {})
        grouped, account, user, job = (tres(row.get(key, "")) for key in _TRES)
        words = _differing(
            ("Priority", qos.priority, row.get("Priority") or "0"),
            ("Preempt", qos.preempts, names(row.get("Preempt", ""))),
            ("PreemptMode", qos.preempt_mode, row.get("PreemptMode", "")),
            ("GraceTime", qos.grace and seconds(qos.grace), str(_span(row.get("GraceTime") or "00:00:00"))),
            (f"GrpTRES={_GPU}", qos.max_gpus, grouped.get(_GPU, "-1")),
            (f"MaxTRESPerAccount={_GPU}", qos.max_gpus_per_account, account.get(_GPU, "-1")),
            (f"MaxTRESPerUser={_GPU}", qos.max_gpus_per_user, user.get(_GPU, "-1")),
            (f"MaxTRESPerJob={_GPU}", qos.max_gpus_per_job, job.get(_GPU, "-1")),
            ("MaxTRESPerJob=node", qos.max_nodes, job.get("node", "-1")),
            ("MaxJobsPerUser", qos.max_jobs, row.get("MaxJobsPU") or "-1"),
            ("MaxSubmitJobsPerUser", qos.max_submitted, row.get("MaxSubmitPU") or "-1"),
            (
                "MaxWall",
                qos.max_wall and minutes(qos.max_wall, forever="-1"),
                str(_span(row["MaxWall"]) // 60) if row.get("MaxWall") else "-1",
            ),
            ("Flags", qos.flags, names(row.get("Flags", ""))),
        )
        if words:
            yield (*_DO, "modify", "qos", "where", f"name={name}", "set", *words)


def _accounts(cluster: ClusterSettings, records: SlurmRecords) -> Iterator[Command]:
    for name in sorted(cluster.accounts, key=lambda each: len(cluster.ancestors(each))):  # parents first
        account, row = cluster.accounts[name], records.accounts.get(name)
        if row is None:
            about = ("description=rocstack", "organization=rocstack")
            parent = account.parent or ROOT
            yield (*_DO, "add", "account", f"name={name}", f"parent={parent}", *about)
            row = {"ParentName": parent}
        has = row.get("QOS", "")
        words = _differing(
            ("Parent", account.parent, row.get("ParentName", "")),
            ("Fairshare", account.fairshare, row.get("Share", "1")),
            ("QosLevel", account.qos, names(has)),
            ("DefaultQOS", account.default_qos, row.get("DefaultQOS", "")),
            (f"GrpTRES={_GPU}", account.max_gpus, tres(row.get("GrpTRES", "")).get(_GPU, "-1")),
        )
        missing = [each for each in sorted({*cluster.qos, NORMAL}) if each not in has.split(",")]
        if missing and account.qos is None:  # no list is given: ours beside what the account has
            words.append(f"QosLevel+={','.join(missing)}")
        if words:
            yield (*_DO, "modify", "account", "where", f"name={name}", "set", *words)


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
        changed = _differing(
            ("DefaultAccount", person.accounts[0] if person.accounts else None, row["DefaultAccount"]),
            ("AdminLevel", person.admin and _ADMIN[person.admin], row["AdminLevel"]),
        )
        if changed:
            yield (*_DO, "modify", "user", "where", f"name={name}", "set", *changed)


def _differing(*rows: tuple[str, str | int | tuple[str, ...] | None, str]) -> list[str]:
    """KEY=VALUE of what is named and not so, from rows of key, what is wanted and what is recorded. Flags are taken
    away with -1, all else with nothing."""
    words = []
    for key, wanted, recorded in rows:
        value = names(",".join(wanted)) if isinstance(wanted, tuple) else str(wanted)
        if wanted is not None and value != recorded:
            words.append(f"{key}={'-1' if key == 'Flags' and not value else value}")
    return words


def _reservation(
    cluster: ClusterSettings, name: str, times: Mapping[str, str], nodes: Sequence[str], current: Row | None
) -> Iterator[Command]:
    wanted = cluster.reservations[name]
    partition = wanted.partition or cluster.default_partition
    where = {"Nodes": hostlist.fold(nodes)} if nodes else {"NodeCnt": str(wanted.count), "PartitionName": partition}
    words = {**times, **where, "Accounts": names(",".join(wanted.accounts)), "Users": names(",".join(wanted.users))}
    if current is None:
        # Jobs that run there now may end; without IGNORE_JOBS it would be refused while there are any.
        flags = ["IGNORE_JOBS", *["REPLACE_DOWN"] * bool(wanted.count), *["MAGNETIC"] * wanted.magnetic]
        chosen = [f"{key}={value}" for key, value in words.items() if value]
        yield ("scontrol", "create", "reservation", f"ReservationName={name}", *chosen, f"Flags={','.join(flags)}")
        return
    same = {
        "StartTime": words["StartTime"] in ("now", current["StartTime"]),
        "Nodes": not nodes or sorted(hostlist.expand(current["Nodes"])) == sorted(nodes),
        "PartitionName": True,
        "Accounts": words["Accounts"] == names(current["Accounts"]),
        "Users": words["Users"] == names(current["Users"]),
    }
    changed = [f"{key}={value}" for key, value in words.items() if not same.get(key, value == current.get(key))]
    if ("MAGNETIC" in current["Flags"].split(",")) != wanted.magnetic:
        changed.append(f"Flags{'+' if wanted.magnetic else '-'}=MAGNETIC")
    if changed:
        yield ("scontrol", "update", f"ReservationName={name}", *changed)


def _left(cluster: ClusterSettings, records: SlurmRecords) -> Iterator[str]:
    """What rocstack.yml doesn't name."""
    desired = {(account, user) for user in cluster.users for account in cluster.accounts_of(user)}
    others = sorted(pair for pair in records.members - desired if pair[1] in cluster.users)
    for noun, known, named in (
        ("QoS", records.qos, {*cluster.qos, NORMAL}),
        ("account", records.accounts, {*cluster.accounts, ROOT}),
        ("user", records.users, {*cluster.users, ROOT}),
        ("reservation", records.reservations, {*cluster.reservations}),
    ):
        if left := sorted(known.keys() - named):
            yield f"{noun} {listed(left)}: not in rocstack.yml, left as it is"
    for account, user in others:
        yield f"{user} is also in account {account}, which rocstack.yml doesn't say: left"


def _span(text: str) -> int:
    """Seconds of D-HH:MM:SS or HH:MM:SS."""
    days, _, clock = text.rpartition("-")
    hours, minutes, rest = map(int, clock.split(":"))
    return (int(days or 0) * 24 + hours) * 3600 + minutes * 60 + rest

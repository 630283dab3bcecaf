"""Dedicated capacity as Slurm's reservations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rocstack.cluster import hostlist
from rocstack.cluster.operation import seconds
from rocstack.cluster.settings import ClusterSettings, Reservation
from rocstack.cluster.slurm_files import members
from rocstack.cluster.slurm_records import Row, names

FOREVER = "3650-00:00:00"  # Slurm's own UNLIMITED ends after a year
_MOMENT = "%Y-%m-%dT%H:%M:%S"


@dataclass
class Held:
    commands: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def changes(
    cluster: ClusterSettings,
    found: Mapping[str, Row],
    *,
    workers: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    now: datetime,
    absent: Sequence[str] = (),
) -> Held:
    """
    Args:
        absent: those of `workers` that Slurm doesn't know yet.

    Raises:
        BadInput: a reservation names nodes that are not there.
    """
    held = Held()
    for name, wanted in sorted(cluster.reservations.items()):
        _, end = _times(wanted)
        if end and end <= now:
            held.notes.append(f"reservation {name} ended {end:%Y-%m-%d %H:%M}: remove it from rocstack.yml")
            continue
        named = members(wanted.nodes, workers, groups, f"cluster.reservations.{name}")
        nodes = [each for each in named if each not in absent]
        if len(nodes) < len(named):
            lacking = hostlist.fold(each for each in named if each in absent)
            held.notes.append(f"reservation {name}: without {lacking}, which Slurm doesn't know yet")
        if named and not nodes:
            continue
        have = found.get(name)
        if have is None:
            held.commands.append(
                ("scontrol", "create", "reservation", f"ReservationName={name}", *_new(cluster, wanted, nodes, now))
            )
        elif changed := _differing(wanted, nodes, have, now):
            held.commands.append(("scontrol", "update", f"ReservationName={name}", *changed))
    return held


def _times(wanted: Reservation) -> tuple[datetime | None, datetime | None]:
    """None: at once, for ever."""
    start = None if wanted.start == "now" else datetime.strptime(wanted.start, "%Y-%m-%dT%H:%M")
    lasts = seconds(wanted.duration)
    return start, start + timedelta(seconds=lasts) if start and lasts else None


def _new(cluster: ClusterSettings, wanted: Reservation, nodes: Sequence[str], now: datetime) -> list[str]:
    start, end = _times(wanted)
    # Slurm takes no start in the past.
    words = [f"StartTime={start:{_MOMENT}}" if start and start > now else "StartTime=now"]
    words += [f"EndTime={end:{_MOMENT}}" if end else f"Duration={FOREVER}"]
    partition = wanted.partition or cluster.default_partition
    words += [f"Nodes={hostlist.fold(nodes)}"] if nodes else [f"NodeCnt={wanted.count}", f"PartitionName={partition}"]
    words += [f"Accounts={names(','.join(wanted.accounts))}"] if wanted.accounts else []
    words += [f"Users={names(','.join(wanted.users))}"] if wanted.users else []
    # Jobs that run there now may end; without IGNORE_JOBS it would be refused while there are any.
    flags = ["IGNORE_JOBS", *(["REPLACE_DOWN"] if wanted.count else []), *(["MAGNETIC"] if wanted.magnetic else [])]
    return [*words, f"Flags={','.join(flags)}"]


def _differing(wanted: Reservation, nodes: Sequence[str], have: Row, now: datetime) -> list[str]:
    start, end = _times(wanted)
    words = []
    if start and start > now and have["StartTime"] != f"{start:{_MOMENT}}":
        words.append(f"StartTime={start:{_MOMENT}}")
    if end and have["EndTime"] != f"{end:{_MOMENT}}":
        words.append(f"EndTime={end:{_MOMENT}}")
    if end is None and have["Duration"] != FOREVER:
        words.append(f"Duration={FOREVER}")
    if nodes and sorted(hostlist.expand(have["Nodes"])) != sorted(nodes):
        words.append(f"Nodes={hostlist.fold(nodes)}")
    if wanted.count and have["NodeCnt"] != str(wanted.count):
        words.append(f"NodeCnt={wanted.count}")
    for key, said in (("Accounts", wanted.accounts), ("Users", wanted.users)):
        if names(have[key]) != names(",".join(said)):
            words.append(f"{key}={names(','.join(said))}")
    if ("MAGNETIC" in have["Flags"].split(",")) != wanted.magnetic:
        words.append(f"Flags{'+' if wanted.magnetic else '-'}=MAGNETIC")
    return words

"""Dedicated capacity as Slurm's reservations."""

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
class ReservationChanges:
    commands: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def changes(
    cluster: ClusterSettings,
    records: Mapping[str, Row],
    *,
    workers: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    now: datetime,
    absent: Sequence[str] = (),
) -> ReservationChanges:
    """
    Args:
        absent: those of `workers` that Slurm doesn't know yet.

    Raises:
        BadInput: a reservation names nodes that are not there.
    """
    result = ReservationChanges()
    for name, reservation in sorted(cluster.reservations.items()):
        _, end = _times(reservation)
        if end and end <= now:
            result.notes.append(f"reservation {name} ended {end:%Y-%m-%d %H:%M}: remove it from rocstack.yml")
            continue
        named = members(reservation.nodes, workers, groups, f"cluster.reservations.{name}")
        nodes = [each for each in named if each not in absent]
        if len(nodes) < len(named):
            lacking = hostlist.fold(each for each in named if each in absent)
            result.notes.append(f"reservation {name}: without {lacking}, which Slurm doesn't know yet")
        if named and not nodes:
            continue
        current = records.get(name)
        if current is None:
            result.commands.append(
                (
                    "scontrol",
                    "create",
                    "reservation",
                    f"ReservationName={name}",
                    *_new(cluster, reservation, nodes, now),
                )
            )
        elif changed := _differing(reservation, nodes, current, now):
            result.commands.append(("scontrol", "update", f"ReservationName={name}", *changed))
    return result


def _times(reservation: Reservation) -> tuple[datetime | None, datetime | None]:
    """None: at once, for ever."""
    start = None if reservation.start == "now" else datetime.strptime(reservation.start, "%Y-%m-%dT%H:%M")
    lasts = seconds(reservation.duration)
    return start, start + timedelta(seconds=lasts) if start and lasts else None


def _new(cluster: ClusterSettings, reservation: Reservation, nodes: Sequence[str], now: datetime) -> list[str]:
    start, end = _times(reservation)
    # Slurm takes no start in the past.
    words = [f"StartTime={start:{_MOMENT}}" if start and start > now else "StartTime=now"]
    words += [f"EndTime={end:{_MOMENT}}" if end else f"Duration={FOREVER}"]
    partition = reservation.partition or cluster.default_partition
    words += (
        [f"Nodes={hostlist.fold(nodes)}"] if nodes else [f"NodeCnt={reservation.count}", f"PartitionName={partition}"]
    )
    words += [f"Accounts={names(','.join(reservation.accounts))}"] if reservation.accounts else []
    words += [f"Users={names(','.join(reservation.users))}"] if reservation.users else []
    # Jobs that run there now may end; without IGNORE_JOBS it would be refused while there are any.
    flags = [
        "IGNORE_JOBS",
        *(["REPLACE_DOWN"] if reservation.count else []),
        *(["MAGNETIC"] if reservation.magnetic else []),
    ]
    return [*words, f"Flags={','.join(flags)}"]


def _differing(reservation: Reservation, nodes: Sequence[str], current: Row, now: datetime) -> list[str]:
    start, end = _times(reservation)
    words = []
    if start and start > now and current["StartTime"] != f"{start:{_MOMENT}}":
        words.append(f"StartTime={start:{_MOMENT}}")
    if end and current["EndTime"] != f"{end:{_MOMENT}}":
        words.append(f"EndTime={end:{_MOMENT}}")
    if end is None and current["Duration"] != FOREVER:
        words.append(f"Duration={FOREVER}")
    if nodes and sorted(hostlist.expand(current["Nodes"])) != sorted(nodes):
        words.append(f"Nodes={hostlist.fold(nodes)}")
    if reservation.count and current["NodeCnt"] != str(reservation.count):
        words.append(f"NodeCnt={reservation.count}")
    for key, desired_names in (("Accounts", reservation.accounts), ("Users", reservation.users)):
        if names(current[key]) != names(",".join(desired_names)):
            words.append(f"{key}={names(','.join(desired_names))}")
    if ("MAGNETIC" in current["Flags"].split(",")) != reservation.magnetic:
        words.append(f"Flags{'+' if reservation.magnetic else '-'}=MAGNETIC")
    return words

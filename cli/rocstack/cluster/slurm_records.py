"""What Slurm's accounting and controller say there is: the questions, and their answers as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

_QOS = "Name,Priority,Preempt,PreemptMode,GraceTime,GrpTRES,MaxTRESPA,MaxTRESPU,MaxTRES,MaxJobsPU,MaxSubmitPU"
_QOS += ",MaxWall,Flags"
_ASSOC = "Account,User,ParentName,Share,QOS,DefaultQOS,GrpTRES,Partition"
_USER = "User,DefaultAccount,AdminLevel"


def _ask(what: str, columns: str) -> tuple[str, ...]:
    return ("sacctmgr", "--noheader", "--parsable2", "show", *what.split(), f"format={columns}")


# Run in the control container; `read` takes their outputs by these names.
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "qos": _ask("qos", _QOS),
    "associations": _ask("associations", _ASSOC),
    "users": _ask("user", _USER),
    "reservations": ("scontrol", "show", "reservation", "--oneliner"),
}
Row = dict[str, str]  # column -> text


@dataclass(frozen=True)
class SlurmRecords:
    """Rows by name. `members` are (account, user)."""

    qos: Mapping[str, Row] = field(default_factory=dict)
    accounts: Mapping[str, Row] = field(default_factory=dict)
    users: Mapping[str, Row] = field(default_factory=dict)
    members: frozenset[tuple[str, str]] = frozenset()
    reservations: Mapping[str, Row] = field(default_factory=dict)


def read(answers: Mapping[str, str]) -> SlurmRecords:
    """The outputs of QUESTIONS.

    Raises:
        ValueError: a line that is none of theirs, or no line where Slurm always has one.
    """
    silent = [name for name in QUESTIONS if name != "reservations" and not answers[name].strip()]
    if silent:
        raise ValueError(f"sacctmgr said nothing of {', '.join(silent)}")
    associations = _rows(answers["associations"], _ASSOC)
    return SlurmRecords(
        qos={row["Name"]: row for row in _rows(answers["qos"], _QOS)},
        accounts={row["Account"]: row for row in associations if not row["User"]},
        users={row["User"]: row for row in _rows(answers["users"], _USER)},
        members=frozenset((row["Account"], row["User"]) for row in associations if row["User"]),
        reservations={row["ReservationName"]: row for row in _reservations(answers["reservations"])},
    )


def tres(text: str) -> Row:
    """`gres/gpu=8,node=2` by name."""
    return dict(pair.split("=", 1) for pair in text.split(",") if "=" in pair)


def names(text: str) -> str:
    """A list in one order, so that two can be compared."""
    return ",".join(sorted(each for each in text.split(",") if each not in ("", "(null)")))


def _rows(text: str, form: str) -> list[Row]:
    columns, result = form.split(","), []
    for line in filter(None, text.splitlines()):
        values = line.split("|")
        if len(values) != len(columns):
            raise ValueError(f"sacctmgr said {line!r}, not {len(columns)} columns")
        result.append(dict(zip(columns, values, strict=True)))
    return result


def _reservations(text: str) -> list[Row]:
    lines = (line for line in text.splitlines() if line.startswith("ReservationName="))
    return [dict(word.split("=", 1) for word in line.split(" ") if "=" in word) for line in lines]

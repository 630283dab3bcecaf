"""Judging by what the doctor knows to be wrong with a node (its rules, and its words for them), by what is equal on all
nodes, and by what each said of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache
from typing import Any, TypeVar

from rocstack.base import finding_texts
from rocstack.doctor.nodes import RULES
from rocstack.node.profile import NodeProfile
from rocstack.verify.evidence import NoAnswer, NodeEvidence
from rocstack.verify.recorder import Recorder

T = TypeVar("T", bound=Hashable)
MESHED = ("gfx942", "gfx950")  # MI300 to MI355: every GPU of a node has a link to every other


@cache
def known() -> finding_texts.Table:
    return finding_texts.load()


def judge(
    record: Recorder,
    names: Iterable[str],
    value: Callable[[NodeProfile], Any],
    part: Callable[[NodeProfile], NodeProfile] = lambda profile: profile,
    wanted: str = "",
    unread: str = "could not be read",
) -> None:
    """Each node fails that is in one of the doctor's states of these `names`. `value` is what is shown of it, None
    where it could not be read, which is no state and never passes; the rules see `part` of its profile."""
    for node in record.nodes:
        if node.profile is None:
            record.skipped(node.name, "its profile was not read")
            continue
        seen = part(node.profile)
        problems = [known()[name].filled("what", values) for name in names for values in RULES[name](seen)]
        if problems:
            record.failed(node.name, "; ".join(problems), value(seen), wanted=wanted)
        elif value(seen) is None:
            record.skipped(node.name, unread, wanted=wanted)
        else:
            record.passed(node.name, value(seen), wanted=wanted)


def equal(record: Recorder, what: str, value: Callable[[NodeProfile], str | None]) -> None:
    """The same on all nodes; None is "could not be read"."""
    record.all_equal({node.name: value(node.profile) for node in record.nodes if node.profile}, what)


def commonest(values: Iterable[T], size: Callable[[T], int] = lambda _: 0) -> tuple[T, ...]:
    """What most have, of several as common the largest, since what one node lost makes no other one wrong. Where there
    are several of those nobody knows which is right."""
    ranks = {value: (count, size(value)) for value, count in Counter(values).items()}
    best = max(ranks.values(), default=None)
    return tuple(value for value, rank in ranks.items() if rank == best)


def listed(values: Iterable[object]) -> str:
    """Different values in a stable order, as one text."""
    return " + ".join(sorted({str(value) for value in values}))


def readable(record: Recorder, rows: Mapping[str, Any], key: str) -> list[tuple[NodeEvidence, Any]]:
    """The nodes with what they answer for `key`. Those that gave no answer fail; those that lack it are skipped."""
    values = []
    for node, row in answers(record, rows):
        value = row.get(key) if isinstance(row, Mapping) else getattr(row, key)
        if value is None:
            record.skipped(node.name, f"{node.name} doesn't allow reading it")
        else:
            values.append((node, value))
    return values


def answers(record: Recorder, rows: Mapping[str, Any]) -> list[tuple[NodeEvidence, Any]]:
    """The nodes with their answers; those that gave none fail, as nothing is known to be right there."""
    answered = []
    for node in record.nodes:
        row = rows.get(node.name) or NoAnswer(error="no answer")
        error = row.error if isinstance(row, NoAnswer) else row.get("error") if isinstance(row, Mapping) else None
        if error is not None:
            record.failed(node.name, f"could not be inspected: {error}")
        else:
            answered.append((node, row))
    return answered


def profiles(record: Recorder) -> list[tuple[NodeEvidence, NodeProfile]]:
    return [(node, node.profile) for node in record.nodes if node.profile]

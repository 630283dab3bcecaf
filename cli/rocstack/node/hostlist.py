"""Slurm's hostlists: `n[01-03,7]` and the names it stands for. Standard library only."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterable

MOST = 1 << 16  # names in one list; slurm.conf(5): "no more than 64k"
_PART = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")  # of a thousand open brackets each is looked at once
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """A key that sorts n2 before n10."""
    return tuple((text, int(number[-18:] or 0)) for text, number in re.findall(r"(\D*)(\d*)", name))


def fold(names: Iterable[str]) -> str:
    """The shortest list in this order; only neighbours are joined, so a second list can stand beside it."""
    parts = []
    for prefix, group in itertools.groupby(map(_split, names), key=lambda pair: pair[0]):
        numbers = [number for _, number in group]
        ranges = _ranges(numbers)
        bracket = len(numbers) > 1 and "" not in numbers
        parts += [f"{prefix}[{','.join(ranges)}]"] if bracket else [f"{prefix}{number}" for number in numbers]
    return ",".join(parts)


def expand(text: str) -> tuple[str, ...]:
    """Every name, in order.

    Raises:
        ValueError: brackets that don't close or hold no numbers, or more names than Slurm takes.
    """
    found: list[str] = []
    for part in _PART.findall(text):
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        if any(mark in piece for piece in pieces for mark in "[]"):
            raise ValueError(f"{text!r:.80} is no hostlist: a bracket is not closed")
        count, choices = 1, []
        for odd, piece in enumerate(pieces):
            choices.append(_numbers(piece, text) if odd % 2 else [piece])
            count *= len(choices[-1])
            if count + len(found) > MOST:  # before the next bracket's numbers are made
                raise ValueError(f"{text!r:.80} names more than {MOST} nodes")
        found += map("".join, itertools.product(*choices))
    if not found or ",".join(_PART.findall(text)) != text:
        raise ValueError(f"{text!r:.80} is no hostlist such as n[1-3,7]")
    return tuple(found)


def first(text: str) -> str:
    """The first name, however many there are.

    Raises:
        ValueError: as `expand`.
    """
    part = re.match(r"((?:[^\[\],]|\[\d[^\[\]]*\])+)(?:,|$)", text)
    if not part:
        raise ValueError(f"{text!r:.80} is no hostlist such as n[1-3,7]")
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", part[1])


def _split(name: str) -> tuple[str, str]:
    prefix = name.rstrip(string.digits)
    return prefix, name[len(prefix) :]


def _ranges(numbers: list[str]) -> list[str]:
    """Runs of numbers that count up by one; 09 and 9 are not the same."""
    out: list[list[str]] = []
    for number in numbers:
        last = out[-1][-1] if out else ""
        if last and len(last) < 19 and number == f"{int(last) + 1:0{len(last)}d}":
            out[-1].append(number)
        else:
            out.append([number])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in out]


def _numbers(text: str, whole: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or last < first:
            raise ValueError(f"{whole!r:.80} is no hostlist: '{part:.80}' is not a range of numbers")
        if last - first > MOST - len(found):
            raise ValueError(f"{whole!r:.80} names more than {MOST} nodes")
        found += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return found

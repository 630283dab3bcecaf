"""The collectives of a compiled step: how often, how large, and over which wires. Reads the excerpt of XLA's text that
images/maxtext/compile.py makes of it. Pure.

A collective in a loop counts as often as the loop runs; of both branches of a condition, both count. `x-start` and its
`x-done` are one; a collective that is wrapped as a computation of its own is found where that is called.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

KINDS = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
    "collective-broadcast",
)  # fmt: skip
MOST_DEPTH, MOST_COUNT = 64, 1 << 40
_BITS = {"pred": 8, "token": 0}
_HEAD = re.compile(r"(ENTRY )?%([\w.\-]{1,300}) \{")
_LINE = re.compile(r"%[\w.\-]{1,300} = (.*?) ?\b([a-z][a-z0-9\-]{1,40})\(\)(?:, (.*))?")
_CALLS = re.compile(
    r"\b(?:calls|to_apply|body|branch_computations|true_computation|false_computation)=(\{[^{}]*\}|%[\w.\-]+)"
)
_TRIPS = re.compile(r"\btrips=([0-9]{1,9})\b")
_IOTA = re.compile(r"replica_groups=\[(\d{1,8}),(\d{1,8})\]<=\[([\d,]{1,100})\](?:T\(([\d,]{1,50})\))?")
_LISTED = re.compile(r"replica_groups=\{\{([\d,{}]*)\}\}")
_PAIRS = re.compile(r"source_target_pairs=\{\{([\d,{}]*)\}\}")
_PART = re.compile(r"([a-z][a-z0-9]{0,15})\[([\d,]{0,200})\]|[(),]")


@dataclass(frozen=True, kw_only=True)
class StepCollective:
    """One kind of collective in groups of `ranks`, of which `near` are in one node: `count` a step, `bytes` of a GPU
    and step (of what is gathered, summed up, or sent on), the largest one's `largest`."""

    kind: str
    ranks: int
    near: int
    count: int
    bytes: int
    largest: int

    @property
    def fabric(self) -> bool:
        """Whether groups span nodes."""
        return self.near < self.ranks

    @property
    def sent(self) -> float:
        """Bytes that a GPU puts on the wire, whatever the algorithm."""
        if self.kind == "collective-permute":
            return float(self.bytes)
        return (2 if self.kind == "all-reduce" else 1) * (self.ranks - 1) / self.ranks * self.bytes


@dataclass(frozen=True)
class StepText:
    """`endless`: loops whose number of rounds the text doesn't say; their collectives count once."""

    collectives: tuple[StepCollective, ...]
    endless: int


Key = tuple[str, int, int]


class _Sum(dict[Key, list[int]]):
    """(kind, ranks, near) -> count, bytes, the largest."""

    def add(self, key: Key, count: int, size: int, largest: int) -> None:
        if count > MOST_COUNT:
            raise ValueError("a collective runs more often than any step's")
        have = self.setdefault(key, [0, 0, 0])
        have[0], have[1], have[2] = have[0] + count, have[1] + size, max(have[2], largest)


def read(lines: Sequence[str], gpus: int, node_of: Callable[[int], int]) -> StepText:
    """`node_of`: the node of a GPU, by its number in the text.

    Raises:
        ValueError: it is no such text.
    """
    bodies, entry = _computations(lines)
    sums: dict[str, _Sum] = {}
    groups: dict[str, tuple[int, int]] = {}  # as they are written
    endless = 0

    def total(name: str, depth: int) -> _Sum:
        nonlocal endless
        if depth > MOST_DEPTH:
            raise ValueError("computations call each other without end")
        if name in sums:
            return sums[name]
        found = _Sum()
        for kind, shape, attributes in bodies[name]:
            plain = kind.removesuffix("-start")
            if plain in KINDS:
                written = "".join(match[0] for each in (_PAIRS, _IOTA, _LISTED) if (match := each.search(attributes)))
                if not written or written not in groups:  # most collectives have one of a few
                    groups[written] = _group(attributes, gpus, node_of)
                ranks, near = groups[written]
                size = _size(plain, kind != plain, shape, ranks)
                if ranks > 1:
                    found.add((plain, ranks, near), 1, size, size)
                continue
            rounds = 1
            if kind == "while":
                trips = _TRIPS.search(attributes)
                rounds, endless = (int(trips[1]), endless) if trips else (1, endless + 1)
            for each in _CALLS.findall(attributes):
                for called in re.findall(r"[\w.\-]+", each):
                    if called in bodies:
                        for key, (count, size, largest) in total(called, depth + 1).items():
                            found.add(key, rounds * count, rounds * size, largest)
        sums[name] = found
        return found

    every = total(entry, 0)
    collectives = (
        StepCollective(kind=kind, ranks=ranks, near=near, count=count, bytes=size, largest=largest)
        for (kind, ranks, near), (count, size, largest) in every.items()
    )
    return StepText(tuple(sorted(collectives, key=lambda each: (-each.fabric, -each.sent, each.kind))), endless)


def _computations(lines: Iterable[str]) -> tuple[dict[str, list[tuple[str, str, str]]], str]:
    """Name -> (operation, type, attributes) of each line; and the one that all begins with."""
    bodies: dict[str, list[tuple[str, str, str]]] = {}
    entry, current = None, None
    for line in lines:
        if head := _HEAD.fullmatch(line):
            current = bodies.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif line == "}":
            current = None
        elif current is not None and (match := _LINE.fullmatch(line)):
            current.append((match[2], match[1], match[3] or ""))
        else:
            raise ValueError(f"a line that is none of the text's: {line[:80]!r}")
    if entry is None:
        if bodies:
            raise ValueError("no computation is the first")
        return {"": []}, ""  # a step of one GPU
    return bodies, entry


def _group(attributes: str, gpus: int, node_of: Callable[[int], int]) -> tuple[int, int]:
    """Ranks of a group, and how many of them one node has, where it has fewest."""
    if pairs := _PAIRS.search(attributes):
        ways = [_numbers(each, gpus) for each in pairs[1].split("},{")]
        if any(len(way) != 2 for way in ways):
            raise ValueError("a pair of GPUs isn't two")
        ahead = {way[0]: way[1] for way in ways}
        ring, at = 1, ahead[ways[0][0]]
        while at in ahead and at != ways[0][0] and ring <= gpus:
            ring, at = ring + 1, ahead[at]
        if all(source == target for source, target in ways):
            return 1, 1
        ring = max(ring, 2)
        return ring, 1 if any(node_of(source) != node_of(target) for source, target in ways) else ring
    groups = _groups(attributes, gpus)
    if len({len(group) for group in groups}) != 1:
        raise ValueError("groups of a collective differ in size")
    nodes = max(len({node_of(each) for each in group}) for group in groups)
    return len(groups[0]), -(-len(groups[0]) // nodes)


def _groups(attributes: str, gpus: int) -> list[list[int]]:
    if iota := _IOTA.search(attributes):
        groups, ranks = int(iota[1]), int(iota[2])
        sizes = [int(each) for each in iota[3].split(",")]
        if groups * ranks != prod(sizes) or prod(sizes) > gpus or not ranks:
            raise ValueError("groups of a collective aren't its GPUs")
        order = [int(each) for each in iota[4].split(",")] if iota[4] else list(range(len(sizes)))
        if sorted(order) != list(range(len(sizes))):
            raise ValueError("groups of a collective are ordered by nothing")
        flat = _transposed(sizes, order)
        return [flat[start : start + ranks] for start in range(0, len(flat), ranks)]
    if listed := _LISTED.search(attributes):
        return [_numbers(each, gpus) for each in listed[1].split("},{")]
    if "replica_groups=" in attributes and "replica_groups={}" not in attributes:
        raise ValueError("groups of a collective are written in an unknown way")
    return [list(range(gpus))]


def _transposed(sizes: list[int], order: list[int]) -> list[int]:
    """0, 1, 2, ... in the shape of `sizes`, its axes in another order, flat."""
    strides = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    found = [0]
    for axis in order:
        found = [base + step * strides[axis] for base in found for step in range(sizes[axis])]
    return found


def _numbers(text: str, gpus: int) -> list[int]:
    found = [int(each) for each in text.split(",") if each]
    if not found or max(found) >= gpus:
        raise ValueError("a collective names a GPU that isn't there")
    return found


def _size(kind: str, started: bool, text: str, ranks: int) -> int:
    """Bytes that are gathered, summed up or sent."""
    parts = _parts(text)
    if started and kind != "all-reduce" and isinstance(parts, list):
        if not parts:
            raise ValueError("a collective of nothing")
        parts = parts[1] if len(parts) > 1 else parts[0]
    size = _bytes(parts)
    return size * ranks if kind == "reduce-scatter" else size


Parts = int | list["Parts"]


def _parts(text: str) -> Parts:
    """Bytes of a type; of a tuple, of its parts."""
    stack: list[list[Parts]] = [[]]
    for match in _PART.finditer(text):
        if match[0] == "(":
            if len(stack) > MOST_DEPTH:
                raise ValueError("a type's brackets are nested without end")
            stack.append([])
        elif match[0] == ")":
            if len(stack) < 2:
                raise ValueError("a type's brackets don't match")
            inner = stack.pop()
            stack[-1].append(inner)
        elif match[1]:
            count = prod(int(each) for each in match[2].split(",") if each)
            stack[-1].append(count * _bits(match[1]) // 8)
    if len(stack) != 1 or len(stack[0]) != 1:
        raise ValueError(f"no type: {text[:80]!r}")
    return stack[0][0]


def _bits(name: str) -> int:
    if name in _BITS:
        return _BITS[name]
    match = re.search(r"[0-9]+", name)
    if match is None or int(match[0]) > 128:
        raise ValueError(f"an unknown type: {name!r}")
    return int(match[0])


def _bytes(parts: Parts) -> int:
    return parts if isinstance(parts, int) else sum(map(_bytes, parts))

"""Weak and strong scaling: what a recipe's runs on more and more nodes said of their speed, beside the ideal. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from rocstack.base.errors import BadInput
from rocstack.base.text import count, visible
from rocstack.jobs.recipe import Figures, Recipe
from rocstack.size.layout import GpuLayout

Kind = Literal["weak", "strong"]
MOST_COUNTS, MOST_NODES = 32, 65536
LONGEST, MOST = 2_000, 1e15  # characters of a line that is read; and of a number
LINES = 100_000  # numbers that are kept of one run


@dataclass(frozen=True, kw_only=True)
class ScalePoint:
    """One run. `tokens` a second of all ranks, `tflops` of each; None: the program doesn't say it. `bubble` is the
    share of the time in which a pipeline stage waits."""

    job: str
    nodes: int
    ranks: int
    batch: int
    tokens: float | None
    tflops: float | None
    bubble: float = 0.0

    def alike(self, other: ScalePoint) -> bool:
        """Whether both have their speed in the same unit."""
        return (self.tokens is None) == (other.tokens is None)

    @property
    def speed(self) -> float:
        """Of all ranks: tokens a second, or where nobody says them, TFLOPS."""
        return self.tokens if self.tokens is not None else (self.tflops or 0.0) * self.ranks


@dataclass(frozen=True, kw_only=True)
class NodePlaces:
    """Where the nodes of the runs are. `hosts`: machines that they really are; `virtual`: models of virtual nodes."""

    nodes: int
    hosts: int
    virtual: tuple[str, ...] = ()

    @property
    def cluster(self) -> bool:
        return not self.virtual and self.hosts >= self.nodes

    @property
    def says(self) -> str:
        """Empty where they are a cluster."""
        if self.virtual:
            what = f"virtual nodes ({', '.join(self.virtual)}), which all are one machine"
        elif not self.hosts:
            what = "nodes that don't say which machines they are"
        elif not self.cluster:
            what = f"{count(self.nodes, 'node')} on {count(self.hosts, 'host')}"
        else:
            return ""
        return f"a rehearsal, on {what}: ranks of one host are no cluster, and these figures say nothing of one"


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """The runs that were measured, the smallest first. `stopped`: why there are no more."""

    recipe: str
    kind: Kind
    points: tuple[ScalePoint, ...]
    places: NodePlaces | None = None
    picture: str = ""
    stopped: str = ""

    @property
    def ok(self) -> bool:
        return not self.stopped

    @property
    def unit(self) -> str:
        return "tokens/s" if self.points[0].tokens is not None else "TFLOPS"

    def ideal(self, point: ScalePoint) -> float:
        """Speed of all ranks, if each were as fast as those of the smallest run."""
        first = self.points[0]
        return first.speed * point.ranks / first.ranks

    def bubble(self, point: ScalePoint) -> float | None:
        """The same less what stages wait longer than in the smallest run; None without a pipeline."""
        first = self.points[0]
        if not any(each.bubble for each in self.points):
            return None
        return self.ideal(point) * (1 - point.bubble) / (1 - first.bubble)

    def efficiency(self, point: ScalePoint) -> float:
        return point.speed / self.ideal(point)

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {
                "job": each.job, "nodes": each.nodes, "ranks": each.ranks, "batch": each.batch,
                "tokens_per_s": each.tokens,
                "tokens_per_s_device": None if each.tokens is None else each.tokens / each.ranks,
                "tflops_device": each.tflops, "efficiency": self.efficiency(each), "ideal": self.ideal(each),
                "bubble": each.bubble if self.bubble(each) is not None else None, "bubble_line": self.bubble(each),
            }
            for each in self.points
        ]  # fmt: skip
        places = self.places
        return {
            "recipe": self.recipe, "scaling": self.kind, "unit": self.unit if rows else None, "points": rows,
            "cluster": bool(places and places.cluster), "hosts": places.hosts if places else None,
            "virtual": list(places.virtual) if places else None, "says": places.says if places else "",
            "picture": self.picture or None, "stopped": self.stopped or None,
        }  # fmt: skip


def counts(text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers of nodes, ascending.

    Raises:
        BadInput: they aren't such numbers, fewer than two, or not each larger than the one before.
    """
    words = [word.strip() for word in text.split(",")]
    shown = visible(text[:80])
    if not all(re.fullmatch(r"[0-9]{1,7}", word) for word in words) or len(words) > MOST_COUNTS:
        raise BadInput.of("bad-node-counts", given=shown, why=f"it is no list of at most {MOST_COUNTS} numbers")
    found = tuple(map(int, words))
    if not all(1 <= each <= MOST_NODES for each in found):
        raise BadInput.of("bad-node-counts", given=shown, why=f"a job has 1 to {MOST_NODES:,} nodes")
    if len(set(found)) < len(found):
        raise BadInput.of("bad-node-counts", given=shown, why="a number is there twice")
    if len(found) < 2:
        raise BadInput.of("bad-node-counts", given=shown, why="one number of nodes shows no scaling")
    return tuple(sorted(found))


def batches(recipe: Recipe, values: Mapping[str, Any], nodes: tuple[int, ...], kind: Kind) -> tuple[int, ...]:
    """Sequences of a step for each number of nodes: always the same, or for each node as many as in the first run.

    Raises:
        BadInput: the recipe's program says no figures, or nobody says the batch, or it can't be shared out.
    """
    if recipe.figures is None or "batch" not in recipe.parameters:
        raise BadInput.of("no-figures", recipe=recipe.name)
    batch = values["batch"]
    if batch is None:
        raise BadInput.of("scale-without-batch", recipe=recipe.name, nodes=count(nodes[0], "node"))
    if kind == "strong":
        return (batch,) * len(nodes)
    for each in nodes:
        if batch * each % nodes[0]:
            raise BadInput.of("uneven-batch", batch=batch, first=count(nodes[0], "node"), nodes=each)
    return tuple(batch * each // nodes[0] for each in nodes)


def bubble(values: Mapping[str, Any], ranks: int, batch: int) -> float:
    """By the parameters `pp`, `tp`, `cp` and `micro_batch` of a recipe; 0 without stages. Chunks of stages count only
    if there were none: no recipe has a parameter for them."""
    pp, micro = values.get("pp") or 1, values.get("micro_batch") or 1
    width = pp * (values.get("tp") or 1) * (values.get("cp") or 1)
    dp = max(ranks // width, 1)
    return GpuLayout(pp=pp, dp=dp, micro=micro, accumulate=max(batch // (dp * micro), 1)).bubble


class FigureReader:
    """Takes a job's log in pieces. The first number of several is left out: a first step compiles and allocates."""

    def __init__(self, figures: Figures) -> None:
        self.figures, self.rest = figures, ""
        self.patterns = {name: re.compile(text) for name in ("tokens", "tflops") if (text := getattr(figures, name))}
        self.found: dict[str, list[float]] = {name: [] for name in self.patterns}

    def read(self, piece: str) -> None:
        *lines, self.rest = (self.rest + piece).split("\n")
        self.rest = self.rest[-LONGEST:]
        self._take(lines)

    def _take(self, lines: Iterable[str]) -> None:
        for line in lines:
            for name, pattern in self.patterns.items():
                said = pattern.search(line[:LONGEST])
                number = _number(said[1]) if said else None
                if number is not None and len(self.found[name]) < LINES:
                    self.found[name].append(number)

    def point(self, *, job: str, nodes: int, ranks: int, batch: int, bubble: float) -> ScalePoint | None:
        """None where the program said nothing."""
        self._take([self.rest])
        middle = {name: median(all_of[1:] or all_of) for name, all_of in self.found.items() if all_of}
        if not middle:
            return None
        tokens = middle.get("tokens")
        if tokens is not None and not self.figures.all:
            tokens *= ranks
        return ScalePoint(
            job=job, nodes=nodes, ranks=ranks, batch=batch, tokens=tokens, tflops=middle.get("tflops"), bubble=bubble
        )


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if 1 / MOST < value < MOST else None

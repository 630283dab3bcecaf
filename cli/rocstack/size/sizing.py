"""The answer: the layout that was asked for or is best, what it needs, and how fast it would be. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rocstack.base.errors import BadInput
from rocstack.base.findings import Finding
from rocstack.size import advice
from rocstack.size.hardware import Hardware
from rocstack.size.layout import Asked, GpuLayout, divisors, possible, problem
from rocstack.size.memory import Memory, need
from rocstack.size.models import Model
from rocstack.size.shape import Shape
from rocstack.size.speed import Speed, seconds_of, speed
from rocstack.size.traffic import Traffic, traffic

TOKENS = 1 << 20  # of a step, where nobody says it
ALIKE = 0.05  # of the speed: the formula knows no better
MOST_NODES, MOST_GPUS = 4096, 1 << 22


@dataclass(frozen=True, kw_only=True)
class Sized:
    """`least`: nodes that fit, where this many don't, or where none were given; `instead`: a layout that fits where
    the one that was asked for doesn't; `alone`: GPUs of one node that would do, where no nodes were given."""

    model: Model
    shape: Shape
    hardware: Hardware
    layout: GpuLayout
    sequence: int
    rank: int
    memory: Memory
    wires: tuple[Traffic, ...]
    speed: Speed | None
    findings: tuple[Finding, ...]
    least: int | None = None
    alone: int | None = None
    instead: GpuLayout | None = None

    @property
    def ok(self) -> bool:
        return self.over <= 0

    @property
    def over(self) -> float:
        """Bytes that a GPU lacks; below 0: that it has left."""
        return self.memory.total - self.hardware.budget

    @property
    def nodes(self) -> int:
        return -(-self.layout.gpus // self.hardware.gpus)

    def to_dict(self) -> dict[str, Any]:
        wires = [
            {
                "kind": each.kind, "what": each.what, "bytes": each.bytes, "ranks": each.members,
                "where": "fabric" if each.fabric else "node",
                "seconds": seconds_of(each, self.hardware) if self.speed else None,
            }
            for each in self.wires
        ]  # fmt: skip
        return {
            "model": {
                "about": self.model.about, "source": self.model.source, "type": self.shape.type,
                "parameters": self.shape.parameters, "active": self.shape.active_parameters,
                "parts": self.shape.parts(),
                "trained": self.shape.adapters(self.rank) if self.rank else self.shape.parameters,
            },
            "gpu": self.hardware.gpu, "nodes": self.nodes, "gpus_per_node": self.hardware.gpus,
            "sequence": self.sequence,
            "layout": self.layout.to_dict(), "bubble": self.layout.bubble,
            "memory": {
                "parts": self.memory.parts, "total": self.memory.total, "budget": self.hardware.budget,
                "activations": {"kept": self.memory.kept, "recomputed": self.memory.again},
            },
            "fits": self.ok, "over": self.over,
            "flops": {
                "token": self.shape.flops(self.sequence, trained=not self.rank),
                "step": self.shape.flops(self.sequence, trained=not self.rank) * self.layout.batch * self.sequence,
            },
            "wire": wires, "time": self.speed.to_dict() if self.speed else None,
            "least_nodes": self.least, "least_gpus": self.alone,
            "instead": self.instead.to_dict() if self.instead else None,
            "findings": [each.to_dict() for each in self.findings],
        }  # fmt: skip


def answer(
    model: Model, shape: Shape, hardware: Hardware, asked: Asked, *, nodes: int | None, sequence: int, rank: int = 0
) -> Sized:
    """
    Raises:
        BadInput: no layout of so many GPUs has what is asked for; it names the nearest.
    """
    search = LayoutSearch(shape, hardware, sequence, rank)
    gpus, least = search.size(asked, nodes)
    found = search.layouts(gpus, asked)
    if not found:
        raise search.refusal(gpus, asked)
    fitting = [each for each in search.modes(found, asked) if search.fits(each)]
    if fitting:
        best, instead = search.fastest(fitting), None
    else:
        best = min(search.modes(found, asked), key=lambda each: need(shape, each, sequence, rank).total)
        free = Asked(batch=asked.batch)
        others = [each for each in search.modes(search.layouts(gpus, free), free) if search.fits(each)]
        instead = search.fastest(others) if others else None
        least = search.least(free) if instead is None else None
    alone = search.alone(asked) if least == 1 and fitting else None
    return replace(search.sized(model, best), least=least, instead=instead, alone=alone)


@dataclass(frozen=True)
class LayoutSearch:
    shape: Shape
    hardware: Hardware
    sequence: int
    rank: int

    @property
    def batch(self) -> int:
        return max(1, TOKENS // self.sequence)

    def sized(self, model: Model, layout: GpuLayout) -> Sized:
        shape, hardware, sequence, rank = self.shape, self.hardware, self.sequence, self.rank
        wires = traffic(shape, layout, sequence, hardware.gpus, rank)
        fast = speed(shape, layout, sequence, hardware, rank)
        return Sized(
            model=model, shape=shape, hardware=hardware, layout=layout, sequence=sequence, rank=rank,
            memory=need(shape, layout, sequence, rank), wires=wires, speed=fast,
            findings=advice.findings(shape, layout, hardware, wires, fast, self.fits),
        )  # fmt: skip

    def size(self, asked: Asked, nodes: int | None) -> tuple[int, int | None]:
        """GPUs, and where no number of nodes was given, the least nodes."""
        if nodes:
            return nodes * self.hardware.gpus, None
        if asked.tp and asked.pp and asked.dp:
            gpus = asked.tp * (asked.cp or 1) * asked.pp * asked.dp
            if gpus > MOST_GPUS:
                raise BadInput.of("layout-too-large", gpus=f"{gpus:,}", most=f"{MOST_GPUS:,}")
            return gpus, None
        least = self.least(asked)
        return (least or 1) * self.hardware.gpus, least

    def least(self, asked: Asked) -> int | None:
        """The fewest nodes on which a layout fits: of 1, 2, 3, 4, 6, 8, 12 and so on, and then of those in between."""
        before = 0
        for size in _sizes():
            if self.any_fits(size * self.hardware.gpus, asked):
                fewer = range(before + 1, size)
                return next((nodes for nodes in fewer if self.any_fits(nodes * self.hardware.gpus, asked)), size)
            before = size
        return None

    def alone(self, asked: Asked) -> int | None:
        """The fewest GPUs of a node, if not all."""
        return next((gpus for gpus in divisors(self.hardware.gpus)[:-1] if self.any_fits(gpus, asked)), None)

    def any_fits(self, gpus: int, asked: Asked) -> bool:
        """Small micro-batches and whole stages need least."""
        least = replace(asked, micro=asked.micro or 1, interleave=asked.interleave or 1)
        return any(map(self.fits, self.modes(self.layouts(gpus, least), asked)))

    def layouts(self, gpus: int, asked: Asked) -> list[GpuLayout]:
        return list(possible(self.shape, gpus, self.hardware.gpus, asked, self.batch, self.sequence))

    def modes(self, layouts: Iterable[GpuLayout], asked: Asked) -> Iterator[GpuLayout]:
        for each in layouts:
            for again in (False, True) if asked.recompute is None else (asked.recompute,):
                yield replace(each, recompute=again)

    def fits(self, layout: GpuLayout) -> bool:
        return need(self.shape, layout, self.sequence, self.rank).total <= self.hardware.budget

    def fastest(self, layouts: list[GpuLayout]) -> GpuLayout:
        """By tokens/s between both bounds: of those that are nearly as fast as the fastest, and where nobody knows
        speeds, the simplest. The arithmetic doesn't know that narrow products are slow: what is warned of is last."""

        def score(layout: GpuLayout) -> tuple[bool, float]:
            found = speed(self.shape, layout, self.sequence, self.hardware, self.rank)
            return not advice.narrow(self.shape, layout), found.score if found else 0.0

        scores = [(layout, *score(layout)) for layout in layouts]
        wide, most = max((wide, fast) for _, wide, fast in scores)
        near = [each for each in scores if each[1] == wide and each[2] >= most * (1 - ALIKE)]
        return min(near, key=lambda each: (each[0].effort, -each[2]))[0]

    def refusal(self, gpus: int, asked: Asked) -> BadInput:
        plain = asked.plainly(gpus, self.batch)
        why = problem(self.shape, plain, gpus, self.sequence)
        if why is None:
            rounds = f"{plain.dp} ranks with {plain.accumulate} × {plain.micro} sequences"
            why = f"{rounds} aren't a batch of {asked.batch}"
        all_known = self.layouts(gpus, Asked(batch=asked.batch)) or self.layouts(gpus, Asked())
        some = f"{gpus:,} GPU{'s' * (gpus > 1)}"
        if not all_known:
            return BadInput.of("impossible-layout", why=why, gpus=some, nearest="none", flags="another --nodes")
        near = min(all_known, key=asked.like)
        return BadInput.of("impossible-layout", why=why, gpus=some, nearest=near, flags=flags(near))


def flags(layout: GpuLayout) -> str:
    """The options that ask for exactly this layout."""
    words = [f"--tp {layout.tp} --pp {layout.pp} --dp {layout.dp} --shard {layout.shard}"]
    more = {"--cp": layout.cp, "--ep": layout.ep, "--interleave": layout.interleave}
    words += [f"{name} {degree}" for name, degree in more.items() if degree > 1]
    words += [f"--micro-batch {layout.micro} --accumulate {layout.accumulate}"]
    return " ".join([*words, *["--recompute layers"] * layout.recompute])


def _sizes() -> Iterator[int]:
    size = 1
    while size <= MOST_NODES:
        yield size
        if size > 1:
            yield size * 3 // 2
        size *= 2

"""How long a step takes: matrix products at the rate that training reaches, what passes through memory beside them,
collectives at the links' speeds, and the pipeline's waits. Pure.

Two bounds. `slow`: products at the lower rate, and nothing is hidden. `fast`: products at the upper rate, and whatever
no layer waits for is hidden behind them as far as it fits. Sums of tensor-parallel groups and all-to-alls of experts
are never hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rocstack.size.hardware import Hardware
from rocstack.size.layout import GpuLayout, shares
from rocstack.size.memory import held, moved
from rocstack.size.shape import Shape
from rocstack.size.traffic import Traffic, traffic

BUSY = ("products", "attention", "memory")
STATES = 28  # bytes that AdamW reads and writes of a parameter


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of one step, by what they are spent on; `hidden` of the collectives' isn't among them."""

    parts: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def kinds(self) -> dict[str, float]:
        """Of its own, for others, and waiting for them."""
        kinds = {**dict.fromkeys((*BUSY, "optimizer"), "compute"), "bubble": "bubble"}
        found = {"compute": 0.0, "communication": 0.0, "bubble": 0.0}
        for name, seconds in self.parts.items():
            found[kinds.get(name, "communication")] += seconds
        return found


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Pairs are (slow, fast)."""

    steps: tuple[StepSeconds, StepSeconds]
    tokens: int  # of a step
    flops: float  # useful ones, of a token
    gpus: int
    peak: float | None

    @property
    def seconds(self) -> tuple[float, float]:
        return self.steps[0].seconds, self.steps[1].seconds

    @property
    def rate(self) -> tuple[float, float]:
        """Tokens/s of all GPUs."""
        slow, fast = self.seconds
        return self.tokens / slow, self.tokens / fast

    @property
    def achieved(self) -> tuple[float, float]:
        """Useful FLOP/s of a GPU."""
        slow, fast = self.rate
        return slow * self.flops / self.gpus, fast * self.flops / self.gpus

    @property
    def mfu(self) -> tuple[float, float] | None:
        slow, fast = self.achieved
        return (slow / self.peak, fast / self.peak) if self.peak else None

    @property
    def score(self) -> float:
        return sum(self.rate)

    def to_dict(self) -> dict[str, Any]:
        names = ("slow", "fast")
        return {
            "seconds": dict(zip(names, self.seconds, strict=True)),
            "tokens_per_s": dict(zip(names, self.rate, strict=True)),
            "tflops_per_gpu": {name: each / 1e12 for name, each in zip(names, self.achieved, strict=True)},
            "mfu": dict(zip(names, self.mfu, strict=True)) if self.mfu else None,
            "parts": {name: step.parts for name, step in zip(names, self.steps, strict=True)},
        }

    def exchanging(self, wires: Sequence[tuple[str, float, bool]], layout: GpuLayout) -> Speed:
        """With these collectives in place of the formula's: what they are, their seconds, and whether a layer waits for
        them. Those of a pipeline count in the rounds in which its stages wait, too."""
        steps = []
        for own, hide in zip(self.steps, (False, True), strict=True):
            parts = {name: own.parts[name] for name in BUSY}
            busy = left = sum(parts.values())
            for name, seconds, blocks in wires:
                hidden = min(seconds, left) if hide and not blocks else 0.0
                left -= hidden
                parts[name] = parts.get(name, 0.0) + seconds - hidden
            parts["bubble"] = busy * (layout.pp - 1) / (layout.interleave * layout.accumulate)
            parts["optimizer"] = own.parts.get("optimizer", 0.0)
            steps.append(StepSeconds({name: seconds for name, seconds in parts.items() if seconds}))
        return replace(self, steps=(steps[0], steps[1]))


def speed(shape: Shape, layout: GpuLayout, sequence: int, hardware: Hardware, rank: int = 0) -> Speed | None:
    """None where nobody says what the GPU or its links reach."""
    if hardware.gemm is None or hardware.hbm is None or hardware.inside is None:
        return None
    wires = traffic(shape, layout, sequence, hardware.gpus, rank)
    if any(each.fabric for each in wires) and not hardware.nic:
        return None
    slow, fast = (
        _step(shape, layout, sequence, hardware, rank, wires, rate, hide)
        for rate, hide in ((hardware.gemm[0], False), (hardware.gemm[1], True))
    )
    return Speed(
        steps=(slow, fast), tokens=layout.batch * sequence, flops=shape.flops(sequence, trained=not rank),
        gpus=layout.gpus, peak=hardware.peak,
    )  # fmt: skip


def _step(
    shape: Shape, layout: GpuLayout, sequence: int, hardware: Hardware, rank: int,
    wires: tuple[Traffic, ...], gemm: float, hide: bool,
) -> StepSeconds:  # fmt: skip
    tokens, rounds = layout.micro * sequence / layout.cp, layout.accumulate
    layers, output = _stage(shape, layout)
    share = layers / shape.layers
    again = 1 if layout.recompute else 0
    inner = (shape.active_parameters - shape.embedding) * share
    passes = (2 if rank else 3) + again
    products = 2 * tokens * (inner * passes + (passes - again) * shape.embedding * output) / layout.tp
    # FlashAttention's backward has 2.5 times the products of its forward.
    attention = tokens * shape.attention_flops(sequence) * share * (3.5 + again) / layout.tp
    assert hardware.hbm is not None
    memory = tokens * moved(shape) * share * (1 + again / 3) / layout.tp / hardware.hbm
    one = {"products": products / gemm, "attention": attention / (hardware.attention * gemm), "memory": memory}
    parts = {name: seconds * rounds for name, seconds in one.items()}
    busy, hidden = sum(parts.values()), 0.0
    for each in wires:
        took = seconds_of(each, hardware)
        if hide and not each.blocks:
            # The sums of a step whose weights are whole go behind the last backward pass, two thirds of a round.
            room = busy if each.kind.startswith("FSDP") or each.kind == "PP" else busy / rounds * 2 / 3
            fits = min(took, max(room - hidden, 0.0))
            hidden, took = hidden + fits, took - fits
        parts[each.kind] = parts.get(each.kind, 0.0) + took
    waits = (layout.pp - 1) / (layout.interleave * rounds)
    blocked = sum(parts[each.kind] for each in wires if each.blocks)
    parts["bubble"] = (busy + blocked) * waits
    biggest = max(held(shape, layout), key=lambda each: each.all)
    owners = layout.owners if layout.owners > 1 else layout.dp
    states = shape.adapters(rank) * share / layout.tp if rank else biggest.all
    parts["optimizer"] = STATES * states / owners / hardware.hbm
    return StepSeconds({name: seconds for name, seconds in parts.items() if seconds})


def _stage(shape: Shape, layout: GpuLayout) -> tuple[int, bool]:
    """Layers of the slowest stage, and whether it has the output matrix."""
    *others, last = shares(shape.layers, layout.pp)
    one = (shape.active_parameters - shape.embedding) / shape.layers
    ahead = max(others, default=0)
    return (last, True) if last * one + shape.embedding >= ahead * one else (ahead, False)


def seconds_of(each: Traffic, hardware: Hardware) -> float:
    """At the links' speed: those of the node, or the NICs' share of as many GPUs of the group as a node has."""
    if each.kind == "PP":
        return each.bytes / (hardware.share if each.fabric else hardware.link or hardware.share)
    near = min(each.members, max(1, hardware.gpus // each.stride))
    inside = hardware.ring(near) if near > 1 else None
    if not each.fabric:
        return each.bytes / (inside or hardware.share)
    if each.kind == "EP":  # each token goes its own way
        return each.bytes / hardware.share
    rails = near * hardware.share
    return each.bytes / (min(rails, inside) if inside else rails)

"""Bytes that a GPU puts on the wire in a step, by kind, and where they go. Pure.

A collective of `n` ranks moves (n - 1)/n of what it gathers or scatters, and an all-reduce twice that, whatever the
algorithm. Weights are gathered in bf16, gradients summed up in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocstack.size.layout import GpuLayout
from rocstack.size.memory import Held, held
from rocstack.size.shape import Shape

BF16, FP32 = 2, 4


@dataclass(frozen=True)
class Traffic:
    """Of one kind. `bytes` of a GPU and step, in `members` ranks of which every `stride`-th belongs together.
    `fabric`: the group spans nodes. `blocks`: the layers wait for it."""

    kind: str
    what: str
    bytes: float
    members: int
    stride: int
    fabric: bool
    blocks: bool = False


def traffic(shape: Shape, layout: GpuLayout, sequence: int, per_node: int, rank: int = 0) -> tuple[Traffic, ...]:
    """Every kind that the layout has, of the stage that sends most weights. `rank`: of LoRA, 0 for none."""
    stage = max(held(shape, layout), key=lambda each: each.all)
    found = [
        _tensor(shape, layout, sequence, stage, per_node),
        _context(shape, layout, sequence, stage, per_node),
        _experts(shape, layout, sequence, stage, per_node),
        _pipeline(shape, layout, sequence, per_node),
        *_weights(shape, layout, stage, per_node, rank),
    ]
    return tuple(each for each in found if each and each.bytes)


def _tensor(shape: Shape, layout: GpuLayout, sequence: int, stage: Held, per_node: int) -> Traffic | None:
    """Two sums a layer forward, two backward, and two when it is computed again."""
    if layout.tp == 1:
        return None
    one = 2 * (layout.tp - 1) / layout.tp * layout.micro * sequence / layout.cp * shape.hidden * BF16
    sums = (6 if layout.recompute else 4) * stage.layers * layout.accumulate
    what = "all-reduce of each layer's output"
    return Traffic("TP", what, sums * one, layout.tp, 1, layout.tp > per_node, blocks=True)


def _context(shape: Shape, layout: GpuLayout, sequence: int, stage: Held, per_node: int) -> Traffic | None:
    """Each GPU gathers the keys and values of the whole sequence, forward and again for backward, and hands their
    gradients back. A tensor-parallel group has at least one head of them on each GPU."""
    if layout.cp == 1:
        return None
    heads = max(1.0, shape.keys / layout.tp)
    one = (layout.cp - 1) / layout.cp * layout.micro * sequence * heads * (shape.head + shape.value) * BF16
    times = 3 * stage.layers * layout.accumulate
    what = "all-gather of keys and values, twice, and their gradients"
    return Traffic("CP", what, times * one, layout.cp, layout.tp, layout.tp * layout.cp > per_node, blocks=True)


def _experts(shape: Shape, layout: GpuLayout, sequence: int, stage: Held, per_node: int) -> Traffic | None:
    """Tokens go to their experts and back, forward and backward."""
    if layout.ep == 1:
        return None
    tokens = layout.micro * sequence / (layout.tp * layout.cp)
    one = (layout.ep - 1) / layout.ep * tokens * shape.active * shape.hidden * BF16
    sparse = stage.layers * shape.sparse_layers / shape.layers
    times = (6 if layout.recompute else 4) * sparse * layout.accumulate
    what = "all-to-all of tokens and experts"
    stride = layout.tp * layout.cp
    return Traffic("EP", what, times * one, layout.ep, stride, stride * layout.ep > per_node, blocks=True)


def _pipeline(shape: Shape, layout: GpuLayout, sequence: int, per_node: int) -> Traffic | None:
    """Activations to the next stage, and their gradients back, for each chunk of layers."""
    if layout.pp == 1:
        return None
    one = layout.micro * sequence * shape.hidden * BF16 / (layout.tp * layout.cp)
    stride = layout.tp * layout.cp * layout.dp
    total = 2 * layout.interleave * layout.accumulate * one
    return Traffic("PP", "send to the next stage, and back", total, layout.pp, stride, layout.gpus > per_node)


def _weights(shape: Shape, layout: GpuLayout, stage: Held, per_node: int, rank: int) -> list[Traffic]:
    trained = 1.0 if not rank else shape.adapters(rank) / shape.parameters
    found = []
    if layout.owners > 1:
        # Experts are shared by ep ranks already; the rest of the shard gathers them.
        n, e = layout.owners, max(1, layout.owners // layout.ep)
        part = stage.plain * (n - 1) / n + stage.experts * (e - 1) / e
        spans = layout.tp * n > per_node
        gather = 2 * part * BF16 * layout.accumulate
        found.append(Traffic("FSDP gather", "all-gather of weights, twice", gather, n, layout.tp, spans))
        scatter = part * FP32 * layout.accumulate * trained
        found.append(Traffic("FSDP reduce", "reduce-scatter of gradients", scatter, n, layout.tp, spans))
        mine = stage.plain / n + stage.experts / e
        c, stride = layout.copies, layout.tp * n
        total = 2 * (c - 1) / c * mine * FP32 * trained
        found.append(Traffic("DP", "all-reduce of gradients", total, c, stride, stride * c > per_node))
        return found
    d, e = layout.dp, max(1, layout.dp // layout.ep)
    part = stage.plain * (d - 1) / d + stage.experts * (e - 1) / e
    spans = layout.tp * d > per_node
    found.append(Traffic("DP", "reduce-scatter of gradients", part * FP32 * trained, d, layout.tp, spans))
    found.append(Traffic("ZeRO", "all-gather of new weights", part * BF16 * trained, d, layout.tp, spans))
    return found

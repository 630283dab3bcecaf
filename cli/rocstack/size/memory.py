"""Bytes of a GPU at its peak, by what they are for. Pure.

The arithmetic is that of the trainer (rocstack_trainer/memory.py), and a test holds both together: bytes that autograd
keeps of a Llama block in bf16 with fused attention, shards as FSDP2 has them, and the loss in pieces. Whole weights
(no shards) are bf16 with a master copy in float32 among the optimizer's states, which all copies share (ZeRO-1).
Tensor-parallel groups split the sequence where they don't split the layer (Megatron's sequence parallelism).
"""

from __future__ import annotations

from dataclasses import dataclass

from rocstack.size.layout import GpuLayout, shares
from rocstack.size.shape import Shape

HIDDEN, MLP, KEYS, AGAIN = 20, 8, 4, 2  # bytes of a token and layer; AGAIN: of its input, if it is computed again
PIECE = 256 << 20  # of logits at a time


@dataclass(frozen=True, kw_only=True)
class Held:
    """Parameters that one pipeline stage of a tensor-parallel group's GPU has, before they are sharded."""

    plain: float  # all but experts
    experts: float
    root: float  # embedding, output and the norm before it
    block: float  # the largest layer
    dense: int  # layers
    sparse: int
    number: int  # of the stage, from 0
    last: bool

    @property
    def layers(self) -> int:
        return self.dense + self.sparse

    @property
    def all(self) -> float:
        return self.plain + self.experts


@dataclass(frozen=True)
class Memory:
    """`parts` in bytes, of the stage that needs most. `kept` and `again`: activations without and with computing
    layers again."""

    parts: dict[str, float]
    kept: float
    again: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def held(shape: Shape, layout: GpuLayout) -> tuple[Held, ...]:
    """Of the first stage, the second, the first one with experts only, and the last: one of them needs most."""
    layers, before = shares(shape.layers, layout.pp), 0
    found: dict[int, Held] = {}
    for number, own in enumerate(layers):
        new = before >= shape.dense_layers and not any(not each.dense for each in found.values())
        if number in (0, 1, layout.pp - 1) or new:
            found[number] = _stage(shape, layout, number, own, before)
        before += own
    return tuple(found.values())


def _stage(shape: Shape, layout: GpuLayout, number: int, layers: int, before: int) -> Held:
    first, last = number == 0, number == layout.pp - 1
    dense = max(0, min(shape.dense_layers - before, layers))
    sparse = layers - dense
    outside = shape.router + shape.experts * shape.router_bias
    plain = layers * shape.attention + dense * shape.dense + sparse * shape.shared
    small = layers * shape.small + sparse * outside
    matrices = first + (last and not (shape.tied and first))
    root = matrices * shape.embedding / layout.tp + shape.positions * shape.hidden * first
    root += (1 + shape.norm_bias) * shape.hidden * last
    experts = shape.experts * shape.expert / (layout.tp * layout.ep)
    of_dense = (shape.attention + shape.dense) / layout.tp + shape.small
    of_sparse = (shape.attention + shape.shared) / layout.tp + shape.small + outside + experts
    block = max(of_dense if dense else 0, of_sparse if sparse else 0)
    return Held(
        plain=plain / layout.tp + small + root, experts=sparse * experts, root=root, block=block, dense=dense,
        sparse=sparse, number=number, last=last,
    )  # fmt: skip


def need(shape: Shape, layout: GpuLayout, sequence: int, rank: int = 0) -> Memory:
    """Of the stage that needs most. `rank` is that of LoRA; 0: all parameters are trained."""
    found = (_need(shape, layout, sequence, rank, stage) for stage in held(shape, layout))
    return max(found, key=lambda each: each.total)


def _need(shape: Shape, layout: GpuLayout, sequence: int, rank: int, stage: Held) -> Memory:
    tokens = layout.micro * sequence / layout.cp
    flying = min(layout.pp - stage.number, layout.accumulate)  # micro-batches that wait for their backward
    more = 1 + (layout.pp - 1) / (layout.pp * layout.interleave) if layout.interleave > 1 else 1.0
    dense, sparse = (tokens * _kept(shape, kind) / layout.tp for kind in (False, True))
    kept = flying * more * (stage.dense * dense + stage.sparse * sparse)
    again = flying * more * stage.layers * tokens * AGAIN * shape.hidden / layout.tp
    again += max(dense if stage.dense else 0, sparse if stage.sparse else 0)
    parts = {**_states(shape, layout, rank, stage), "activations": again if layout.recompute else kept}
    if stage.last:
        pieces = max(1, -(-tokens * shape.vocabulary * 4 // PIECE))
        parts["logits"] = 12 * tokens * shape.vocabulary / (pieces * layout.tp) + 8 * tokens * shape.hidden
    return Memory(parts, kept, again)


def _states(shape: Shape, layout: GpuLayout, rank: int, stage: Held) -> dict[str, float]:
    """Weights, gradients and optimizer's states, and what is whole of shards for a while."""
    shared = max(1, layout.owners // layout.ep)  # GPUs that share an expert
    own = stage.plain / layout.owners + stage.experts / shared
    found: dict[str, float] = {}
    if rank:
        trained = shape.adapters(rank) * stage.layers / (shape.layers * layout.tp * layout.owners)
        found = {"weights": 2 * own + 4 * trained, "gradients": 4 * trained, "optimizer": 8 * trained}
    elif layout.owners > 1:
        found = {"weights": 4 * own, "gradients": 4 * own, "optimizer": 8 * own}
    else:
        states = stage.plain / layout.dp + stage.experts / max(1, layout.dp // layout.ep)
        found = {"weights": 2 * own, "gradients": 4 * own, "optimizer": 12 * states}
    if layout.owners > 1:  # root and two layers are whole at a time, and so are the gradients of what is summed up
        found["gathered"] = 2 * (2 * stage.root + 2 * stage.block) + 6 * max(stage.block, stage.root)
    return found


def _kept(shape: Shape, sparse: bool) -> float:
    """Bytes of a token that a layer keeps for backward."""
    wide = max(0, shape.heads * shape.head - shape.hidden)  # queries that are wider than the model
    found = HIDDEN * shape.hidden + 8 * wide + KEYS * shape.keys * shape.head
    if sparse:
        mlp = shape.active * shape.expert_mlp + shape.shared_mlp
        return found + MLP * mlp + 4 * shape.active * shape.hidden  # what goes to the experts, and comes back
    return found + (MLP if shape.gated else MLP / 2) * shape.mlp


def moved(shape: Shape) -> float:
    """Bytes of a token and its layers that pass through memory beside the products, in forward and backward: what is
    kept, written once and read or written twice more."""
    return 3 * (shape.dense_layers * _kept(shape, False) + shape.sparse_layers * _kept(shape, True))

"""How GPUs share a model: what is possible, and what is nearest to what isn't. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from math import log2
from typing import Any

from rocstack.base.text import count
from rocstack.size.shape import Shape

MICRO = (1, 2, 4, 8)  # sequences of a micro-batch that are tried
INTERLEAVE = (1, 2, 4)
LONG = 65536  # tokens of a sequence that may be shared


@dataclass(frozen=True, kw_only=True)
class GpuLayout:
    """Ranks of a group follow each other in this order: tensor, context, shard (with experts), copies, pipeline; so
    tensor groups lie within a node. Each of `dp` ranks sees other data; `shard` of them, with all of their `cp` GPUs,
    share one copy of weights, gradients and optimizer states. Where each has whole weights, they share the optimizer's
    states, all of them."""

    tp: int = 1
    cp: int = 1  # GPUs that share each sequence
    pp: int = 1
    dp: int = 1
    shard: int = 1
    ep: int = 1  # of the `dp` ranks share the experts
    micro: int = 1  # sequences of a micro-batch
    accumulate: int = 1  # micro-batches of a step
    interleave: int = 1  # chunks of layers that each pipeline stage has
    recompute: bool = False  # backward computes each layer again

    @property
    def gpus(self) -> int:
        return self.tp * self.cp * self.pp * self.dp

    @property
    def owners(self) -> int:
        """GPUs that share one copy of a stage's layers, of those that don't split the layers themselves."""
        return self.shard * self.cp

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.dp * self.micro * self.accumulate

    @property
    def copies(self) -> int:
        """Of the whole model."""
        return self.dp // self.shard

    @property
    def effort(self) -> float:
        """How much there is to set up and to go wrong: with a pipeline most, with shards alone least."""
        return 2 * log2(self.pp) + log2(self.tp * self.cp * self.ep * self.interleave) + (self.owners > 1) / 2

    @property
    def bubble(self) -> float:
        """The share of the pipeline's time in which a stage waits: (p - 1) / (v m + p - 1)."""
        waits = self.pp - 1
        return waits / (self.interleave * self.accumulate + waits)

    def __str__(self) -> str:
        degrees = {"TP": self.tp, "CP": self.cp, "PP": self.pp, "DP": self.dp}
        words = [f"{name} {degree}" for name, degree in degrees.items() if degree > 1]
        if self.shard > 1:
            words.append(f"in shards of {self.shard}")
        if self.ep > 1:
            words.append(f"EP {self.ep}")
        if self.interleave > 1:
            words.append(f"{self.interleave} chunks a stage")
        return ", ".join(words) or "one GPU"

    @property
    def rounds(self) -> str:
        again = ", layers computed again in backward" if self.recompute else ""
        return f"{self.accumulate:,} micro-batch{'es' * (self.accumulate != 1)} of {self.micro}{again}"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "gpus": self.gpus, "batch": self.batch}


def shares(layers: int, pp: int) -> list[int]:
    """Layers of each stage. What doesn't divide goes to those behind the first, which has the embedding."""
    base, more = divmod(layers, pp)
    return [base + (0 < stage <= more) for stage in range(pp)]


def problem(shape: Shape, layout: GpuLayout, gpus: int, sequence: int = 0) -> str | None:
    """Why no job can run in this layout; of a `sequence` that isn't known, nothing is said."""
    degrees = (layout.tp, layout.cp, layout.pp, layout.dp, layout.shard, layout.ep)
    if min(*degrees, layout.micro, layout.accumulate) < 1:
        return "a degree is less than 1"
    if shape.heads % layout.tp:
        return f"TP {layout.tp} doesn't divide the model's {shape.heads} heads"
    if shape.keys % layout.tp and layout.tp % shape.keys:
        return f"TP {layout.tp} doesn't divide the model's {shape.keys} heads of keys, nor is it a multiple of them"
    for width in (shape.dense_layers and shape.mlp, shape.expert_mlp, shape.shared_mlp):
        if width % layout.tp:
            return f"TP {layout.tp} doesn't divide the MLP's width of {width:,}"
    if layout.pp * layout.interleave > shape.layers:
        chunks = f" with {layout.interleave} chunks a stage" if layout.interleave > 1 else ""
        return f"PP {layout.pp}{chunks} is more than the model's {count(shape.layers, 'layer')}"
    if layout.interleave > 1 and layout.pp == 1:
        return "only a pipeline has chunks of layers"
    if layout.interleave > 1 and layout.accumulate % layout.pp:
        return f"interleaved stages need micro-batches by the {layout.pp}, and there are {layout.accumulate}"
    if layout.cp > 1 and sequence % (2 * layout.cp):
        # With a causal mask the first tokens are the least work, so each GPU has a piece from either end.
        pieces = 2 * layout.cp
        return f"CP {layout.cp} needs {pieces} equal pieces of each sequence, which {sequence:,} tokens don't give"
    if layout.gpus != gpus:
        model = layout.tp * layout.cp * layout.pp
        fit = f": DP {gpus // model}" if gpus % model == 0 else ""
        product = f"TP {layout.tp} × {f'CP {layout.cp} × ' if layout.cp > 1 else ''}PP {layout.pp} × DP {layout.dp}"
        return f"{product} are {layout.gpus:,} GPUs, and there are {gpus:,}{fit}"
    if layout.dp % layout.shard:
        return f"shards of {layout.shard} don't divide DP {layout.dp}"
    if layout.ep > 1 and not shape.experts:
        return "the model has no experts to share (EP)"
    if shape.experts and shape.experts % layout.ep:
        return f"EP {layout.ep} doesn't divide the model's {shape.experts} experts"
    if layout.dp % layout.ep:
        return f"EP {layout.ep} doesn't divide DP {layout.dp}"
    if layout.shard > 1 and layout.shard % layout.ep:
        return f"EP {layout.ep} doesn't divide the shards of {layout.shard}"
    return None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person gives; None: whatever is best. `batch` in sequences."""

    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    dp: int | None = None
    shard: int | None = None
    ep: int | None = None
    micro: int | None = None
    accumulate: int | None = None
    interleave: int | None = None
    recompute: bool | None = None
    batch: int | None = None

    def given(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if value is not None and name != "recompute"}

    def like(self, layout: GpuLayout) -> float:
        """How far a layout is from this: the sum of the doublings."""
        return sum(abs(log2(max(value, 1) / getattr(layout, name))) for name, value in self.given().items())

    def plainly(self, gpus: int, batch: int) -> GpuLayout:
        """A layout of what is given and, of the rest, the simplest."""
        tp, cp, pp = self.tp or 1, self.cp or 1, self.pp or 1
        dp = self.dp or max(gpus // max(tp * cp * pp, 1), 1)
        micro = self.micro or 1
        return GpuLayout(
            tp=tp, cp=cp, pp=pp, dp=dp, shard=self.shard or 1, ep=self.ep or 1, micro=micro,
            accumulate=self.accumulate or max((self.batch or batch) // (dp * micro), 1),
            interleave=self.interleave or 1,
        )  # fmt: skip


def possible(shape: Shape, gpus: int, per_node: int, asked: Asked, batch: int, sequence: int) -> Iterator[GpuLayout]:
    """Every layout of so many GPUs that has what is asked for, the simplest first. `batch`: sequences of a step, about,
    where none are asked for. Only long sequences are shared without being asked for."""
    contexts = [n for n in divisors(gpus) if n <= per_node] if sequence >= LONG else [1]
    for tp in _some(asked.tp, (n for n in divisors(gpus) if n <= per_node)):
        for cp in _some(asked.cp, contexts):
            for pp in _some(asked.pp, (n for n in divisors(gpus) if n <= shape.layers)):
                dp = asked.dp or gpus // (tp * cp * pp)
                if dp and tp * cp * pp * dp == gpus:
                    plain = GpuLayout(tp=tp, cp=cp, pp=pp, dp=dp)
                    yield from _with_data(shape, gpus, per_node, asked, batch, sequence, plain)


def _with_data(
    shape: Shape, gpus: int, per_node: int, asked: Asked, batch: int, sequence: int, plain: GpuLayout
) -> Iterator[GpuLayout]:
    tp, pp, dp = plain.tp, plain.pp, plain.dp
    # In a pipeline each micro-batch would gather the weights anew: only who asks for that gets it.
    shards = {1} if pp > 1 else {1, dp, max(per_node // tp, 1)}
    experts = [n for n in divisors(shape.experts) if dp % n == 0 and n <= per_node] if shape.experts else [1]
    for shard in _some(asked.shard, sorted(shards)):
        for ep in _some(asked.ep, experts):
            for micro in _some(asked.micro, MICRO):
                accumulate = asked.accumulate or max(1, -(-(asked.batch or batch) // (dp * micro)))
                if asked.batch and dp * micro * accumulate != asked.batch:
                    continue
                if dp * micro > max(asked.batch or batch, dp) and not (asked.micro or asked.accumulate):
                    continue
                for interleave in _some(asked.interleave, INTERLEAVE if pp > 1 else (1,)):
                    found = replace(
                        plain, shard=shard, ep=ep, micro=micro, accumulate=accumulate, interleave=interleave
                    )
                    if problem(shape, found, gpus, sequence) is None:
                        yield found


def _some(asked: int | None, otherwise: Iterable[int]) -> Iterable[int]:
    return otherwise if asked is None else (asked,)


def divisors(number: int) -> list[int]:
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})

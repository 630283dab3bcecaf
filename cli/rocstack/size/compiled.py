"""The compiler's answer: what a step of MaxText needs of a GPU, what it exchanges, and what to change. Pure but for the
texts. What the container says is data: bounded, and nothing of it is taken that hasn't its form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Annotated, Any

from pydantic import Field, ValidationError

from rocstack.base import finding_texts, paths
from rocstack.base.errors import CheckFailed
from rocstack.base.findings import Finding, in_order
from rocstack.base.text import visible
from rocstack.base.words import Value
from rocstack.size import hlo, maxtext
from rocstack.size.hlo import StepCollective, StepText
from rocstack.size.memory import held
from rocstack.size.sizing import Sized
from rocstack.size.speed import seconds_of
from rocstack.size.traffic import BF16, Traffic

STATES = 12  # bytes that MaxText keeps of a parameter: weight and both moments of AdamW, in float32
ANEW = 0.6  # of the bytes of weights, for each micro-batch: some layouts leave out the embedding, or a stage
LONGEST = 16 << 20  # bytes of an answer

Bytes = Annotated[int, Field(ge=0, lt=1 << 50)]
Line = Annotated[str, Field(max_length=1 << 20)]
Word = Annotated[str, Field(max_length=100)]


class _Refused(Value):
    phase: Word
    type: Word
    says: Annotated[str, Field(max_length=10_000)]


class _Answer(Value):
    arguments: Bytes = 0
    temporaries: Bytes = 0
    axes: list[Annotated[list[str | int], Field(min_length=2, max_length=2)]] = []
    text: Annotated[list[Line], Field(max_length=1 << 20)] = []
    seconds: dict[Word, Annotated[float, Field(ge=0, lt=1e6)]] = {}
    code: Word | None = None
    refused: _Refused | None = None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """`formula` is what stands beside it: bytes of a GPU's arguments."""

    attention: str
    arguments: int
    temporaries: int
    formula: float
    over: float  # bytes that a GPU lacks; below 0: that it has left
    step: StepText
    wires: tuple[tuple[StepCollective, float | None], ...]  # with the seconds that the links need
    seconds: dict[str, float]  # of compiling, by phase
    findings: tuple[Finding, ...]
    refused: bool = False

    @property
    def total(self) -> int:
        return self.arguments + self.temporaries

    @property
    def ok(self) -> bool:
        return not self.refused and self.over <= 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "attention": self.attention, "refused": self.refused,
            "memory": {
                "arguments": self.arguments, "temporaries": self.temporaries, "total": self.total,
                "formula": {"arguments": self.formula},
            },
            "fits": self.ok, "over": self.over,
            "collectives": [
                {
                    "kind": each.kind, "ranks": each.ranks, "where": "fabric" if each.fabric else "node",
                    "count": each.count, "bytes": each.bytes, "sent": each.sent, "largest": each.largest,
                    "seconds": seconds,
                }
                for each, seconds in self.wires
            ],
            "loops_of_unknown_length": self.step.endless,
            "seconds": self.seconds, "findings": [each.to_dict() for each in self.findings],
        }  # fmt: skip


def read(raw: bytes, sized: Sized, attention: str) -> Compiled:
    """
    Raises:
        CheckFailed: it is no answer of images/maxtext/compile.py.
    """
    if len(raw) > LONGEST:
        raise CheckFailed.of("compiler-says-nonsense", why=f"more than {LONGEST >> 20} MB")
    try:
        answer = _Answer.model_validate_json(raw)
        if answer.refused:
            return _refusal(answer.refused, sized, attention, answer.seconds)
        nodes = node_numbers(answer.axes, sized.layout.gpus, sized.hardware.gpus)
        step = hlo.read(answer.text, sized.layout.gpus, nodes.__getitem__)
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise CheckFailed.of("compiler-says-nonsense", why=visible(why[:200])) from None
    except ValueError as error:
        raise CheckFailed.of("compiler-says-nonsense", why=visible(str(error)[:200])) from None
    wires = tuple((each, _seconds(each, sized)) for each in step.collectives)
    over = answer.arguments + answer.temporaries - sized.hardware.budget
    found = _findings(answer, sized, step, attention, over)
    return Compiled(
        attention=attention, arguments=answer.arguments, temporaries=answer.temporaries, formula=arguments(sized),
        over=over, step=step, wires=wires, seconds=answer.seconds, findings=found,
    )  # fmt: skip


def node_numbers(axes: Sequence[Sequence[str | int]], gpus: int, per_node: int) -> list[int]:
    """The node of each GPU as the compiled text numbers them: by the mesh's axes, where they lie by maxtext.ORDER.

    Raises:
        ValueError: the axes aren't those of so many GPUs.
    """
    sizes = {name: size for name, size in axes if isinstance(name, str) and isinstance(size, int) and size > 0}
    used = [name for name, size in sizes.items() if size > 1]
    if len(sizes) != len(axes) or prod(sizes.values()) != gpus or not set(used) <= set(maxtext.ORDER):
        raise ValueError("the mesh isn't the one that was asked for")
    strides, stride = {}, 1
    for name in reversed(maxtext.ORDER):
        strides[name], stride = stride, stride * sizes.get(name, 1)
    found = [0]
    for name in used:
        found = [base + step * strides[name] for base in found for step in range(sizes[name])]
    return [each // per_node for each in found]


def arguments(sized: Sized) -> float:
    """Bytes that MaxText keeps of a GPU's share of the model: as the formula counts parameters, but embedding and
    output lie on every stage, and norms are whole on each GPU of a shard."""
    shape, layout = sized.shape, sized.layout
    owners = layout.owners if layout.owners > 1 else layout.dp
    experts = max(1, owners // layout.ep)
    root = (2 - shape.tied) * shape.embedding + shape.positions * shape.hidden
    small = shape.layers * shape.small / (layout.tp * layout.pp)
    (whole,) = held(shape, replace(layout, pp=1, interleave=1))
    plain = whole.plain - whole.root - shape.layers * shape.small
    found = plain / (owners * layout.pp) + whole.experts / (experts * layout.pp) + root / (layout.tp * owners)
    return STATES * (found + small)


def _seconds(each: StepCollective, sized: Sized) -> float | None:
    hardware = sized.hardware
    if not sized.speed:
        return None
    kind = {"collective-permute": "PP", "all-to-all": "EP"}.get(each.kind, each.kind)
    stride = max(1, hardware.gpus // each.near) if each.fabric else 1
    return seconds_of(Traffic(kind, each.kind, each.sent, each.ranks, stride, each.fabric), hardware)


def _findings(answer: _Answer, sized: Sized, step: StepText, attention: str, over: float) -> tuple[Finding, ...]:
    found = []
    texts, layout, shape = _texts(), sized.layout, sized.shape
    gib = 1 << 30
    if over > 0:
        part = "temporaries" if answer.temporaries > answer.arguments else "arguments"
        advice = {
            "temporaries": "a smaller --micro-batch, --recompute layers, or more of --tp",
            "arguments": "more of --shard, or more nodes",
        }[part]
        size = getattr(answer, part)
        found.append(texts["compiled-too-large"].finding(
            {"over": f"{over / gib:.1f}", "part": part, "size": f"{size / gib:.1f}", "advice": advice}
        ))  # fmt: skip
    if attention == maxtext.DOT_PRODUCT:
        found.append(texts["scores-are-kept"].finding({}))
    if layout.ep > 1:
        found.append(texts["experts-have-room-for-all"].finding({"ep": layout.ep}))
    for kinds, code, passes in (
        ({"all-gather"}, "compiled-gathers-anew", 2),
        ({"reduce-scatter", "all-reduce"}, "compiled-sums-anew", 1),
    ):
        sent = sum(each.sent for each in step.collectives if each.kind in kinds and each.fabric)
        once = passes * BF16 * shape.parameters / (layout.tp * layout.pp)
        if layout.accumulate > 1 and sent > ANEW * layout.accumulate * once:
            ways = ["a larger --micro-batch, so that there are fewer"]
            ways += ["--shard 1, which shards the optimizer alone"] if layout.shard > 1 else []
            values = {"size": f"{sent / 1e12:.2g} TB" if sent >= 1e12 else f"{sent / 1e9:.0f} GB"}
            advice = ", or ".join(ways)
            values |= {"times": f"{sent / once:.0f}", "micro": str(layout.accumulate), "advice": advice}
            found.append(texts[code].finding(values))
    if step.endless:
        found.append(texts["compiled-loops-unknown"].finding({"loops": step.endless}))
    return in_order(found)


# What the compiler or MaxText says -> the finding of ours, and what of it goes into that.
_KNOWN = {
    "kernel-too-large": re.compile(r"[Ss]hared memory size limit exceeded|exceeds? (?:the )?shared memory"),
    "maxtext-indivisible": re.compile(r"divisible|evenly divide|does not divide|must divide"),
    "compiler-out-of-memory": re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory"),
}


# What the image's program says of a fork of its own.
_DIED = {"TooLong": "compiler-too-long", "TooLarge": "compiler-too-large", "Died": "compiler-died"}
UNREAD = "compiler-unread"
PASSING = frozenset({*_DIED.values(), UNREAD})  # findings of this machine or this rocstack, not of the layout


def _refusal(said: _Refused, sized: Sized, attention: str, seconds: dict[str, float]) -> Compiled:
    code = _DIED.get(said.type) or next(
        (code for code, pattern in _KNOWN.items() if pattern.search(said.says)), "compiler-refuses"
    )
    last = " ".join(said.says.split())[:300]
    finding = _texts()[code].finding({"phase": visible(said.phase), "type": visible(said.type), "says": visible(last)})
    return _without(finding, sized, attention, seconds)


def unread(why: str, sized: Sized, attention: str) -> Compiled:
    """In place of an answer that `read` doesn't know, where there are others."""
    return _without(_texts()[UNREAD].finding({"says": why}), sized, attention, {})


def _without(finding: Finding, sized: Sized, attention: str, seconds: dict[str, float]) -> Compiled:
    return Compiled(
        attention=attention, arguments=0, temporaries=0, formula=arguments(sized), over=0.0, step=StepText((), 0),
        wires=(), seconds=seconds, findings=(finding,), refused=True,
    )  # fmt: skip


@cache
def _texts() -> dict[str, finding_texts.Entry]:
    path = paths.images() / "findings/size.yml"
    return {entry.code: entry for entry in finding_texts.read(path, finding_texts.Entry)}

"""Which layouts are worth compiling, and their order once they are: by the formula's products and the compiler's bytes
and collectives. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rocstack.base.errors import BadInput
from rocstack.base.findings import Finding
from rocstack.size import advice, compiled, maxtext
from rocstack.size.compiled import Compiled
from rocstack.size.hlo import StepCollective
from rocstack.size.layout import Asked, GpuLayout
from rocstack.size.shape import Shape
from rocstack.size.sizing import LayoutSearch, Sized, flags
from rocstack.size.speed import Speed

MOST = 20  # layouts that are compiled


@dataclass(frozen=True, kw_only=True)
class LayoutChoice:
    """`layouts` are to be compiled, the fastest by formula first. `fitting`: how many fit by formula; `untaken`: those
    of them that MaxText can't lay out; `narrow`: those that were left out because their products are too narrow."""

    layouts: tuple[Sized, ...]
    fitting: int
    untaken: int
    narrow: int


@dataclass(frozen=True, kw_only=True)
class Tried:
    """`cpu`: seconds of the processor that the compiler took; None of an answer that was kept."""

    sized: Sized
    said: Compiled
    cpu: float | None = None

    @property
    def ok(self) -> bool:
        return self.said.ok

    @cached_property
    def speed(self) -> Speed:
        """With the compiler's collectives. What it refuses has none, and the formula's time."""
        own, layout = self.sized.speed, self.sized.layout
        assert own is not None, "only layouts with times are searched"
        if self.said.refused:
            return own
        near = min(layout.tp, self.sized.hardware.gpus)
        wires = [(each.kind, seconds or 0.0, _blocks(each, layout, near)) for each, seconds in self.said.wires]
        return own.exchanging(wires, layout)

    @property
    def lasting(self) -> bool:
        """Whether another run of the compiler would say the same, on any machine."""
        return not any(each.code in compiled.PASSING for each in self.said.findings)

    @property
    def fault(self) -> Finding | None:
        """Why it doesn't fit, or is refused."""
        return None if self.ok else next(each for each in self.said.findings if each.level == "error")

    def to_dict(self) -> dict[str, Any]:
        own = self.sized
        assert own.speed is not None
        return {
            "layout": own.layout.to_dict(), "flags": flags(own.layout), "fits": self.ok,
            "why_not": self.fault.what if self.fault else None,
            "time": None if self.said.refused else self.speed.to_dict(),
            "formula": {"memory": own.memory.total, "time": own.speed.to_dict()},
            "compiled": self.said.to_dict(), "cpu_seconds": self.cpu,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Searched:
    """`tried`: those that fit by their speed, then what doesn't fit, then what is refused."""

    choice: LayoutChoice
    tried: tuple[Tried, ...]
    picture: str | None = None

    @property
    def best(self) -> Tried | None:
        return self.tried[0] if self.tried and self.tried[0].ok else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "fitting": self.choice.fitting, "not_of_maxtext": self.choice.untaken, "narrow": self.choice.narrow,
            "picture": self.picture,
            "layouts": [each.to_dict() for each in self.tried],
        }  # fmt: skip


def choose(sized: Sized, asked: Asked) -> LayoutChoice:
    """The fastest layout of each kind, and then the next fastest of any, on as many GPUs as `sized` has. Those with
    products that are too narrow are left out, as far as others are there.

    Raises:
        BadInput: there is one layout alone, nobody knows times of this GPU, or MaxText has no such model or layouts.
    """
    shape = sized.shape
    maxtext.model(shape)
    if not sized.speed:
        raise BadInput.of("search-without-times", gpu=sized.hardware.gpu)
    search = LayoutSearch(shape, sized.hardware, sized.sequence, 0)
    possible = [*search.modes(search.layouts(sized.layout.gpus, asked), asked)]
    if len(possible) == 1:
        raise BadInput.of("search-of-one-layout", layout=possible[0])
    fitting = [each for each in possible if search.fits(each)]
    taken = [each for each in fitting if _taken(shape, each)]
    if fitting and not taken:
        maxtext.degrees(shape, fitting[0])
    wide = [each for each in taken if not advice.narrow(shape, each)] or taken
    ranked = sorted((search.sized(sized.model, each) for each in wide), key=_speed)
    kinds: dict[tuple[int | bool, ...], Sized] = {}
    for each in ranked:
        kinds.setdefault(_kind(each.layout), each)
    first = list(kinds.values())
    others = (each for each in ranked if each is not kinds[_kind(each.layout)])
    chosen = sorted([*first, *others][:MOST], key=_speed)
    return LayoutChoice(
        layouts=tuple(replace(each, least=sized.least) for each in chosen), fitting=len(fitting),
        untaken=len(fitting) - len(taken), narrow=len(taken) - len(wide),
    )  # fmt: skip


def in_order(tried: Iterable[Tried]) -> tuple[Tried, ...]:
    """By the time of a token, in the middle of both bounds."""

    def key(each: Tried) -> tuple[bool, bool, float]:
        return not each.ok, each.said.refused, sum(each.speed.seconds) / each.speed.tokens

    return tuple(sorted(tried, key=key))


def _speed(each: Sized) -> tuple[float, float]:
    return -each.speed.score if each.speed else 0.0, each.layout.effort


def _blocks(each: StepCollective, layout: GpuLayout, near: int) -> bool:
    """Whether a layer waits for it. Weights that the GPUs of a sequence share look like its keys and values."""
    of_layer = (each.ranks, each.near) == (layout.tp, near) or each.ranks == layout.cp > 1
    return "to-all" in each.kind or of_layer


def _kind(layout: GpuLayout) -> tuple[int | bool, ...]:
    return layout.tp, layout.cp, layout.pp, layout.shard, layout.ep, layout.recompute


def _taken(shape: Shape, layout: GpuLayout) -> bool:
    try:
        maxtext.degrees(shape, layout)
    except BadInput:
        return False
    return True

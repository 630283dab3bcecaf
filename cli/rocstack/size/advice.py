"""What of a layout costs speed, as findings: images/findings/size.yml. Pure but for the texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from rocstack.base import finding_texts, paths
from rocstack.base.findings import Finding, in_order
from rocstack.size.hardware import Hardware
from rocstack.size.layout import GpuLayout, problem
from rocstack.size.shape import Shape
from rocstack.size.speed import Speed
from rocstack.size.traffic import Traffic

MULTIPLE, WIDTH = 1024, 1280  # LUMI's rules for MI250X
BUBBLE, GATHERED = 0.15, 0.1  # shares of a step that are worth a word


def findings(
    shape: Shape, layout: GpuLayout, hardware: Hardware, wires: tuple[Traffic, ...], speed: Speed | None,
    fits: Callable[[GpuLayout], bool],
) -> tuple[Finding, ...]:  # fmt: skip
    """`fits`: whether the GPUs have the memory for a layout. What wouldn't fit isn't advised."""
    found: list[Finding] = []

    def add(code: str, **values: object) -> None:
        found.append(_texts()[code].finding(values))

    def can(**changes: Any) -> bool:
        other = replace(layout, **changes)
        return problem(shape, other, layout.gpus) is None and fits(other)

    width = shape.hidden / layout.tp
    if shape.hidden % MULTIPLE:
        add("odd-hidden-size", hidden=f"{shape.hidden:,}", nearest=f"{_multiple(shape.hidden):,}")
    if layout.tp > hardware.gpus:
        add("tensor-parallel-over-fabric", tp=layout.tp, gpus=hardware.gpus)
    elif narrow(shape, layout):
        fewer = max(n for n in range(1, layout.tp) if layout.tp % n == 0 and (shape.hidden / n >= WIDTH or n == 1))
        less = layout.tp // fewer
        wider = {"tp": fewer, "dp": layout.dp * less, "accumulate": max(1, layout.accumulate // less)}
        shards = {layout.shard, layout.shard * less, layout.dp * less}
        room = any(can(**wider, shard=shard, recompute=again) for shard in shards for again in (False, True))
        advice = f"--tp {fewer} or less" if room else f"more nodes: on these, --tp {fewer} in their place doesn't fit"
        add("narrow-tensor-parallel", tp=layout.tp, width=f"{width:,.0f}", advice=advice)
    if layout.bubble > BUBBLE:
        ways = ["--interleave of 2 or more"] if layout.interleave == 1 and can(interleave=2) else []
        advice = " or ".join([*ways, "a larger --batch", "fewer stages (--pp)"])
        share = f"{layout.bubble:.0%}".replace("%", " %")
        add("long-bubble", share=share, micro=layout.accumulate, stages=layout.pp, advice=advice)
    if layout.accumulate == 1 and layout.dp > 1:
        add("no-accumulation-left", batch=layout.batch)
    gather = next((each for each in wires if each.kind == "FSDP gather"), None)
    if gather and speed and layout.accumulate > 1:
        slow = speed.steps[0]
        share_of = slow.parts[gather.kind] / slow.seconds
        if share_of > GATHERED:
            inside = hardware.gpus // layout.tp
            choices = {
                "a larger --micro-batch": can(micro=2 * layout.micro, accumulate=-(-layout.accumulate // 2)),
                f"--shard {inside} (within a node)": 1 < inside < layout.shard and can(shard=inside),
                "--shard 1, which shards the optimizer alone": can(shard=1),
            }
            advice = ", or ".join(way for way, possible in choices.items() if possible)
            add(
                "weights-gathered-anew", micro=layout.accumulate, size=f"{gather.bytes / 1e12:.2g} TB",
                share=f"{share_of:.0%}".replace("%", " %"), advice=advice or "more nodes: on these, nothing else fits",
            )  # fmt: skip
    return in_order(found)


@cache
def _texts() -> dict[str, finding_texts.Entry]:
    """Of this file alone: the other texts take longer to read than the answer to find."""
    path = paths.images() / "findings/size.yml"
    return {entry.code: entry for entry in finding_texts.read(path, finding_texts.Entry)}


def narrow(shape: Shape, layout: GpuLayout) -> bool:
    return layout.tp > 1 and shape.hidden / layout.tp < WIDTH


def _multiple(hidden: int) -> int:
    return max(1, round(hidden / MULTIPLE)) * MULTIPLE

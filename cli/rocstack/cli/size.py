"""`rocstack size`: what a model needs, how fast it would be, and in which layout."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rocstack.base.text import count
from rocstack.cli.command import Answer, command
from rocstack.cli.ui import Interrupted, out, paragraph, say, show_finding, table
from rocstack.steps.job_options import SizeOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rocstack.size.compiled import Compiled
    from rocstack.size.search import Searched, Tried
    from rocstack.size.sizing import Sized

GIB = float(1 << 30)
WORTH = 0.001  # of all bytes that a step sends


@command("rocstack size llama-3.1-70b --gpu mi300x --nodes 4")
def size(choice: SizeOptions) -> Answer:
    """Say what a model needs on a kind of GPU, how fast it would be, and in which layout: by formula at once, and with
    --compile by the compiler, too.

    Exit code 1: it doesn't fit.
    """
    from rocstack.steps.size import size as answer

    progress = LayoutProgress()
    try:
        answers = answer(choice, progress.on_tried)
    except Interrupted:
        progress.stopped()
        raise
    yield answers
    found = answers.formula
    _head(found)
    if answers.searched:
        return _searched(answers.searched)
    _memory(found)
    _wire(found)
    _time(found)
    for each in found.findings:
        show_finding(each)
    if not found.hardware.gemm:
        out.say(f"\nno times: nobody has published what products reach on the {found.hardware.gpu}")
    if answers.compiled:
        _compiled(found, answers.compiled)


class LayoutProgress:
    """A line for each layout that is compiled, since they take minutes."""

    def __init__(self) -> None:
        self.kept = self.of = 0

    def on_tried(self, tried: Tried | None, done: int, of: int) -> None:
        self.of = of
        if tried is None:
            self.kept = done
            kept = f"; {done} are kept from before" if done else ""
            return say(f"compiling {count(of - done, 'layout')}, two at a time{kept}")
        took = f", in {sum(tried.said.seconds.values()):.0f} s" if tried.said.seconds else ""
        said = re.split(r": | \(", tried.fault.what)[0] if tried.fault else f"{_fast_to_slow(tried)} s a step"
        self.kept += tried.lasting
        layout = tried.sized.layout
        again = ", computed again" if layout.recompute else ""
        say(f"{done:2} of {of}  {layout}, {layout.accumulate} × {layout.micro}{again}: {said}{took}")

    def stopped(self) -> None:
        if self.of:
            say(f"the container is ended; the answers of {self.kept} of {self.of} layouts are kept")


def _searched(found: Searched) -> None:
    choice, fit = found.choice, [each for each in found.tried if each.ok]
    untaken = f"; MaxText can't lay out {choice.untaken:,} of them" if choice.untaken else ""
    narrow = f"; {choice.narrow:,} with narrow products are left out" if choice.narrow else ""
    out.print()
    if not choice.layouts:
        return out.say("nothing was compiled: no layout fits by the formula; take more nodes")
    out.say(f"{choice.fitting:,} layouts fit by the formula{untaken}{narrow}")
    out.say(f"{len(found.tried)} are compiled, and {len(fit)} of them fit")
    if fit:
        out.print()
        _ranking(fit)
        out.say("SHARD: ranks of a copy; V: chunks of a stage; BATCH: micro-batches × sequences;")
        out.say("AGAIN: layers computed again in backward; COMPUTE, SENDS and WAITS: seconds between slow and fast")
    if others := found.tried[len(fit) :]:
        out.say("\nnot these:")
    for each in others:
        out.say(f"{each.sized.layout}; {each.sized.layout.rounds}")
        if each.fault:
            paragraph("why", each.fault.what)
        if each.fault and each.said.refused:
            paragraph("cause", each.fault.cause)
    if best := found.best:
        for finding in best.said.findings:
            show_finding(finding)
        from rocstack.size.sizing import flags

        out.say(f"\nthe first one: {flags(best.sized.layout)}")
    out.say(f"picture: {found.picture}")


def _ranking(fit: Sequence[Tried]) -> None:
    """Columns that are the same for all and say nothing are left out, so that 80 characters do."""
    heads = ("TP", "CP", "PP", "DP", "SHARD", "EP", "V", "BATCH", "AGAIN", "STEP S", "COMPUTE", "SENDS", "WAITS", "GIB")
    rows = []
    for each in fit:
        layout, kinds = each.sized.layout, [step.kinds for step in each.speed.steps]
        middle = [_seconds((kinds[0][name] + kinds[1][name]) / 2) for name in kinds[0]]
        degrees = [layout.tp, layout.cp, layout.pp, layout.dp, layout.shard, layout.ep, layout.interleave]
        rows.append([
            *map(str, degrees), f"{layout.accumulate}×{layout.micro}", "yes" if layout.recompute else "",
            _fast_to_slow(each), *middle, f"{each.said.total / GIB:.0f}",
        ])  # fmt: skip
    shown = [at for at in range(len(heads)) if at >= len(heads) - 5 or any(row[at] not in ("1", "") for row in rows)]
    names = [heads[at] for at in shown]
    table(
        names, ([row[at] for at in shown] for row in rows),
        right=[at for at, name in enumerate(names) if name != "AGAIN"],
        spare=[names.index(name) for name in ("WAITS", "SENDS", "COMPUTE", "V", "AGAIN") if name in names],
    )  # fmt: skip


def _compiled(found: Sized, said: Compiled) -> None:
    out.print()
    took = f", in {sum(said.seconds.values()):.0f} s" if said.seconds else ""
    kernel = {"flash": "JAX's flash kernel", "dot_product": "whole scores (dot_product)"}[said.attention]
    out.say(f"compiled: MaxText 0.2.1's train step for {found.hardware.gpu}{took}")
    paragraph("kernel", f"attention by {kernel}")
    if not said.refused:
        _beside(found, said)
    for each in said.findings:
        show_finding(each)


def _beside(found: Sized, said: Compiled) -> None:
    """Both answers. MaxText's arguments are what the formula calls weights and optimizer's states."""
    budget = found.hardware.budget
    rest = found.memory.total - said.formula
    rows = [
        ("weights and optimizer's states (arguments)", said.formula, said.arguments),
        ("all else (temporaries)", rest, said.temporaries),
        ("all", found.memory.total, said.total),
    ]
    out.print()
    table(
        ("GIB OF A GPU", "FORMULA", "COMPILER"),
        [(name, f"{own / GIB:.1f}", f"{theirs / GIB:.1f}") for name, own, theirs in rows],
        right=(1, 2),
    )
    fits = f"fits: {-said.over / GIB:.1f} GiB left" if said.ok else f"doesn't fit: {said.over / GIB:.1f} GiB too little"
    out.say(f"{fits} of {budget / GIB:.0f} GiB that a run may use, says the compiler")
    shown = [each for each in said.wires if each[0].sent >= WORTH * sum(other.sent for other, _ in said.wires)]
    rows_of = [
        (
            each.kind, f"{each.count:,}", f"{each.largest / 1e6:,.1f}", f"{each.sent / 1e9:,.1f}", f"{each.ranks:,}",
            "fabric" if each.fabric else "node", "" if seconds is None else f"{seconds:.2f}",
        )
        for each, seconds in shown
    ]  # fmt: skip
    if rows_of:
        out.print()
        heads = ("COLLECTIVES OF THE COMPILED STEP", "TIMES", "LARGEST MB", "SENT GB", "RANKS", "OVER", "SECONDS")
        table(heads, rows_of, right=(1, 2, 3, 4, 6))
    if less := len(said.wires) - len(shown):
        out.say(f"and {count(less, 'more kind')}, less than a thousandth of all bytes each")


def _head(found: Sized) -> None:
    shape, model = found.shape, found.model
    active = "" if not shape.experts else f", {_short(shape.active_parameters)} at work on a token"
    out.say(f"{model.about}: {shape.parameters:,} parameters{active}")
    for label, text in (("source", model.source), ("note", model.note)):
        if text:
            paragraph(label, text)
    paragraph("parts", ", ".join(f"{name} {_short(part)}" for name, part in shape.parts().items()))
    if found.rank:
        paragraph("trains", f"adapters of rank {found.rank}: {_short(shape.adapters(found.rank))} parameters")
    layout, node = found.layout, found.hardware
    where = f"{count(found.nodes, 'node')} of {min(node.gpus, layout.gpus)} {node.gpu}"
    fewest = ", the fewest that fit" if found.least == found.nodes and found.ok else ""
    alone = f"; {count(found.alone, 'GPU')} would do (--nodes 1 --gpus-per-node {found.alone})" if found.alone else ""
    paragraph("on", where + fewest + alone)
    paragraph("layout", f"{layout}; {layout.rounds}")
    tokens = layout.batch * found.sequence
    batch = f"{count(layout.batch, 'sequence')} of {found.sequence:,} tokens: {_short(tokens)} tokens"
    work = shape.flops(found.sequence, trained=not found.rank)
    paragraph("step", f"{batch}, {work * tokens / 1e15:,.0f} PFLOP ({work / 1e9:,.1f} GFLOP a token)")


def _memory(found: Sized) -> None:
    memory, budget = found.memory, found.hardware.budget
    rows = [(name, f"{size / GIB:.1f}") for name, size in memory.parts.items()]
    rows.append(("all", f"{memory.total / GIB:.1f}"))
    out.print()
    table(("MEMORY OF A GPU", "GIB"), rows, right=(1,))
    room = f"of {budget / GIB:.0f} GiB that a run may use of {found.hardware.memory / GIB:.0f}"
    if found.ok:
        out.say(f"fits: {-found.over / GIB:.1f} GiB left {room}")
    else:
        out.say(f"doesn't fit: {found.over / GIB:.1f} GiB too little {room}")
        out.say(_instead(found))
    kept, again = f"{memory.kept / GIB:.1f}", f"{memory.again / GIB:.1f}"
    out.say(f"activations: {kept} GiB if all are kept, {again} if layers are computed again")


def _instead(found: Sized) -> str:
    from rocstack.size.sizing import flags

    if found.instead:
        return f"it fits on as many GPUs with {flags(found.instead)}"
    if found.least:
        return f"it fits on {count(found.least, 'node')} (--nodes {found.least})"
    return "it fits on no number of nodes; a shorter --seq or --method lora needs less"


def _wire(found: Sized) -> None:
    if not found.wires:
        return
    rows = [
        (each.kind, each.what, f"{each.bytes / 1e9:,.1f}", str(each.members), "fabric" if each.fabric else "node")
        for each in found.wires
    ]
    out.print()
    table(("WIRE", "WHAT A GPU SENDS IN A STEP", "GB", "RANKS", "OVER"), rows, right=(2, 3))


def _time(found: Sized) -> None:
    if not found.speed:
        return
    slow, fast = found.speed.steps
    names = [*slow.parts, *(name for name in fast.parts if name not in slow.parts)]
    rows = [(name, *(f"{step.parts.get(name, 0.0):.2f}" for step in (slow, fast))) for name in names]
    rows = [row for row in rows if row[1:] != ("0.00", "0.00")]
    rows.append(("all", f"{slow.seconds:.2f}", f"{fast.seconds:.2f}"))
    out.print()
    table(("SECONDS OF A STEP", "SLOW", "FAST"), rows, right=(1, 2))
    rate, achieved, mfu = found.speed.rate, found.speed.achieved, found.speed.mfu
    out.say(f"tokens/s        {_span(rate, '{:,.0f}')}, of a GPU {_span(_each(rate, found.layout.gpus), '{:,.0f}')}")
    share = f", {_span(_each(mfu, 0.01), '{:.0f}')} % of its peak (MFU)" if mfu else ""
    out.say(f"TFLOPS a GPU    {_span(_each(achieved, 1e12), '{:.0f}')}{share}")
    if found.layout.pp > 1:
        out.say(f"pipeline        waits {found.layout.bubble * 100:.1f} % of the time")


def _fast_to_slow(tried: Tried) -> str:
    return "–".join(map(_seconds, tried.speed.seconds[::-1]))


def _seconds(number: float) -> str:
    return f"{number:.2f}" if number < 10 else f"{number:,.{number < 100:d}f}"


def _each(pair: tuple[float, float], by: float) -> tuple[float, float]:
    return pair[0] / by, pair[1] / by


def _span(pair: tuple[float, float], form: str) -> str:
    first, last = (form.format(each) for each in pair)
    return first if first == last else f"{first} to {last}"


def _short(number: float) -> str:
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:.0f}"

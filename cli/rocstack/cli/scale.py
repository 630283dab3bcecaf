"""`rocstack scale`: weak and strong scaling of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.base.text import count
from rocstack.cli.command import command
from rocstack.cli.ui import Interrupted, out, print_json, say, table
from rocstack.steps.job_options import ScaleOptions
from rocstack.steps.options import Flag

if TYPE_CHECKING:
    from rocstack.size.scaling import Scaled

RecipeName = Annotated[str, Flag("Recipe: a name from `rocstack recipes`.", argument=True, completes="recipe")]


@command("rocstack scale trainer --nodes 1,2,4 --weak --set batch=8")
def scale(
    choice: ScaleOptions,
    recipe: RecipeName,
    arguments: Annotated[list[str] | None, Flag("Arguments of the recipe, after --.", argument=True)] = None,
    json: Annotated[bool, Flag("Print JSON on standard output.")] = False,
) -> None:
    """Run a recipe at several numbers of nodes, one job after the other, and show how its speed grows.

    Exit code 1: a job failed, and nothing larger was run.
    """
    from rocstack.steps import scale as steps

    found: Scaled | None = None
    job = ""

    def on_job(number: str, nodes: int, batch: int) -> None:
        nonlocal job
        job = number
        say(f"job {number}: {count(nodes, 'node')}, batch {batch:,}")

    code = 0
    try:
        for found in steps.scale(recipe, choice, tuple(arguments or ()), on_job):
            job = ""
            if not json and found.ok:
                point = found.points[-1]
                say(f"job {point.job}: {_rate(point.speed)} {found.unit}")
    except Interrupted:
        if job:
            say(f"job {job} is being cancelled")
        if found is None:
            raise
        code = 130
    if found is None:
        return
    if json:
        print_json({**found.to_dict(), "interrupted": code == 130})
    else:
        _show(found)
    if code or not found.ok:
        raise typer.Exit(code or 1)


def _show(found: Scaled) -> None:
    out.print()
    out.say(f"{found.recipe}: {found.kind} scaling")
    if found.places and found.places.says:
        out.say(found.places.says)
    out.print()
    stages = any(found.bubble(each) is not None for each in found.points)
    heads = [
        "NODES", "RANKS", "BATCH", "TOKENS/S", "OF A RANK", "TFLOPS OF A RANK", "EFFICIENCY", "IDEAL", "BUBBLE LINE",
    ]  # fmt: skip
    rows = []
    for each in found.points:
        line = found.bubble(each)
        rows.append([
            f"{each.nodes:,}", f"{each.ranks:,}", f"{each.batch:,}",
            "" if each.tokens is None else _rate(each.tokens),
            "" if each.tokens is None else _rate(each.tokens / each.ranks),
            "" if each.tflops is None else _rate(each.tflops), f"{found.efficiency(each) * 100:.0f} %",
            _rate(found.ideal(each)), "" if line is None else _rate(line),
        ])  # fmt: skip
    unknown = {at for at in range(len(heads)) if not any(row[at] for row in rows)}
    shown = [at for at in range(len(heads)) if at not in unknown]
    names = [heads[at] for at in shown]
    table(
        names, ([row[at] for at in shown] for row in rows), right=range(len(names)),
        spare=[names.index(name) for name in ("BATCH", "TFLOPS OF A RANK", "RANKS") if name in names],
    )  # fmt: skip
    out.say(f"IDEAL: {found.unit}, if each rank were as fast as in the first job")
    if stages:
        out.say("BUBBLE LINE: the same, less what pipeline stages wait longer than there (without chunks of stages)")
    if found.stopped:
        out.say(f"stopped at {found.stopped}")
    out.say(f"picture: {found.picture}")


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"

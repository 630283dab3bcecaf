"""`rocstack first-light` and `replay`: everything once on new hardware, and what follows from its file elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rocstack.base.text import count
from rocstack.cli.command import Answer, command
from rocstack.cli.ui import Interrupted, err, escape, out, say, table
from rocstack.steps.options import FirstLightOptions, ReplayOptions

if TYPE_CHECKING:
    from rocstack.verify.first_light import Step

STYLE = {"done": "green", "failed": "bold red", "skipped": "dim", "interrupted": "bold yellow"}
MOST = 40  # differences that are shown


@command("rocstack first-light inventory.yml --nic broadcom")
def first_light(choice: FirstLightOptions) -> Answer:
    """Probe, build, deploy, verify and train on nodes of a kind that rocstack has not seen, and write all of it to one
    file to send to the project. Names of hosts and people, addresses, keys and serial numbers are taken out.

    Exit code 1: a step failed; the file has what it said.
    """
    from rocstack.cli import verify_report
    from rocstack.cli.build_display import BuildDisplay
    from rocstack.cli.nodes_display import NodesDisplay
    from rocstack.steps import first_light as steps

    shown = steps.Shown(BuildDisplay, NodesDisplay, verify_report.progress, lambda name: say(f"{name} ..."), _ended)
    try:
        result = steps.first_light(choice, shown)
    except Interrupted:
        say(f"stopped; what was done until then is in {choice.out}")
        raise typer.Exit(130) from None
    yield result
    out.print()
    table(
        ("STEP", "STATE", "SECONDS", "WHY"),
        [(step.name, step.state, f"{step.seconds:.0f}", step.why.split("\n")[0][:200]) for step in result.light.steps],
        right=(2,),
    )
    virtual = ", of virtual nodes" if result.light.virtual else ""
    out.say(f"{choice.out}: {choice.out.stat().st_size / 1e6:.1f} MB{virtual}")
    out.say(f"next: read it (`zless {choice.out}`), since nothing knows all names of your site; then send it")


def _ended(step: Step) -> None:
    why = f": {step.why}" if step.why else ""
    err.print(f"[{STYLE[step.state]}]{step.state:11}[/] {escape(f'{step.name}, {step.seconds:.1f} s{why}')}")


@command("rocstack replay first-light.json.gz")
def replay(choice: ReplayOptions) -> Answer:
    """Read the recordings of a file of `rocstack first-light` and judge its evidence again, without the nodes. Shows
    what this rocstack concludes otherwise.

    Exit code 1: there is such a difference.
    """
    from rocstack.steps import first_light as steps

    result = steps.replay(choice)
    yield result
    if result.differences:
        rows = [(each.node or "cluster", each.what, each.then, each.now) for each in result.differences[:MOST]]
        table(("NODE", "WHAT", "THEN", "NOW"), rows)
        if len(result.differences) > MOST:
            out.say(f"{len(result.differences) - MOST} more; --json has all")
    judged = "no evidence of verify" if result.checks is None else count(result.checks, "check")
    virtual = " (virtual)" if result.virtual else ""
    out.say(f"{count(result.nodes, 'node')}{virtual}, {judged}: {count(len(result.differences), 'difference')}")
    if result.unjudged:
        out.say(f"the evidence can't be judged: {result.unjudged}")

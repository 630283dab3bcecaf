"""`rocstack recipes`, `submit`, `jobs` and `job`: training jobs under Slurm, as their owner."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from rocstack.base.text import count, visible_lines
from rocstack.cli.command import Answer, command, commands
from rocstack.cli.ui import Interrupted, out, paragraph, print_json, say, table
from rocstack.steps.job_options import JobOptions, SubmitOptions, TokenOptions
from rocstack.steps.options import Flag, StacksOptions

if TYPE_CHECKING:
    from rocstack.jobs.recipe import Recipe
    from rocstack.jobs.slurm import Job, JobRecord
    from rocstack.steps.jobs import JobView, Submitted

RecipeName = Annotated[str, Flag("Recipe: a name from `rocstack recipes`.", argument=True, completes="recipe")]
Number = Annotated[str, Flag("Number of the job.", argument=True)]
Follow = Annotated[bool, Flag("Show the log until the job is over.", ("--follow", "-f"))]
LONGEST = 1 << 16  # characters of a line that is kept until it ends
job = typer.Typer(help="Show, follow, cancel or requeue a job.", no_args_is_help=True)
commands.add_typer(job, name="job", epilog="Example: rocstack job logs 17 --follow")


@command("rocstack recipes trainer")
def recipes(
    choice: StacksOptions,
    name: Annotated[str | None, Flag("Recipe to explain.", argument=True, completes="recipe")] = None,
) -> Answer:
    """List the kinds of jobs; with a name, explain its parameters."""
    from rocstack.steps import jobs as steps

    if name:
        recipe = steps.find_recipe(name, choice)
        yield recipe.model_dump(mode="json")
        return _explain(recipe)
    found = steps.list_recipes(choice)
    yield {"recipes": [each.model_dump(mode="json") for each in found.values()]}
    table(("RECIPE", "WHAT IT RUNS"), [(each.name, each.about) for each in found.values()])
    out.print("\n`rocstack recipes NAME` explains one; your own are files in the folder recipes/ of --overlay")


@command("rocstack submit trainer --nodes 2 --set steps=100 --follow")
def submit(
    choice: SubmitOptions,
    recipe: RecipeName,
    arguments: Annotated[list[str] | None, Flag("Arguments of the recipe, after --.", argument=True)] = None,
    follow: Follow = False,
    show: Annotated[bool, Flag("Print the batch script and stop; nothing is submitted.", ("--print",))] = False,
    json: Annotated[bool, Flag("Print JSON on standard output.")] = False,
) -> None:
    """Submit a job to the cluster's Slurm, as one of its users.

    Exit code 1: Slurm refuses it, or with --follow, the job failed.
    """
    from rocstack.steps import jobs as steps

    words = tuple(arguments or ())
    if show:
        printed = steps.print_script(recipe, choice, words)
        if json:
            return print_json({"script": printed.script, "why": printed.why})
        sys.stdout.write(printed.script)
        if printed.why:
            say(printed.why)
        return
    done = steps.submit(recipe, choice, words)
    if json:
        return print_json(done.to_dict())
    if done.why:
        say(done.why)
    say(f"job {done.id} of {done.user}: {done.recipe}")
    if follow:
        return _follow(done)
    say(f"`rocstack job logs {done.id} --follow` shows its log, `rocstack jobs` why it waits")


@command("rocstack jobs --user ann")
def jobs(choice: JobOptions, user: Annotated[str | None, Flag("Only this user's jobs.")] = None) -> Answer:
    """List the jobs that wait, run, or ended in the last minutes; of one that waits, why, and about how long."""
    from rocstack.steps import jobs as steps

    found = steps.queue(choice, user)
    yield {"jobs": [each.to_dict() for each in found]}
    if not found:
        out.print("no jobs")
        return
    rows = [
        (each.id, each.name, each.user, each.partition, each.state, each.used, str(each.nodes), _where(each))
        for each in found
    ]
    table(("JOB", "NAME", "USER", "PARTITION", "STATE", "TIME", "NODES", "WHERE, OR WHY NOT"), rows, right=(5, 6))


def _where(each: Job) -> str:
    start = f"; about {each.start.replace('T', ' ')}" if each.why and each.start else ""
    where = each.why + start if each.why else each.where
    if not each.of_verify:
        return where
    meant = ", which ended it on purpose" if each.state in ("CANCELLED", "PREEMPTED") else ""
    return f"{where} (of `rocstack verify`{meant})".lstrip()


@command("rocstack token inventory.yml --user ann")
def token(choice: TokenOptions) -> Answer:
    """Print a token by which the service and slurmrestd know a user; keep it secret.

    Whoever has it can do all that the user can, until it ends. `rocstack rotate-keys` ends all tokens at once.
    """
    from rocstack.steps import jobs as steps

    made = steps.token(choice)
    yield made
    sys.stdout.write(made.token + "\n")
    say(f"of {made.user}, until {datetime.fromtimestamp(made.ends):%Y-%m-%d %H:%M:%S}")


@command("rocstack job show 17", job)
def show(choice: JobOptions, number: Number) -> Answer:
    """Show a job: its state, nodes and times, and of one that failed, the first task that did and its last lines.

    Exit code 1: the job failed.
    """
    from rocstack.steps import jobs as steps

    view = steps.show(number, choice)
    yield view
    _show(view)


@command("rocstack job logs 17 --follow", job)
def logs(
    choice: JobOptions,
    number: Number,
    follow: Follow = False,
    rank: Annotated[int | None, Flag("Only the lines of this task.", least=0)] = None,
) -> None:
    """Show the log of a job."""
    from rocstack.steps import jobs as steps

    try:
        _print(steps.log(number, choice, follow=follow), rank)
    except Interrupted:
        raise typer.Exit(130) from None


@command("rocstack job cancel 17", job)
def cancel(choice: JobOptions, number: Number) -> Answer:
    """End a job, or take it out of the queue."""
    from rocstack.steps import jobs as steps

    record = steps.cancel(number, choice)
    yield record.to_dict()
    say(f"job {record.id} of {record.user} is cancelled")


@command("rocstack job requeue 17", job)
def requeue(choice: JobOptions, number: Number) -> Answer:
    """Stop a running job and put it back into the queue. With a checkpoint folder the trainer goes on from there."""
    from rocstack.steps import jobs as steps

    record = steps.requeue(number, choice)
    yield record.to_dict()
    say(f"job {record.id} of {record.user} is back in the queue")


def _follow(done: Submitted) -> None:
    from rocstack.steps import jobs as steps

    try:
        _print(steps.pieces(done.control, done.id, follow=True))
    except Interrupted:
        say(f"job {done.id} goes on; `rocstack job cancel {done.id}` ends it")
        raise typer.Exit(130) from None
    view = steps.view(done.control, done.id)
    _show(view)
    raise typer.Exit(0 if view.ok else 1)


def _print(pieces: Iterator[str], rank: int | None = None) -> None:
    """Whole lines, without what could steer the terminal."""
    from rocstack.jobs.slurm import labelled

    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        if len(rest) > LONGEST:
            lines, rest = [*lines, rest], ""
        _write(lines if rank is None else labelled(iter(lines), rank))
    if rest:
        _write([rest] if rank is None else labelled(iter([rest]), rank))


def _write(lines: Iterator[str] | list[str]) -> None:
    for line in lines:
        sys.stdout.write(visible_lines(line) + "\n")
    sys.stdout.flush()


def _explain(recipe: Recipe) -> None:
    out.say(f"{recipe.name}: {recipe.about}")
    layout = recipe.job
    tasks = (
        "one task for each GPU" if layout.tasks_per_node == "gpu" else f"{count(layout.tasks_per_node, 'task')} a node"
    )
    nodes = "whole nodes" if layout.exclusive else "nodes that other jobs may share"
    known = " or `size` knows its model" if recipe.size else ""
    more = [f"{count(layout.nodes, 'node')} unless you say --nodes{known}", tasks, nodes]
    if layout.requeue:
        more.append("it goes back to the queue when a node fails or another job takes its place")
    paragraph("job", "; ".join(more))
    if recipe.seen:
        paragraph("seen", recipe.seen)
    rows = []
    for name, each in recipe.parameters.items():
        kind = "|".join(each.choices) or each.type
        default = "needed" if each.needed else "" if each.default is None else str(each.default)
        rows.append((name, kind, default, each.about))
    if rows:
        out.print()
        table(("PARAMETER", "VALUE", "DEFAULT", ""), rows)
    if recipe.arguments:
        out.say(f"\nafter --: {recipe.arguments}")


def _show(view: JobView) -> None:
    record = view.record
    head = f"job {record.id} of {record.user}: {record.name}, {_state(record)}"
    out.say(head)
    rows = [
        ("nodes", f"{record.nodes}: {record.where}" if record.where else ""),
        ("in", f"partition {record.partition}, account {record.account}, QoS {record.qos}"),
        ("waits", record.why),
        ("times", _times(record)),
        ("log", record.log),
    ]
    for label, text in rows:
        if text:
            paragraph(label, text)
    if view.failed:
        failed = view.failed
        who = f"task {failed.task} on {failed.node} first" if failed.task else f"the script, on {failed.node}"
        paragraph("failed", f"{who}: {failed.how}; its last lines:")
        for line in failed.lines:
            out.say(f"          {line}")


def _state(record: JobRecord) -> str:
    if record.signal:
        return f"{record.state}, by signal {record.signal}"
    return f"{record.state}, exit code {record.exit_code}" if record.exit_code else record.state


def _times(record: JobRecord) -> str:
    said = [
        f"{word} {datetime.fromtimestamp(when):%Y-%m-%d %H:%M:%S}"
        for word, when in (("submitted", record.submitted), ("began", record.began), ("ended", record.ended))
        if when
    ]
    return ", ".join([*said, *([f"requeued {record.restarts} times"] if record.restarts else [])])

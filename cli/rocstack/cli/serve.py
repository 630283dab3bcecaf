"""`rocstack serve`: many adapters of one model, with OpenAI's interface."""

import os
import subprocess
import sys

import typer

from rocstack.base.errors import BadInput
from rocstack.base.text import visible
from rocstack.cli.command import Json, command
from rocstack.cli.run import Print, start_line
from rocstack.cli.ui import State, print_json, say, table
from rocstack.steps.job_options import ServeOptions


@command("rocstack serve ~/models/llama-8b --adapters ~/adapters -- --max-model-len=4096", allow_extra_args=True)
def serve(context: typer.Context, choice: ServeOptions, show: Print = False, json: Json = False) -> None:
    """Serve a model and many adapters of it, with OpenAI's interface, until Ctrl-C.

    An adapter is loaded at its first request and named as `model`. What follows -- goes to `vllm serve`. With
    --replicas or --node the servers run on the cluster: MODEL is one of its service, which shares requests out.
    """
    State.json = json
    if choice.replicas is not None or choice.node:
        return _replicas(choice, tuple(context.args), show=show, json=json)
    from rocstack.container.run_line import shell_quote
    from rocstack.steps.serve import plan_serve, write
    from rocstack.steps.serve_replicas import refuse_mixed

    refuse_mixed(choice)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    plan = plan_serve(choice, tuple(context.args), terminal=terminal, dry=show)
    if show and json:
        print_json(plan.to_dict())
        return
    if show:
        print_json(plan.to_dict()["settings"])
        sys.stdout.write((shell_quote(plan.run.line) if plan.run else subprocess.list2cmdline(plan.command)) + "\n")
        return
    say(f"{plan.adapters} adapters; {plan.settings.base} starts (a minute or more)")
    if plan.run:
        start_line(plan.run)
    write(plan)
    os.execv(plan.command[0], plan.command)


def _replicas(choice: ServeOptions, arguments: tuple[str, ...], *, show: bool, json: bool) -> None:
    from rocstack.steps.serve_replicas import start_replicas

    if show:
        raise BadInput.of("no-combination", why="--print is for what would run on this machine")
    made = start_replicas(choice, arguments)
    if json:
        print_json(made.to_dict())
        return
    rows = [[each.get(key) or "" for key in ("id", "status", "why")] for each in made.servers]
    table(("SERVER", "STATE", "WHY IT WAITS"), [tuple(visible(str(cell)) for cell in row) for row in rows])
    say(f"they run as jobs of {made.user}; the service's page shows and ends them")
    say(f"ask {made.url} for the model '{made.model}' when one of them is ready")

"""`rocstack`: the root command, exit codes, and nothing heavy at start."""

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rocstack.base import __version__
from rocstack.base.errors import BadInput, Missing, RocstackError, Where
from rocstack.cli.ui import Interrupted, State, err, escape, print_error, print_json

# Each command: its module, and its line in `rocstack --help`.
COMMANDS = {
    "init": ("config", "Write a commented rocstack.yml and inventory.yml."),
    "probe": ("probe", "Inspect nodes: GPUs, NICs, drivers, kernel ABI, libraries."),
    "doctor": ("doctor", "Find known faults of this machine, nodes or a log."),
    "build": ("images", "Build, test and label the worker and control images."),
    "render": ("images", "Print the Dockerfile, or write the whole build context."),
    "stacks": ("images", "List the stacks and NIC profiles."),
    "explain": ("images", "Explain why a combination is allowed or refused."),
    "lock": ("images", "Pin every package, wheel and source of a stack."),
    "outdated": ("images", "Show what is newer in a stack's sources than in its lock."),
    "release": ("release", "Publish signed images that prove what is in them."),
    "bundle": ("bundle", "Pack a release and rocstack into one file; install one."),
    "rebuild": ("release", "Build a released image again; show what differs."),
    "export": ("images", "Write an image for enroot, pyxis, podman or Apptainer."),
    "run": ("run", "Run a command in the image on this host."),
    "shell": ("run", "Open a shell in a node's container or in the image."),
    "deploy": ("deploy", "Start the Slurm cluster on the nodes, or update it."),
    "rollback": ("deploy", "Return to the last verified release."),
    "verify": ("verify", "Test a deployed cluster, from GPUs to training."),
    "report": ("report", "Write a run's report again, or compare two runs."),
    "first-light": ("first_light", "Run every step once on new hardware; write one redacted file."),
    "replay": ("first_light", "Judge the recordings of such a file again."),
    "size": ("size", "Say what a model needs, how fast it would be, in which layout."),
    "recipes": ("jobs", "List the kinds of jobs, and explain one."),
    "submit": ("jobs", "Submit a job to the cluster's Slurm."),
    "jobs": ("jobs", "List the jobs, and say why one waits."),
    "job": ("jobs", "Show, follow, cancel or requeue a job."),
    "scale": ("scale", "Run a recipe on more and more nodes; show how its speed grows."),
    "token": ("jobs", "Print a user's token for the service and slurmrestd."),
    "status": ("operate", "Show each node's image, Slurm state, GPUs, jobs, health."),
    "logs": ("operate", "Show the log of a node's container."),
    "down": ("deploy", "Stop and remove the cluster's containers."),
    "backup": ("operate", "Save Slurm's queue and accounting to one file."),
    "restore": ("operate", "Replace Slurm's queue and accounting with a backup."),
    "rotate-keys": ("operate", "Replace keys and passwords while jobs run."),
    "demo": ("run", "Run the built image: print versions and train a tiny model."),
    "serve": ("serve", "Serve a model and many adapters with OpenAI's interface."),
    "config": ("config", "Show each setting, its value and where it came from."),
    "local": ("local", "Run a cluster of virtual nodes on this machine."),
}


_OURS = "a bug in rocstack, not a mistake of yours"
_REPORT = "run again with `rocstack --debug ...` and report what it prints"


class LazyGroup(TyperGroup):
    """Lists its commands without loading their modules."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands and not self.commands[cmd_name]:
            import_module(f"rocstack.cli.{COMMANDS[cmd_name][0]}")
            from rocstack.cli.command import commands

            self.commands |= typer.main.get_group(commands).commands
        return self.commands.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


app = typer.Typer(
    name="rocstack",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"rocstack {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turn a list of AMD GPU servers into a Slurm cluster for multi-node training.

    Start with `rocstack build`. Exit codes: 0 done, 1 a check failed, 2 bad input, 3 this machine lacks something.
    """
    State.debug = debug


def _interrupt(signal_number: int, frame: object) -> None:
    raise Interrupted


def main() -> None:
    """Runs the command; whatever a person can cause ends as a message and an exit code, never a traceback."""
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _interrupt)  # what was started would go on without its terminal
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")  # closed by whoever started us
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    own = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv  # after it stands another's command
    State.json = "--json" in own
    State.debug = "--debug" in own or bool(os.environ.get("ROCSTACK_TEST_DEBUG"))
    try:
        code = _run()
        sys.stdout.flush()
    except OSError as error:  # standard output or standard error is full, or nobody reads it any more
        if State.debug and not isinstance(error, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
        if not isinstance(error, BrokenPipeError):
            State.json, code = False, 2
            with suppress(OSError):
                code = _told(_outside(error))
    sys.exit(code)


def _run() -> int:
    try:
        code: Any = app(prog_name="rocstack", standalone_mode=False)
    except (Interrupted, typer.Abort):
        if State.json:
            print_json({"error": {"code": "interrupted", "what": "stopped", "exit_code": 130}})
        err.print("stopped. Finished work is kept; run the same command again to continue.")
        return 130
    except BrokenPipeError:
        raise
    except (RocstackError, OSError) as error:
        if State.debug:
            raise
        return _told(error if isinstance(error, RocstackError) else _outside(error))
    except Exception as error:
        return _usage_or_bug(error)
    return code if isinstance(code, int) else 0


def _told(error: RocstackError) -> int:
    print_error(error)
    return error.exit_code


def _outside(error: OSError) -> RocstackError:
    """What is the person's to mend, not ours: an engine that refused or stopped answering in the middle, or whose
    client is not there; a path that can't be read or written, a full disk."""
    from_engine = type(error).__module__.partition(".")[0] in ("docker", "requests", "urllib3")
    if from_engine or error.filename == "docker":
        return Missing.of("engine-failed", why=getattr(error, "explanation", None) or error.strerror or error)
    if isinstance(error, FileNotFoundError) and not error.filename:  # getcwd(3)
        return BadInput.of("no-folder-here")
    place = Where(str(error.filename)) if error.filename else None
    return BadInput.of("no-access", place, why=error.strerror or error)


def _usage_or_bug(error: Exception) -> int:
    """A usage error prints itself; anything else is ours and says so."""
    show = getattr(error, "show", None)
    if callable(show):
        if State.json:
            print_json({"error": {"code": "usage", "what": str(getattr(error, "message", error)), "exit_code": 2}})
        else:
            show()
        return 2
    exit_code = getattr(error, "exit_code", None)
    if isinstance(exit_code, int):
        return exit_code
    if State.debug:
        raise error
    if State.json:
        what = f"{type(error).__name__}: {error}"
        print_json({"error": {"code": "defect", "what": what, "cause": _OURS, "next": _REPORT, "exit_code": 1}})
        return 1
    err.print(f"[bold red]error:[/] {escape(f'{type(error).__name__}: {error}')}")
    err.print(f"  cause: {_OURS}")
    err.print(f"  next: {_REPORT}")
    return 1


if __name__ == "__main__":
    main()

"""Makes commands of functions, their flags from the options of a step; and what several commands share."""

import getpass
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperGroup

from rocstack.base.errors import BadInput
from rocstack.cli import completion
from rocstack.cli.ui import print_json
from rocstack.steps.options import ClusterInventory, Flag

Function = TypeVar("Function", bound=Callable[..., Any])
Answer = Iterator[Any]
Json = Annotated[bool, Flag("Print JSON on standard output.")]
Cluster = ClusterInventory
Service = Annotated[
    str | None,
    Flag("Container: worker, controller, db, registry, service or tokens; default: the worker, else the controller."),
]
Force = Annotated[bool, Flag("Proceed even if jobs run; they are cancelled.")]
Yes = Annotated[bool, Flag("Don't ask for confirmation.")]


class ShortGroup(TyperGroup):
    """`rocstack GROUP ...` without a command is that of `short`."""

    short = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        known = first in self.commands  # whatever files are here
        plain = first.isidentifier() and not Path(first).exists()  # a command, if a misspelt one
        if not (
            known or plain or first in ("-h", "--help") or ctx.resilient_parsing
        ):  # the last: somebody completes a line
            args = [self.short, *args]
        return super().parse_args(ctx, args)


commands = typer.Typer(rich_markup_mode=None)  # those whose modules are loaded
commands.callback()(lambda: None)


def command(example: str, app: typer.Typer = commands, **context: Any) -> Callable[[Function], Function]:
    """Registers a function as the command of its name. A parameter that is a step's options becomes a flag for each of
    their fields.

    A generator yields its answer once, then shows it to a person: with --json it ends at the `yield`. The answer is the
    document or a value with `to_dict`; where it isn't `ok`, the exit code is 1. A pair is a document and whether it is.
    """

    def register(function: Function) -> Function:
        app.command(function.__name__.replace("_", "-"), epilog=f"Example: {example}", context_settings=context)(
            _flattened(function)
        )
        return function

    return register


def _flattened(function: Callable[..., Any]) -> Callable[..., None]:
    groups: dict[str, Any] = {}
    parameters = []
    for own in inspect.signature(function, eval_str=True).parameters.values():
        if is_dataclass(own.annotation):
            groups[own.name] = own.annotation
            hints = get_type_hints(own.annotation, include_extras=True)
            for each in fields(own.annotation):
                default = inspect.Parameter.empty if each.default is MISSING else each.default
                parameters.append(_parameter(each.name, hints[each.name], default))
        else:
            parameters.append(_parameter(own.name, own.annotation, own.default))
    answers = inspect.isgeneratorfunction(function)
    if answers:
        parameters.append(_parameter("json", Json, False))

    def run(**given: Any) -> None:
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        for name, kind in groups.items():
            values[name] = kind(**{each.name: values.pop(each.name) for each in fields(kind)})
        if answers:
            as_json = bool(values.pop("json"))
            _answer(function(**values), as_json)
        else:
            function(**values)

    run.__doc__ = function.__doc__
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _answer(steps: Answer, as_json: bool) -> None:
    answer = next(steps)
    document, ok = answer if isinstance(answer, tuple) else (answer, getattr(answer, "ok", True))
    if as_json:
        print_json(document if isinstance(document, Mapping) else document.to_dict())
    else:
        next(steps, None)
    if not ok:
        raise typer.Exit(1)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    flag = next((each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Flag)), None)
    if flag:
        value, names = get_args(annotation)[0], flag.names
        if get_origin(value) is tuple:
            value, default = list.__class_getitem__(get_args(value)[0]), list(default)
        if value is bool and not names:
            names = (f"--{name.replace('_', '-')}",)  # and no --no-...
        annotation = Annotated[value, _argument(flag, name) if flag.argument else _option(flag, names, name)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _argument(flag: Flag, parameter: str) -> Any:
    proposed = completion.of_option(flag.completes or parameter)
    return typer.Argument(help=flag.help, metavar=flag.metavar, autocompletion=proposed)


def _option(flag: Flag, names: tuple[str, ...], parameter: str) -> Any:
    return typer.Option(
        *names, help=flag.help, metavar=flag.metavar, min=flag.least, max=flag.most, hidden=flag.hidden,
        show_default=flag.show_default, autocompletion=completion.of_option(flag.completes or parameter),
    )  # fmt: skip


def confirmed(question: str, yes: bool) -> None:
    """
    Raises:
        BadInput: there is no terminal to ask at.
        Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput.of("unconfirmed", question=question)
    typer.confirm(f"{question} Go on?", abort=True, err=True)


def asked_password(*, again: bool = False) -> bytes:
    """
    Raises:
        BadInput: there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        raise BadInput.of("no-password")
    given = getpass.getpass("Password of the private key: ")
    if again and given != getpass.getpass("Again: "):
        raise BadInput.of("unlike-passwords")
    return given.encode()

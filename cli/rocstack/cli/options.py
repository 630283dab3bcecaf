"""Makes a command's flags from the options of its step; and what several commands share."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from rocstack.steps.options import Flag
from rocstack.steps.options import inventory_path as inventory
from rocstack.steps.options import settings as settings

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Cluster = Annotated[
    Path | None,
    typer.Option("--inventory", metavar="FILE", help="The cluster's inventory; default: the setting `inventory`."),
]
Service = Annotated[
    str | None,
    typer.Option(help="Container: worker, controller, db or registry; default: the worker, else the controller."),
]
Force = Annotated[bool, typer.Option("--force", help="Proceed even if jobs run; they are cancelled.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")]


def add(app: typer.Typer, name: str, function: Callable[..., None], example: str, **settings: Any) -> None:
    """Registers a command. A parameter that is a step's options becomes a flag for each of its fields."""
    app.command(name, epilog=f"Example: {example}", **settings)(_flattened(function))


def _flattened(function: Callable[..., None]) -> Callable[..., None]:
    groups: dict[str, Any] = {}
    parameters = []
    for own in inspect.signature(function, eval_str=True).parameters.values():
        if is_dataclass(own.annotation):
            groups[own.name] = own.annotation
            hints = get_type_hints(own.annotation, include_extras=True)
            parameters += [_parameter(each.name, hints[each.name], each.default) for each in fields(own.annotation)]
        else:
            parameters.append(_parameter(own.name, own.annotation, own.default))

    @wraps(function)
    def command(**values: Any) -> None:
        for name, kind in groups.items():
            own = {each.name: values.pop(each.name) for each in fields(kind)}
            values[name] = kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in own.items()})
        function(**values)

    del command.__wrapped__  # its signature is the other one
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = next((each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Flag)), None)
    if kind:
        value = get_args(annotation)[0]
        if get_origin(value) is tuple:
            value, default = list.__class_getitem__(get_args(value)[0]), list(default)
        annotation = Annotated[value, _argument(kind) if kind.argument else _option(kind)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _argument(flag: Flag) -> Any:
    return typer.Argument(help=flag.help, metavar=flag.metavar)


def _option(flag: Flag) -> Any:
    return typer.Option(
        *flag.names, help=flag.help, metavar=flag.metavar, min=flag.least, max=flag.most, hidden=flag.hidden,
        show_default=flag.show_default,
    )  # fmt: skip


def confirmed(question: str, yes: bool) -> None:
    """
    Raises:
        BadInput: there is no terminal to ask at.
        Abort: the answer is no.
    """
    from rocstack.base.errors import BadInput

    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(
            question, code="unconfirmed", cause="there is no terminal to ask for confirmation", next_step="add --yes"
        )
    typer.confirm(f"{question} Go on?", abort=True, err=True)


__all__ = ["Cluster", "Flag", "Force", "Json", "Service", "Yes", "add", "confirmed", "inventory", "settings"]

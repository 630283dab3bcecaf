"""What the shell's completion proposes as the value of an option or argument. Nothing is loaded before it asks."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rocstack.base.errors import RocstackError


def of_option(name: str) -> Callable[..., list[str]] | None:
    """For the command line's library, which goes by the names of the parameters."""
    if name not in _KNOWN and name not in _OF_STACK:
        return None

    def complete(ctx: Any, incomplete: str) -> list[str]:
        return values(name, ctx.params, incomplete)

    return complete


def values(option: str, given: Mapping[str, Any], incomplete: str) -> list[str]:
    """Those that begin so. `given` is what stands on the command line already."""
    try:
        overlay = _overlay(given)
    except (RocstackError, OSError):  # what is wrong there is told when the command runs
        overlay = None
    try:
        known = _OF_STACK[option](given, overlay) if option in _OF_STACK else _KNOWN[option](overlay)
        return [value for value in known if value.startswith(incomplete)]
    except (RocstackError, OSError):
        return []


def _overlay(given: Mapping[str, Any]) -> Path | None:
    from rocstack.steps.options import settings

    return settings(overlay=given.get("overlay")).overlay_folder()


def _stacks(overlay: Path | None) -> Iterable[str]:
    from rocstack.stack import stack

    return stack.names(overlay)


def _nics(overlay: Path | None) -> Iterable[str]:
    from rocstack.stack import component

    return component.library("nic", overlay).files


def _models(overlay: Path | None) -> Iterable[str]:
    from rocstack.virtual import model

    return model.names()


def _gpus(overlay: Path | None) -> Iterable[str]:
    from rocstack.stack import gpus

    return sorted(name.lower() for target in gpus.targets().values() for name in target.gpus)


def _services(overlay: Path | None) -> Iterable[str]:
    from rocstack.deploy.plan import services

    return services.SERVICES


def _trained(overlay: Path | None) -> Iterable[str]:
    from rocstack.size import models

    return models.names()


def _recipes(overlay: Path | None) -> Iterable[str]:
    from rocstack.steps import jobs
    from rocstack.steps.options import StacksOptions

    return jobs.list_recipes(StacksOptions(overlay=str(overlay) if overlay else None))


def _components(given: Mapping[str, Any], overlay: Path | None) -> Iterable[str]:
    own = _stack(given, overlay)
    return [*own.components, *own.wheels]


def _methods(given: Mapping[str, Any], overlay: Path | None) -> Iterable[str]:
    others = _stack(given, overlay).alternatives
    return [f"{name}={choice.method}" for name, choices in others.items() for choice in choices]


def _stack(given: Mapping[str, Any], overlay: Path | None) -> Any:
    from rocstack.stack import stack
    from rocstack.steps.options import settings

    return stack.load(settings(stack=given.get("stack")).stack, overlay)


_OF_STACK: Mapping[str, Callable[[Mapping[str, Any], Path | None], Iterable[str]]] = {
    "component": _components,
    "method": _methods,
}
_KNOWN: Mapping[str, Callable[[Path | None], Iterable[str]]] = {
    "stack": _stacks,
    "nic": _nics,
    "model": _models,
    "gpu": _gpus,
    "service": _services,
    "trained": _trained,
    "recipe": _recipes,
    "role": lambda overlay: ("worker", "control", "service"),
}

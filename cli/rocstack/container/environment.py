"""Variables handed to a container without showing their values to everybody who can list processes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rocstack.base import environment
from rocstack.base.errors import BadInput, Where

# These would steer the engine's client itself, and hold no secrets: they stand on the line.
_CLIENTS_OWN = re.compile(r"(PATH|HOME|(DOCKER|LD|SSL_CERT)_\w+)")


@dataclass(frozen=True)
class Environment:
    """`flags` go on the line (`--env=NAME`), `values` into the environment of the engine's client."""

    flags: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()


NOTHING = Environment()


def parse_env(texts: Sequence[str], environ: Mapping[str, str]) -> Environment:
    """Reads `NAME` (its value is taken from `environ`) and `NAME=VALUE`; the last of a name counts.

    Raises:
        BadInput: not a variable's name, or a misspelt one.
    """
    values: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise BadInput.of("bad-env", name=name)
        if why := environment.misspelt(name):
            raise BadInput.of("misspelt-env", Where("--env"), why=why)
        values[name] = value if equals else environ.get(name)
    known = {name: value for name, value in values.items() if value is not None}
    own = {name for name in known if _CLIENTS_OWN.fullmatch(name)}
    return Environment(
        tuple(f"--env={name}={value}" if name in own else f"--env={name}" for name, value in known.items()),
        tuple((name, value) for name, value in known.items() if name not in own),
        tuple(f"{name} is not set here, so the container doesn't get it" for name in values if name not in known),
    )

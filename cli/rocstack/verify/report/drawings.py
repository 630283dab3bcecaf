"""What checks give to be drawn: the shapes of `CheckResult.drawings`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from rocstack.verify.result import CheckResult, Run
from rocstack.words import Value


class Quantity(Value):
    """`values[i][j]` is from `nodes[i]` to `nodes[j]`; None where it wasn't measured, as on the diagonal."""

    name: str
    unit: str
    better: Literal["low", "high"]
    nodes: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]


class Matrix(Value):
    """Kind "matrix"."""

    quantities: tuple[Quantity, ...]


class Series(Value):
    """`points` are (bytes, bandwidth)."""

    name: str
    points: tuple[tuple[float, float], ...]


class Line(Value):
    value: float
    text: str


class Curves(Value):
    """Kind "curves"."""

    unit: str
    series: tuple[Series, ...]
    threshold: Line | None = None


class Gpu(Value):
    index: int
    pci: str | None = None
    numa: int | None = None
    name: str | None = None


class Nic(Value):
    name: str
    pci: str | None = None
    numa: int | None = None
    speed: str | int | None = None
    state: str | None = None


class Affinity(Value):
    """A GPU's nearest NIC. `via` is switch, root, numa or system."""

    gpu: int
    nic: str | None = None
    via: str | None = None


class Link(Value):
    """Between the GPUs `a` and `b`."""

    a: int
    b: int
    kind: str


class Devices(Value):
    """Of one node."""

    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    affinity: tuple[Affinity, ...] = ()
    links: tuple[Link, ...] = ()


class Topology(Value):
    """Kind "topology": node -> its devices."""

    nodes: Mapping[str, Devices]


Drawing = TypeVar("Drawing", Matrix, Curves, Topology)
KINDS: Mapping[str, type[Any]] = {"matrix": Matrix, "curves": Curves, "topology": Topology}


def of(run: Run, kind: type[Drawing]) -> Iterator[tuple[CheckResult, Drawing]]:
    """Those of that kind. One that can't be read is left out: `unreadable` names it."""
    name = next(name for name, model in KINDS.items() if model is kind)
    for result in run.results:
        if name in result.drawings:
            try:
                yield result, kind.model_validate_json(json.dumps(result.drawings[name]))
            except ValidationError:
                continue


def unreadable(run: Run) -> list[str]:
    """What is wrong with drawings, a line each."""
    found = []
    for result in run.results:
        for name, value in result.drawings.items():
            try:
                KINDS[name].model_validate_json(json.dumps(value))
            except KeyError:
                found.append(f"{result.check.name}: nothing draws '{name}'")
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                place = ".".join(map(str, first["loc"]))
                found.append(f"{result.check.name}: the {name} can't be drawn: {place}: {first['msg']}")
    return found

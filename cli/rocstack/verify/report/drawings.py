"""What checks give to be drawn: the shapes of `CheckResult.drawings`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from rocstack.base.words import Value
from rocstack.verify.result import CheckResult, Run

# A node's tools may say "nan" or "inf", which no scale has, or a speed below 0.
Drawable = Annotated[float, Field(ge=-1e18, le=1e18)]
Amount = Annotated[float, Field(ge=0, le=1e18)]


class MatrixQuantity(Value):
    """`values[i][j]` is from `nodes[i]` to `nodes[j]`; None where it wasn't measured, as on the diagonal."""

    name: Annotated[str, Field(min_length=1)]
    unit: str
    better: Literal["low", "high"]
    nodes: tuple[str, ...]
    values: tuple[tuple[Drawable | None, ...], ...]


class Matrix(Value):
    """Kind "matrix"."""

    quantities: tuple[MatrixQuantity, ...]


class ThresholdLine(Value):
    value: Amount
    text: str


class Series(Value):
    """`points` are (bytes, busbw, algbw), or without the last; `threshold` is of busbw, at the largest size."""

    name: str
    points: tuple[tuple[Amount, Amount] | tuple[Amount, Amount, Amount], ...]
    threshold: ThresholdLine | None = None


class Curves(Value):
    """Kind "curves". A `threshold` here, as older reports have it, is of all series."""

    unit: str
    series: tuple[Series, ...]
    threshold: ThresholdLine | None = None


class DrawnGpu(Value):
    index: int
    pci: str | None = None
    numa: int | None = None
    name: str | None = None


class DrawnNic(Value):
    name: str
    pci: str | None = None
    numa: int | None = None
    speed: str | int | None = None  # a number is Mb/s
    state: str | None = None


class DrawnAffinity(Value):
    """A GPU's nearest NIC. `via` is switch, root, numa or system."""

    gpu: int
    nic: str | None = None
    via: str | None = None


class DrawnLink(Value):
    """Between the GPUs `a` and `b`."""

    a: int
    b: int
    kind: str


class Devices(Value):
    """Of one node."""

    gpus: tuple[DrawnGpu, ...] = ()
    nics: tuple[DrawnNic, ...] = ()
    affinity: tuple[DrawnAffinity, ...] = ()
    links: tuple[DrawnLink, ...] = ()


class Topology(Value):
    """Kind "topology": node -> its devices."""

    nodes: Mapping[str, Devices]


KINDS: Mapping[str, type[Matrix | Curves | Topology]] = {"matrix": Matrix, "curves": Curves, "topology": Topology}


@dataclass
class Drawings:
    """Of a run by kind, each with the check that gave it; `unreadable` says what is wrong with others, a line each."""

    matrix: list[tuple[CheckResult, Matrix]] = field(default_factory=list)
    curves: list[tuple[CheckResult, Curves]] = field(default_factory=list)
    topology: list[tuple[CheckResult, Topology]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def read(run: Run) -> Drawings:
    drawings = Drawings()
    for result in run.results:
        for kind, value in result.drawings.items():
            try:
                drawing = KINDS[kind].model_validate_json(json.dumps(value))
            except KeyError:
                drawings.unreadable.append(f"{result.check.name}: nothing draws '{kind}'")
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                place = ".".join(map(str, first["loc"]))
                drawings.unreadable.append(f"{result.check.name}: the {kind} can't be drawn: {place}: {first['msg']}")
            else:
                getattr(drawings, kind).append((result, drawing))
    return drawings

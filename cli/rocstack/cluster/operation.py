"""How a cluster is run: timeouts, the workers' own check, shipping, updates; and the amounts that settings name."""

import math
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from rocstack.base.image_names import registry_text
from rocstack.base.words import Duration, Value

MOST = 0xFFFFFFFD  # the numbers above mean something else to Slurm
Count = Annotated[int, Field(ge=0, le=MOST)]
Some = Annotated[int, Field(ge=1)]
Wave = Annotated[int | str, AfterValidator(lambda value: _share(value, 1))]  # a number of nodes, or 25%
Budget = Annotated[int | str, AfterValidator(lambda value: _share(value, 0))]
Port = Annotated[int, Field(ge=1, le=65535)]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Timeouts(Value):
    slurmd: Duration = "2m"  # silence after which a node is down and its jobs are requeued
    slurmctld: Duration = "2m"
    kill_wait: Duration = "30s"  # between SIGTERM and SIGKILL at a job's time limit
    inactive: Duration = "infinite"  # a client's silence after which its job ends


class Health(Value):
    """What each worker looks at itself while it is in Slurm."""

    every: Duration = "5m"  # infinite: never
    drain: bool = True  # a node with a fault; else slurmd's log says it

    @field_validator("every")
    @classmethod
    def _slurms(cls, text: str) -> str:
        whole = seconds(text)
        if whole is not None and not 30 <= whole <= 65533:
            raise ValueError(f"{text} is not between 30s and 18h")
        return text


class Ship(Value):
    """How images get to the nodes."""

    method: Literal["auto", "registry", "archive", "rack"] = "auto"  # auto: rack where the inventory names any
    registry: Annotated[str, AfterValidator(registry_text)] = ""  # the site's own; default: one on the control node
    registry_login: bool = False  # nodes pull with this machine's docker login; default: with the node's own, if any
    port: Annotated[int, Field(ge=1, le=65534)] = 5000  # of the control node's registry; the next one is for pushes
    forks: Annotated[int, Field(ge=1, le=1024)] = 32  # nodes at once
    attempts: Annotated[int, Field(ge=1, le=20)] = 4

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.method == "archive" and self.registry:
            raise ValueError("registry: nothing is pulled with `method: archive`: leave one of the two out")
        return self

    @field_validator("method", mode="before")
    @classmethod
    def _not_p2p(cls, value: object) -> object:
        if value == "p2p":
            raise ValueError("p2p was removed; take auto, and put Dragonfly before the registry (docs/shipping.md)")
        return value

    @model_validator(mode="before")
    @classmethod
    def _no_link(cls, data: object) -> object:
        if isinstance(data, dict) and "link_gbps" in data:
            raise ValueError("link_gbps was removed; delete it, and set `method` to choose the way yourself")
        return data


class Rest(Value):
    """slurmrestd, Slurm's REST interface."""

    port: Port | None = None  # on which the control node answers by https; default: on loopback only


class RolloutSettings(Value):
    """How an update goes through the nodes."""

    canary: Count = 1  # nodes before all others
    wave: Wave = "25%"  # nodes at once after that
    drain_timeout: Duration = "4h"  # that running jobs have to end
    requeue: bool = False  # don't wait: requeue them
    failures: Budget = 1  # nodes that may fail before it stops


def seconds(text: str) -> int | None:
    """A Duration in seconds; None is for ever."""
    return None if text == "infinite" else int(text[:-1]) * _SECONDS[text[-1]]


def minutes(text: str, forever: str = "UNLIMITED") -> str:
    """A Duration as Slurm's limits on jobs, which count whole minutes."""
    whole = seconds(text)
    return forever if whole is None else str(max(whole // 60, 1))


def how_many(share: int | str, whole: int) -> int:
    """A number of nodes: as it is given, or a percentage of all, rounded up."""
    return share if isinstance(share, int) else math.ceil(whole * int(share.removesuffix("%")) / 100)


def _share(value: int | str, least: int) -> int | str:
    if re.fullmatch(r"[1-9][0-9]?%|100%", value) if isinstance(value, str) else value >= least:
        return value
    raise ValueError(f"{value} is neither a number of nodes from {least} nor a percentage such as 25%")

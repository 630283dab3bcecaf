"""What a check says of itself, before it runs."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rocstack.base.levels import Level
from rocstack.base.words import Name, Value

ITEMS = 18  # kinds of test that a training cluster must pass
_NEED = re.compile(r"gpu|rdma|real|jobs|nodes:[2-9]|tool:[A-Za-z0-9_.-]{1,40}")
MARK = "check"  # the name of its pytest mark


def _known(need: str) -> str:
    if not _NEED.fullmatch(need):
        raise ValueError(f"nothing can be called '{need}'")
    return need


# gpu: a GPU that the driver drives; rdma: an RDMA device; real: no virtual node; jobs: Slurm starts jobs there;
# nodes:N: so many workers at least; tool:NAME: a program in the worker image.
Need = Annotated[str, AfterValidator(_known)]


class Check(Value):
    """One statement, such as "NUMA balancing is off". `cause` and `next_step` are said where it isn't true; `source`
    is where it is from. `scope` is whether each node is judged or the cluster as a whole."""

    name: Name
    title: str
    level: Level
    cause: str
    next_step: str
    source: str = ""
    item: Annotated[int, Field(ge=1, le=ITEMS)] | None = None
    needs: tuple[Need, ...] = ()
    scope: Literal["node", "cluster"] = "node"

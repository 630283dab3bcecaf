"""Whether a partition has what a job asks for. Pure."""

import math
import re
from dataclasses import dataclass, replace

from rocstack.base.errors import BadInput, hinted
from rocstack.jobs.recipe import JobRequest, Recipe, slurm_time

_TIME = re.compile(r"(?:(\d{1,7})-)?(?:(\d{1,7}):)?(\d{1,7}):(\d\d)")  # days, hours, minutes, seconds


@dataclass(frozen=True)
class Pool:
    """A partition, as sinfo has it. `gpus` are those of each node; 0 where nodes differ, or there are none. `gpu` is
    their kind; empty where Slurm wasn't told of it."""

    name: str
    nodes: int
    limit: str
    gpus: int
    default: bool
    gpu: str = ""


def asked_for(request: JobRequest, pools: list[Pool]) -> Pool:
    """
    Raises:
        BadInput: the partition isn't there.
    """
    default = next((each for each in pools if each.default), pools[0] if pools else None)
    pool = next((each for each in pools if each.name == request.partition), None) if request.partition else default
    if pool is None:
        name = request.partition or ""
        raise BadInput.of("unknown-partition", name=name, hint=hinted(name, [each.name for each in pools]))
    return pool


def fitted(recipe: Recipe, request: JobRequest, pools: list[Pool]) -> JobRequest:
    """With all GPUs of the nodes, unless the person says how many.

    Raises:
        BadInput: the partition isn't there, has fewer nodes or no GPUs, or lets no job run so long.
    """
    pool = asked_for(request, pools)
    asked = (request.nodes or recipe.job.nodes) + request.spare
    if asked > pool.nodes:
        raise BadInput.of("too-many-nodes", asked=asked, partition=pool.name, nodes=pool.nodes)
    time = slurm_time(request.time or recipe.job.time)
    if time and _seconds(time) > _seconds(pool.limit):
        raise BadInput.of("too-long", time=time, partition=pool.name, limit=pool.limit)
    if request.gpus_per_node is not None:
        return request
    if recipe.needs_gpus and not pool.gpus:
        raise BadInput.of("no-gpus-there", recipe=recipe.name, partition=pool.name)
    return replace(request, gpus_per_node=pool.gpus)


def _seconds(text: str) -> float:
    """Of a time as Slurm writes it; endless where it says no number."""
    found = _TIME.fullmatch(text)
    if not found:
        return math.inf
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

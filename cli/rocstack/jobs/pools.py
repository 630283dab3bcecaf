"""Whether a partition has what a job asks for. Pure."""

from dataclasses import dataclass, replace

from rocstack.base.errors import BadInput, hinted
from rocstack.jobs.recipe import JobRequest, Recipe


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
        BadInput: the partition isn't there, has fewer nodes or no GPUs.
    """
    pool = asked_for(request, pools)
    asked = (request.nodes or recipe.job.nodes) + request.spare
    if asked > pool.nodes:
        raise BadInput.of("too-many-nodes", asked=asked, partition=pool.name, nodes=pool.nodes)
    if request.gpus_per_node is not None:
        return request
    if recipe.needs_gpus and not pool.gpus:
        raise BadInput.of("no-gpus-there", recipe=recipe.name, partition=pool.name)
    return replace(request, gpus_per_node=pool.gpus)

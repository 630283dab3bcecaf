"""Whether a partition has what a job asks for. Pure."""

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rocstack.base.errors import BadInput, hinted
from rocstack.jobs import recipe as recipes
from rocstack.jobs.recipe import JobRequest, Recipe, slurm_time, tasks_of_node

DEGREES = ("tp", "pp", "cp")  # parameters by which ranks share a model
MOST_DEGREE = 512  # that is advised
ENDLESS, YEAR_S = "infinite", 365 * 86400
_TIME = re.compile(r"(?:(\d{1,7})-)?(?:(\d{1,7}):)?(\d{1,7}):(\d\d)")  # days, hours, minutes, seconds


@dataclass(frozen=True)
class Pool:
    """A partition, as sinfo has it. `gpus` are those of each node; 0 where nodes differ, or there are none. `gpu` is
    their kind; empty where Slurm wasn't told of it. `most` are those of the node that has most; None: not known."""

    name: str
    nodes: int
    limit: str
    gpus: int
    default: bool
    gpu: str = ""
    most: int | None = None


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
        BadInput: the partition isn't there, has fewer nodes or GPUs, or lets no job run so long; no
            such layout of its ranks is possible.
    """
    pool = asked_for(request, pools)
    asked = (request.nodes or recipe.job.nodes) + request.spare
    if asked > pool.nodes:
        raise BadInput.of("too-many-nodes", asked=asked, partition=pool.name, nodes=pool.nodes)
    limit = _seconds(pool.limit)
    if (request.time or recipe.job.time) == ENDLESS and YEAR_S <= limit < math.inf:  # a partition of ours has no more
        request = replace(request, time=f"{int(limit) // 86400}d")
    time = slurm_time(request.time or recipe.job.time)
    if time and _seconds(time) > limit:
        spoken = "no end" if time == "UNLIMITED" else _spoken(_seconds(time))
        raise BadInput.of("too-long", time=spoken, partition=pool.name, limit=_spoken(limit))
    if request.gpus_per_node is None:
        if recipe.needs_gpus and not pool.gpus:
            raise BadInput.of("no-gpus-there", recipe=recipe.name, partition=pool.name)
        request = replace(request, gpus_per_node=pool.gpus)
    elif pool.most is not None and request.gpus_per_node > pool.most:
        raise BadInput.of("too-many-gpus", asked=request.gpus_per_node, partition=pool.name, most=pool.most or "none")
    check_layout(recipe, request)
    return request


def check_layout(recipe: Recipe, request: JobRequest) -> None:
    """Of a recipe that is told how ranks share the model: Megatron would say so on all of them, once the job has begun.

    Raises:
        BadInput: the degrees don't divide the ranks, or the batch can't be shared out.
    """
    # A site's own recipe may mean another thing by these words.
    every = recipes.values(recipe, request.values).items()
    given = {name: each for name, each in every if type(each) is int and each > 0}
    degrees = {name: given[name] for name in DEGREES if name in given}
    if "pp" not in degrees:
        return
    ranks = (request.nodes or recipe.job.nodes) * (request.gpus_per_node or tasks_of_node(recipe, request))
    if ranks % math.prod(degrees.values()):
        near = _nearest([min(each, MOST_DEGREE) for each in degrees.values()], ranks)
        raise BadInput.of(
            "job-layout", layout=_written(degrees.values(), degrees), ranks=ranks, nearest=_written(near, degrees),
            words=" ".join(f"--set {name}={value}" for name, value in zip(degrees, near, strict=True)),
        )  # fmt: skip
    batch, micro = (given.get(name, 0) for name in ("batch", "micro_batch"))
    copies = ranks // math.prod(degrees.values())
    share = copies * micro
    if batch and micro and batch % share:
        near_batch = max((batch + share // 2) // share, 1) * share
        raise BadInput.of("job-batch", batch=batch, micro=micro, copies=copies, nearest=near_batch)


def _nearest(degrees: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Degrees that divide the ranks: if possible of the same first one, and then the fewest doublings away."""
    divisors = [number for number in range(1, min(ranks, MOST_DEGREE) + 1) if ranks % number == 0]
    every = (each for each in itertools.product(divisors, repeat=len(degrees)) if ranks % math.prod(each) == 0)

    def far(each: tuple[int, ...]) -> tuple[bool, float]:
        return each[0] != degrees[0], sum(abs(math.log2(one / other)) for one, other in zip(each, degrees, strict=True))

    return min(every, key=far)


def _written(values: Iterable[int], names: Iterable[str]) -> str:
    return ", ".join(f"{name.upper()} {value}" for name, value in zip(names, values, strict=True))


def _spoken(seconds: float) -> str:
    """As people write it: 7d, 12h, 90m."""
    size, unit = next(
        (each for each in ((86400, "d"), (3600, "h"), (60, "m")) if seconds % each[0] == 0), (1, "s")
    )  # fmt: skip
    return f"{seconds / size:.0f}{unit}"


def _seconds(text: str) -> float:
    """Of a time as Slurm writes it; endless where it says no number."""
    found = _TIME.fullmatch(text)
    if not found:
        return math.inf
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds

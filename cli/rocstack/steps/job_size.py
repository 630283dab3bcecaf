"""How many nodes a job takes where nobody says it: the fewest that its model fits on, by the formula of `size`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from rocstack.base.errors import BadInput, RocstackError
from rocstack.base.text import count
from rocstack.jobs import recipe as recipes
from rocstack.jobs.pools import Pool
from rocstack.jobs.recipe import JobRequest, Recipe, SizedBy
from rocstack.size import hardware, maxtext, models, sizing
from rocstack.size.layout import Asked
from rocstack.size.models import Model
from rocstack.size.shape import Shape
from rocstack.size.sizing import Sized

GIB = float(1 << 30)
CONFIG, LARGEST = "config.json", 1 << 20  # bytes of it
MOST_NODES = 1024  # up to which one is looked for that shares out a model evenly
# Settings of MaxText that go with a layout; who gives one of them has chosen it.
OWN = ("per_device_batch_size", "gradient_accumulation_steps", "remat_policy", "shard_optimizer_over_data")
FileReader = Callable[[str], bytes]  # of a path on the nodes


@dataclass(frozen=True)
class SizedRequest:
    """`why` says in a line what was chosen; empty where nothing was to choose."""

    request: JobRequest
    why: str = ""


def model_of(recipe: Recipe, request: JobRequest) -> str:
    """The model by which the nodes are chosen; empty where there is nothing to choose.

    Raises:
        BadInput: a parameter is wrong.
    """
    if recipe.size is None or request.nodes or request.gpus_per_node == 0:
        return ""
    return str(recipes.values(recipe, request.values)[recipe.size.model] or "")


def by_size(recipe: Recipe, request: JobRequest, pool: Pool, read: FileReader) -> SizedRequest:
    """Where its size can't be told, the job is as the recipe has it, and `why` says so.

    Raises:
        BadInput: it needs more nodes than there are, or a parameter is wrong.
    """
    gpus = pool.gpus if request.gpus_per_node is None else request.gpus_per_node
    model = model_of(recipe, request)
    if recipe.size is None or not model or not gpus:
        return SizedRequest(request)
    try:
        sized = _sized(recipe.size, request, recipes.values(recipe, request.values), pool.gpu, gpus, read)
    except RocstackError as error:
        return SizedRequest(request, f"{count(recipe.job.nodes, 'node')}, as the recipe has it: {error.what}")
    alone = sized.alone if _free(request) else None
    if sized.nodes > pool.nodes:
        raise BadInput.of(
            "job-too-big", model=model, nodes=sized.nodes, gpus=gpus, gpu=sized.hardware.gpu, partition=pool.name,
            there=pool.nodes,
        )  # fmt: skip
    layout = sized.layout
    if alone:
        request = replace(request, nodes=1, gpus_per_node=alone, share=True)
        where = f"{count(alone, 'GPU')} of one node"
    else:
        request = replace(request, nodes=sized.nodes)
        where = f"{count(sized.nodes, 'node')} of {gpus} GPUs"
    if recipe.size.maxtext:
        given = {word.partition("=")[0] for word in request.arguments}
        settings = (f"{name}={value}" for name, value in _settings(sized, alone or gpus).items() if name not in given)
        request = replace(request, arguments=(*settings, *request.arguments))
    room = f"{sized.hardware.budget / GIB:.0f} GiB that it may use of each {sized.hardware.gpu}"
    needs = f"{sized.memory.total / GIB:.0f} of the {room}"
    shards = f" in shards of {layout.shard}" if layout.shard > 1 else ""
    return SizedRequest(request, f"{where}, the fewest that fit: {model}{shards} needs {needs}, by formula")


def _sized(by: SizedBy, request: JobRequest, values: Mapping[str, Any], gpu: str, gpus: int, read: FileReader) -> Sized:
    """
    Raises:
        BadInput, CheckFailed: what isn't known.
    """
    own = values.get("config") if by.maxtext else None  # a recipe of the site's may have none
    if given := next((word for word in request.arguments if _layout_word(by, word)), "") or own:
        raise BadInput.of("layout-given", given=given)
    if not gpu:
        raise BadInput.of("gpus-unnamed")
    shape, model = _model(by, request, values[by.model], read)
    sequence = values.get(by.sequence or "") or _setting(by, request.arguments) or by.tokens
    if shape.context:
        sequence = min(sequence, shape.context)
    rank = values[by.rank] if by.rank else 0
    batch = values.get("batch")
    asked = Asked(tp=1, cp=1, pp=1, ep=1, batch=batch, accumulate=None if batch else 1)
    node = hardware.find(gpu, gpus)
    found = sizing.answer(model, shape, node, asked, nodes=None, sequence=sequence, rank=rank)
    if not found.ok:
        raise BadInput.of("fits-nowhere", model=values[by.model])
    if found.alone and _free(request):  # the layout of so few
        few = hardware.find(gpu, found.alone)
        fewer = sizing.answer(model, shape, few, asked, nodes=1, sequence=sequence, rank=rank)
        return replace(fewer, alone=found.alone)
    nodes = found.nodes
    while by.maxtext and shape.hidden % found.layout.shard and nodes < MOST_NODES:  # JAX shares out equal parts alone
        nodes += 1
        found = sizing.answer(model, shape, node, asked, nodes=nodes, sequence=sequence, rank=rank)
    return found


def _free(request: JobRequest) -> bool:
    """Whether a node's GPUs are ours to choose: more tasks than GPUs would share them."""
    return request.gpus_per_node is None and request.tasks_per_node is None


def _model(by: SizedBy, request: JobRequest, name: str, read: FileReader) -> tuple[Shape, Model]:
    """
    Raises:
        BadInput, CheckFailed: no such model, or no config that can be read.
    """
    if by.maxtext:
        return models.named(name)
    path = PurePosixPath(request.folder, name, CONFIG)  # what is absolute already stays
    text = read(str(path)).decode(errors="replace")
    return models.of_config(text, Path(path), name)


def _layout_word(by: SizedBy, word: str) -> bool:
    """Whether an argument says how GPUs share the model."""
    if by.maxtext:
        return "_parallelism=" in word or word.partition("=")[0] in OWN
    return "parallel.shard" in word


def _setting(by: SizedBy, arguments: tuple[str, ...]) -> int | None:
    """The number behind the setting, among the arguments."""
    found = [word.removeprefix(by.setting) for word in arguments if by.setting and word.startswith(by.setting)]
    return int(found[-1]) if found and re.fullmatch(r"[1-9][0-9]{0,6}", found[-1]) else None


def _settings(sized: Sized, gpus: int) -> dict[str, Any]:
    """The layout as MaxText is told of it: `ici` within a node, `dcn` between nodes."""
    layout = sized.layout
    known = maxtext.degrees(sized.shape, layout)
    found: dict[str, Any] = {name: known[name] for name in OWN if known.get(name)}
    found["max_target_length"] = sized.sequence
    within, between = ("fsdp" if layout.shard > 1 else "data"), ("fsdp" if layout.shard > gpus else "data")
    found |= {
        "ici_fsdp_parallelism": 1,
        "ici_data_parallelism": 1,
        "dcn_fsdp_parallelism": 1,
        "dcn_data_parallelism": 1,
    }
    found[f"ici_{within}_parallelism"] = min(gpus, layout.gpus)
    found[f"dcn_{between}_parallelism"] = sized.nodes
    return found

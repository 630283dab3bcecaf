"""Forms of the page: a fine-tuning, a job of any recipe by its typed parameters, a file to upload, a model to size."""

import asyncio
import re
from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from rocstack.base.errors import RocstackError
from rocstack.base.text import count, listed
from rocstack.jobs import recipe as recipes
from rocstack.jobs.recipe import Recipe
from rocstack.service import failures, field_faults
from rocstack.service.files import PURPOSE
from rocstack.service.identity import Caller
from rocstack.service.multipart import FileForm
from rocstack.service.page import ROWS, draw, router
from rocstack.service.routes import Person, Serving
from rocstack.service.routes_cluster import SizeBody, sized
from rocstack.service.routes_jobs import JobBody, submit
from rocstack.service.service import Service
from rocstack.service.slurm_answers import ClusterNode
from rocstack.service.tuning import BATCH, EPOCHS, FINETUNE, RANK, TuningRequest
from rocstack.size import hardware
from rocstack.size import models as known_models

OWN = "mine"  # the recipe for a command of one's own
LONGEST = 64 << 10  # bytes of a form without a file
MOST_FIELDS = 300
PLACES = ("nodes", "gpus_per_node", "time", "partition", "account", "qos")  # where and how long: the same for every job
# What the forms call the fields. Of a fine-tuning also what is taken where nothing is written.
HYPER = ("n_epochs", "batch_size", "learning_rate_multiplier")
TUNING = {
    "n_epochs": ("Passes over the file (epochs)", str(EPOCHS)),
    "batch_size": ("Examples in a step (batch size)", str(BATCH)),
    "learning_rate_multiplier": ("Learning rate, times 0.0001", "1"),
    "rank": ("Rank of the adapter: more learns more, and takes more memory", str(RANK)),
    "seq_len": ("Tokens of an example", "as the trainer chooses"),
}
LABELS = {name: label for name, (label, _) in TUNING.items()} | {
    "name": "Name", "nodes": "Nodes", "gpus_per_node": "GPUs of each node", "time": "Time", "partition": "Partition",
    "account": "Account", "qos": "Quality of service", "model": "Model", "training_file": "Train on",
    "validation_file": "Measure on", "suffix": "Name of the result", "replicas": "Servers", "method": "Training",
    "gpu": "GPU",
}  # fmt: skip
GPUS = tuple(sorted(map(str.lower, hardware.known())))
USUAL_GPU = "mi300x"
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""")
_MARK = re.compile(r"(?<!\S)\d?[|&;<>]+|;(?!\S)")
LOSES = "; others may take its place"
Choices = dict[str, list[tuple[str, str]]]


@router.get("/new")
async def new(request: Request, service: Serving, caller: Person) -> Response:
    recipes_ = sorted(service.jobs.recipes().values(), key=lambda each: each.name != OWN)
    return draw(request, "new", recipes=recipes_)


@router.get("/new/fine-tuning")
async def new_tuning(
    request: Request, service: Serving, caller: Person, model: Annotated[str, Query(max_length=255)] = "",
    file: Annotated[str, Query(max_length=64)] = "",
) -> Response:  # fmt: skip
    return await _tuning_form(request, service, caller, {"model": model, "training_file": file}, "")


@router.post("/new/fine-tuning")
async def create_tuning(request: Request, service: Serving, caller: Person) -> Response:
    given = await fields(request)
    hyper = {name: given[name] for name in HYPER if given.get(name)}
    place = {name: given[name] for name in (*PLACES, "rank", "seq_len", "layout") if given.get(name)}
    body = {name: given[name] for name in ("model", "training_file", "validation_file", "suffix") if given.get(name)}
    try:
        asked = TuningRequest.model_validate(body | {"hyperparameters": hyper, "rocstack": place})
        row = await service.tuning.create(caller, asked)
    except (ValidationError, RocstackError) as error:
        return await _tuning_form(request, service, caller, given, problem(error), 400)
    return RedirectResponse(f"/jobs/{quote(row.id)}", 303)


async def _tuning_form(
    request: Request, service: Service, caller: Caller, given: dict[str, str], message: str, status: int = 200
) -> Response:
    files, _ = await service.files.page(caller, None, None, 1000)
    models = await service.models.all(caller)
    return draw(
        request, "new-tuning", status, files=files, models=[each["id"] for each in models], given=given,
        message=message, numbers=TUNING, choices=await _choices(service, caller),
        recipe=service.jobs.recipes()[FINETUNE], no_gpus=await _no_gpus(service, caller),
    )  # fmt: skip


async def _choices(service: Service, caller: Caller) -> Choices:
    """Partitions and qualities of service, and what is shown of them; none where Slurm doesn't tell: they are written
    then."""
    try:
        pools, known = await asyncio.gather(service.jobs.cluster.pools(caller), service.slurm.qos(caller.token))
    except (failures.Away, failures.SlurmRefused):
        return {}
    parts = [(each.name, f"{each.name} ({count(each.nodes, 'node')})") for each in pools if not each.default]
    weak = {name for each in known for name in each.preempts}
    ranked = [
        (each.name, f"{each.name} (priority {each.priority:,}{LOSES if each.name in weak else ''})")
        for each in sorted(known, key=lambda each: -each.priority)
    ]
    return {"partition": parts, "qos": ranked}


@router.get("/new/{name}")
async def new_job(request: Request, service: Serving, caller: Person, name: str) -> Response:
    return await _job_form(request, service, caller, recipes.find(name, service.jobs.overlay), {}, "")


@router.post("/new/{name}")
async def create_job(request: Request, service: Serving, caller: Person, name: str) -> Response:
    recipe, given = recipes.find(name, service.jobs.overlay), await fields(request)
    values: dict[str, Any] = {each: given[f"p.{each}"] for each in recipe.parameters if given.get(f"p.{each}")}
    place: dict[str, Any] = {each: given[each] for each in ("name", *PLACES) if given.get(each)}
    try:
        body = JobBody(recipe=name, parameters=values, arguments=_words(recipe, given.get("words", "")), **place)
        row = await submit(service, caller, body)
    except (ValueError, RocstackError) as error:  # pydantic's is a ValueError
        return await _job_form(request, service, caller, recipe, given, problem(error), 400)
    return RedirectResponse(f"/jobs/{quote(row.id)}", 303)


def _words(recipe: Recipe, given: str) -> list[str]:
    """
    Raises:
        ValueError: a shell couldn't split them, or there are none.
    """
    if not given and recipe.needs_arguments:
        raise ValueError(f"write {recipe.arguments}")
    label = recipe.arguments.partition(": ")[0]
    try:
        if (mark := _of_a_shell(given)) and recipe.needs_arguments:
            raise ValueError(f"no shell runs it, so {mark} is only a word: write bash -c '…', or quotes around it")
        return list(recipes.Parameter(about="words", type="words").parse(given)) if given else []
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None


def _of_a_shell(given: str) -> str:
    """The first mark outside of quotes by which a shell joins commands, or sends what they write; empty: none."""
    found = _MARK.search(_QUOTED.sub("x", given))
    return found[0] if found else ""


async def _job_form(
    request: Request, service: Service, caller: Caller, recipe: Recipe, given: dict[str, str], message: str,
    status: int = 200,
) -> Response:  # fmt: skip
    choices = await _choices(service, caller)
    return draw(
        request, "new-job", status, recipe=recipe, given=given, message=message, choices=choices,
        no_gpus=await _no_gpus(service, caller),
    )  # fmt: skip


@router.post("/files")
async def upload(request: Request, service: Serving, caller: Person) -> Response:
    form = FileForm(request.headers.get("content-type", ""), request.stream().__aiter__(), "file")
    try:
        await form.begin()
        await service.files.create(caller, form.filename, form.pieces(), lambda: PURPOSE)
    except RocstackError as error:
        rows, more = await service.files.page(caller, None, None, ROWS)
        used, quota = await service.files.used(caller), service.settings.limits.quota_mib << 20
        return draw(
            request, "files", failures.status_of(error), files=rows, more=more, used=used,
            quota=quota, message=f"The file {form.filename} isn't kept. {failures.on_page(error)}",
        )  # fmt: skip
    return RedirectResponse("/files", 303)


@router.post("/files/{file}/delete")
async def delete_file(service: Serving, caller: Person, file: str) -> Response:
    await service.files.delete(caller, file)
    return RedirectResponse("/files", 303)


@router.post("/models/{model}/delete")
async def delete_model(service: Serving, caller: Person, model: str) -> Response:
    await service.models.delete(caller, model)
    return RedirectResponse("/models", 303)


@router.get("/size")
async def size(
    request: Request, service: Serving, caller: Person, model: Annotated[str, Query(max_length=255)] = "",
    gpu: Annotated[str, Query(max_length=32)] = "", nodes: Annotated[str, Query(max_length=5)] = "",
    method: Annotated[str, Query(max_length=8)] = "lora",
) -> Response:  # fmt: skip
    message, found, there = "", None, ""
    given = {"model": model, "gpu": gpu or await _gpu(service, caller), "nodes": nodes, "method": method}
    if model:
        try:
            asked = {name: value for name, value in given.items() if value}
            found = (await sized(service, caller, SizeBody.model_validate(asked))).to_dict()
            there = _here(await _nodes(service, caller), given["gpu"], found["nodes"])
            if model.lower() not in known_models.names():
                found["model"]["about"] = model  # and not where its config is
        except (ValidationError, RocstackError) as error:
            message = problem(error)
    part = "size-part" if request.headers.get("hx-request") else "size"
    bases = (each["id"] for each in await service.models.all(caller) if not each["job"])
    names = sorted({*known_models.names(), *bases})
    more: dict[str, Any] = {} if part == "size-part" else {"names": names, "given": given, "gpus": GPUS}
    return draw(request, part, found=found, message=message, there=there, **more)


async def _no_gpus(service: Service, caller: Caller) -> bool:
    """Whether it is known that no node has one."""
    nodes = await _nodes(service, caller)
    return bool(nodes) and not any(node.gpus for node in nodes)


async def _nodes(service: Service, caller: Caller) -> list[ClusterNode]:
    """None where Slurm doesn't tell."""
    with suppress(failures.Away, failures.SlurmRefused):
        return await service.jobs.cluster.nodes(caller)
    return []


def _here(nodes: list[ClusterNode], gpu: str, asked: int) -> str:
    """What of a size isn't so on this cluster; empty: nothing."""
    kinds = sorted({node.gpu for node in nodes if node.gpu})
    there = count(len(nodes), "node")
    if not nodes:
        return ""
    if not any(node.gpus for node in nodes):
        return f"This cluster has {there} and no GPUs."
    if kinds and gpu.lower() not in kinds:
        return f"This cluster has {there} with {listed([kind.upper() for kind in kinds])}."
    return f"This cluster has {there}." if asked > len(nodes) else ""


async def _gpu(service: Service, caller: Caller) -> str:
    """What the cluster's nodes have, where it is known here."""
    return next((node.gpu for node in await _nodes(service, caller) if node.gpu in GPUS), USUAL_GPU)


def problem(error: Exception) -> str:
    if isinstance(error, RocstackError):
        return failures.on_page(error)
    if isinstance(error, ValidationError):
        return field_faults.first(error.errors()).sentence(LABELS)
    return str(error)


async def fields(request: Request) -> dict[str, str]:
    """
    Raises:
        RequestRefused: as Starlette's form; more than a form of ours has.
    """
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > LONGEST:
            raise failures.TooBig.of("form-too-large")
    try:
        pairs = parse_qsl(data.decode(errors="replace"), max_num_fields=MOST_FIELDS)
    except ValueError:
        raise failures.TooBig.of("form-too-large") from None
    return {name: value.strip() for name, value in pairs}

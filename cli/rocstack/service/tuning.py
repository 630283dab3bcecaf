"""Fine-tuning as OpenAI's interface has it: a file and a model in, an adapter out. Below it is a job of the recipe
`finetune`, whose trainer writes the numbers of each step and checkpoints."""

import asyncio
import math
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rocstack.jobs.recipe import JobRequest
from rocstack.service import progress
from rocstack.service.config import ServiceSettings
from rocstack.service.failures import NotThere, RequestRefused
from rocstack.service.files import StoredFiles
from rocstack.service.identity import Caller
from rocstack.service.jobs import TUNING, Jobs, Word, request_of
from rocstack.service.models import Models
from rocstack.service.outcome import LIVE, SENDING
from rocstack.service.tables import JobEvent, JobRow, StoredFile

FINETUNE = "finetune"
LR, EPOCHS, BATCH, RANK, EVERY = 1e-4, 3, 8, 16, 100
LOOK_S = 1.0  # between two looks for news of a stream
SUFFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
PAIRS = 16  # of metadata, as OpenAI has it
Auto = Literal["auto"]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=PAIRS)
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Hyperparameters(_Body):
    n_epochs: Annotated[int, Field(ge=1, le=1000)] | Auto = "auto"
    batch_size: Annotated[int, Field(ge=1, le=1 << 16)] | Auto = "auto"
    learning_rate_multiplier: Annotated[float, Field(gt=0, le=1e4)] | Auto = "auto"


class Supervised(_Body):
    hyperparameters: Hyperparameters = Hyperparameters()


class Method(_Body):
    type: Literal["supervised"] = "supervised"
    supervised: Supervised = Supervised()


class Placement(_Body):
    """Where and how long it runs, and what OpenAI's interface has no word for: `extra_body={"rocstack": {...}}`."""

    nodes: Annotated[int, Field(ge=1, le=65536)] | None = None
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] | None = None
    tasks_per_node: Annotated[int, Field(ge=1, le=4096)] | None = None
    time: Word | None = None
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    share: bool = False
    rank: Annotated[int, Field(ge=1, le=1024)] = RANK
    steps: Annotated[int, Field(ge=1, le=10**9)] | None = None  # default: by epochs
    seq_len: Annotated[int, Field(ge=8, le=1 << 22)] | None = None
    layout: Literal["padded", "packed", "stream"] = "padded"
    checkpoint_every: Annotated[int, Field(ge=1, le=10**9)] = EVERY


class TuningRequest(_Body):
    model: Annotated[str, Field(min_length=1, max_length=255)]
    training_file: Annotated[str, Field(min_length=1, max_length=64)]
    validation_file: Annotated[str, Field(max_length=64)] | None = None
    hyperparameters: Hyperparameters | None = None
    method: Method | None = None
    suffix: Annotated[str, Field(max_length=64)] | None = None
    seed: Annotated[int, Field(ge=0, le=2147483647)] | None = None
    metadata: Metadata | None = None
    integrations: list[Any] | None = None
    rocstack: Placement = Placement()


@dataclass(frozen=True)
class Tuning:
    settings: ServiceSettings
    jobs: Jobs
    files: StoredFiles
    models: Models
    progress: progress.Progress
    stopping: asyncio.Event

    async def create(self, caller: Caller, body: TuningRequest) -> JobRow:
        """
        Raises:
            NotThere: no such file or model of hers. RequestRefused, TooMany, SlurmRefused, Away: as `Jobs.create`.
        """
        if body.integrations:
            raise RequestRefused.of("no-integrations").about("integrations")
        if body.suffix is not None and not SUFFIX.fullmatch(body.suffix):
            raise RequestRefused.of("bad-suffix").about("suffix")
        base, folder, adapter = await self.models.find(caller, body.model)
        if adapter:
            body = body.model_copy(update={"rocstack": _of_its_rank(body.rocstack, adapter.rank)})
        data = await self._file(caller, body.training_file, "training_file")
        held_out = await self._file(caller, body.validation_file, "validation_file") if body.validation_file else None
        if held_out and held_out.kind != data.kind:
            raise RequestRefused.of("unlike-files", one=data.kind, other=held_out.kind).about("validation_file")
        hyper = (body.method.supervised.hyperparameters if body.method else None) or body.hyperparameters
        numbers = _numbers(hyper or Hyperparameters(), data.samples, body.rocstack)
        start = self.models.adapter(caller, adapter) if adapter else None

        def plan(_key: str, own: Path) -> JobRequest:
            return self._request(body, caller, own, folder, start, data, held_out, numbers)

        asked = body.model_dump(mode="json", exclude_none=True) | {"_base": base, "_numbers": numbers}
        return await self.jobs.create(caller, TUNING, FINETUNE, asked, plan)

    async def _file(self, caller: Caller, key: str, param: str) -> StoredFile:
        try:
            return await self.files.get(caller, key)
        except NotThere as error:
            raise error.about(param) from None

    def _request(
        self, body: TuningRequest, caller: Caller, own: Path, model: Path, start: Path | None, data: StoredFile,
        held_out: StoredFile | None, numbers: dict[str, Any],
    ) -> JobRequest:  # fmt: skip
        place = body.rocstack
        values = {
            "model": str(model), "data": str(self.files.path(caller, data.id)), "adapter": f"{own}/adapter",
            "checkpoints": f"{own}/{progress.CHECKPOINTS}", "every": str(place.checkpoint_every),
            "steps": str(numbers["steps"]), "batch": str(numbers["batch"]), "lr": repr(numbers["lr"]),
            "rank": str(place.rank), "layout": place.layout,
        }  # fmt: skip
        if held_out:
            values["eval"] = str(self.files.path(caller, held_out.id))
        if place.seq_len:
            values["seq_len"] = str(place.seq_len)
        arguments = [f"--output.metrics={own}/{progress.METRICS}", f"--data.cache={own}/tokens"]
        arguments += [f"--train.seed={body.seed}"] if body.seed is not None else []
        arguments += [f"--lora.adapter={start}"] if start else []
        options = place.model_dump(
            include={"nodes", "gpus_per_node", "tasks_per_node", "time", "partition", "account", "qos", "share"}
        )
        name = f"finetune-{body.suffix}" if body.suffix else FINETUNE
        return request_of(options, name=name, folder=str(own), values=values, arguments=tuple(arguments))

    async def get(self, caller: Caller, key: str) -> JobRow:
        """
        Raises:
            NotThere: she has no fine-tuning job of this id.
        """
        row = await self.jobs.get(caller, key)
        if row.kind != TUNING:
            raise NotThere.of("no-such-own-job", job=key).about("fine_tuning_job_id")
        return row

    async def events(self, caller: Caller, key: str) -> list[dict[str, Any]]:
        """All so far, the oldest first: what happened, the numbers of each step, checkpoints."""
        return (await self._events(caller, await self.get(caller, key)))[0]

    async def _events(self, caller: Caller, row: JobRow, after: int = 0) -> tuple[list[dict[str, Any]], int]:
        """All but those of steps up to `after`, and the last step. Of a long job they take half a second to make."""
        said = await self.jobs.rows.events(caller, row.id)
        steps = await self.progress.metrics(caller, row.id, after)
        saved = await self.progress.checkpoints(caller, row.id)
        found = await self.progress.work(caller, events_of, row, said, steps, saved)
        return found, steps[-1]["step"] if steps else after

    async def stream(self, caller: Caller, key: str, last: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Events as they come, until the job is over or the service stops; after the event `last`."""
        row = await self.get(caller, key)
        sent: set[str] = set()
        skip, after = last is not None, 0
        while True:
            found, after = await self._events(caller, row, after)
            if skip and any(event["id"] == last for event in found):
                for event in found:
                    sent.add(event["id"])
                    if event["id"] == last:
                        break
            skip = False
            for event in found:
                if event["id"] not in sent:
                    sent.add(event["id"])
                    yield event
            if row.status not in LIVE or self.stopping.is_set():
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), LOOK_S)
            row = await self.get(caller, key)

    async def checkpoints(self, caller: Caller, key: str) -> list[dict[str, Any]]:
        """The newest first."""
        row = await self.get(caller, key)
        saved = await self.progress.checkpoints(caller, row.id)
        steps = await self.progress.metrics(caller, row.id)
        by_step = {each["step"]: each for each in steps}
        return [_checkpoint(row, step, when, by_step.get(step, {})) for step, when in reversed(saved)]


def to_dict(row: JobRow, cluster: str) -> dict[str, Any]:
    """A `fine_tuning.job` of OpenAI's, and `rocstack` with what Slurm says of it."""
    asked, numbers = row.asked, row.asked.get("_numbers", {})
    hyper = {
        "n_epochs": numbers.get("epochs"), "batch_size": numbers.get("batch"),
        "learning_rate_multiplier": numbers.get("multiplier"),
    }  # fmt: skip
    over = row.status not in LIVE
    return {
        "id": row.id, "object": "fine_tuning.job", "created_at": row.created, "model": asked.get("model"),
        "fine_tuned_model": row.result, "finished_at": row.ended if over else None, "organization_id": cluster,
        "status": "queued" if row.status == SENDING else row.status, "training_file": asked.get("training_file"),
        "validation_file": asked.get("validation_file"), "result_files": [], "trained_tokens": None,
        "error": row.error, "seed": asked.get("seed", 1), "hyperparameters": hyper, "integrations": [],
        "metadata": asked.get("metadata") or {}, "estimated_finish": None,
        "method": {"type": "supervised", "supervised": {"hyperparameters": hyper}},
        "rocstack": {
            "slurm_job": row.slurm_id, "run": row.run, "state": row.seen.get("state"), "why": row.seen.get("why") or "",
            "nodes": row.seen.get("where") or "", "steps": numbers.get("steps"), "sent": row.status != SENDING,
        },
    }  # fmt: skip


def events_of(
    row: JobRow, said: list[JobEvent], steps: list[dict[str, Any]], saved: list[tuple[int, int]]
) -> list[dict[str, Any]]:
    """Each has an id that stays. Steps carry no time of their own: they stand before the job's end."""
    began, total = row.began or row.created, row.asked.get("_numbers", {}).get("steps")
    told = [(each, _event(f"{row.id}-{each.id}", each.at, each.level, each.message)) for each in said]
    found: list[tuple[float, dict[str, Any]]] = []
    for step in steps:
        number, loss = step["step"], step.get("loss")
        data = {"step": number, "train_loss": loss, "total_steps": total}
        data |= {"full_valid_loss": step["eval_loss"]} if "eval_loss" in step else {}
        data |= {name: value for name, value in step.items() if name not in ("step", "loss", "eval_loss")}
        of = f"/{total}" if total else ""
        message = f"Step {number}{of}: training loss={loss:.4f}" if loss is not None else f"Step {number}{of}"
        found.append((number, _event(f"{row.id}-step-{number}", began, "info", message, data)))
    for number, when in saved:
        message = f"checkpoint of step {number} is written"
        found.append((number + 0.5, _event(f"{row.id}-checkpoint-{number}", when, "info", message)))
    end = len(told)
    while end and row.ended is not None and told[end - 1][0].final:
        end -= 1
    middle = [event for _, event in sorted(found, key=lambda each: each[0])]
    return [*(event for _, event in told[:end]), *middle, *(event for _, event in told[end:])]


def _event(key: str, at: int, level: str, message: str, data: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "id": f"ftevent-{key}", "object": "fine_tuning.job.event", "created_at": at, "level": level,
        "message": message, "type": "metrics" if data else "message", "data": data or {},
    }  # fmt: skip


def _checkpoint(row: JobRow, step: int, when: int, numbers: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"ftckpt-{row.id.partition('-')[2]}-{step}", "object": "fine_tuning.job.checkpoint", "created_at": when,
        "fine_tuned_model_checkpoint": f"{row.asked.get('model')}:ckpt-step-{step}", "step_number": step,
        "fine_tuning_job_id": row.id,
        "metrics": {"step": step, "train_loss": numbers.get("loss"), "full_valid_loss": numbers.get("eval_loss")},
    }  # fmt: skip


def _of_its_rank(place: Placement, rank: int) -> Placement:
    """An adapter that is trained on keeps its rank.

    Raises:
        RequestRefused: another one is asked for.
    """
    if "rank" in place.model_fields_set and place.rank != rank:
        raise RequestRefused.of("adapter-keeps-rank", rank=rank, asked=place.rank).about("rank")
    return place.model_copy(update={"rank": rank})


def _numbers(hyper: Hyperparameters, samples: int, place: Placement) -> dict[str, Any]:
    """What `auto` is, and how many steps the epochs are."""
    batch = min(BATCH, samples) if hyper.batch_size == "auto" else hyper.batch_size
    epochs = EPOCHS if hyper.n_epochs == "auto" else hyper.n_epochs
    multiplier = 1.0 if hyper.learning_rate_multiplier == "auto" else hyper.learning_rate_multiplier
    steps = place.steps or max(1, math.ceil(samples * epochs / batch))
    return {"epochs": epochs, "batch": batch, "multiplier": multiplier, "lr": LR * multiplier, "steps": steps}

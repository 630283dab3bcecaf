"""What a fine-tuned model says beside its base model, to the first conversations that it was measured or trained on."""

import json
from pathlib import Path
from typing import Any

import anyio.to_thread

from rocstack.service.failures import NotNow, RequestRefused
from rocstack.service.identity import Caller
from rocstack.service.service import Service
from rocstack.service.tables import JobRow

SAMPLES, TOKENS = 5, 128


async def evaluate(service: Service, caller: Caller, row: JobRow) -> dict[str, Any]:
    """For each question what both models say, in a form of ours. A server must answer for them.

    Raises:
        NotNow: the job has made no model. RequestRefused: its file has no conversations, or nobody serves the model.
        Away: the server starts, or doesn't answer.
    """
    if not row.result:
        raise NotNow.of("no-model-yet", job=row.id)
    file = await service.files.get(caller, row.asked.get("validation_file") or row.asked["training_file"])
    if file.kind != "conversations":
        raise RequestRefused.of("no-conversations", file=file.id)
    base, found = row.asked["_base"], []
    async with service.files.checking.of(caller):
        questions = await anyio.to_thread.run_sync(_questions, service.files.path(caller, file.id))
    for messages in questions:
        outputs = [
            {"model_name": name, "output": await service.servers.ask(caller, name, messages, TOKENS)}
            for name in (row.result, base)
        ]
        found.append({"input": messages[-1]["content"], "outputs": outputs})
    return {"job_id": row.id, "eval_results": found}


def _questions(path: Path) -> list[list[dict[str, str]]]:
    """The first conversations up to their last answer. The file was checked when it came."""
    found = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            messages = json.loads(line)["messages"] if line.strip() else []
            last = max((at for at, each in enumerate(messages) if each["role"] == "assistant"), default=0)
            if last:
                found.append([{"role": each["role"], "content": each["content"]} for each in messages[:last]])
            if len(found) == SAMPLES:
                break
    return found

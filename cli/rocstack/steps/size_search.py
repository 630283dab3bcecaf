"""Layouts of a model, compiled side by side: the edge of `rocstack size --search`. Answers are kept, so that a search
that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from pydantic import Field, ValidationError

from rocstack.base.errors import CheckFailed
from rocstack.base.text import from_json, visible
from rocstack.base.words import Value
from rocstack.edge import files
from rocstack.size import compiled, picture, search
from rocstack.size.layout import Asked
from rocstack.size.search import Searched, Tried
from rocstack.size.sizing import Sized
from rocstack.steps import size_compile
from rocstack.steps.options import settings

KEPT = 1000  # answers, of some kB each
OnTried = Callable[[Tried | None, int, int], None]  # how many are done, of how many; before the first, None


class _Said(Value, extra="allow"):
    """Beside what compiled.read takes."""

    number: int = Field(ge=0, lt=search.MOST)
    cpu: float = Field(ge=0, lt=1e6)


def compile_layouts(sized: Sized, asked: Asked, image: str | None, model: str, on_tried: OnTried) -> Searched:
    """
    Raises:
        BadInput: nothing to search, or MaxText has no such model.
        Missing: no engine, or no image with MaxText.
        CheckFailed: the image's program gave no answer.
    """
    choice = search.choose(sized, asked)
    if not choice.layouts:
        return Searched(choice=choice, tried=())
    requests = [size_compile.request(each) for each in choice.layouts]
    image = image or size_compile.newest_image()
    folder = Path(settings().out) / "size"
    (folder / "answers").mkdir(parents=True, exist_ok=True)
    same = size_compile.identity(image)
    kept = [folder / "answers" / f"{_digest(same, each)}.json" for each in requests]
    tried: dict[int, Tried] = {}

    def take(number: int, cpu: float | None, raw: bytes) -> None:
        layout, attention = choice.layouts[number], requests[number]["attention"]
        try:
            said = compiled.read(raw, layout, attention)
        except CheckFailed as error:
            said = compiled.unread(error.what, layout, attention)
        tried[number] = Tried(sized=choice.layouts[number], said=said, cpu=cpu)

    for number, path in enumerate(kept):
        with suppress(OSError):
            if path.stat().st_size <= compiled.LONGEST:
                take(number, None, path.read_bytes())
    left = [number for number in range(len(requests)) if number not in tried]
    if left:
        on_tried(None, len(tried), len(requests))
        for line in size_compile.answers(image, [requests[number] for number in left]):
            at, cpu, raw = _read(line, len(left))
            if left[at] in tried:
                raise CheckFailed.of("compiler-says-nonsense", why="a layout has two answers")
            take(left[at], cpu, raw)
            if tried[left[at]].lasting:
                files.write(kept[left[at]], raw.decode())
            on_tried(tried[left[at]], len(tried), len(requests))
    if len(tried) < len(requests):
        raise CheckFailed.of("compiler-says-nonsense", why=f"{len(requests) - len(tried)} layouts have no answer")
    _prune(folder / "answers")
    found = Searched(choice=choice, tried=search.in_order(tried.values()))
    path = Path(model).parent.resolve() if model.endswith(".json") else Path(model)
    name = re.sub(r"[^a-z0-9.]+", "-", path.name.lower()).strip("-.") or "model"
    drawing = folder / f"{name}-{sized.layout.gpus}x{sized.hardware.gpu.lower()}.svg"
    files.write(drawing, picture.draw(found))
    return replace(found, picture=str(drawing))


def _read(line: bytes, steps: int) -> tuple[int, float, bytes]:
    try:
        answer = cast(dict[str, Any], from_json(line))
        said = _Said.model_validate(answer)
        if said.number >= steps:
            raise ValueError("a layout that nobody asked for")
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise CheckFailed.of("compiler-says-nonsense", why=visible(why[:200])) from None
    except ValueError as error:
        raise CheckFailed.of("compiler-says-nonsense", why=visible(str(error)[:200])) from None
    own = {name: each for name, each in answer.items() if name not in _Said.model_fields}
    return said.number, said.cpu, json.dumps(own).encode()


def _prune(answers: Path) -> None:
    """The oldest go: each image and each model has answers of its own."""
    there = {}
    for path in answers.glob("*.json"):
        with suppress(OSError):  # another search took it away
            there[path] = path.stat().st_mtime
    for path in sorted(there, key=there.__getitem__)[:-KEPT]:
        path.unlink(missing_ok=True)


def _digest(image: str, request: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([image, request], sort_keys=True).encode()).hexdigest()

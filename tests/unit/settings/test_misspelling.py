"""Each key and each word of a choice in the files that people write, misspelt by a machine: how many are caught with
their line and the word that was meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from misspelling import misspelt, rewritten
from pydantic import BaseModel

from rocstack.base import document
from rocstack.base.errors import BadInput
from rocstack.settings import settings
from rocstack.settings.settings import Settings
from rocstack.stack.component import Component, NicProfile
from rocstack.stack.stack import Stack

DATA = Path(__file__).parents[1] / "data/misspelling"
Judge = Callable[[Path], object]


def _validated(model: type[BaseModel]) -> Judge:
    return lambda path: document.read(path).validate(model, extra={"name": "mine"})


FILES: dict[str, tuple[type[BaseModel], Judge]] = {
    "rocstack": (Settings, lambda path: settings.load({}, {}, path.parent)),
    "stack": (Stack, _validated(Stack)),
    "nic": (NicProfile, _validated(NicProfile)),
    "component": (Component, _validated(Component)),
}


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for info in annotation.model_fields.values():
            yield from models(info.annotation)
    for argument in get_args(annotation):
        yield from models(argument)


def words(annotation: Any) -> set[str]:
    """Of a choice; none where something else may stand there, too."""
    if get_origin(annotation) is Literal:
        return {str(each) for each in get_args(annotation)} - {""}
    if get_origin(annotation) in (Union, UnionType):
        kinds = [each for each in get_args(annotation) if each is not type(None)]
        return words(kinds[0]) if len(kinds) == 1 else set()
    if get_origin(annotation) is tuple or hasattr(annotation, "__metadata__"):
        return words(get_args(annotation)[0])
    return set()


def keys(model: type[BaseModel]) -> set[str]:
    return {name for each in models(model) for name in each.model_fields}


def caught(file: str, old: str, new: str, line: int, meant: str, place: Path) -> bool:
    """Whether `new` in the place of `old` is refused there, and the right word is said."""
    lines = (DATA / f"{file}.yml").read_text().splitlines()
    assert lines[line - 1].count(old) >= 1
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    path = place / f"{file}.yml"
    path.write_text("\n".join(lines) + "\n")
    try:
        FILES[file][1](path)
    except BadInput as error:
        return str(error.where) == f"{path}:{line}" and f"'{meant}'" in error.what
    return False


@pytest.mark.parametrize("file", FILES)
def test_the_sample_has_every_key_and_is_right(file: str, tmp_path: Path) -> None:
    path = tmp_path / f"{file}.yml"
    path.write_text((DATA / path.name).read_text())
    FILES[file][1](path)
    found = {str(key) for loc in document.read(path).lines for key in loc}
    assert keys(FILES[file][0]) - {"name"} <= found


@pytest.mark.parametrize("file", FILES)
def test_every_misspelt_key_is_caught(file: str, tmp_path: Path) -> None:
    doc = document.read(DATA / f"{file}.yml")
    known, seen, missed = keys(FILES[file][0]), 0, []
    for loc, line in doc.lines.items():
        name = loc[-1] if loc else 0
        if isinstance(name, str) and name in known and f"{name}:" in (DATA / f"{file}.yml").read_text():
            # In which letter matters little: every fourth, another one in each line.
            for typo in sorted(({*sorted(misspelt(name))[line % 4 :: 4]} | rewritten(name)) - known):
                seen += 1
                if not caught(file, f"{name}:", f"{typo}:", line, name, tmp_path):
                    missed.append(f"{'.'.join(map(str, loc))}: {typo}")
    assert seen >= 100
    assert not missed, f"{len(missed)} of {seen} keys: {missed[:40]}"


def at(model: Any, loc: tuple[str | int, ...]) -> Any:
    """What may stand there: an annotation."""
    for part in loc:
        if isinstance(model, type) and issubclass(model, BaseModel):
            model = model.model_fields[str(part)].annotation if part in model.model_fields else None
            continue
        while get_origin(model) in (Union, UnionType) or hasattr(model, "__metadata__"):
            kinds = [each for each in get_args(model) if each is not type(None)]
            model = next((each for each in kinds if isinstance(each, type) or get_origin(each)), kinds[0])
        if isinstance(model, type) and issubclass(model, BaseModel):
            model = model.model_fields[str(part)].annotation if part in model.model_fields else None
        else:
            model = next(iter(get_args(model)[-1 if get_origin(model) is dict else 0 :]), None)
    return model


def test_misspelt_words_of_choices_are_caught(tmp_path: Path) -> None:
    seen, missed = 0, []
    for file, (model, _) in FILES.items():
        doc = document.read(DATA / f"{file}.yml")
        text = (DATA / f"{file}.yml").read_text().splitlines()
        for loc, line in doc.lines.items():
            value: Any = doc.data
            for part in loc:
                value = value[part]
            choice = words(at(model, loc)) if isinstance(value, str) else set()
            for word in sorted(choice):
                for typo in sorted((misspelt(word) | rewritten(word)) - choice):
                    seen += 1
                    assert value in text[line - 1]
                    if not caught(file, value, f'"{typo}"', line, word, tmp_path):
                        missed.append(f"{file}: {'.'.join(map(str, loc))}: {typo} for {word}")
    assert seen >= 500
    assert len(missed) <= seen * 0.05, f"{len(missed)} of {seen} words: {missed[:40]}"

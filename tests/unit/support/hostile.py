"""Hostile texts, the fields of an answer into which they go, and what nobody may be shown.

A field is found in the schema of an answer, or in one that was recorded, so that a new field is tried as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

Loc = tuple[str | int, ...]
DATA = json.loads((Path(__file__).parents[1] / "data/hostile.json").read_text())
MARKS = ("[red]x[/red]", "[link=https://example.com]x[/link]", "[@click=app.bell]x", ":boom:")


def texts(mark: Path) -> list[str]:
    """Whoever obeys one of them may make `mark`; the last are long, or deep."""
    long = [text * times for text, times in DATA["repeated"]]
    return [text.replace("@mark@", str(mark)) for text in [*DATA["texts"], *long]]


def values() -> list[Any]:
    """No texts, where a text may belong; and the other way round."""
    return list(DATA["values"])


def sample(model: Any) -> Any:
    """An answer of this shape, with all its fields, an entry in each list and table."""
    schema = TypeAdapter(model).json_schema(by_alias=True)
    return _sample(schema, schema.get("$defs", {}))


def _sample(schema: dict[str, Any], known: dict[str, Any]) -> Any:
    if "$ref" in schema:
        return _sample(known[schema["$ref"].rpartition("/")[2]], known)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return _sample(next(each for each in schema[word] if each.get("type") != "null"), known)
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    kind = schema.get("type")
    if kind == "array":
        return [_sample(each, known) for each in schema.get("prefixItems") or [schema.get("items", {})]]
    if kind == "object":
        more = schema.get("additionalProperties")
        return {
            **{name: _sample(each, known) for name, each in schema.get("properties", {}).items()},
            **({"x": _sample(more, known)} if isinstance(more, dict) else {}),
        }
    return {"integer": schema.get("minimum", 1), "number": 1.5, "boolean": True}.get(str(kind), "x")


def fields(answer: Any, loc: Loc = ()) -> Iterator[Loc]:
    """All places in it where a value stands."""
    if loc:
        yield loc
    rows = answer.items() if isinstance(answer, dict) else enumerate(answer) if isinstance(answer, list) else ()
    for key, value in rows:
        yield from fields(value, (*loc, key))


def changed(answer: Any, loc: Loc, value: Any) -> Any:
    """A copy with another value there."""
    if not loc:
        return value
    copy: Any = dict(answer) if isinstance(answer, dict) else list(answer)
    copy[loc[0]] = changed(answer[loc[0]], loc[1:], value)
    return copy


def renamed(answer: Any, loc: Loc, key: str) -> Any:
    """A copy in which the last part of `loc`, a key, is another."""
    table = at(answer, loc[:-1])
    return changed(answer, loc[:-1], {key if name == loc[-1] else name: value for name, value in table.items()})


def at(answer: Any, loc: Loc) -> Any:
    for part in loc:
        answer = answer[part]
    return answer


def steers(output: str) -> str:
    """What in it a terminal would obey, or can't show; empty where nothing does."""
    return "".join(sorted({char for char in output if not (char.isprintable() or char == "\n")}))

"""The published JSON schema of node profiles, made from the classes and the comments behind their fields."""

import ast
import inspect
import json
import re
from functools import cache
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from rocstack.node import profile


def schema(
    model: type[Any],
    module: ModuleType = profile,
    title: str = "rocstack node profiles",
    mode: JsonSchemaMode = "validation",
) -> dict[str, Any]:
    """JSON schema of `model`, such as a dataclass of which node profiles are a part, whose fields are in `module`."""
    result = TypeAdapter(model).json_schema(mode=mode)
    known = comments(module)
    for name, part in (*result.get("$defs", {}).items(), (model.__name__, result)):
        for field, about in part.get("properties", {}).items():
            about.pop("title", None)  # the field's name once more
            if text := known.get(name, {}).get(field):
                about["description"] = text
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**head, **{key: value for key, value in result.items() if key != "title"}}


def text(model: type[Any]) -> str:
    """The published file's content."""
    return json.dumps(schema(model), indent=1) + "\n"


@cache
def comments(module: ModuleType) -> dict[str, dict[str, str]]:
    """Class -> field -> the comment behind it."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    texts: dict[str, dict[str, str]] = {}
    for part in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        for field in part.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                comment = re.search(r"  # (.*)$", lines[(field.end_lineno or field.lineno) - 1])
                if comment:
                    texts.setdefault(part.name, {})[field.target.id] = comment[1]
    return texts

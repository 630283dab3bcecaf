"""YAML that remembers its lines, so that every complaint can say file:line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from rocstack.errors import BadInput, Where, did_you_mean

MAX_BYTES = 1_000_000
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Model = TypeVar("Model", bound=BaseModel)
Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """Parsed YAML: plain data, and the line (from 1) of every key path."""

    path: str
    data: dict[str, Any]
    lines: dict[Path_, int] = field(default_factory=dict)

    def where(self, loc: Path_ = ()) -> Where:
        """The place of `loc`, or of its nearest parent that is in the file."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return Where(self.path, self.lines.get(loc))

    def validate(self, model: type[Model], *, extra: Mapping[str, Any] | None = None) -> Model:
        """The document as `model`.

        Raises:
            BadInput: the first thing wrong, with its line and, for unknown keys, the nearest known one.
        """
        try:
            return model.model_validate({**self.data, **(extra or {})})
        except ValidationError as error:
            raise self._explain(model, error) from None

    def _explain(self, model: type[BaseModel], error: ValidationError) -> BadInput:
        first = error.errors()[0]
        loc: Path_ = tuple(first["loc"])
        key = ".".join(str(part) for part in loc) or "the document"
        others = len(error.errors()) - 1
        more = f" ({others} more problem{'s' * (others > 1)} after it)" if others else ""
        if first["type"] == "extra_forbidden":
            known = _known_keys(model, loc[:-1])
            hint = did_you_mean(str(loc[-1]), known)
            return BadInput(
                f"unknown key '{loc[-1]}'" + (f": {hint}" if hint else "") + more,
                code="unknown-key",
                where=self.where(loc),
                next_step="correct the key, or remove it",
            )
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "string_type":
            message = f"must be text: write it in quotes (YAML reads {first['input']!r} as a number)"
        return BadInput(
            f"{key}: {message[:1].lower()}{message[1:]}{more}",
            code="bad-value",
            where=self.where(loc),
            next_step="correct the value and run again",
        )


def _known_keys(model: type[BaseModel], loc: Path_) -> list[str]:
    """Field names of the model that `loc` leads to (through dicts and lists of models)."""
    current: Any = model
    for part in loc:
        fields = getattr(current, "model_fields", None)
        if fields is not None and part in fields:
            current = _model_in(fields[part].annotation)
    return list(getattr(current, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def read(path: Path, *, code: str = "no-file") -> Document:
    """Reads a YAML file.

    Raises:
        BadInput: missing, too large, not UTF-8, not YAML, a duplicate key, or not a mapping.
    """
    try:
        size = path.stat().st_size
        raw = path.read_bytes() if size <= MAX_BYTES else b""
    except OSError as error:
        raise BadInput(
            f"can't read {path}: {error.strerror}", code=code, next_step="check the path and its permissions"
        ) from None
    if size > MAX_BYTES:
        raise BadInput(
            f"{size / 1e6:.1f} MB of YAML; at most {MAX_BYTES / 1e6:.0f} MB is read",
            code="too-large",
            where=Where(str(path)),
            cause="this is probably not the file you meant",
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput(
            f"not UTF-8 (byte 0x{raw[error.start]:02x})",
            code="not-utf8",
            where=Where(str(path), line),
            next_step="save the file as UTF-8",
        ) from None
    return parse(text, str(path))


def parse(text: str, path: str, *, first_line: int = 1) -> Document:
    """Parses YAML text that stands at `first_line` of `path`."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = mark.line + first_line if mark else None
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise BadInput(
            f"not valid YAML: {problem}",
            code="bad-yaml",
            where=Where(path, line),
            next_step="check indentation and quotes on that line and the one before",
        ) from None
    if node is None:
        return Document(path, {})
    if not isinstance(node, yaml.MappingNode):
        raise BadInput("the file must hold a mapping (key: value)", code="bad-yaml", where=Where(path, first_line))
    lines: dict[Path_, int] = {}
    _walk(node, (), lines, path, first_line, set())
    return Document(path, yaml.load(text, Loader=_Loader), lines)


def _walk(node: yaml.Node, loc: Path_, lines: dict[Path_, int], path: str, first_line: int, seen: set[int]) -> None:
    line = node.start_mark.line + first_line
    lines.setdefault(loc, line)
    if not isinstance(node, yaml.ScalarNode):
        if id(node) in seen:  # a few aliases can unfold to gigabytes
            raise BadInput("YAML aliases are not read", code="bad-yaml", where=Where(path, lines[loc]))
        seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = getattr(key, "value", None)
            line = key.start_mark.line + first_line
            if not isinstance(name, str):
                raise BadInput("a key must be a plain word", code="bad-yaml", where=Where(path, line))
            if (*loc, name) in lines:
                raise BadInput(f"key '{name}' stands twice", code="duplicate-key", where=Where(path, line))
            lines[(*loc, name)] = line
            _walk(value, (*loc, name), lines, path, first_line, seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*loc, index)] = value.start_mark.line + first_line
            _walk(value, (*loc, index), lines, path, first_line, seen)

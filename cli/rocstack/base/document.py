"""YAML that remembers its lines, so that every complaint can say file:line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from rocstack.base.errors import BadInput, Where, did_you_mean, hinted
from rocstack.base.text import count, shortened
from rocstack.base.words import AtKey

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
_SCALARS = ("str", "int", "float", "bool", "null", "timestamp")
_CONFLICT = re.compile(r"(?:<{7}|={7}|>{7})(?: |$)")  # git's marks
_OF_UNION = re.compile(r"(literal|function-[a-z]+|constrained-[a-z]+)\[|(str|int)$")  # pydantic's, of an alternative
_PLAIN = {  # pydantic's, that speak of Python
    "tuple_type": "a list: [a, b]",
    "list_type": "a list: [a, b]",
    "dict_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "float_type": "a number",
    "float_parsing": "a number",
}
_BOUNDS = {"greater_than": ("gt", "more than"), "greater_than_equal": ("ge", "at least"),
           "less_than": ("lt", "less than"), "less_than_equal": ("le", "at most")}  # fmt: skip
_LENGTHS = {"too_short": ("min_length", "at least"), "too_long": ("max_length", "at most")}
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

    def part(self, name: str) -> Document:
        """What stands under a key of the top, as a document of its own.

        Raises:
            BadInput: that is no mapping.
        """
        if not isinstance(self.data[name], dict):
            raise BadInput.of("no-mapping", self.where((name,)), key=name)
        return Document(
            self.path, self.data[name], {loc[1:]: at for loc, at in self.lines.items() if loc[:1] == (name,)}
        )

    def texts(self, start: Path_) -> dict[Path_, str]:
        """Every text at or under `start`, by its key path."""
        out: dict[Path_, str] = {}
        for loc in self.lines:
            value: Any = self.data
            if loc[: len(start)] == start:
                for part in loc:
                    value = value[part]
                if isinstance(value, str):
                    out[loc] = value
        return out

    def validate(self, model: type[Model], *, extra: Mapping[str, Any] | None = None) -> Model:
        """The document as `model`. `extra` holds what the file may not say itself.

        Raises:
            BadInput: the first thing wrong, with its line and, for unknown keys, the nearest known one.
        """
        try:
            for key in extra or {}:
                if key in self.data:
                    raise BadInput.of("key-of-file", self.where((key,)), key=key)
            return model.model_validate({**tuples(self.data), **(extra or {})})
        except ValidationError as error:
            raise self.explain(model, error) from None

    def explain(self, model: type[BaseModel], error: ValidationError) -> BadInput:
        """The first thing wrong, with its line and, for unknown keys, the nearest known one."""
        # A misspelt key that is needed is missing too; the spelling is what the person must see.
        found = error.errors()
        first = min(found, key=lambda each: _rank(each, found))
        loc = _without_alternatives(first)
        message = first["msg"].removeprefix("Value error, ")
        named = (*loc, message.partition(":")[0])
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, AtKey):
            loc = (*loc, *cause.loc)
        elif (
            first["type"] == "value_error" and named in self.lines
        ):  # a check of a whole mapping names the key it means
            loc, message = named, message.partition(": ")[2]
        key = ".".join(str(part) for part in loc if part != "[key]") or "the document"
        others = len({_without_alternatives(each) for each in found}) - 1
        more = f" ({count(others, 'more problem')})" if others else ""
        if first["type"] == "extra_forbidden":
            known = _known_keys(model, loc[:-1])
            return BadInput.of("unknown-key", self.where(loc), key=loc[-1], hint=hinted(str(loc[-1]), known), more=more)
        if first["type"] != "value_error":
            message = sentence(first, model)
        return BadInput.of("bad-value", self.where(loc), key=key, why=message, more=more)


def _rank(each: Any, found: list[Any]) -> int:
    """What of several complaints says most: a misspelt key; then, where a word or something else may stand, the one
    about what was tried."""
    if each["type"] == "extra_forbidden":
        return 0
    if each["type"] == "literal_error":
        return 1 + any("literal[" in str(part) for part in each["loc"])
    if each["type"] == "too_short":  # what was wrong in it has been left out
        return 2
    return 3 if each["type"] in ("dict_type", "list_type", "tuple_type", "model_type") and len(found) > 1 else 1


def _without_alternatives(each: Any) -> Path_:
    """Its key path, without pydantic's names of the alternatives of a union."""
    loc: Path_ = tuple(each["loc"])
    kept = len(loc) - (each["type"] == "extra_forbidden")
    return tuple(part for part in loc[:kept] if not _OF_UNION.match(str(part))) + loc[kept:]


def sentence(problem: Any, model: type[BaseModel]) -> str:
    """What is wrong, of one of pydantic's errors; those of ours are sentences already."""
    message = str(problem["msg"]).removeprefix("Value error, ")
    kind, value = problem["type"], problem["input"]
    if kind == "value_error":
        return message
    if kind == "string_type":
        return _must_be_text(value, _at(model, _without_alternatives(problem)))
    if kind == "literal_error":
        return one_of(value, message)
    if kind in _PLAIN:
        there = "nothing is there" if value is None else f"not {_shown(value)}"
        return f"must be {_PLAIN[kind]}, {'and ' * (value is None)}{there}"
    if kind == "missing":
        return "it is missing"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"must be {words} {problem['ctx'][key]}, not {_shown(value).strip(chr(39))}"
    if (length := kind.removeprefix("string_")) in _LENGTHS:
        key, words = _LENGTHS[length]
        number, noun = problem["ctx"][key], "value" if length == kind else "character"
        return "it is empty" if number == 1 and not value else f"must have {words} {count(number, noun)}"
    return message[:1].lower() + message[1:]


def _shown(value: Any) -> str:
    """What a person wrote, in a word."""
    for kind, name in ((dict, "a mapping"), (list | tuple, "a list")):
        if isinstance(value, kind):
            return name
    return str(value).lower() if isinstance(value, bool) else f"'{str(value)[:80]}'"


def _must_be_text(value: Any, annotation: Any) -> str:
    if value is None:
        return "must be text, and nothing is there"
    if isinstance(value, dict | list | tuple):
        return "must be text, not a list or mapping"
    try:
        TypeAdapter(annotation or str).validate_python(str(value))
    except ValidationError as error:  # in quotes it would be wrong, too
        return sentence(error.errors()[0], BaseModel)
    kind = "a truth" if isinstance(value, bool) else "a number" if isinstance(value, int | float) else "a date"
    return f"must be text: write it in quotes (YAML reads {str(value).lower()} as {kind})"


def one_of(value: Any, message: str) -> str:
    """The words that a value can be, and the one that is meant."""
    known = re.findall(r"'([^']*)'", message)
    if known and not isinstance(value, str):
        there = "and nothing is there" if value is None else f"not {_shown(value)}"
        return f"must be one of {', '.join(known)}, {there}"
    hint = did_you_mean(str(value), known) if known else None
    near = hint if hint and hint.startswith("did you mean") else ""
    return (
        f"'{shortened(value)}' is not one of {', '.join(known)}" + (f": {near}" if near else "") if known else message
    )


def _known_keys(model: type[BaseModel], loc: Path_) -> list[str]:
    """Field names of the model that `loc` leads to."""
    return list(getattr(_model_in(_at(model, loc)), "model_fields", {}))


def _at(model: Any, loc: Path_) -> Any:
    """What may stand at a key path: an annotation; None where the model has no such place."""
    for part in loc:
        model = _below(model, part)
    return model


def _below(annotation: Any, part: str | int) -> Any:
    """A map's own key takes a part of the path, as a field does: a NIC's way may be called `source`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        info = annotation.model_fields.get(str(part))
        return info and (Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation)
    kinds = get_args(annotation)
    if get_origin(annotation) in (dict, tuple, list):
        return kinds[-1] if get_origin(annotation) is dict else kinds[0]
    return next((found for each in kinds if (found := _below(each, part)) is not None), None)


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        model = _model_in(argument)
        if model is not None:
            return model
    return None


def read(path: Path, *, code: str = "no-file") -> Document:
    """Reads a YAML file.

    Raises:
        BadInput: missing, too large, not UTF-8, not YAML, a duplicate key, or not a mapping.
    """
    return parse(read_text(path, code=code), str(path))


def read_text(path: Path, *, code: str = "no-file") -> str:
    """What a person wrote.

    Raises:
        BadInput: missing, too large, or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        what, step = f"can't read {path}: {error.strerror}", "check the path and its permissions"
        raise BadInput(what, code=code, next_step=step) from None
    if len(raw) > MAX_BYTES:
        raise BadInput.of("too-large", path, size=max(size, len(raw)) / 1e6, most=MAX_BYTES / 1e6)
    try:
        # Some editors begin a file with a byte order mark, which would stand before the first key or a head's fence.
        return raw.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput.of("not-utf8", Where(str(path), line), byte=raw[error.start]) from None


def parse(text: str, path: str, *, first_line: int = 1) -> Document:
    """Parses YAML text that stands at `first_line` of `path`. Plain YAML only: no aliases (a few can unfold to
    gigabytes), no tags, no deep nests; every key is text.

    Raises:
        BadInput: with the line.
    """

    def refuse(what: str, line: int | None) -> BadInput:
        return BadInput.of("odd-yaml", Where(path, line), why=what)

    odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if odd:
        line = text.count("\n", 0, odd.start()) + first_line
        raise refuse(f"not valid YAML: control character U+{ord(odd[0]):04X}", line)
    loader = _Loader(text)
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):  # events need no stack; composing a deep nest would crash
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            at = (event.start_mark.line if event.start_mark else 0) + first_line
            if depth > MAX_DEPTH:
                raise refuse(f"nested deeper than {MAX_DEPTH} levels", at)
            if isinstance(event, yaml.AliasEvent):
                raise refuse("YAML aliases are not supported", at)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        place = min(mark.line, text.rstrip().count("\n")) + first_line if mark else None  # not behind the end
        rows = text.split("\n")
        marked = next((number for number, row in enumerate(rows) if _CONFLICT.match(row)), None)
        if marked is not None:
            raise BadInput.of("merge-conflict", Where(path, marked + first_line)) from None
        if mark and re.match(r" *\t", rows[min(mark.line, len(rows) - 1)]):
            raise BadInput.of("tab-indents", Where(path, place)) from None
        raise BadInput.of("bad-yaml", Where(path, place), why=getattr(error, "problem", None) or error) from None
    lines: dict[Path_, int] = {}

    def value(node: yaml.Node, loc: Path_) -> Any:
        line = node.start_mark.line + first_line
        lines.setdefault(loc, line)
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if isinstance(node, yaml.MappingNode) and kind == "map":
            out: dict[str, Any] = {}
            for key, item in node.value:
                at = key.start_mark.line + first_line
                if not isinstance(key, yaml.ScalarNode):
                    raise refuse("a key must be a plain word", at)
                name = key.value  # as it is written: YAML would read `on` as true
                if name in out:
                    raise BadInput.of("duplicate-key", Where(path, at), key=name)
                lines[(*loc, name)] = at
                out[name] = value(item, (*loc, name))
            return out
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [value(item, (*loc, index)) for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.ScalarNode) or kind not in _SCALARS:
            raise refuse(f"the YAML tag '{node.tag}' is not supported", line)
        if kind in ("int", "float") and is_other_number(node.value):
            raise refuse(f"{node.value[:40]} is read to the base of 8 or 60 by YAML: write the number, or a text", line)
        try:
            return loader.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError):
            raise refuse(f"'{node.value[:40]}' can't be read as a YAML {kind}: write it in quotes", line) from None

    if root is None or (isinstance(root, yaml.ScalarNode) and root.tag == "tag:yaml.org,2002:null"):
        return Document(path, {}, {(): first_line})
    if not isinstance(root, yaml.MappingNode):
        colon = re.match(r"[A-Za-z_]\w*[:=]", root.value) if isinstance(root, yaml.ScalarNode) else None
        space = ", with a space after the colon" if colon else ""
        raise refuse(f"the file must hold a mapping (key: value){space}", root.start_mark.line + first_line)
    return Document(path, value(root, ()), lines)


def is_other_number(word: str) -> bool:
    """Whether YAML makes another number of it than people do: 010 is 8, and 1:30 is 90.

    >>> [is_other_number(word) for word in ("0022", "1:30", "22", "0", "0x16", "-0.5")]
    [True, True, False, False, False, False]
    """
    return ":" in word or re.fullmatch(r"[+-]?0[0-7_]+", word) is not None


def with_values(text: str, values: Mapping[Path_, str]) -> str:
    """The same YAML with other scalars at these key paths; comments and layout stay. A path that isn't there counts
    for nothing."""
    found: list[tuple[int, int, str]] = []

    def walk(node: Any, loc: Path_) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, item in node.value:
                walk(item, (*loc, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                walk(item, (*loc, index))
        elif loc in values:
            found.append((node.start_mark.index, node.end_mark.index, values[loc]))

    walk(yaml.compose(text, Loader=yaml.SafeLoader), ())
    for start, end, value in sorted(found, reverse=True):
        text = f"{text[:start]}{json.dumps(value)}{text[end:]}"
    return text


def tuples(value: Any) -> Any:
    """YAML gives lists; the frozen models hold tuples."""
    if isinstance(value, dict):
        return {key: tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(tuples(item) for item in value)
    return value

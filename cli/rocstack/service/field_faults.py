"""What is wrong with a field of a request, in plain words. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import ErrorDetails

from rocstack.base.text import visible

# What pydantic adds to a place: which of several types it tried, and where the request had it.
_TYPE = re.compile(r"(constrained-|literal\[|function-|nullable|list\[|dict\[).*|(int|str|float|bool)$")
_PARTS = ("body", "query", "path")
_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda _: "it is missing",
    "extra_forbidden": lambda _: "there is no such field",
    "int_parsing": lambda _: "it must be a whole number, such as 2",
    "int_parsing_size": lambda _: "the number is too long",
    "int_from_float": lambda _: "it must be a whole number, such as 2",
    "int_type": lambda _: "it must be a whole number, such as 2",
    "float_parsing": lambda _: "it must be a number, with a point where it has a fraction, such as 0.5",
    "float_type": lambda _: "it must be a number",
    "finite_number": lambda _: "it must be a number",
    "string_unicode": lambda _: "it has half of a character, which no text has",
    "string_type": lambda _: "it must be a text",
    "bool_parsing": lambda _: "it must be true or false",
    "bool_type": lambda _: "it must be true or false",
    "list_type": lambda _: "it must be a list",
    "dict_type": lambda _: "it must be an object",
    "model_attributes_type": lambda _: "it must be an object",
    "greater_than_equal": lambda said: f"it must be {said['ge']:,} or more",
    "greater_than": lambda said: f"it must be more than {said['gt']:,}",
    "less_than_equal": lambda said: f"it must be {said['le']:,} or less",
    "string_too_long": lambda said: f"it has more than {said['max_length']:,} letters",
    "string_too_short": lambda _: "it is empty",
    "too_long": lambda said: f"it has more than {said['max_length']:,} parts",
    "too_short": lambda _: "it is empty",
    "literal_error": lambda said: f"it must be {said['expected']}",
    "json_invalid": lambda said: f"it is no JSON: {said['error']}",
}


@dataclass(frozen=True)
class FieldFault:
    """`place` is the field, outermost first; empty: the request itself."""

    place: tuple[str, ...]
    why: str

    def sentence(self, labels: Mapping[str, str] | None = None) -> str:
        """With the name of the field, or with what a form calls it."""
        if not self.place:
            return f"the body: {self.why}"
        name = (labels or {}).get(self.place[-1]) or ".".join(self.place)
        return f"{name}: {self.why}"


def first(errors: Sequence[ErrorDetails | Mapping[str, Any]]) -> FieldFault:
    """The first of pydantic's: of a field that may be of several types, what the first of them asks for."""
    error = errors[0]
    kind, said = str(error["type"]), error.get("ctx") or {}
    place = [str(part) for part in error["loc"] if part not in _PARTS]
    # Where no JSON is, the place is a number of characters.
    names = () if kind == "json_invalid" else tuple(part for part in place if not _TYPE.match(part))
    words = _WORDS.get(kind)
    why = words(said) if words else f"{error['msg'][:1].lower()}{error['msg'][1:]}"
    return FieldFault(tuple(visible(name[:64]) for name in names), visible(why)[:300])

"""Lists and numbers in sentences; and what others said, so that nothing happens when it is read or shown."""

import json
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

_BREAKS = re.compile(r"([\n\t])").split
# Letters of Cyrillic and Greek, the dotless i, and dashes.
_LIKE_LATIN = str.maketrans(
    "\u0430\u0441\u0435\u0456\u0458\u043e\u0440\u0455\u0443\u0445\u03bf\u03bd\u0131\u2010\u2011\u2013",
    "aceijopsyxovi---",
)


def listed(names: Iterable[str], most: int = 4) -> str:
    """The names; of more than `most`, the first of them and how many more there are (at least 2)."""
    known = list(names)
    if len(known) <= most:
        return ", ".join(known)
    return f"{', '.join(known[: most - 1])} and {len(known) - most + 1} more"


def visible(text: str) -> str:
    """With its control and formatting characters as escapes, so that a terminal shows them and doesn't obey them."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def visible_lines(text: str) -> str:
    """`visible`, but its lines and tabs stay."""
    return text if text.isprintable() else "".join(part if part in "\n\t" else visible(part) for part in _BREAKS(text))


def from_json(text: str | bytes) -> Any:
    """What a node, a registry or a file says in JSON.

    Raises:
        ValueError: it is no JSON, nested deeper than any answer, or has a number that no answer has.
    """
    try:
        return json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def values_of(text: str | bytes) -> int:
    """At most so many values has a text in JSON: each follows a comma or a bracket. One takes two bytes there, and 64
    in Python."""
    if isinstance(text, str):
        return sum(map(text.count, (",", "[", "{")))
    return sum(map(text.count, (b",", b"[", b"{")))


def _whole(text: str) -> int:
    """What 64 bits hold: a larger one is no float, and thousands of digits are no int in Python."""
    if len(text) > 20 or not -(2**63) <= (value := int(text)) < 2**64:
        raise ValueError("it has a number of more than 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"it has a number that is {value}")
    return value


def plain(word: str) -> str:
    """In small letters of ASCII where it only looks so: people copy names out of documents and chats."""
    small = unicodedata.normalize("NFKC", word).casefold().translate(_LIKE_LATIN)
    return "".join(char for char in small if char.isprintable())


def shortened(text: str, most: int = 120) -> str:
    """The beginning of a long text."""
    return text if len(text) <= most else f"{text[:most]}..."


def last_line(output: str | bytes) -> str:
    """Of what a command that failed said."""
    text = output if isinstance(output, str) else output.decode(errors="replace")
    return (text.strip() or "no reason given").splitlines()[-1]


def count(number: int, noun: str) -> str:
    """1 node, 2 nodes."""
    return f"{number} {noun}{'s' * (number != 1)}"


def distance(one: str, other: str, most: int) -> int:
    """How many letters are lost, doubled, changed or swapped between the two; `most` where it is no less."""
    if abs(len(one) - len(other)) >= most:
        return most
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return min(row[-1], most)


def filled(sentence: str, values: Mapping[str, object]) -> str:
    """The sentence with the `values` in its {places}. What stands in backticks people paste into a shell: there each
    value is one word, whatever a node or a log put into it, and a list is as many as it has."""
    if "`" not in sentence:
        return sentence.format_map(values)
    words = {name: _ShellWord(value) for name, value in values.items()}
    parts = sentence.split("`")
    return "`".join(part.format_map(words if number % 2 else values) for number, part in enumerate(parts))


@dataclass(frozen=True)
class _ShellWord:
    value: object

    def __format__(self, form: str) -> str:
        if isinstance(self.value, list):
            return shlex.join(map(str, self.value))
        text = format(self.value, form)
        return shlex.quote(text) if text else ""  # of several places, some may be empty

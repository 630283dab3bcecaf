"""Lists and numbers in sentences; and what others said, so that nothing happens when it is read or shown."""

import json
import re
from collections.abc import Iterable
from typing import Any

_BREAKS = re.compile(r"([\n\t])").split


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
        ValueError: it is no JSON, or nested deeper than any answer.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def last_line(output: str | bytes) -> str:
    """Of what a command that failed said."""
    text = output if isinstance(output, str) else output.decode(errors="replace")
    return (text.strip() or "no reason given").splitlines()[-1]


def count(number: int, noun: str) -> str:
    """1 node, 2 nodes."""
    return f"{number} {noun}{'s' * (number != 1)}"

"""Lists and numbers in sentences."""

from collections.abc import Iterable


def listed(names: Iterable[str], most: int = 4) -> str:
    """The names; of more than `most`, the first of them and how many more there are (at least 2)."""
    known = list(names)
    if len(known) <= most:
        return ", ".join(known)
    return f"{', '.join(known[: most - 1])} and {len(known) - most + 1} more"


def last_line(output: str | bytes) -> str:
    """Of what a command that failed said."""
    text = output if isinstance(output, str) else output.decode(errors="replace")
    return (text.strip() or "no reason given").splitlines()[-1]


def count(number: int, noun: str) -> str:
    """1 node, 2 nodes."""
    return f"{number} {noun}{'s' * (number != 1)}"

"""The table of what is known to go wrong: its entries (images/doctor/*.yml) and the finding that one becomes."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from rocstack.base import document, paths
from rocstack.base.errors import BadInput
from rocstack.base.words import Line, Name, Value
from rocstack.stack.stack import _tuples

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
Rule = TypeVar("Rule", bound=Callable[..., Any])
Text = Line
Texts = Annotated[tuple[Text, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]


class Entry(Value):
    """One row. A known text of a log has `text`; a state has none, and a function of the same name finds it.

    `text` is literal, any of them; `match` narrows it, and its named groups fill the {places} of `means` and `next`.
    """

    id: Name
    level: Level
    means: Text = Field(min_length=1)
    cause: Text = Field(min_length=1)
    next: Text = Field(min_length=1)
    source: Text = Field(min_length=1)
    text: Texts = ()
    match: Text | None = None
    example: str | None = None
    also: tuple[Name, ...] = ()  # entries that may stand on the same line

    @model_validator(mode="after")
    def _fits_together(self) -> Entry:
        if bool(self.text) != bool(self.example):
            raise ValueError("a known text needs an 'example', and a state has neither")
        try:
            groups = set(re.compile(self.match).groupindex) if self.match else set()
        except re.error as error:
            raise ValueError(f"match: not a regular expression: {error}") from None
        if self.text and self.places - groups:
            raise ValueError(f"means: no group in 'match' fills {', '.join(sorted(self.places - groups))}")
        return self

    @property
    def places(self) -> set[str]:
        """The names that `means` and `next` want filled."""
        texts = (self.means, self.next)
        return {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name} - {"playbooks"}

    def read(self, line: str) -> dict[str, str] | None:
        """What `match` reads off a line that holds one of the texts; None where it doesn't fit."""
        if self.match is None:
            return {}
        found = re.search(self.match, line)
        return None if found is None else {name: text or "" for name, text in found.groupdict().items()}

    def found(self, values: Mapping[str, object] | None = None, **more: Any) -> Finding:
        """The finding that this entry becomes."""
        known = {"playbooks": _from_here(paths.playbooks()), **(values or {})}
        filled = {name: getattr(self, name).format_map(known) for name in ("means", "next")}
        return Finding(id=self.id, level=self.level, cause=self.cause, source=self.source, **filled, **more)


class Finding(Value):
    """Something known that was found: in a log (`line`) or on nodes."""

    id: str
    level: Level
    means: str
    cause: str
    next: str
    source: str
    count: int = 1  # lines of the log, or nodes
    line: int | None = None  # the first one, from 1
    seen: tuple[str, ...] = ()  # the line itself, or what each node shows
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()


Table = Mapping[str, Entry]


def load(folder: Path | None = None) -> dict[str, Entry]:
    """The table, by id.

    Raises:
        BadInput: an entry that is incomplete or stands twice, with its line.
    """
    entries: dict[str, Entry] = {}
    for path in sorted((folder or paths.images() / "doctor").glob("*.yml")):
        doc = document.read(path)
        for name, body in doc.data.items():
            if name in entries:
                raise BadInput(f"'{name}' stands in two files", code="duplicate-key", where=doc.where((name,)))
            entries[name] = _entry(doc, name, body)
    return entries


def _entry(doc: document.Document, name: str, body: Any) -> Entry:
    if not isinstance(body, dict):
        raise BadInput(f"entry '{name}' must be a mapping", code="bad-value", where=doc.where((name,)))
    lines = {loc[1:]: line for loc, line in doc.lines.items() if loc[:1] == (name,)}
    return document.Document(doc.path, _tuples(body), lines).validate(Entry, extra={"id": name})


def _from_here(path: Path) -> Path:
    """The path as one types it in this folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Errors first; within a level as they came."""
    return tuple(sorted(findings, key=lambda finding: LEVELS.index(finding.level)))


def registering(rules: dict[str, Rule]) -> Callable[[Rule], Rule]:
    """A decorator that puts a function into `rules` under the name of its entry: memlock_low is memlock-low."""

    def register(function: Rule) -> Rule:
        rules[function.__name__.replace("_", "-")] = function
        return function

    return register


def few(names: Iterable[str], most: int = 4) -> str:
    """The names, or the first of them and how many more."""
    known = list(names)
    if len(known) <= most:
        return ", ".join(known)
    return f"{', '.join(known[: most - 1])} and {len(known) - most + 1} more"

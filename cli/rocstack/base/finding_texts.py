"""The texts of all findings, as images/findings/*.yml has them: one entry a code, and each code once."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from rocstack.base import document, paths
from rocstack.base.errors import BadInput
from rocstack.base.findings import Finding, FindingLevel
from rocstack.base.text import filled
from rocstack.base.words import Line, Name, Value

RULES = "rules.yml"  # entries with conditions: rocstack.stack.rules reads them
Texts = Annotated[tuple[Line, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
Shown = Literal["one-node", "rdma-used", "device-opened"]  # what the whole of a log shows
ShownList = Annotated[tuple[Shown, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
Registered = TypeVar("Registered", bound=Callable[..., Any])


class Entry(Value):
    """What a finding with this code says. The values of a finding fill the {places} of its sentences."""

    code: Name
    level: FindingLevel
    what: Line = Field(min_length=1)
    cause: Line = Field(min_length=1)
    next: Line = Field(min_length=1)
    source: Line = Field(min_length=1)

    def filled(self, name: str, values: Mapping[str, object]) -> str:
        """The sentence called `name`. Paths are as one types them here, and what nobody knows stands for itself."""
        here = {"playbooks": _from_here(paths.playbooks()), "inventory": "INVENTORY", "node": "NODE", "nic": "NIC"}
        known = {**here, **values}
        return filled(getattr(self, name), known)

    def finding(self, values: Mapping[str, object] | None = None, node: str | None = None) -> Finding:
        """The finding that this entry becomes. `level` among the values takes the place of the entry's."""
        return Finding(**self.fields(values), node=node)

    def fields(self, values: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Of the finding, without a node."""
        known = values or {}
        texts = {name: self.filled(name, known) for name in ("what", "cause", "next")}
        return {"code": self.code, "level": known.get("level", self.level), "source": self.source, **texts}


class TextEntry(Entry):
    """An entry that is also found in logs, where it has `text`. A state has none: a function of the same name finds it.

    `text` is literal, any of them; `match` narrows it, and its named groups fill the {places}; `otherwise` fills those
    of which the line says nothing. A line that `unless`, a regular expression, finds is another entry's. A `symptom`
    often has its cause in another entry, so it stands after those. `kernel`, of lines of the kernel: a fault, one that
    no reset and no time mends (lasting), or one of memory that nothing used (contained). `harmless`: what the log must
    show, any of it, for the finding to be a note only. `settled`: the text of a line that takes one of this entry's
    back, or says it better; where there are as many of those, it is no finding. `over`: the text of a line that ends
    what was tried again: of its file, this entry's lines before it are no finding, unless more follow.
    """

    text: Texts = ()
    match: Line | None = None
    unless: Line | None = None
    otherwise: dict[Name, Line] = {}
    symptom: bool = False
    kernel: Literal["fault", "lasting", "contained"] | None = None
    harmless: ShownList = ()
    settled: Texts = ()
    over: Texts = ()
    example: str | None = None
    examples: tuple[str, ...] = ()  # other wordings, of older and newer releases
    also: tuple[Name, ...] = ()  # entries that may stand on the same line

    @model_validator(mode="after")
    def _fits_together(self) -> TextEntry:
        if bool(self.text) != bool(self.example):
            raise ValueError("a known text needs an 'example', and a state has neither")
        try:
            groups = set(re.compile(self.match).groupindex) if self.match else set()
            re.compile(self.unless or "")
        except re.error as error:
            raise ValueError(f"match, unless: not a regular expression: {error}") from None
        if self.text and self.places - groups:
            raise ValueError(f"what: no group in 'match' fills {', '.join(sorted(self.places - groups))}")
        return self

    @property
    def places(self) -> set[str]:
        """The names that its sentences want filled."""
        texts = (self.what, self.cause, self.next)
        named = {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}
        return named - {"playbooks", "nic"}

    def read(self, line: str) -> dict[str, str] | None:
        """What `match` reads off a line that holds one of the texts; None where it doesn't fit."""
        if self.unless and re.search(self.unless, line):
            return None
        if self.match is None:
            return {}
        match = re.search(self.match, line)
        if match is None:
            return None
        return {name: text or self.otherwise.get(name, "") for name, text in match.groupdict().items()}


Table = Mapping[str, TextEntry]
SomeEntry = TypeVar("SomeEntry", bound=Entry)


@cache
def table() -> Table:
    """The entries that ship with rocstack, read once."""
    return load()


def load(folder: Path | None = None) -> dict[str, TextEntry]:
    """The entries of all files but `rules.yml`, by code.

    Raises:
        BadInput: an entry that is incomplete or stands twice, with its line.
    """
    entries: dict[str, TextEntry] = {}
    for path in sorted((folder or paths.images() / "findings").glob("*.yml")):
        for entry in read(path, TextEntry) if path.name != RULES else ():
            if entry.code in entries:
                where = document.read(path).where((entry.code,))
                raise BadInput.of("in-two-files", where, key=entry.code)
            entries[entry.code] = entry
    return entries


def read(path: Path, model: type[SomeEntry], code: str = "bad-value") -> tuple[SomeEntry, ...]:
    """The entries of one file. `code` is the error's where it can't be read.

    Raises:
        BadInput: the file can't be read or an entry is malformed (with file:line).
    """
    doc = document.read(path, code=code)
    return tuple(doc.part(name).validate(model, extra={"code": name}) for name in doc.data)


def _from_here(path: Path) -> Path:
    """The path as one types it in this folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def registering(rules: dict[str, Registered]) -> Callable[[Registered], Registered]:
    """A decorator that puts a function into `rules` under the code of its entry: memlock_low is memlock-low."""

    def register(function: Registered) -> Registered:
        rules[function.__name__.replace("_", "-")] = function
        return function

    return register

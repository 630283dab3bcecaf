"""The one error hierarchy, and the texts of errors: images/errors/*.yml, a file for each package. The CLI prints these;
nothing else in the package prints."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

from rocstack.base import paths
from rocstack.base.findings import Finding
from rocstack.base.text import filled, plain

LONGEST = 256  # characters of a name that may be a misspelt one


@dataclass(frozen=True)
class Where:
    """A place in something the user wrote."""

    path: str
    line: int | None = None

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}:{self.line}"


class RocstackError(Exception):
    """Root of every error a user can cause.

    Carries a stable `code`, what happened, where, the likely cause and the next step.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        code: str,
        where: Where | None = None,
        cause: str | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.code = code
        self.where = where
        self.cause = cause
        self.next_step = next_step
        self.page_step: str | None = None  # what the service's page says in its place
        self.keys: tuple[str | int, ...] = ()  # of rocstack.yml, below which the reason stands

    def at(self, *keys: str | int) -> Self:
        """Of what stands below these keys of rocstack.yml; who reads that file knows the line."""
        self.keys = keys
        return self

    @classmethod
    def of(cls, name: str, where: Where | Path | None = None, /, **values: object) -> Self:
        """The error called `name` in images/errors; `values` fill the {places} of its sentences. A sentence that comes
        out empty is left out."""
        entry = error_texts()[name]
        known = {key: "" if value is None else value for key, value in values.items()}
        what, cause, step, page = (filled(entry.get(part, ""), known) for part in ("what", "cause", "next", "page"))
        place = Where(str(where)) if isinstance(where, Path) else where
        error = cls(what, code=entry.get("code", name), where=place, cause=cause or None, next_step=step or None)
        error.page_step = page or None
        return error

    @property
    def finding(self) -> Finding:
        return Finding(self.code, "error", self.what, self.cause or "", self.next_step or "")

    def to_dict(self) -> dict[str, object]:
        """The shape printed by `--json`."""
        return {
            **self.finding.to_dict(),
            "where": str(self.where) if self.where else None,
            "cause": self.cause,
            "next": self.next_step,
            "exit_code": self.exit_code,
        }


class CheckFailed(RocstackError):
    """Something ran and the answer was no: a failed build, smoke test or push."""

    exit_code = 1


class BadInput(RocstackError, ValueError):
    """What the user wrote can't be used."""

    exit_code = 2


class Missing(RocstackError):
    """Something this machine needs is not there; `next_step` says how to get it."""

    exit_code = 3


@cache
def error_texts() -> Mapping[str, Mapping[str, str]]:
    """All errors by name: what, cause and next; what the service's page says in place of next, where people there have
    no command line; and its code, where several errors share one."""
    import yaml  # most commands raise none, and --help is quick

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    texts: dict[str, Mapping[str, str]] = {}
    for path in sorted((paths.images() / "errors").glob("*.yml")):
        texts |= yaml.load(path.read_text(encoding="utf-8"), loader) or {}
    return texts


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that is meant most probably; None where none is near."""
    return next(iter(_close(word, sorted(known), 1)), None)


def _close(word: str, names: list[str], most: int) -> list[str]:
    """Those of the same letters, or else the nearest; capitals and letters that only look alike don't count."""
    if len(word) > LONGEST:  # no name is like that, and to find out would take seconds of a megabyte
        return []
    meant, looks = plain(word), {plain(name): name for name in reversed(names)}
    same = [name for name in names if sorted(plain(name)) == sorted(meant)]
    return same or [looks[each] for each in difflib.get_close_matches(meant, looks, n=most, cutoff=0.6)]


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A sentence that offers the nearest known names, or lists them when they are few."""
    names = sorted(known)
    close = (
        _close(word, names, 2) or [name for name in names if len(name) > 2 and word.startswith(name)][-2:]
    )  # environment: env
    if close:
        odd = next((char for char in word if plain(char) != char.casefold() or not char.isprintable()), None)
        looks = f" (U+{ord(odd):04X} is none of its letters)" if odd else ""
        return "did you mean " + " or ".join(f"'{name}'" for name in close) + f"?{looks}"
    if names and len(names) <= 16:
        return "known: " + ", ".join(names)
    return None


def hinted(word: str, known: Iterable[str]) -> str:
    """`did_you_mean` as the end of a sentence: ": did you mean 'x'?", or nothing."""
    hint = did_you_mean(word, known)
    return f": {hint}" if hint else ""

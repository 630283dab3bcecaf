"""What Slurm would read in a file of its own: unknown keywords and values that none of them takes, found before a node
is asked. The keywords are in images/slurm-keywords.yml."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rocstack.base import paths
from rocstack.base.errors import did_you_mean, hinted

CONF = "slurm.conf"
_PAIR = re.compile(r'([A-Za-z][A-Za-z0-9_]*)[-+*/]?=("[^"]*"|[^\s"]*)')
_TRUTH = ("yes", "no", "true", "false", "up", "down", "1", "0")
_MOST = 0xFFFFFFFF  # of Slurm's numbers
# As strtoul(3) reads them, by s_p_handle_uint16 and the like of Slurm's src/common/parse_value.c.
_NUMBER = re.compile(r"(?i)(?P<digits>0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*)(?P<kilo>k?)|unlimited|infinite")
_NARROW = 0xFFFF  # numbers of 16 bits have no K behind them


@dataclass(frozen=True)
class Form:
    match: re.Pattern[str]
    what: str  # a value of it is


@dataclass(frozen=True)
class Keywords:
    """Of one file; `kinds` has text, number, truth, a form or the words to choose from, by keyword in small letters."""

    names: Mapping[str, str] = field(default_factory=dict)  # small letters -> as Slurm writes it
    kinds: Mapping[str, Any] = field(default_factory=dict)
    lists: frozenset[str] = frozenset()
    rows: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # the first keyword of a line -> the others
    open: frozenset[str] = frozenset()  # lists that may have other words, too
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # of numbers, by keyword in small letters


@cache
def _table() -> Mapping[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: Mapping[str, Any] = yaml.load((paths.images() / "slurm-keywords.yml").read_text(encoding="utf-8"), loader)
    return found


@cache
def keywords(file: str) -> Keywords:
    data = _table()[file]
    kinds: dict[str, Any] = {}
    for kind in ("text", "number", "truth"):
        kinds |= dict.fromkeys(data.get(kind, "").split(), kind)
    for form in data.get("forms", ()):
        kinds |= dict.fromkeys(form["keys"].split(), Form(re.compile(form["match"], re.IGNORECASE), form["is"]))
    for kind in ("choices", "lists", "open"):
        kinds |= {name: tuple(words.split()) for name, words in data.get(kind, {}).items()}
    rows = {name.lower(): _by_small([*words.split(), name]) for name, words in data.get("rows", {}).items()}
    names = _by_small([*kinds, *data.get("rows", {})])
    lists, open_ = (frozenset(name.lower() for name in data.get(kind, {})) for kind in ("lists", "open"))
    small = {name.lower(): kind for name, kind in kinds.items()}
    bounds: dict[str, tuple[int, int]] = {}
    for span, words in data.get("bounds", {}).items():
        least, _, most = span.partition("-")
        bounds |= dict.fromkeys(words.lower().split(), (int(least), int(most)))
    return Keywords(names, small, lists | open_, rows, open_, bounds)


def _by_small(names: list[str]) -> dict[str, str]:
    return {name.lower(): name for name in names}


def qos_flags() -> tuple[str, ...]:
    return tuple(_table()["qos-flags"].split())


def complaint(file: str, key: str, value: str) -> str | None:
    """What is wrong with `key=value`; None where nothing is known to be."""
    known = keywords(file)
    if key.lower() not in known.names:
        return f"{file} has no keyword {key}{_near(key, known.names)}"
    kind = known.kinds.get(key.lower(), "text")
    if kind == "number":
        return _number_complaint(key, value, *known.bounds.get(key.lower(), (0, _MOST)))
    if isinstance(kind, Form) and not kind.match.fullmatch(value):
        return f"{key} must be {kind.what}, not '{value}'"
    if kind == "truth" and value.lower() not in _TRUTH:
        return f"{key} must be yes or no, not '{value}'"
    if isinstance(kind, tuple):
        words = value.split(",") if key.lower() in known.lists else [value]
        small = _by_small(list(kind))
        for each_word in words:
            is_open = key.lower() in known.open
            word = each_word.partition("=")[0] if is_open else each_word
            if is_open and not difflib.get_close_matches(word.lower(), small, n=1, cutoff=0.8):
                continue
            if word.lower() not in small and not (word.isdecimal() and "debug" in key.lower()):
                hint = did_you_mean(word.lower(), small)
                near = hint if hint and hint.startswith("did you mean") else f"known: {', '.join(kind)}"
                for each, as_written in small.items():
                    near = near.replace(f"'{each}'", f"'{as_written}'")
                return f"{key} can't be '{word}': {near}"
    return None


def _number_complaint(key: str, value: str, least: int, most: int) -> str | None:
    match = _NUMBER.fullmatch(value)
    if not match or (match["kilo"] and most <= _NARROW):
        return f"{key} must be a whole number, not '{value:.30}'"
    if match["digits"]:
        base = 8 if re.match("0[0-7]", value) else 0
        if len(value) > 22 or not least <= int(match["digits"], base) * (1024 if match["kilo"] else 1) <= most:
            return f"{key} must be from {least} to {most}, not {value:.30}"
    return None


def _near(key: str, names: Mapping[str, str]) -> str:
    hint = hinted(key.lower(), names)
    for small, name in names.items():
        hint = hint.replace(f"'{small}'", f"'{name}'")
    return hint


def pairs(line: str) -> Iterator[tuple[str, str]]:
    """Keywords in small letters and values of a line that is no comment."""
    for key, value in _PAIR.findall(re.sub(r"(?<!\\)#.*", "", line)):
        yield key.lower(), value.strip('"')


def problems(file: str, text: str) -> Iterator[tuple[str, str]]:
    """Each line that Slurm couldn't read, and why."""
    known = keywords(file)
    for whole in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(?<!\\)#.*", "", whole).strip()
        if not line or line.lower().startswith("include "):
            continue
        pairs = _PAIR.findall(line)
        rest = _PAIR.sub("", line).strip()
        if not pairs or rest:
            yield whole, f"'{rest or line}' is no KEYWORD=VALUE"
            continue
        row = known.rows.get(pairs[0][0].lower())
        for key, value in pairs:
            if row is None:
                why = complaint(file, key, value.strip('"'))
            else:
                why = None if key.lower() in row else f"{pairs[0][0]} has no {key}{_near(key, row)}"
            if why:
                yield whole, why
                break

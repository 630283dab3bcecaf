"""Reads a Config: a TOML file first, then `--section.key=value` on top.

Every wrong value is found here, before a process group or a model exists.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rocstack_trainer import published
from rocstack_trainer.config import Config
from rocstack_trainer.errors import ConfigError, alike

PRESETS = Path(__file__).parent / "configs"
SECTIONS: dict[str, type] = get_type_hints(Config)
KEYS = {f"{section}.{f.name}": f for section, kind in SECTIONS.items() for f in fields(kind)}
TYPES = {f"{section}.{k}": t for section, kind in SECTIONS.items() for k, t in get_type_hints(kind).items()}


def load(source: str, overrides: Sequence[str] = (), note: Callable[[str], None] = lambda _: None) -> Config:
    """The settings of a preset name or TOML file, with `--a.b=c` overrides on top.

    A configuration file of prime's is translated; `note` is told what of it has no counterpart here.

    Raises:
        ConfigError: no such file, bad TOML, an unknown key, a value of the wrong type or out of range.
    """
    path, text = _read(source)
    with alike():
        return _load(path, text, _joined(overrides), note)


def _load(path: str, text: str, overrides: Sequence[str], note: Callable[[str], None]) -> Config:
    if found := published.translate(text, path, overrides, os.environ):
        tree, overrides, notes = found
        for line in notes:
            note(line)
    else:
        try:
            tree = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from None
    values: dict[str, Any] = {}
    for section, body in tree.items():
        if section not in SECTIONS or not isinstance(body, dict):
            where = f"{path}:{_line(text, section)}"
            raise ConfigError(f"{where}: unknown section [{section}]{_hint(section, list(SECTIONS))}")
        for key, value in body.items():
            name, where = f"{section}.{key}", f"{path}:{_line(text, section, key)}"
            values[name] = _typed(_known(name, where), value, where)
    for override in overrides:
        name, _, raw = override.removeprefix("--").partition("=")
        value = _parse(_known(name, override), raw, override)
        values[name] = _typed(name, value, override)
    config = Config()
    for name, value in values.items():
        section, key = name.split(".", 1)
        config = replace(config, **{section: replace(getattr(config, section), **{key: value})})
    config.check()
    return config


def _read(source: str) -> tuple[str, str]:
    path = Path(source)
    if not path.suffix and "/" not in source:
        path = PRESETS / f"{source}.toml"
    try:
        return str(path), path.read_text(encoding="utf-8")
    except FileNotFoundError:
        presets = sorted(p.stem for p in PRESETS.glob("*.toml"))
        hint = f"{_hint(source, presets)}\n  presets: {', '.join(presets)}"
        raise ConfigError(f"no config {source}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from None


def _line(text: str, section: str, key: str = "") -> int:
    """The line of `[section]`, or of `key` in it: tomllib doesn't say. 1 if it isn't found (a dotted key)."""
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            current = header[1]
            if current == section and not key:
                return number
        elif current == section and key and re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", line):
            return number
    return 1


def _hint(name: str, known: list[str]) -> str:
    """Looks at the whole name first, then at its last part (`--steps` for train.steps)."""
    close = difflib.get_close_matches(name, known, 1)
    if not close:
        leaves = {entry.rpartition(".")[2]: entry for entry in known}
        close = [leaves[leaf] for leaf in difflib.get_close_matches(name.rpartition(".")[2], list(leaves), 1)]
    return f": did you mean {close[0]}?" if close else ""


def _joined(overrides: Sequence[str]) -> list[str]:
    """`--a.b VALUE` is `--a.b=VALUE`."""
    out: list[str] = []
    for word in overrides:
        if not word.startswith("--") and out and "=" not in out[-1]:
            out[-1] += f"={word}"
        else:
            out.append(word)
    return out


def _known(name: str, where: str) -> str:
    if name not in KEYS:
        raise ConfigError(f"{where}: unknown setting {name}{_hint(name, list(KEYS))}")
    return name


def _parse(name: str, raw: str, where: str) -> Any:
    """The text after `=`, as the setting's own type."""
    if "=" not in where:
        raise ConfigError(f"{where}: write it as --{name}=VALUE")
    kind = TYPES[name]
    if kind is bool:
        return {"true": True, "false": False}.get(raw.lower(), raw)
    if kind in (int, float):
        try:
            return kind(raw)
        except ValueError:
            return raw
    return raw


def _typed(name: str, value: Any, where: str) -> Any:
    kind, least = TYPES[name], KEYS[name].metadata.get("min")
    if get_origin(kind) is Literal:
        choices = list(get_args(kind))
        if value not in choices:
            hint = _hint(str(value), choices)
            raise ConfigError(f"{where}: {name} must be one of {', '.join(choices)}, not {value!r}{hint}")
        return value
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:  # not isinstance: True is an int to Python
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
        raise ConfigError(f"{where}: {name} must be {words[kind]}, not {value!r}")
    if kind is float and not math.isfinite(value):
        raise ConfigError(f"{where}: {name} must be finite, not {value}")
    if least is not None and value < least:
        raise ConfigError(f"{where}: {name} must be at least {least:g}, not {value!r}")
    return value

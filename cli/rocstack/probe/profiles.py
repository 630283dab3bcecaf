"""The file of node profiles: `{"schema": 1, "profiles": [...]}`, as `rocstack probe --out` writes it and `build`,
`deploy` and `verify` read it."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import TypeAdapter, ValidationError

from rocstack.base.errors import BadInput, Where, did_you_mean
from rocstack.edge import files
from rocstack.node.profile import SCHEMA, NodeProfile
from rocstack.node.recording import natural_key
from rocstack.probe import schema as profile_schema

MAX_BYTES = 200_000_000  # a profile of an 8-GPU node has about 30 kB
AGAIN = "probe again: `rocstack probe INVENTORY --out {}`"
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Profiles:
    """Node profiles of one probe, sorted by name."""

    __pydantic_config__ = {"extra": "forbid", "strict": True}

    schema: Literal[1]
    profiles: tuple[NodeProfile, ...]


def to_dict(profiles: Iterable[NodeProfile]) -> dict[str, Any]:
    """The file's content."""
    return {"schema": SCHEMA, "profiles": [asdict(p) for p in sorted(profiles, key=lambda p: natural_key(p.name))]}


def write_profiles(path: Path, profiles: Iterable[NodeProfile]) -> None:
    """Writes the whole file or nothing of it."""
    files.write(path, json.dumps(to_dict(profiles), indent=1) + "\n")


def read_profiles(path: Path) -> tuple[NodeProfile, ...]:
    """The profiles of one file; at least one.

    Raises:
        BadInput: missing, another schema version, something that is not a profile, or two of one name.
    """
    data = _parse(path, _read(path))
    if not isinstance(data, dict) or "profiles" not in data:
        if isinstance(data, dict) and {"files", "links"} <= data.keys():
            step = f"`rocstack probe --replay {path} --out FILE` makes node profiles of it"
            _refuse(path, "a recording, not a file of node profiles", next_step=step)
        _refuse(path, "not a file of node profiles", cause='it has no "profiles"')
    for at, schema in _versions(data):
        if schema != SCHEMA:
            text = f"{at}: schema {json.dumps(schema)}, this rocstack reads {SCHEMA}"
            _refuse(path, text, code="profile-schema", cause="another version of rocstack wrote it")
    try:
        profiles = TypeAdapter(Profiles).validate_json(json.dumps(data)).profiles
    except ValidationError as error:
        _refuse(path, _explain(data, error), cause="it was edited by hand, or another program wrote it")
    if not profiles:
        _refuse(path, "no node profile in it", code="no-profiles")
    for name, number in Counter(profile.name for profile in profiles).items():
        if number > 1:
            _refuse(path, f"{number} profiles of the name '{name}'", cause="somebody joined files by hand")
    for profile in profiles:
        for wrong in contradictions(profile):
            _refuse(path, f"{profile.name or '(no name)'}: {wrong}", cause="it was edited by hand")
    return profiles


def contradictions(profile: NodeProfile) -> Iterator[str]:
    """What no probe would say of one node."""
    if not profile.name:
        yield "name: empty"
    if any(_CONTROL.search(text) for text in _texts(asdict(profile))):
        yield "a control character in a text"
    gpus, nics = {gpu.index for gpu in profile.gpus}, {nic.pci for nic in profile.nics}
    verbs = {device.name for device in profile.verbs}
    known = verbs | {netdev.name for netdev in profile.netdevs}
    for what, values, number in (
        ("gpus", gpus, len(profile.gpus)),
        ("nics", nics, len(profile.nics)),
        ("verbs", verbs, len(profile.verbs)),
    ):
        if len(values) < number:
            yield f"{what}: the same one twice"
    for library in profile.libraries:
        if library.kernel_abi and library.kernel_abi[0] > library.kernel_abi[1]:
            yield f"libraries: {library.path}: kernel_abi {library.kernel_abi[0]} to {library.kernel_abi[1]}"
    for link in profile.affinity:
        if link.gpu not in gpus or link.nic not in known:
            yield f"affinity: GPU {link.gpu} with {link.nic}, which the profile doesn't have"


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(
            f"can't read {path}: {error.strerror}",
            code="no-file",
            next_step=f"`rocstack probe INVENTORY --out {path}` writes one",
        ) from None
    if len(raw) > MAX_BYTES:
        _refuse(path, f"more than {MAX_BYTES // 1_000_000} MB", code="too-large")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        _refuse(path, "not UTF-8, so not JSON")


def _parse(path: Path, text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            name = next(key for key, number in Counter(key for key, _ in pairs).items() if number > 1)
            raise ValueError(f"key '{name}' appears twice")
        return data

    def never(word: str) -> NoReturn:
        raise ValueError(f"{word} is no number")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=never)
    except json.JSONDecodeError as error:
        _refuse(path, f"not JSON: {error.msg}", line=error.lineno, cause="it was cut off, or edited by hand")
    except ValueError as error:
        _refuse(path, f"not a file of node profiles: {error}", cause="it was edited by hand")
    except RecursionError:
        _refuse(path, "not a file of node profiles: nested too deep")


def _versions(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "the file", data.get("schema")
    for profile in data["profiles"] if isinstance(data["profiles"], list) else ():
        if isinstance(profile, dict):
            yield str(profile.get("name")), profile.get("schema")


def _explain(data: Any, error: ValidationError) -> str:
    """The first thing wrong, by node name and JSON path; a misspelt key before the one that is missing for it."""
    first = min(error.errors(), key=lambda each: each["type"] != "unexpected_keyword_argument")
    loc, name = list(first["loc"]), ""
    if len(loc) > 2 and loc[0] == "profiles":
        name = f"{data['profiles'][loc[1]].get('name')}: "
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in (loc[2:] if name else loc))
    message = {"unexpected_keyword_argument": "unknown key", "missing": "missing"}.get(first["type"], first["msg"])
    hint = None
    if first["type"] == "unexpected_keyword_argument":
        hint = did_you_mean(str(loc[-1]), profile_schema.keys_at(Profiles, loc[:-1]))
    more = len(error.errors()) - 1
    return (
        f"{name}{shown.lstrip('.') or 'the file'}: {message[:1].lower()}{message[1:]}"
        + (f", {hint}" if hint else "")
        + (f" ({more} more)" if more else "")
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in (*value, *value.values()):
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _refuse(
    path: Path,
    what: str,
    *,
    code: str = "bad-profile",
    line: int | None = None,
    cause: str | None = None,
    next_step: str | None = None,
) -> NoReturn:
    step = next_step or AGAIN.format(path)
    raise BadInput(what, code=code, where=Where(str(path), line), cause=cause, next_step=step)

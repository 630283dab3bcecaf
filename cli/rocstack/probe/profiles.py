"""The file of node profiles: `{"schema": 1, "profiles": [...]}`, as `rocstack probe --out` writes it and `build`,
`deploy` and `verify` read it."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from rocstack.base.errors import BadInput, Where, did_you_mean
from rocstack.edge import files
from rocstack.node.profile import SCHEMA, NodeProfile
from rocstack.node.recording import natural_key

MAX_BYTES = 200_000_000  # a profile of an 8-GPU node has about 30 kB
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
    data = _read(path)
    if not isinstance(data, dict) or "profiles" not in data:
        recording = isinstance(data, dict) and {"files", "links"} <= data.keys()
        raise BadInput.of("profiles-of-recording" if recording else "profiles-other-json", path, path=path)
    rows = data["profiles"] if isinstance(data["profiles"], list) else []
    versions = [(str(row.get("name")), row.get("schema")) for row in rows if isinstance(row, dict)]
    for at, schema in (("the file", data.get("schema")), *versions):
        if schema != SCHEMA:
            text = json.dumps(schema)
            raise BadInput.of("profile-schema", path, at=at, schema=text, known=SCHEMA, path=path)
    try:
        profiles = TypeAdapter(Profiles).validate_json(json.dumps(data)).profiles
    except ValidationError as error:
        raise BadInput.of("bad-profile", path, wrong=_explain(data, error), path=path) from None
    if not profiles:
        raise BadInput.of("no-profiles", path, path=path)
    for name, number in Counter(profile.name for profile in profiles).items():
        if number > 1:
            raise BadInput.of("profiles-of-one-name", path, number=number, name=name, path=path)
    for profile in profiles:
        for wrong in contradictions(profile):
            name = profile.name or "(no name)"
            raise BadInput.of("profile-contradiction", path, name=name, wrong=wrong, path=path)
    return profiles


def contradictions(profile: NodeProfile) -> Iterator[str]:
    """What no probe would say of one node."""
    if not profile.name:
        yield "name: empty"
    if any(_CONTROL.search(text) for text in _texts(asdict(profile))):
        yield "a control character in a text"
    gpus, nics = {gpu.index for gpu in profile.gpus}, {nic.pci for nic in profile.nics}
    verbs = {device.name for device in profile.verbs}
    for what, different in (("gpus", len(gpus)), ("nics", len(nics)), ("verbs", len(verbs))):
        if different < len(getattr(profile, what)):
            yield f"{what}: the same one twice"
    for library in profile.libraries:
        if library.kernel_abi and library.kernel_abi[0] > library.kernel_abi[1]:
            yield f"libraries: {library.path}: kernel_abi {library.kernel_abi[0]} to {library.kernel_abi[1]}"
    known = {*verbs, *(netdev.name for netdev in profile.netdevs)}
    for link in profile.affinity:
        if link.gpu not in gpus or link.nic not in known:
            yield f"affinity: GPU {link.gpu} with {link.nic}, which the profile doesn't have"


def _read(path: Path) -> Any:
    """The file's JSON, where no key appears twice and no number is none."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            name = next(key for key, number in Counter(key for key, _ in pairs).items() if number > 1)
            raise ValueError(f"key '{name}' appears twice")
        return data

    def never(word: str) -> NoReturn:
        raise ValueError(f"{word} is no number")

    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput.of("profiles-unreadable", path=path, why=error.strerror) from None
    if len(raw) > MAX_BYTES:
        raise BadInput.of("profiles-too-large", path, most=MAX_BYTES // 1_000_000, path=path)
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=once, parse_constant=never)
    except UnicodeDecodeError:
        raise BadInput.of("profiles-not-text", path, path=path) from None
    except json.JSONDecodeError as error:
        raise BadInput.of("profiles-not-json", Where(str(path), error.lineno), why=error.msg, path=path) from None
    except RecursionError:
        raise BadInput.of("profiles-too-deep", path, path=path) from None
    except ValueError as error:
        raise BadInput.of("profiles-odd-json", path, why=error, path=path) from None


def _explain(data: Any, error: ValidationError) -> str:
    """The first thing wrong, by node name and JSON path; a misspelt key before the one that is missing for it."""
    first = min(error.errors(), key=lambda each: each["type"] != "unexpected_keyword_argument")
    loc, name = list(first["loc"]), ""
    if len(loc) > 2 and loc[0] == "profiles":
        name = f"{data['profiles'][loc[1]].get('name')}: "
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in (loc[2:] if name else loc))
    message = {"unexpected_keyword_argument": "unknown key", "missing": "missing"}.get(first["type"], first["msg"])
    text = f"{name}{shown.lstrip('.') or 'the file'}: {message[:1].lower()}{message[1:]}"
    if first["type"] == "unexpected_keyword_argument":
        kind: Any = Profiles
        for part in loc[:-1]:
            kind = get_args(kind)[0] if isinstance(part, int) else get_type_hints(kind)[part]
        hint = did_you_mean(str(loc[-1]), [field.name for field in fields(kind)])
        text += f", {hint}" if hint else ""
    more = len(error.errors()) - 1
    return text + (f" ({more} more)" if more else "")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _texts(item)

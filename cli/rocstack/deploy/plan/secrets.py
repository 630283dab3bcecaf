"""rocstack-secrets.yml: the keys of one cluster, made once and kept by the person beside the inventory."""

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from rocstack.base.errors import BadInput, CheckFailed, Where, did_you_mean
from rocstack.deploy.plan import tls, vault
from rocstack.edge import files

FILE = "rocstack-secrets.yml"
_PASSWORD = re.compile(r"[A-Za-z0-9._~-]{16,200}")  # needs no quoting wherever it is written
_HEADER = """\
# The keys of a rocstack cluster, made once. Who holds them can run anything on its nodes.
# Keep this file beside the inventory, and a copy where you keep passwords: without it the cluster can't be deployed
# again. Never commit it as it is; `ansible-vault encrypt {name}` makes it fit for that, and deploy reads it then too.
"""


@dataclass(frozen=True)
class Secrets:
    """All keys. `new` names those that are not in the file yet: `save` writes them."""

    munge_key: bytes = field(repr=False)
    jwt_key: bytes = field(repr=False)  # HS256
    database_password: str = field(repr=False)
    registry_password: str = field(repr=False)
    registry_ca: str = field(repr=False)  # PEM, as the two below
    registry_ca_key: str = field(repr=False)
    registry_key: str = field(repr=False)
    new: tuple[str, ...] = ()

    def fingerprints(self) -> dict[str, str]:
        """The first 12 digits of each key's SHA-256: says which keys are meant, and not what they are."""
        return {name: _fingerprint(getattr(self, name)) for name in NAMES}


NAMES = tuple(each.name for each in fields(Secrets) if each.name != "new")
_BINARY = {"munge_key": range(32, 1025), "jwt_key": range(32, 1025)}  # bytes; munged takes 32 to 1024


def beside(inventory: Path) -> Path:
    """Where the secrets of an inventory are; never in a folder that Ansible reads as one."""
    return inventory.absolute().parent / FILE


def read(path: Path) -> Secrets:
    """The secrets of `path`; those that it lacks are made, and named in `new`. Writes nothing.

    Raises:
        BadInput: readable by others, not what rocstack wrote, or encrypted and can't be opened.
        Missing: it is encrypted and ansible-vault isn't installed.
    """
    text, encrypted = vault.read(path)
    values = _parsed(text, path)
    lacking = tuple(name for name in NAMES if name not in values)
    if encrypted and lacking:
        raise BadInput(
            f"it lacks {', '.join(lacking)}, and rocstack can't add keys to an encrypted file",
            code="missing-secrets",
            where=Where(str(path)),
            next_step=f"run `ansible-vault decrypt {path}`, deploy, then encrypt it again",
        )
    if ("registry_ca" in lacking) != ("registry_ca_key" in lacking):
        raise _bad("registry_ca and registry_ca_key belong together, one is missing", path)
    values |= _made(lacking)
    try:
        tls.check(*(str(values[name]) for name in ("registry_ca", "registry_ca_key", "registry_key")))
    except BadInput as error:
        error.where = Where(str(path))
        raise
    return Secrets(**values, new=lacking)


def save(path: Path, values: Secrets) -> None:
    """Writes what is new, so that it outlives a crash of this machine; does nothing where nothing is.

    Raises:
        CheckFailed: somebody else wrote the file since it was read, or it can't be written.
    """
    if not values.new:
        return
    path = path.resolve()
    added = "".join(_line(name, getattr(values, name)) for name in values.new)
    try:
        if not path.exists():
            files.create_private(path, _HEADER.format(name=path.name) + added)
        else:
            text, encrypted = vault.read(path)
            if encrypted or set(_parsed(text, path)) & set(values.new):
                raise FileExistsError
            files.write(path, text.rstrip("\n") + "\n" + added, private=True)
    except FileExistsError:
        raise CheckFailed(
            f"somebody else changed {path} in the meantime", code="secrets-changed", next_step="run the command again"
        ) from None
    except OSError as error:
        raise CheckFailed(
            f"can't write {path}: {error.strerror}",
            code="no-secrets-file",
            next_step="keep the inventory in a folder that you may write to",
        ) from None


def refuse_others(path: Path, mine: Secrets, there: Mapping[str, str]) -> None:
    """`there` are the fingerprints that the cluster has. A key that was taken out of the file is replaced; but nobody's
    are because the file is missing.

    Raises:
        BadInput: the cluster has other keys.
    """
    own = mine.fingerprints()
    kept = [name for name in NAMES if name not in mine.new]
    other = [name for name in kept or NAMES if there.get(name, own[name]) != own[name]]
    if other:
        raise BadInput(
            f"the cluster has keys that are not in {path}: {', '.join(other)}",
            code="other-secrets",
            where=Where(str(path)),
            cause="it was deployed from another folder or machine, and that secrets file is not here"
            if not kept
            else "this file belongs to another cluster, or was edited",
            next_step=f"copy {path.name} from the machine that deployed the cluster first",
        )


def _fingerprint(value: bytes | str) -> str:
    return hashlib.sha256(value if isinstance(value, bytes) else value.encode()).hexdigest()[:12]


def _made(names: tuple[str, ...]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if "registry_ca" in names:
        made["registry_ca"], made["registry_ca_key"] = tls.make_ca(tls.utc_now())
    for name in names:
        if name not in made:
            made[name] = _NEW[name]()
    return made


_NEW = {
    "munge_key": lambda: secrets.token_bytes(1024),
    "jwt_key": lambda: secrets.token_bytes(32),
    "database_password": lambda: secrets.token_urlsafe(32),
    "registry_password": lambda: secrets.token_urlsafe(32),
    "registry_key": tls.make_key,
}


def _parsed(text: str, path: Path) -> dict[str, Any]:
    """What is wrong is said without showing the text."""
    try:
        data = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        raise _bad(f"it is no plain YAML{place}; only the whole file can be encrypted", path) from None
    if not isinstance(data, dict):
        raise _bad("it is no mapping of names to keys", path)
    for name in data:
        if name not in NAMES:
            raise _bad(f"unknown key '{name}': {did_you_mean(str(name), NAMES)}", path)
    return {name: _value(name, value, path) for name, value in data.items()}


def _value(name: str, value: object, path: Path) -> bytes | str:
    if not isinstance(value, str):
        raise _bad(f"{name} is no text", path)
    if name in _BINARY:
        try:
            key = base64.b64decode(value, validate=True)
        except ValueError:
            raise _bad(f"{name} is no base64", path) from None
        if len(key) not in _BINARY[name]:
            raise _bad(f"{name} has {len(key)} bytes; it must have {_BINARY[name][0]} to {_BINARY[name][-1]}", path)
        return key
    if name.endswith("_password") and not _PASSWORD.fullmatch(value):
        raise _bad(f"{name} must be 16 to 200 letters, digits and ._~-", path)
    return value


def _bad(what: str, path: Path) -> BadInput:
    return BadInput(
        what,
        code="bad-secrets",
        where=Where(str(path)),
        next_step="restore the file from a copy; or delete a key that no cluster uses yet: rocstack creates it",
    )


def _line(name: str, value: bytes | str) -> str:
    if isinstance(value, bytes):
        return f"{name}: {base64.b64encode(value).decode()}\n"
    if "\n" not in value:
        return f"{name}: {json.dumps(value)}\n"
    return f"{name}: |\n" + "".join(f"  {line}\n" for line in value.splitlines())

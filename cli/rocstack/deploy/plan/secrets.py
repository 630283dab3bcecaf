"""rocstack-secrets.yml: the keys of one cluster, made once and kept by the person beside the inventory, plain and
readable by nobody else, or encrypted as a whole by ansible-vault."""

import base64
import hashlib
import hmac
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from rocstack.base.errors import BadInput, CheckFailed, Where, did_you_mean
from rocstack.deploy.plan import tls
from rocstack.edge import ansible, files

FILE = "rocstack-secrets.yml"
_VAULT = "$ANSIBLE_VAULT;"
_PASSWORD = re.compile(r"[A-Za-z0-9._~-]{16,200}")  # needs no quoting wherever it is written
HEADER = """\
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

    @property
    def service_database_password(self) -> str:
        """Of the service's account at the database; it follows from that of Slurm's, and goes with it."""
        return hmac.new(self.database_password.encode(), b"service", hashlib.sha256).hexdigest()

    def pull_password(self, node: str, registry: str) -> str:
        """Of a node's account at the registry that another node runs. Each registry knows others, so what its node's
        root reads there opens no other registry."""
        return self._derived(f"pull {node} from {registry}")

    def rack_password(self, node: str) -> str:
        """Of the account that pushes into the registry which a worker runs: its root may push into no other."""
        return self._derived(f"push {node}")

    def _derived(self, use: str) -> str:
        """It follows from the registry's password, and doesn't lead back to it."""
        return hmac.new(self.registry_password.encode(), use.encode(), hashlib.sha256).hexdigest()

    def fingerprints(self) -> dict[str, str]:
        """The first 12 digits of each key's SHA-256: says which keys are meant, and not what they are."""
        values = {name: getattr(self, name) for name in NAMES}
        return {
            name: hashlib.sha256(value if isinstance(value, bytes) else value.encode()).hexdigest()[:12]
            for name, value in values.items()
        }


NAMES = tuple(each.name for each in fields(Secrets) if each.name != "new")
_BINARY = ("munge_key", "jwt_key")
_LEAST, _MOST = 32, 1024  # bytes that munged takes
NEXT = "next"
NEW = {
    "munge_key": lambda: secrets.token_bytes(_MOST),
    "jwt_key": lambda: secrets.token_bytes(32),
    "database_password": lambda: secrets.token_urlsafe(32),
    "registry_password": lambda: secrets.token_urlsafe(32),
    "registry_key": tls.make_key,
}


def beside(inventory: Path) -> Path:
    """Where the secrets of an inventory are; never in a folder that Ansible reads as one."""
    return inventory.absolute().parent / FILE


def read(path: Path) -> Secrets:
    """The secrets of `path`; those that it lacks are made, and named in `new`. Writes nothing.

    Raises:
        BadInput: readable by others, not what rocstack wrote, or encrypted and can't be opened.
        Missing: it is encrypted and ansible-vault isn't installed.
    """
    values, encrypted = stored(path)
    if NEXT in values:
        raise BadInput.of("rotation-unfinished", path)
    lacking = tuple(name for name in NAMES if name not in values)
    if encrypted and lacking:
        raise BadInput.of("missing-secrets", path, names=", ".join(lacking), file=path)
    if ("registry_ca" in lacking) != ("registry_ca_key" in lacking):
        raise BadInput.of("ca-without-key", path)
    if "registry_ca" in lacking:
        values["registry_ca"], values["registry_ca_key"] = tls.make_ca(datetime.now(UTC))
    values |= {name: make() for name, make in NEW.items() if name in lacking}
    try:
        tls.load(values["registry_ca"], values["registry_ca_key"], values["registry_key"])
    except BadInput as error:
        error.where = Where(str(path))
        raise
    return Secrets(**values, new=lacking)


def save(path: Path, values: Secrets) -> None:
    """Writes what is new, so that it outlives a crash of this machine. What a killed run left beside the file goes,
    whether anything is new or not.

    Raises:
        CheckFailed: somebody else wrote the file since it was read, or it can't be written.
    """
    path = path.resolve()
    files.sweep(path)
    if not values.new:
        return
    added = "".join(line(name, getattr(values, name)) for name in values.new)
    try:
        if not path.exists():
            files.create_private(path, HEADER.format(name=path.name) + added)
        else:
            there, encrypted = stored(path)
            if encrypted or there.keys() & set(values.new):
                raise FileExistsError
            files.write(path, path.read_text(encoding="utf-8").rstrip("\n") + "\n" + added, private=True)
    except FileExistsError:
        raise CheckFailed.of("secrets-changed", file=path) from None
    except OSError as error:
        raise CheckFailed.of("no-secrets-file", file=path, why=error.strerror) from None


def refuse_others(path: Path, mine: Secrets, there: Mapping[str, str]) -> None:
    """`there` are the fingerprints that the cluster has. A key that was taken out of the file is replaced; but nobody's
    are because the file is missing.

    Raises:
        BadInput: the cluster has other keys.
    """
    own = mine.fingerprints()
    kept = [name for name in NAMES if name not in mine.new]
    other = ", ".join(name for name in kept or NAMES if there.get(name, own[name]) != own[name])
    if other:
        raise BadInput.of("other-secrets" if kept else "secrets-elsewhere", path, file=path, names=other)


def stored(path: Path) -> tuple[dict[str, Any], bool]:
    """The keys in the file, and whether it is encrypted; none where there is no file. Below `NEXT` are those that take
    the place of others while a rotation is under way. What is wrong is said without showing the text."""
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except FileNotFoundError:
        return {}, False
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput.of("unread-secrets", path, why=getattr(error, "strerror", "it is not text")) from None
    encrypted = text.startswith(_VAULT)
    if not encrypted and mode & 0o077:
        raise BadInput.of("open-secrets", path, file=path)
    try:
        data = yaml.safe_load(_decrypted(path) if encrypted else text) or {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise BadInput.of("secrets-not-yaml", path, place=f" in line {mark.line + 1}" if mark else "") from None
    if not isinstance(data, dict):
        raise BadInput.of("secrets-no-mapping", path)
    coming = data.pop(NEXT, None)
    values: dict[str, Any] = {name: _value(name, value, path) for name, value in data.items()}
    if isinstance(coming, dict):
        values[NEXT] = {name: _value(name, value, path) for name, value in coming.items()}
    return values, encrypted


def _decrypted(path: Path) -> str:
    """By the person's own Ansible settings. Without a terminal it is never asked for a password."""
    vault, env = ansible.program("ansible-vault")
    asks = sys.stdin.isatty()
    done = subprocess.run(
        [vault, "view", str(path)],
        stdin=None if asks else subprocess.DEVNULL,
        capture_output=True,
        start_new_session=not asks,  # without it a password would be asked for at the terminal behind our back
        env=env,
        text=True,
        check=False,
    )
    if done.returncode:
        output = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["it gave no reason"]
        raise BadInput.of("locked-secrets", path, why=re.sub(r"^.*?ERROR.*?: *", "", output[0]))
    return done.stdout


def _value(name: str, value: object, path: Path) -> bytes | str:
    if name not in NAMES:
        raise BadInput.of("secret-unknown", path, name=str(name), hint=did_you_mean(str(name), NAMES))
    if not isinstance(value, str):
        raise BadInput.of("secret-no-text", path, name=name)
    if name in _BINARY:
        try:
            key = base64.b64decode(value, validate=True)
        except ValueError:
            raise BadInput.of("secret-no-base64", path, name=name) from None
        if not _LEAST <= len(key) <= _MOST:
            raise BadInput.of("secret-size", path, name=name, size=len(key), least=_LEAST, most=_MOST)
        return key
    if name.endswith("_password") and not _PASSWORD.fullmatch(value):
        raise BadInput.of("secret-no-password", path, name=name)
    return value


def line(name: str, value: bytes | str) -> str:
    if isinstance(value, bytes):
        return f"{name}: {base64.b64encode(value).decode()}\n"
    if "\n" not in value:
        return f"{name}: {json.dumps(value)}\n"
    return f"{name}: |\n" + "".join(f"  {line}\n" for line in value.splitlines())

"""What a release, a promotion and a verification begin with: keys, their password, and the registry."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rocstack.base import image_names
from rocstack.base.errors import BadInput
from rocstack.registry.registry_http import as_own_engine
from rocstack.release.plan import ReleaseFile
from rocstack.release.site import ReleaseSite
from rocstack.settings.settings import Settings
from rocstack.steps.options import Note
from rocstack.trust.keys import PublicKey, SigningKey, write_pair

Password = Callable[[], bytes]  # of the private keys, asked for
LONGEST = 4096  # bytes of a password


def no_password() -> bytes:
    """Where nobody can be asked.

    Raises:
        BadInput: always.
    """
    raise BadInput.of("no-password")


@contextmanager
def open_site(
    file: ReleaseFile | None, registry: str | None, chosen: Settings, trusted: tuple[PublicKey, ...], note: Note
) -> Iterator[ReleaseSite]:
    text = registry or (file.plan.registry if file else None) or chosen.push
    if not text:
        raise BadInput.of("no-registry", file.path if file else None)
    target = image_names.parse_registry(text)
    http = as_own_engine(target.host)
    try:
        yield ReleaseSite(target, http, trusted, chosen.attempts, note)
    finally:
        http.close()


def signing_keys(
    file: ReleaseFile, more: Sequence[Path], password_file: Path | None, password: Password
) -> tuple[SigningKey, ...]:
    """
    Raises:
        BadInput: none is named, or one can't be used.
    """
    named = [*more] or [file.path_of(text) for text in file.plan.keys]
    if not named:
        raise BadInput.of("no-signing-key", file.path)
    for each in named:
        if not each.exists():
            raise BadInput.of("no-key", file.where("keys"), path=each, why="no such file")
    source = password_file or (file.path_of(file.plan.password_file) if file.plan.password_file else None)
    secret = read_password(source) if source else password()
    return tuple(SigningKey.load(each, secret) for each in named)


def file_key(path: Path | None, password_file: Path | None, password: Password) -> SigningKey | None:
    """The key that a file is signed with; None where none is named.

    Raises:
        BadInput: it isn't there, or can't be used.
    """
    if path is None:
        return None
    if not path.exists():
        raise BadInput.of("no-key", path=path, why="no such file")
    return SigningKey.load(path, read_password(password_file) if password_file else password())


def trusted_keys(
    file: ReleaseFile | None, named: Sequence[Path], signing: Sequence[SigningKey] = ()
) -> tuple[PublicKey, ...]:
    """
    Raises:
        BadInput: there is none, or one can't be read.
    """
    if named:
        return tuple(map(PublicKey.load, named))
    if file and file.plan.trusted:
        trusted = tuple(PublicKey.load(file.path_of(text)) for text in file.plan.trusted)
        if signing and not {key.public.fingerprint for key in signing} & {key.fingerprint for key in trusted}:
            raise BadInput.of("untrusted-key", file.where("trusted"), key=signing[0].public)
        return trusted
    if signing:
        return tuple(key.public for key in signing)
    if file and file.plan.keys:
        return tuple(PublicKey.load(file.path_of(text).with_suffix(".pub")) for text in file.plan.keys)
    raise BadInput.of("no-trusted-key")


def read_password(path: Path) -> bytes:
    """
    Raises:
        BadInput: it can't be read, or others can read it.
    """
    try:
        with path.open("rb") as source:
            data = source.read(4097)
            mode = os.fstat(source.fileno()).st_mode
    except OSError as error:
        raise BadInput.of("no-access", path, why=error.strerror or error) from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise BadInput.of("open-password", path)
    if len(data) > 4096 or not data.strip(b"\n"):
        raise BadInput.of("unfit-password", path)
    return data.rstrip(b"\r\n")


def keygen(path: Path, password_file: Path | None, password: Password) -> tuple[Path, SigningKey]:
    """Makes a pair of keys; returns the public one's file.

    Raises:
        BadInput: a file is there already, or can't be written; the password can't be read.
    """
    if not path.name or path.suffix == ".pub":
        raise BadInput.of("public-name", path)
    for each in (path, path.with_suffix(".pub")):
        if each.exists():
            raise BadInput.of("key-exists", each)
    key = SigningKey.generate(path.name)
    return write_pair(key, path, read_password(password_file) if password_file else password()), key

"""The keys of rocstack.yml's trust policy, and what is checked by them that is no image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rocstack.base.errors import BadInput
from rocstack.deploy.state import history
from rocstack.edge.locks import Sign, unsigned
from rocstack.settings.settings import Settings, of_setting
from rocstack.stack.lock import Lock, for_stack
from rocstack.stack.stack import Stack
from rocstack.steps.release_access import read_password
from rocstack.trust import files
from rocstack.trust.keys import PublicKey, SigningKey


def policy_keys(chosen: Settings) -> tuple[PublicKey, ...]:
    """
    Raises:
        BadInput: a key can't be used.
    """
    return _loaded(chosen, chosen.trust.keys)


def history_keys(chosen: Settings) -> tuple[PublicKey, ...]:
    """Whose lines of the cluster's history count.

    Raises:
        BadInput: a key can't be used.
    """
    return _loaded(chosen, chosen.trust.operators or chosen.trust.keys)


def _loaded(chosen: Settings, names: Sequence[str]) -> tuple[PublicKey, ...]:
    with of_setting(chosen, "trust", Path.cwd()):
        return tuple(PublicKey.load(Path(name).expanduser()) for name in names)


def history_signer(chosen: Settings) -> Sign:
    """Signs the lines that the cluster's history gets, where the policy says with which key.

    Raises:
        BadInput: the key or its password can't be used, or nobody would take its lines.
    """
    policy = chosen.trust
    if not policy.sign:
        return unsigned
    known = [key.fingerprint for key in history_keys(chosen)]
    with of_setting(chosen, "trust", Path.cwd()):
        secret = read_password(Path(policy.password_file).expanduser())
        key = SigningKey.load(Path(policy.sign).expanduser(), secret)
        if known and key.public.fingerprint not in known:
            raise BadInput.of("unlisted-operator", fingerprint=key.public.fingerprint)
        return history.signing(key)


def trusted_lock(own: Stack, file: Path | None, chosen: Settings) -> Lock | None:
    """The stack's lock. A file of the person's is signed by a key of the policy, where there is one; a lock that ships
    with rocstack came with the program that reads it.

    Raises:
        BadInput: as `for_stack`; a key can't be used.
        Untrusted: file-unsigned, or file-untrusted.
    """
    keys = policy_keys(chosen)
    return for_stack(own, file, (lambda path, data: files.verify(path, data, keys)) if keys else None)

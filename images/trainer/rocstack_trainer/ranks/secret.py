"""What only the ranks of one run know: it names their corner of the store, and is in the greeting of DiLoCo's groups.

It comes in the environment, which a launcher gives to all ranks and which no other user of a node can read. A command
line could be read by all of them. What goes over the wire follows from it and doesn't tell it: whoever sees the name of
the corner can't greet a group.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets

from rocstack_trainer.errors import ConfigError

NAME = "ROCSTACK_TRAINER_SECRET"
OF_JOB = "ROCSTACK_JOB_SECRET"  # rocstack's TaskProlog gives it to all tasks of a Slurm job, and to no other job's
LEAST = 16  # characters: fewer could be guessed from the corner's name


def given() -> str:
    """Empty if there is none. Raises ConfigError if it could be guessed."""
    text = os.environ.get(NAME, "")
    if text and len(text) < LEAST:
        raise ConfigError(f"{NAME} has {len(text)} characters, at least {LEAST}: `openssl rand -hex 16` makes one")
    return text


def of_job() -> str:
    """The job's own, for ranks that meet at their rank 0, unless one was given."""
    if not given() and OF_JOB in os.environ:
        os.environ[NAME] = os.environ[OF_JOB]
    return given()


def make() -> str:
    """A new one for this process and those that it starts, unless there is one."""
    if not given():
        os.environ[NAME] = secrets.token_hex(16)
    return given()


def digest(purpose: str) -> bytes:
    """32 bytes that nobody has without the secret; without one, a plain digest that everybody can make."""
    return hmac.digest(given().encode(), purpose.encode(), hashlib.sha256)


def corner() -> str:
    """The prefix of all keys of this run in its store; empty without a secret."""
    return digest("store").hex() if given() else ""

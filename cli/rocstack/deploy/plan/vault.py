"""A private file of the person's: plain and readable by nobody else, or encrypted as a whole by ansible-vault."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rocstack.base.errors import BadInput, Missing, Where
from rocstack.edge import ansible

_VAULT = "$ANSIBLE_VAULT;"


def read(path: Path) -> tuple[str, bool]:
    """The file's text, and whether it is encrypted; no text where there is no file.

    Raises:
        BadInput: readable by others, or encrypted and can't be opened.
        Missing: it is encrypted and ansible-vault isn't installed.
    """
    try:
        text = path.read_text(encoding="utf-8")
        mode = path.stat().st_mode
    except FileNotFoundError:
        return "", False
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"it can't be read: {getattr(error, 'strerror', 'it is not text')}",
            code="bad-secrets",
            where=Where(str(path)),
            next_step="restore it from a copy",
        ) from None
    if text.startswith(_VAULT):
        return _decrypted(path), True
    if mode & 0o077:
        raise BadInput(
            "other users of this machine can read it",
            code="open-secrets",
            where=Where(str(path)),
            next_step=f"run `chmod 600 {path}` or `ansible-vault encrypt {path}`",
        )
    return text, False


def _decrypted(path: Path) -> str:
    """By the person's own Ansible settings. Without a terminal it is never asked for a password."""
    env = ansible.environment(os.environ)
    vault = shutil.which("ansible-vault", path=env["PATH"])
    if vault is None:
        raise Missing("ansible-vault is not installed", code="no-ansible", next_step="pip install ansible-core")
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
        raise BadInput(
            f"it is encrypted and can't be decrypted: {re.sub(r'^.*?ERROR.*?: *', '', output[0])}",
            code="locked-secrets",
            where=Where(str(path)),
            next_step="name the password's file in ANSIBLE_VAULT_PASSWORD_FILE or in ansible.cfg "
            "(vault_password_file), or deploy at a terminal",
        )
    return done.stdout

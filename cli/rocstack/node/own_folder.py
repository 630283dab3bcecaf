"""Where PyTorch keeps compiled code between jobs. By itself it takes it from a folder in /tmp that anybody on the node
could have made in the user's name. Standard library only.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress

SHARED = "/tmp"
CACHE = "TORCHINDUCTOR_CACHE_DIR"  # else torchinductor_USER in TMPDIR: torch/_inductor/runtime/cache_dir_utils.py


def lines(env: Mapping[str, str]) -> list[str]:
    """For Slurm's TaskProlog, as the task's user. What the job set itself stays; what it inherits from its batch script
    was made on another node.

    Raises:
        OSError: no folder can be made.
    """
    given = f"{SHARED}/rocstack-{os.getuid()}"
    named = env.get(CACHE)
    if named is None and env.get("TMPDIR", SHARED) != SHARED:
        return []
    if named is not None and not named.startswith((f"{given}/", f"{given}-")):
        return []
    return [f"export {CACHE}={_own(given)}/torchinductor"]


def _own(path: str) -> str:
    """The user's folder, or a new one where somebody else has taken the name."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    about = os.lstat(path)
    if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022:
        return path
    return tempfile.mkdtemp(prefix=f"{os.path.basename(path)}-", dir=os.path.dirname(path))

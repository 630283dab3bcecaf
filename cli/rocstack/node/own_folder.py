"""Where a task's programs put their temporary files: a folder of the user's own. In /tmp itself several of them keep
what they run under names that anybody on the node could have made for them: PyTorch its compiled code, MIOpen the GPUs'
kernels where the home folder is on a network file system. Standard library only.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress

SHARED = "/tmp"
VARIABLE = "TMPDIR"


def lines(env: Mapping[str, str]) -> list[str]:
    """For Slurm's TaskProlog, as the task's user. What the job set itself stays; Slurm's own word is /tmp, and what a
    task inherits from its batch script was made on another node.

    Raises:
        OSError: no folder can be made.
    """
    own = f"{SHARED}/rocstack-{os.getuid()}"
    given = os.path.normpath(env.get(VARIABLE) or SHARED)
    if given not in (SHARED, own) and not given.startswith((f"{own}/", f"{own}-")):
        return []
    made = _own(own)
    if made == own and given.startswith(f"{own}/"):
        return []  # Slurm makes it on this node, too, now that the folder above is there
    return [f"export {VARIABLE}={made}"]


def _own(path: str) -> str:
    """The user's folder, or a new one where somebody else has taken the name."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    about = os.lstat(path)
    if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022:
        return path
    return tempfile.mkdtemp(prefix=f"{os.path.basename(path)}-", dir=os.path.dirname(path))

"""Which kernel files a stack keeps: dpkg path rules from its gfx targets.

GPU libraries ship kernel files for every gfx target beside their .so. The rules touch only folders of such
files, and in them only names with a gfx target; fallbacks and manifests have none and stay. What holds
several targets in one file (rocFFT's cache, code objects inside a .so) is not a matter of names.
"""

import fnmatch
import re
from collections.abc import Sequence
from functools import lru_cache

from rocstack.base.errors import BadInput

# '*' matches '/' too, here, in dpkg and in find: one glob covers /usr/lib/<multiarch>, /opt/rocm* and wheels.
FOLDERS = (
    "/*/rocblas/*library/",  # Debian has a version between the two
    "/*/hipblaslt/library/",  # newer releases: a folder for each target in it
    "/*/hipsparselt/library/",
    "/*/miopen/db/",  # performance, find and kernel databases, tuning models
    "/*/aotriton.images/",  # PyTorch's attention kernels: folders amd-gfx942, amd-gfx11xx
)

# Source: LLVM, User Guide for AMDGPU Backend, "Generic processors".
GENERIC = {
    "gfx9-generic": r"gfx90[02469c]",
    "gfx9-4-generic": r"gfx9(4[012]|50)",
    "gfx10-1-generic": r"gfx101[0-3]",
    "gfx10-3-generic": r"gfx103[0-6]",
    "gfx11-generic": r"gfx11(0[0-3]|5[0-3])",
    "gfx12-generic": r"gfx120[01]",
    "gfx12-5-generic": r"gfx125[01]",
}

# Major version, then one digit each for minor and stepping. So no target is the beginning of another, and
# MIOpen's gfx90a68 (gfx90a with 0x68 compute units) can't be read in two ways.
TARGET = re.compile(r"gfx([6-9]|1[0-9])[0-9][0-9a-f]")


def names(gfx: Sequence[str]) -> tuple[str, ...]:
    """Globs of the names under which files for the targets `gfx` go: the targets themselves, the generic ones
    they belong to, and families (gfx110x, gfx11xx).

    Raises:
        BadInput: `gfx` is empty or holds something that is not a full gfx target.
    """
    if not gfx:
        raise BadInput("no gfx target to keep", code="bad-gfx", next_step="name one, such as gfx942")
    targets: list[str] = []
    for target in gfx:
        if not TARGET.fullmatch(target):
            raise BadInput(
                f"'{target}' is not a gfx target",
                code="bad-gfx",
                cause="a target is gfx, major version, minor and stepping: gfx90a, gfx942, gfx1100",
            )
        generic = [name for name, members in GENERIC.items() if re.fullmatch(members, target)]
        targets += [target, *generic, f"{target[:-1]}[xX]", f"{target[:-2]}[xX][xX]"]
    return tuple(dict.fromkeys(targets))


def excluded() -> tuple[str, ...]:
    """Globs of every kernel file that is for some gfx target."""
    return tuple(f"{folder}*gfx[0-9]*" for folder in FOLDERS)


def included(gfx: Sequence[str]) -> tuple[str, ...]:
    """Globs of the kernel files among `excluded` that serve a target in `gfx`."""
    return tuple(f"{folder}*{name}*" for folder in FOLDERS for name in names(gfx))


@lru_cache
def _rules(gfx: tuple[str, ...]) -> tuple[tuple[bool, str], ...]:
    """(keep, glob), in order; the last that matches wins."""
    return (*((False, glob) for glob in excluded()), *((True, glob) for glob in included(gfx)))


def rules(gfx: Sequence[str]) -> tuple[str, ...]:
    """Lines for a file in dpkg.cfg.d, in order. As arguments of dpkg they need a leading '--'."""
    return tuple(f"path-{'include' if keep else 'exclude'}={glob}" for keep, glob in _rules(tuple(gfx)))


def kept(path: str, gfx: Sequence[str]) -> bool:
    """Whether dpkg unpacks the absolute `path` under `rules(gfx)`."""
    verdict = True
    for keep, glob in _rules(tuple(gfx)):
        if fnmatch.fnmatchcase(path, glob):
            verdict = keep
    return verdict


def find_args(root: str, gfx: Sequence[str]) -> tuple[str, ...]:
    """Arguments of find(1) that delete under the absolute folder `root` what `rules(gfx)` exclude, and the
    folders this empties: for files that no package manager unpacks. Quote them for a shell."""
    if not root.startswith("/"):
        raise BadInput(f"'{root}' is not an absolute path", code="bad-path")
    drop = [arg for glob in excluded() for arg in ("-o", "-path", glob)]
    keep = [arg for glob in included(gfx) for arg in ("-o", "-path", glob)]
    globs = ("(", *drop[1:], ")", "!", "(", *keep[1:], ")")
    return (root, *globs, "(", "!", "-type", "d", "-o", "-empty", ")", "-delete")

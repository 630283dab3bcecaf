"""Which kernel files a stack keeps: dpkg path rules from its gfx targets.

GPU libraries ship kernel files for every gfx target beside their .so. The rules touch only folders of such
files, and in them only names with a gfx target; fallbacks and manifests have none and stay. What holds
several targets in one file (rocFFT's cache, code objects inside a .so) is not a matter of names.
"""

import re
from collections.abc import Mapping, Sequence

from rocstack.base.errors import BadInput

# '*' matches '/' too: one glob covers /usr/lib/<multiarch>, /opt/rocm* and wheels.
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


def rules(gfx: Sequence[str], unused: Mapping[str, Sequence[int]] = {}) -> tuple[str, ...]:
    """Lines for a file in dpkg.cfg.d, of which the last that matches wins: every kernel file that is for some target
    goes; those stay that serve a target in `gfx`, a generic one that it belongs to, or its families (gfx110x, gfx11xx).
    `unused`: target -> numbers of compute units whose databases of MIOpen go, too.
    As arguments of dpkg they need a leading '--'.

    Raises:
        BadInput: `gfx` is empty or holds something that is not a full gfx target.
    """
    if not gfx:
        raise BadInput.of("no-gfx")
    names: dict[str, None] = {}  # in their order, each once
    for target in gfx:
        if not TARGET.fullmatch(target):
            raise BadInput.of("not-gfx", target=target)
        generic = [name for name, members in GENERIC.items() if re.fullmatch(members, target)]
        names |= dict.fromkeys([target, *generic, f"{target[:-1]}[xX]", f"{target[:-2]}[xX][xX]"])
    excluded = [f"path-exclude={folder}*gfx[0-9]*" for folder in FOLDERS]
    included = [f"path-include={folder}*{name}*" for folder in FOLDERS for name in names]
    units = [(target, count) for target in gfx for count in unused.get(target, ())]
    # gfx942e4.db.txt, gfx942_228.HIP.fdb.txt
    databases = [f"path-exclude=/*/miopen/db/{t}{end}.*" for t, count in units for end in (f"{count:x}", f"_{count}")]
    return (*excluded, *included, *databases)

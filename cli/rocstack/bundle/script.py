"""The script that is a bundle's first member."""

from __future__ import annotations

import hashlib
import re

from rocstack.base import paths
from rocstack.bundle.format import BundleMember
from rocstack.bundle.kit import is_kit
from rocstack.bundle.relocatable import NAME

_WORD = re.compile(r"[A-Za-z0-9._+/-]*")


def install_script(
    release: str, architecture: str, glibc: str, members: tuple[BundleMember, ...], since: str | None
) -> bytes:
    """`members` are all of the bundle, also those that a delta leaves out."""
    parts = "\n".join(f"{each.sha256}  {each.path}" for each in members if is_kit(each.path))
    values = {
        "RELEASE": release, "ARCHITECTURE": architecture, "GLIBC": glibc, "PYTHON": NAME, "SINCE": since or "''",
        "KIT": hashlib.sha256(parts.encode()).hexdigest()[:16],
    }  # fmt: skip
    text = (paths.images() / "bundle/install.sh").read_text()
    for name, value in values.items():
        assert value == "''" or _WORD.fullmatch(value), value
        text = text.replace(f"@{name}@", value)
    assert all(_WORD.fullmatch(each.path) for each in members if is_kit(each.path))
    return text.replace("@PARTS@", parts).encode()

"""A newer rdma-core, as its source archive: for hosts whose kernel ABI is 1 and whose distribution's release fails."""

import hashlib
import io
import re
from dataclasses import dataclass, field
from pathlib import Path

from rocstack.base.errors import BadInput, Where
from rocstack.nic import vendor_archive
from rocstack.nic.vendor_archive import MIB, Budget

FILE = re.compile(r"rdma-core[-_](\d+(?:\.\d+)+)(?:\.orig)?\.tar\.(?:gz|xz)", re.ASCII)
LARGEST = 64 * MIB  # 65.0 has 2 MB
_VERSION = re.compile(r'^set\(PACKAGE_VERSION "([\d.]+)"\)', re.MULTILINE)


@dataclass(frozen=True)
class RdmaCore:
    version: str
    name: str
    sha256: str
    data: bytes = field(repr=False)


def read(path: Path | None) -> RdmaCore:
    """
    Raises:
        BadInput: no such file, not rdma-core's source, damaged, or another version than its name says.
    """
    if path is None:
        raise BadInput(
            "way 'newer' builds rdma-core from source, but no source is given",
            code="no-library",
            next_step="download a release from github.com/linux-rdma/rdma-core and name it with --nic-source",
        )
    path = path.expanduser()
    named = FILE.fullmatch(path.name)
    if not path.is_file() or not named:
        raise BadInput(
            f"{path} is not an rdma-core-VERSION.tar.gz",
            code="no-file" if not path.is_file() else "no-library",
            next_step="name a release's source archive with --nic-source",
        )
    if path.stat().st_size > LARGEST:
        raise vendor_archive.bad(f"larger than {LARGEST // MIB} MB", str(path), "a release has about two")
    data = path.read_bytes()
    version = ""
    for member in vendor_archive.members(io.BytesIO(data), path.name, str(path), Budget(20_000, 512 * MIB), plain=True):
        if member.is_file and re.fullmatch(r"(\./)?[^/]+/CMakeLists\.txt", member.name):
            version = "".join(_VERSION.findall(member.read(MIB).decode("utf-8", "replace")))
    if version != named[1]:
        raise BadInput(
            f"it is named {named[1]}, but its CMakeLists.txt says {version or 'nothing'}",
            code="wrong-release",
            where=Where(str(path)),
            next_step="use the archive as the project publishes it",
        )
    return RdmaCore(version, path.name, hashlib.sha256(data).hexdigest(), data)

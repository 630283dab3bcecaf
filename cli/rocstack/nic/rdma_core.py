"""A newer rdma-core, as its source archive: for hosts whose kernel ABI is 1 and whose distribution's release fails."""

import hashlib
import io
import re
from pathlib import Path

from rocstack.base.errors import BadInput
from rocstack.nic import vendor_archive
from rocstack.nic.vendor_archive import MIB, Budget
from rocstack.nic.vendor_release import VendorRelease

FILE = re.compile(r"rdma-core[-_](\d+(?:\.\d+)+)(?:\.orig)?\.tar\.(?:gz|xz)", re.ASCII)
LARGEST = 64 * MIB  # 65.0 has 2 MB
_VERSION = re.compile(r'^set\(PACKAGE_VERSION "([\d.]+)"\)', re.MULTILINE)


def read(path: Path | None) -> VendorRelease:
    """
    Raises:
        BadInput: no such file, not rdma-core's source, damaged, or another version than its name says.
    """
    if path is None:
        raise BadInput.of("no-rdma-core")
    path = path.expanduser()
    named = FILE.fullmatch(path.name)
    if not path.is_file() or not named:
        raise BadInput.of("other-rdma-core" if path.is_file() else "absent-rdma-core", path=path)
    if path.stat().st_size > LARGEST:
        raise vendor_archive.bad(f"larger than {LARGEST // MIB} MB", str(path), "a release has about two")
    data, version = path.read_bytes(), ""
    for member in vendor_archive.members(io.BytesIO(data), path.name, str(path), Budget(20_000, 512 * MIB), plain=True):
        if member.is_file and re.fullmatch(r"(\./)?[^/]+/CMakeLists\.txt", member.name):
            version = "".join(_VERSION.findall(member.read(MIB).decode("utf-8", "replace")))
    if version != named[1]:
        raise BadInput.of("renamed-rdma-core", path, name=named[1], version=version or "nothing")
    return VendorRelease(path.name, version, None, hashlib.sha256(data).hexdigest(), str(path), data=data)

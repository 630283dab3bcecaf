"""Libraries of the node that an image takes at start: for way `host`, and for Slingshot's libfabric."""

from __future__ import annotations

import re

from rocstack.mount import Mount
from rocstack.nic.provider import ROOT
from rocstack.node.gate import SLINGSHOT, mountable
from rocstack.node.image import Image
from rocstack.node.profile import Library, NodeProfile

SLINGSHOTS = {"cxi": "libcxi.so.1", "libfabric": "libfabric.so.1"}  # HPE's newest; the distribution's lacks cxi


def host_mounts(image: Image, node: NodeProfile) -> tuple[Mount, ...]:
    """What is mounted on a node that the gate found fitting. A file that isn't there is not named: docker would
    make a folder of that name on the host."""
    out = []
    for provider in image.providers:
        library = mountable(node.libraries, provider.driver) if provider.way == "host" else None
        if library and image.private_abi is not None:
            name = f"lib{provider.driver}-rdmav{image.private_abi}.so"
            out.append(Mount(source=library.path, target=f"{ROOT}/{provider.place}/{name}", read_only=True))
    for driver, name in SLINGSHOTS.items() if image.nic == SLINGSHOT else ():
        found = [library for library in node.libraries if library.driver == driver]
        if found:
            library = max(found, key=lambda each: (each.path.startswith("/opt/cray/"), _release(each)))
            out.append(Mount(source=library.path, target=f"{ROOT}/host/{name}", read_only=True))
    return tuple(out)


def _release(library: Library) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]+", library.version or "")]

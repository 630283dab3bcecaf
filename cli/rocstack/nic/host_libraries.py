"""Libraries of the node that an image takes at start: for way `host`, and for Slingshot's libfabric."""

from rocstack.container.mount import Mount
from rocstack.node import gate
from rocstack.node.gate import SLINGSHOT, mountable
from rocstack.node.image_facts import ImageFacts
from rocstack.node.profile import NodeProfile
from rocstack.stack.resolve import ROOT

# Where every program finds them: a cache of the loader does not know what is mounted later.
LIBRARIES = "/usr/lib/x86_64-linux-gnu"


def host_mounts(image: ImageFacts, node: NodeProfile) -> tuple[Mount, ...]:
    """What is mounted on a node that the gate found fitting. A file that isn't there is not named: docker would
    make a folder of that name on the host."""
    out = []
    for provider in image.providers:
        library = mountable(node.libraries, provider.driver) if provider.way == "host" else None
        if library and image.private_abi is not None:
            name = f"lib{provider.driver}-rdmav{image.private_abi}.so"
            out.append(Mount(source=library.path, target=f"{ROOT}/{provider.place}/{name}", read_only=True))
    for driver, library in gate.slingshot_libraries(node.libraries).items() if image.nic == SLINGSHOT else ():
        target = f"{LIBRARIES}/{gate.SLINGSHOT_FILES[driver]}"
        out.append(Mount(source=library.path, target=target, read_only=True))
    return tuple(out)

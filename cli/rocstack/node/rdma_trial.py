"""Whether the devices that the image is for work on this node: each is tried, or why that was not possible."""

from __future__ import annotations

from dataclasses import dataclass

from .gate import candidates, hidden
from .image import Image
from .profile import NodeProfile
from .rdma_proof import EACH, THREADS, Verbs


@dataclass(frozen=True)
class Trial:
    """`works` is None where nothing could be tried; `says` are sentences, one a device."""

    works: bool | None
    says: tuple[str, ...] = ()


def trial(image: Image, node: NodeProfile, *, many: bool = False) -> Trial:
    """Exactly the node's devices of the image's NIC, as the kernel names them: one that libibverbs doesn't list has
    failed, and others (a card for management) don't count. `many`: several queue pairs from several threads."""
    if not image.providers:
        return Trial(None, (f"there is no provider library to try: the image is built for {image.nic or 'no NIC'}",))
    if node.virtual:
        return Trial(None, (f"virtual {node.virtual}: its devices can't be opened, none was tried",))
    unseen = hidden(node)
    if unseen:
        return Trial(None, (f"there may be RDMA devices that could not be read: {unseen}",))
    names = [device.name for devices in candidates(image, node) for device in devices]
    if not names:
        return Trial(None, (f"no device of a {image.nic} NIC to try",))
    return opened(names, many=many)


def opened(names: list[str] | None = None, *, many: bool = False) -> Trial:
    """Without `names` every device that libibverbs lists."""
    try:
        proofs = Verbs().prove(names, threads=THREADS if many else 1, each=EACH if many else 1)
    except OSError as error:
        return Trial(False, (f"libibverbs can't be loaded: {error}",))
    if not proofs:
        return Trial(None, ("libibverbs lists no device; `IBV_SHOW_WARNINGS=1 ibv_devices` says why",))
    return Trial(all(proof.ok for proof in proofs), tuple(proof.says for proof in proofs))

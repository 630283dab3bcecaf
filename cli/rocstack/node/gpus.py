"""GPUs, in ROCm's order: that of the nodes of the KFD topology (/sys/class/kfd)."""

from __future__ import annotations

from . import pci
from .profile import Gpu, GpuLink
from .recording import Recording

NODES = "/sys/class/kfd/kfd/topology/nodes"
LINK_KINDS = {2: "pcie", 11: "xgmi"}  # HSA_IOLINKTYPE_*, linux/drivers/gpu/drm/amd/amdkfd/kfd_crat.h


def gpus(rec: Recording) -> tuple[Gpu, ...]:
    """Those that the driver drives, then those that only PCI knows (`kfd_node` is None)."""
    cards = {function.address: function for function in pci.functions(rec)}
    nodes = [(int(name), properties(rec, f"{NODES}/{name}")) for name in rec.names(NODES) if _is_number(name)]
    driven = [
        (node, facts) for node, facts in sorted(nodes, key=lambda item: item[0]) if facts.get("simd_count", 0) > 0
    ]
    index = {node: number for number, (node, _) in enumerate(driven)}
    found = []
    for node, facts in driven:
        address = _address(facts)
        card = cards.get(address)
        found.append(
            _gpu(
                rec,
                card,
                index=index[node],
                pci=address,
                device=card.id if card else f"{facts.get('vendor_id', 0):04x}:{facts.get('device_id', 0):04x}",
                gfx=gfx(facts.get("gfx_target_version", 0)),
                name=_name(rec, node, card),
                render_minor=facts.get("drm_render_minor") or None,
                kfd_node=node,
                links=_links(rec, node, index),
            )
        )
    known = {gpu.pci for gpu in found}
    for card in cards.values():
        if card.is_gpu and card.address not in known:
            name = rec.text(card.folder + "/product_name") or None
            found.append(_gpu(rec, card, index=len(found), pci=card.address, device=card.id, name=name))
    return tuple(found)


def _gpu(rec: Recording, card: pci.Function | None, **facts: object) -> Gpu:
    if card is None:
        return Gpu(**facts)  # type: ignore[arg-type]
    return Gpu(
        numa=pci.numa(rec, card.folder),
        memory=rec.number(card.folder + "/mem_info_vram_total"),
        firmware=rec.text(card.folder + "/vbios_version") or None,
        pcie=pci.pcie(rec, card.folder),
        path=pci.path(card.folder),
        **facts,  # type: ignore[arg-type]
    )


def properties(rec: Recording, folder: str) -> dict[str, int]:
    """`name number` lines."""
    rows = (line.split() for line in (rec.text(folder + "/properties") or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and _is_number(row[1])}


def gfx(version: int) -> str | None:
    """90402 -> gfx942, 90010 -> gfx90a: the last two numbers are hex digits."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}" if version > 0 else None


def _address(facts: dict[str, int]) -> str:
    """location_id is bus, device, function; in partition modes its upper bits count the partitions."""
    place = facts.get("location_id", 0) & 0xFFFF
    return f"{facts.get('domain', 0):04x}:{place >> 8:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _name(rec: Recording, node: int, card: pci.Function | None) -> str | None:
    """KFD's own name is a code name, or says only how the driver found the GPU."""
    product = rec.text(card.folder + "/product_name") if card else None
    code = rec.text(f"{NODES}/{node}/name")
    return product or (code if code != "ip discovery" else None) or None


def _links(rec: Recording, node: int, index: dict[int, int]) -> tuple[GpuLink, ...]:
    found = {}
    for kind in ("p2p_links", "io_links"):  # a direct link says more than a path through the CPU
        for number in rec.names(f"{NODES}/{node}/{kind}"):
            facts = properties(rec, f"{NODES}/{node}/{kind}/{number}")
            to, word = index.get(facts.get("node_to", -1)), LINK_KINDS.get(facts.get("type", 0))
            if to is not None and to != index[node] and word:
                found[to] = GpuLink(to, word, facts.get("weight"))
    return tuple(found[to] for to in sorted(found))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 40

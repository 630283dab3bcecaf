"""RDMA between nodes: which ports meet, and programs/rdma.py on all of them."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any

from experiments.mpi import source

from rocstack.image import node_package
from rocstack.node.nic_settings import NicSettings
from rocstack.node.profile import NodeProfile
from rocstack.node.rdma_ports import OWN_GPU, Hca, choose_ports
from rocstack.stack.component import NicProfile, library, validate_head
from rocstack.verify.evidence import ClusterEvidence, NodeEvidence

PINGPONG, WRITE, BOTH_WAYS = "ibv_rc_pingpong", "ib_write_bw", "ib_write_bw -b"
GPU_WRITE = "ib_write_bw --use_rocm"
ROUNDS = 4  # of bandwidth: each NIC with some peers, however many nodes there are
# Messages of many packets as large as the ports can: a switch at 1500 lets the small ones pass.
MORE = {
    PINGPONG: ("-s", "65536", "-n", "100", "-c"),
    WRITE: (*(LARGE := ("-s", "8388608", "-n", "80")), "-q", "8"),  # as ROCm/cvs: one queue pair need not fill a port
    BOTH_WAYS: ("-b", *LARGE, "-q", "8"),
    GPU_WRITE: (*LARGE, "-q", "8"),
}
RUN = 20.0  # seconds of a tool
MTUS = (256, 512, 1024, 2048, 4096)  # of RDMA, bytes
HEADERS = 96  # bytes that RoCE takes of a network device's MTU: iboe_get_mtu of the kernel's ib_addr.h
Rail = Sequence[Any]  # device, port, GID index, MTU
Rails = Mapping[str, Sequence[Rail | None]]


def fit(nodes: Sequence[NodeEvidence], cluster_evidence: ClusterEvidence) -> list[NodeEvidence]:
    """Those that RDMA can go between for real, by this image."""
    real = [node for node in nodes if node.is_worker and not node.virtual and node.profile and node.profile.verbs]
    return [node for node in real if not not_for(cluster_evidence, node)]


def devices(cluster_evidence: ClusterEvidence, node: NodeEvidence) -> set[str]:
    """The node's RDMA devices that the image is for."""
    image = cluster_evidence.labels.get("io.rocstack.nic")
    return {nic.verbs for nic in node.profile.nics if nic.nic == image and nic.verbs} if node.profile else set()


def rails_of_gpus(cluster_evidence: ClusterEvidence, node: NodeEvidence) -> int:
    """How many of these are there for a GPU's data: on its PCIe switch."""
    near = {link.nic for link in node.profile.affinity if link.via == OWN_GPU} if node.profile else set()
    return len(near & devices(cluster_evidence, node))


def not_for(cluster_evidence: ClusterEvidence, node: NodeEvidence) -> str:
    """Why the image is not for the node's RDMA; empty where it is."""
    image = cluster_evidence.labels.get("io.rocstack.nic") or "tcp"
    if node.profile and any(nic.nic == image for nic in node.profile.nics):
        return ""
    return f"the image {'has no RDMA' if image == 'tcp' else f'is for {image} cards, which the node has not'}"


@cache
def nic_of(name: str) -> NicSettings:
    return node_package.settings(validate_head(library("nic").files[name], NicProfile))


def rails(profile: NodeProfile, env: Mapping[str, str], nic: NicSettings) -> list[list[Any]]:
    """[device, port, GID index, MTU of RDMA in bytes] of the ports that the worker itself uses, in the order of its
    GPUs, and with its GID index: `env` is its fabric environment. InfiniBand has none, and its MTU isn't known."""
    ports = {hca.name: hca for hca in choose_ports(profile, nic)[0]}
    listed = [name for name in env.get("NCCL_IB_HCA", "").removeprefix("=").split(",") if name] or list(ports)
    ports_of: list[list[Any]] = []
    for name in listed:
        device, _, port = name.partition(":")
        own = ports.get(name)
        index = own.gid.index if own and own.gid else None
        common = env.get("NCCL_IB_GID_INDEX")
        ports_of.append([device, int(port or 1), int(common) if common and index is not None else index, mtu(own)])
    return ports_of


def used(cluster_evidence: ClusterEvidence, node: NodeEvidence) -> list[str]:
    """The devices that carry its jobs' data; all where none is chosen."""
    if node.profile is None:
        return []
    nic = nic_of(cluster_evidence.labels.get("io.rocstack.nic") or "tcp")
    listed = rails(node.profile, cluster_evidence.fabric.get(node.name, {}), nic)
    return list(dict.fromkeys(rail[0] for rail in listed)) or [device.name for device in node.profile.verbs]


def mtu(own: Hca | None) -> int | None:
    room = own.mtu - HEADERS if own and own.gid and own.mtu else 0
    return max((size for size in MTUS if size <= room), default=None)


def of_cluster(cluster_evidence: ClusterEvidence, nodes: Sequence[NodeEvidence]) -> Rails:
    nic = nic_of(cluster_evidence.labels.get("io.rocstack.nic") or "tcp")
    fabric = cluster_evidence.fabric
    known = {node.name: node.profile for node in nodes if node.profile}
    return placed({name: rails(profile, fabric.get(name, {}), nic) for name, profile in known.items()}, known)


def placed(rails_of: Mapping[str, Sequence[Rail]], profiles: Mapping[str, NodeProfile]) -> Rails:
    """Ports that are cabled to the same switch get the same place in the list of each node; None where a node has no
    such port, or can't use it. A place is that of the GPU on whose PCIe switch the port is; where not all are on one,
    it is the port's name; where nodes have no names in common, ports take their places as they come."""
    most = sorted(rails_of, key=lambda name: -len(rails_of[name]))
    for by in (_by_gpu, _by_name):
        keys = {name: by(profiles[name], listed) for name, listed in rails_of.items()}
        sound = all(None not in own and len({*own}) == len(own) for own in keys.values())
        if sound and all({*own} & {*keys[most[0]]} for own in keys.values() if own):
            places = dict.fromkeys(key for name in most for key in keys[name])
            ports = {name: dict(zip(own, rails_of[name], strict=True)) for name, own in keys.items()}
            return {name: [own.get(place) for place in places] for name, own in ports.items()}
    return rails_of


def _by_gpu(profile: NodeProfile, listed: Sequence[Rail]) -> list[Hashable]:
    near: dict[str, int] = {}
    for link in profile.affinity:
        if link.via == OWN_GPU:
            near.setdefault(link.nic, link.gpu)
    return [near.get(rail[0]) for rail in listed]


def _by_name(_: NodeProfile, listed: Sequence[Rail]) -> list[Hashable]:
    return [(rail[0], rail[1]) for rail in listed]


def shared(one: Sequence[Rail | None], other: Sequence[Rail | None]) -> list[int]:
    """The places at which both nodes have a port."""
    return [place for place, ends in enumerate(zip(one, other, strict=False)) if all(ends)]


def seconds(nodes: int) -> float:
    """That a step may take, by the number of nodes."""
    return 120 + 5.0 * nodes


def of_gpus(ends: Rails, nodes: Sequence[NodeEvidence]) -> tuple[Rails, dict[str, dict[str, int]]]:
    """The rails whose NIC has a GPU on its PCIe switch, and node -> device -> that GPU as ROCm counts."""
    gpus: dict[str, dict[str, int]] = {}
    for node in nodes:
        for link in node.profile.affinity if node.profile else ():
            if link.via == OWN_GPU:
                gpus.setdefault(node.name, {}).setdefault(link.nic, link.gpu)
    beside = {
        name: [rail if rail and rail[0] in gpus.get(name, {}) else None for rail in own] for name, own in ends.items()
    }
    return beside, gpus


def from_gpus(slurm: Any, ends: Rails, nodes: Sequence[NodeEvidence], options: Sequence[str]) -> dict[str, Any]:
    """From GPU memory to GPU memory. How a driver gives it to a NIC depends on the kernel, by peer memory or dma-buf:
    what works on more rails counts."""
    beside, gpus = of_gpus(ends, nodes)
    found = between(slurm, beside, GPU_WRITE, gpus=gpus, options=options)
    if _failed(found):
        again = between(slurm, beside, GPU_WRITE, gpus=gpus, options=options, dmabuf=True)
        found = again if _failed(again) < _failed(found) else found
    return found


def _failed(results: Mapping[str, Any]) -> int:
    return sum(bool(each.get("code")) for each in results["answers"])


def between(
    slurm: Any,
    ends: Rails,
    tool: str,
    more: Sequence[str] = (),
    *,
    gpus: Mapping[str, Mapping[str, int]] | None = None,
    dmabuf: bool = False,
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Every two nodes with pingpongs; bandwidth in some rounds. A pair that has no answer was not tried in time.

    Args:
        more: other arguments of the tool than those for a NIC.
        gpus: node -> device -> the GPU whose memory is written from and to; None: host memory.
        dmabuf: the GPU's memory goes to the NIC by dma-buf.
        options: of srun.
    """
    asked: dict[str, Any] = {
        "tool": tool.partition(" ")[0],
        "rails": ends,
        "seconds": RUN,
        "more": list(more or MORE[tool]),
    }
    asked |= {} if gpus is None else {"gpus": gpus, "dmabuf": dmabuf}
    asked |= {"together": tool == PINGPONG, "rounds": len(ends) if tool == PINGPONG else ROUNDS}
    # One argument holds 128 KiB at most (MAX_ARG_STRLEN), and the names of 1,000 nodes with their rails are more.
    packed = base64.b64encode(zlib.compress(json.dumps(asked, separators=(",", ":")).encode(), 9)).decode()
    words = ["python3", "-c", source("messages.py", "tournament.py", "rdma.py"), packed]
    step = slurm.step(*words, nodes=list(ends), seconds=seconds(len(ends)), **({"options": options} if options else {}))
    return {"rails": ends, "rounds": asked["rounds"], "answers": step.answers, "said": step.said if step.code else ""}


def queue_pairs(slurm: Any, nodes: Sequence[str]) -> dict[str, Any]:
    """node -> what `rocstack-node prove --many` said in a job there."""
    if not nodes:
        return {}
    step = slurm.step("python3", "-c", source("queue_pairs.py"), nodes=nodes, independent=True)
    return {answer["node"]: answer for answer in step.answers}

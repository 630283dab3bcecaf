"""RDMA between nodes: which ports meet, and programs/rdma.py on all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from experiments.mpi import source

from rocstack import inside
from rocstack.component import Nic, library, validate_head
from rocstack.node.hcas import OWN_GPU, choose
from rocstack.node.nic_settings import NicSettings
from rocstack.node.profile import NodeProfile
from rocstack.verify.record import Node

PINGPONG, WRITE = "ibv_rc_pingpong", "ib_write_bw"
ROUNDS = 4  # of bandwidth: each NIC with some peers, however many nodes there are
MORE = {PINGPONG: ("-n", "200", "-c"), WRITE: ("-s", "1048576", "-n", "5000")}
RUN = 20.0  # seconds of a tool
Rails = Mapping[str, Sequence[Sequence[Any]]]


def fit(nodes: Sequence[Node], described: Mapping[str, Any]) -> list[Node]:
    """Those that RDMA can go between for real, by this image."""
    real = [node for node in nodes if node.works and not node.virtual and node.profile and node.profile.verbs]
    return [node for node in real if not not_for(described, node)]


def devices(described: Mapping[str, Any], node: Node) -> set[str]:
    """The node's RDMA devices that the image is for."""
    image = described["labels"].get("io.rocstack.nic")
    return {nic.verbs for nic in node.profile.nics if nic.nic == image and nic.verbs} if node.profile else set()


def rails_of_gpus(described: Mapping[str, Any], node: Node) -> int:
    """How many of these are there for a GPU's data: on its PCIe switch."""
    near = {link.nic for link in node.profile.affinity if link.via == OWN_GPU} if node.profile else set()
    return len(near & devices(described, node))


def not_for(described: Mapping[str, Any], node: Node) -> str:
    """Why the image is not for the node's RDMA; empty where it is."""
    image = described["labels"].get("io.rocstack.nic") or "tcp"
    if node.profile and any(nic.nic == image for nic in node.profile.nics):
        return ""
    return f"the image {'has no RDMA' if image == 'tcp' else f'is for {image} cards, which the node has not'}"


@cache
def nic_of(name: str) -> NicSettings:
    return inside.settings(validate_head(library("nic").files[name], Nic))


def rails(profile: NodeProfile, env: Mapping[str, str], nic: NicSettings) -> list[list[Any]]:
    """[device, port, GID index] of the ports that the worker itself uses, in the order of its GPUs, and with its GID
    index: `env` is its fabric environment. InfiniBand has none."""
    ports = {hca.name: hca for hca in choose(profile, nic)[0]}
    listed = [name for name in env.get("NCCL_IB_HCA", "").removeprefix("=").split(",") if name] or list(ports)
    found: list[list[Any]] = []
    for name in listed:
        device, _, port = name.partition(":")
        own = ports.get(name)
        index = own.gid.index if own and own.gid else None
        common = env.get("NCCL_IB_GID_INDEX")
        found.append([device, int(port or 1), int(common) if common and index is not None else index])
    return found


def of_cluster(described: Mapping[str, Any], nodes: Sequence[Node]) -> Rails:
    nic = nic_of(described["labels"].get("io.rocstack.nic") or "tcp")
    fabric = described["fabric"]
    return {node.name: rails(node.profile, fabric.get(node.name, {}), nic) for node in nodes if node.profile}


def seconds(nodes: int) -> float:
    """That a step may take, by the number of nodes."""
    return 120 + 5.0 * nodes


def between(slurm: Any, ends: Rails, tool: str, more: Sequence[str] = ()) -> dict[str, Any]:
    """Every two nodes with pingpongs; bandwidth in some rounds. A pair that has no answer was not tried in time.

    Args:
        more: other arguments of the tool than those for a NIC.
    """
    asked: dict[str, Any] = {"tool": tool, "rails": ends, "seconds": RUN, "more": list(more or MORE[tool])}
    asked |= {"together": tool == PINGPONG, "rounds": len(ends) if tool == PINGPONG else ROUNDS}
    words = ["python3", "-c", source("tournament.py", "rdma.py"), json.dumps(asked)]
    step = slurm.step(*words, nodes=list(ends), seconds=seconds(len(ends)))
    return {"rails": ends, "rounds": asked["rounds"], "answers": step.answers, "said": step.said if step.code else ""}

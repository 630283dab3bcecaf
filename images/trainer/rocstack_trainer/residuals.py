"""What error feedback still owes. Only the sum over the ranks matters: other ranks can take it over."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import torch

from rocstack_trainer import dcp
from rocstack_trainer.peers import Peers


def key(rank: int, name: str) -> str:
    return f"rank{rank}.{name}"


def restore(mine: dict[str, torch.Tensor], path: Path, world: int, peers: Peers) -> bool:
    """Fills the tensors with what `world` ranks saved: each its own if these are the same ranks, else equal parts
    of the sum for all that have a tensor of that name and shape.

    Returns:
        Was there something for every tensor? Those without are zero.
    """
    saved = dcp.contents(path)
    own = {key(peers.rank, name): tensor for name, tensor in mine.items()}
    if all(peers.agree(lambda: world == peers.world and dcp.shapes(own).items() <= saved.items())):
        peers.agree(lambda: dcp.read(own, path))
        return True
    holders, shape = defaultdict(list), {}
    for rank, had in enumerate(peers.agree(lambda: dcp.shapes(mine))):
        for name in had:
            holders[name].append(rank)
        shape |= had
    names = sorted(holders)
    parts = {name: [key(rank, name) for rank in range(world)] for name in names}
    parts = {name: [part for part in keys if saved.get(part) == shape[name]] for name, keys in parts.items()}
    reader = {name: holders[name][turn % len(holders[name])] for turn, name in enumerate(names)}

    def add_up() -> None:
        for name in (name for name in mine if reader[name] == peers.rank):
            read = {part: torch.zeros_like(mine[name], device="cpu") for part in parts[name]}
            dcp.read(read, path)
            total = sum(read.values(), torch.zeros_like(mine[name], device="cpu"))
            mine[name].copy_(total / len(holders[name]))

    peers.agree(add_up)
    for name in names:
        kind, size = shape[name]
        tensor = mine[name] if name in mine else torch.empty(size, dtype=kind, device=peers.device)
        peers.broadcast([(tensor, reader[name])])
    return all(parts.values())

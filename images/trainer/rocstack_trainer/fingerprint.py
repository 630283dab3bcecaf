"""Do all ranks have the same weights? A hash over their bytes tells."""

from __future__ import annotations

import hashlib
import socket

import torch
import torch.distributed as dist

from rocstack_trainer.errors import TrainerError
from rocstack_trainer.launch import Rank


def weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name, tied ones once: what a checkpoint of the model holds."""
    saved = net.state_dict(keep_vars=True)
    found = dict(net.named_parameters()) | dict(net.named_buffers())
    return {name: tensor.detach() for name, tensor in found.items() if name in saved}


def sha256(net: torch.nn.Module) -> str:
    """Over the bytes of all weights in the order of their names: equal means bitwise equal."""
    total = hashlib.sha256()
    for _, tensor in sorted(weights(net).items()):
        total.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def agree(mine: str, rank: Rank, what: str, error: type[TrainerError] = TrainerError) -> None:
    """Raises `error` on every rank if `mine` is not the same on all of them. A collective."""
    if rank.world == 1:
        return
    everyone: list[tuple[str, str]] = [("", "")] * rank.world
    dist.all_gather_object(everyone, (socket.gethostname(), mine))
    first = everyone[0][1]
    others = [f"rank {r} on {host} has {value[:16]}" for r, (host, value) in enumerate(everyone) if value != first]
    if others:
        raise error(f"{what} differ between ranks: rank 0 has {first[:16]}, {', '.join(others[:4])}")

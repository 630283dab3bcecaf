"""Do all ranks have the same weights? A hash over their bytes tells."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping

import torch
import torch.distributed as dist

from rocstack_trainer.errors import TrainerError
from rocstack_trainer.ranks.launch import Rank


def weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name, tied ones once: what a checkpoint of the model holds."""
    saved = net.state_dict(keep_vars=True)
    found = dict(net.named_parameters()) | dict(net.named_buffers())
    return {name: tensor.detach() for name, tensor in found.items() if name in saved}


def sha256(net: torch.nn.Module) -> str:
    """Over all weights: equal means bitwise equal."""
    return digest(weights(net))


def digest(named: Mapping[str, torch.Tensor]) -> str:
    """sha256, in hex, over names and bytes of tensors."""
    return combined({name: tensor_sha256(tensor) for name, tensor in named.items()})


def combined(digests: Mapping[str, str]) -> str:
    """The digest of tensors from their sha256, which several ranks can have computed."""
    lines = (f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def tensor_sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()


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

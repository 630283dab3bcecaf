"""Tensors of which each rank has a slice of the rows (DTensor, as FSDP2 makes them), beside plain ones."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor


class Slice(NamedTuple):
    """What a rank has of a tensor of this shape, and where in it that begins; of a plain tensor, all."""

    mine: torch.Tensor
    start: list[int]
    shape: list[int]
    sliced: bool = False


def of(tensor: torch.Tensor) -> Slice:
    mine = local(tensor).detach()
    if not isinstance(tensor, DTensor):
        return Slice(mine, [0] * tensor.dim(), list(tensor.shape))
    rows = -(-tensor.shape[0] // tensor.device_mesh.size())
    first = min(rows * tensor.device_mesh.get_local_rank(), tensor.shape[0])
    return Slice(mine, [first, *[0] * (tensor.dim() - 1)], list(tensor.shape), True)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's slice; of a tensor that isn't sliced, all of it. Its memory, not a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

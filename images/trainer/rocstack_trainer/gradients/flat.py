"""Many tensors as few flat ones: one message instead of a hundred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist


@torch.no_grad()
def broadcast(tensors: Iterable[torch.Tensor], chunk_bytes: int = 64 << 20) -> None:
    """Rank 0's values, in chunks, into the tensors of every rank."""
    for group in pack(tensors, chunk_bytes):
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.broadcast(flat, src=0)
        scatter(flat, group)


def pack(tensors: Iterable[torch.Tensor], limit: int) -> Iterator[list]:
    """Groups neighbours of one dtype and device, up to `limit` bytes (or one tensor, if that is larger)."""
    group: list = []
    size = 0
    for tensor in tensors:
        same = not group or (tensor.dtype, tensor.device) == (group[0].dtype, group[0].device)
        if group and (not same or size + tensor.nbytes > limit):
            yield group
            group, size = [], 0
        group.append(tensor)
        size += tensor.nbytes
    if group:
        yield group


def views(flat: torch.Tensor, like: list) -> list[torch.Tensor]:
    """Parts of `flat` in the shapes of the tensors in `like`."""
    return [part.view_as(t) for part, t in zip(flat.split([t.numel() for t in like]), like, strict=True)]


def gather(tensors: list, flat: torch.Tensor) -> None:
    torch._foreach_copy_(views(flat, tensors), tensors)


def scatter(flat: torch.Tensor, tensors: list) -> None:
    torch._foreach_copy_(tensors, views(flat, tensors))

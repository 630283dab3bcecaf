"""Do all ranks still have the same weights? Cheap enough to ask at every checkpoint: no byte leaves its device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
import torch.distributed as dist

from rocstack_trainer.errors import CheckpointError
from rocstack_trainer.models.fingerprint import weights
from rocstack_trainer.ranks.launch import Rank

CHUNK = {"cpu": 1 << 16, "cuda": 1 << 24}  # elements widened at a time: they stay in a CPU's cache; few launches
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes per element


def check(net: torch.nn.Module, rank: Rank, when: str) -> None:
    """Raises CheckpointError on all ranks if the weights aren't the same, bit by bit, on all of them."""
    mine = checksum(weights(net).values()).to(rank.device).reshape(1)
    everyone = [torch.empty_like(mine) for _ in range(rank.world)]
    dist.all_gather(everyone, mine)
    values = [int(value.item()) for value in everyone]
    usual = Counter(values).most_common(1)[0][0]
    if others := [str(number) for number, value in enumerate(values) if value != usual]:
        raise CheckpointError(
            f"the ranks' weights differ {when}: rank {', '.join(others)} has others than rank {values.index(usual)}\n"
            "  memory, network or collectives of a node are at fault; the last checkpoint was still the same on all"
        )


@torch.no_grad()
def checksum(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """One int64 that a changed bit changes.

    Sums of whole numbers that wrap around are exact in any order. The odd factors tell positions apart.
    """
    total = torch.zeros((), dtype=torch.int64)
    for tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1).view(INTEGERS[tensor.element_size()])
        chunk = CHUNK[tensor.device.type]
        factor = torch.arange(min(chunk, flat.numel()), device=tensor.device) * 2 + 1
        for part in flat.split(chunk):
            total = total.to(tensor.device) * 1_000_003 + (part * factor[: part.numel()]).sum()
    return total

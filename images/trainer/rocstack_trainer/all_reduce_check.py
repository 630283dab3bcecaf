"""`--check-backend`: does this c10d backend really add up across ranks, with this machine's libraries?"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from rocstack_trainer.errors import TrainerError
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import launch

SIZES = (1, 1000, 1 << 20)
TYPES = (torch.float32, torch.float64, torch.int64)


def check(rank: Rank, timeout_s: float) -> None:
    """All-reduces known whole numbers (exact in every type) and compares each element of the sum.

    Raises:
        TrainerError: a sum is wrong.
    """
    with launch.process_group(rank, timeout_s):
        for size in SIZES:
            for kind in TYPES:
                pattern = (torch.arange(size, device=rank.device) % 97 + 1).to(kind)
                values = pattern * (rank.rank + 1)
                start = time.perf_counter()
                dist.all_reduce(values)
                wrong = (values != pattern * (rank.world * (rank.world + 1) // 2)).nonzero()
                if len(wrong):
                    at = int(wrong[0])
                    raise TrainerError(
                        f"{rank.backend}: {len(wrong)} of {size} {kind} sums are wrong on rank {rank.rank}:"
                        f" element {at} is {values[at].item()}"
                    )
                took = time.perf_counter() - start
    if rank.rank == 0:
        print(
            f"{rank.backend}: all-reduce is right on {rank.world} rank(s) ({rank.launcher});"
            f" {values.nbytes >> 20} MiB took {took * 1e3:.1f} ms",
            flush=True,
        )

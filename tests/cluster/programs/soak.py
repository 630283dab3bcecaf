"""Multiplies and sums for so many seconds, with whole numbers, so that every result is known exactly; what one rank
says of itself is one line of JSON. Arguments: seconds, size of a matrix, elements of a sum, backend."""

import json
import os
import platform
import sys
import time
from statistics import median

import torch
import torch.distributed as dist

from rocstack_trainer.ranks import launch

seconds, size, count = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rank = launch.with_device(launch.from_env(os.environ), sys.argv[4])
answer = {"node": os.environ.get("SLURMD_NODENAME", platform.node()), "rank": rank.rank, "backend": rank.backend}
answer |= {"ranks": rank.world, "rounds": 0, "wrong_sums": 0, "wrong_products": 0}
times = []
with launch.process_group(rank, 120):
    torch.manual_seed(rank.rank)
    a, b = (torch.randint(0, 4, (size, size)).double().to(rank.device) for _ in range(2))
    ones = torch.ones(size, 1, device=rank.device, dtype=torch.float64)
    product = a @ (b @ ones)
    pattern = torch.arange(count, device=rank.device).remainder(8).float()  # sums stay below 2^24 with 2000 ranks
    total = pattern * (rank.world * (rank.world + 1) // 2)
    until = time.monotonic() + seconds
    more = torch.ones(1, device=rank.device)
    while more.item():
        began = time.perf_counter()
        answer["wrong_products"] += int(not torch.equal((a @ b) @ ones, product))
        values = pattern * (rank.rank + 1)
        dist.all_reduce(values)
        answer["wrong_sums"] += int((values != total).sum())
        answer["rounds"] += 1
        times.append(time.perf_counter() - began)
        more.fill_(float(time.monotonic() < until))
        dist.broadcast(more, 0)
    answer |= {"median_ms": median(times) * 1e3, "slowest_ms": max(times) * 1e3}
    dist.barrier()
print("@rocstack " + json.dumps(answer), flush=True)
os._exit(0)  # closing gloo's process group could hang

"""Multiplies and sums for so many seconds, with whole numbers, so that every result is known exactly; what one rank
says of itself is one line of JSON, with "error" where another rank ended before it. Arguments: seconds, size of a
matrix, elements of a sum, backend."""

import json
import os
import platform
import sys
import time
from statistics import median

LARGEST = 7  # of the numbers that are summed


def share(rank):
    """What its numbers are multiplied by: so little that fp32 holds the sums of 16,000 ranks exactly."""
    return rank % 64 + 1


def total(ranks):
    return sum(share(rank) for rank in range(ranks))


def work(torch, dist, rank, answer, times):
    """Until the time is up, or another rank is gone."""
    seconds, size, count = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(rank.rank)
    a, b = (torch.randint(0, 4, (size, size)).double().to(rank.device) for _ in range(2))
    ones = torch.ones(size, 1, device=rank.device, dtype=torch.float64)
    product = a @ (b @ ones)
    pattern = torch.arange(count, device=rank.device).remainder(LARGEST + 1).float()
    wanted = pattern * total(rank.world)
    until = time.monotonic() + seconds
    more = torch.ones(1, device=rank.device)
    while more.item():
        began = time.perf_counter()
        answer["wrong_products"] += int(not torch.equal((a @ b) @ ones, product))
        values = pattern * share(rank.rank)
        dist.all_reduce(values)
        answer["wrong_sums"] += int((values != wanted).sum())
        answer["rounds"] += 1
        times.append(time.perf_counter() - began)
        more.fill_(float(time.monotonic() < until))
        dist.broadcast(more, 0)


def main():
    import torch
    import torch.distributed as dist

    from rocstack_trainer.errors import PeerLostError
    from rocstack_trainer.ranks import launch

    rank = launch.with_device(launch.from_env(os.environ), sys.argv[4])
    answer = {"node": os.environ.get("SLURMD_NODENAME", platform.node()), "rank": rank.rank, "backend": rank.backend}
    answer |= {"ranks": rank.world, "rounds": 0, "wrong_sums": 0, "wrong_products": 0, "error": ""}
    times = []
    try:
        with launch.process_group(rank, 120):
            work(torch, dist, rank, answer, times)
    except PeerLostError as error:
        answer["error"] = str(error).splitlines()[0]
    answer |= {"median_ms": median(times or [0]) * 1e3, "slowest_ms": max(times, default=0) * 1e3}
    print("@rocstack " + json.dumps(answer), flush=True)
    os._exit(0)  # closing gloo's process group could hang


if __name__ == "__main__":
    main()

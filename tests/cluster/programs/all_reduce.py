"""All-reduces of some sizes by the backend, beside a ring over send and receive that is written out here, as JSON.

Arguments: the backend (nccl or gloo), sizes in bytes with commas, rounds.
"""

import json
import math
import os
import sys
import time
from statistics import median


def ring(dist, torch, values):
    """2(n-1) steps: each chunk grows into a sum on its way around, then the sums go around."""
    n, place = dist.get_world_size(), dist.get_rank()
    chunks = values.tensor_split(n)
    for step in range(2 * (n - 1)):
        out, target = chunks[(place - step) % n], chunks[(place - step - 1) % n]
        landing = torch.empty_like(target)
        ends = ((dist.irecv, landing, (place - 1) % n), (dist.isend, out, (place + 1) % n))
        moves = [dist.P2POp(op, tensor, peer) for op, tensor, peer in ends if len(tensor)]
        for work in dist.batch_isend_irecv(moves) if moves else []:
            work.wait()
        target.copy_(landing + target if step < n - 1 else landing)


def worst(errors):
    """The largest: what is no number is worse than any, and would be less than none to `max`."""
    return max(error if math.isfinite(error) else math.inf for error in errors)


def main():
    import torch
    import torch.distributed as dist

    from rocstack_trainer.ranks import launch

    backend, sizes, rounds = sys.argv[1], [int(word) for word in sys.argv[2].split(",")], int(sys.argv[3])
    rank = launch.with_device(launch.from_env(os.environ), backend)
    sides = {"dist.all_reduce": dist.all_reduce, "ring": lambda values: ring(dist, torch, values)}
    compared = 1 << 30  # bytes: of a larger sum only the speed counts, and ours is slow
    rows = []
    with launch.process_group(rank, 600):
        for size in sizes:
            torch.manual_seed(rank.rank)
            mine = torch.randn(max(1, size // 4)).to(rank.device)
            total = mine.clone()
            dist.all_reduce(total)
            for name, summed in sides.items():
                if name == "ring" and size > compared:
                    continue
                times, errors = [], []
                for _ in range(rounds + 1):  # the first isn't timed
                    values = mine.clone()
                    if rank.device != "cpu":
                        torch.cuda.synchronize()
                    dist.barrier()
                    began = time.perf_counter()
                    summed(values)
                    if rank.device != "cpu":
                        torch.cuda.synchronize()
                    times.append(time.perf_counter() - began)
                    errors.append(float((values - total).norm() / total.norm()))
                ends = torch.tensor([worst(errors), *times[1:]], dtype=torch.float64).to(rank.device)
                dist.all_reduce(ends, op=dist.ReduceOp.MAX)  # of all ranks: each has sums of its own
                error, *slowest = ends.tolist()
                took = median(slowest)
                busbw = 2 * (rank.world - 1) / rank.world * mine.nbytes / took / 1e9
                rows.append({"bytes": mine.nbytes, "side": name, "ms": took * 1e3, "busbw_gb_s": busbw, "error": error})
    if rank.rank == 0:
        print(json.dumps({"rows": rows}), flush=True)
    os._exit(0)  # closing gloo's process group could hang


if __name__ == "__main__":
    main()

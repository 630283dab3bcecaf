"""Does a start ever crash? Starts four ranks again and again. PYTHONPATH is images/trainer.

    starts.py [--starts 200] [--ranks 4] [--json]

Ranks are forked from a process that has imported PyTorch, so a start takes a second. Each meets the others in rank 0's
store, is watched, and takes part in 40 rounds of collectives; meanwhile the watch's threads make objects of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import time
import traceback

import torch
import torch.distributed as dist

from rocstack_trainer import settings
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import launch
from rocstack_trainer.ranks.beat import Watchdog
from rocstack_trainer.ranks.peers import Peers


def main() -> None:
    parser = argparse.ArgumentParser("starts.py", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    began, bad = time.monotonic(), []
    for number in range(args.starts):
        if any(codes := start(args.ranks)):
            bad.append(codes)
            print(f"start {number + 1}: {' '.join(map(ended, codes))}", file=sys.stderr, flush=True)
    found = {"starts": args.starts, "ranks": args.ranks, "failed": len(bad), "s": round(time.monotonic() - began, 1)}
    print(json.dumps(found) if args.json else found)
    sys.exit(1 if bad else 0)


def start(world: int) -> list[int]:
    """The exit codes, in the ranks' order; negative ones are signals."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children = []
    for number in range(world):
        if pid := os.fork():
            children.append(pid)
            continue
        code = 1
        try:
            run(Rank(number, number, world, world, "starts.py", backend="gloo", device="cpu"))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)  # closing gloo's process group could hang
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


def run(rank: Rank) -> None:
    links = settings.load("tiny").parallel
    with launch.process_group(rank, links.timeout_s) as store, Watchdog(store, rank, links, lambda: 0):
        peers = Peers(rank)
        for number in range(40):
            assert peers.agree(lambda number=number: number) == [number] * rank.world
            dist.all_reduce(torch.ones(8), async_op=True).wait()
            peers.first(lambda number=number: number)


def ended(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else str(code)


if __name__ == "__main__":
    main()

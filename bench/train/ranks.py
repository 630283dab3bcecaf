"""What a start, the watch and a checkpoint cost with up to thousands of ranks. PYTHONPATH is images/trainer.

    ranks.py [--counts 64,256,1024,2048] [--shard 8] [--json]

The trainer's own code, in one process. What ranks ask of their store is real: a store in a process of its own and a
connection for each rank, over the loopback interface. Collectives are simulated: this process is rank 0 of PyTorch's
fake process group, where all say what rank 0 says; bytes are those that a rank takes in. Of a checkpoint rank 0's part
is written. Nothing here says how fast a network or a file system is.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sums import numbers, table
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM, LlamaConfig

from rocstack_trainer import optimizer, settings, sharding
from rocstack_trainer import train as loop
from rocstack_trainer.config import Config
from rocstack_trainer.data.samples import Samples
from rocstack_trainer.gradients import topology
from rocstack_trainer.models import model
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import beat, connect, rendezvous
from rocstack_trainer.ranks.peers import Peers
from rocstack_trainer.saving import dcp
from rocstack_trainer.saving.checkpoint import Checkpoints
from rocstack_trainer.saving.state import State
from rocstack_trainer.stop import StopSignals

NODE = 8  # ranks on each
LAYERS = 80  # as many tensors as a Llama of 70B has, each of them tiny
Found = dict[str, Any]


class Lost(Exception):
    """The watch would have ended this rank."""


def main() -> None:
    parser = argparse.ArgumentParser("ranks.py", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--counts", type=numbers, default=numbers("64,256,1024,2048"), help="ranks, multiples of 8")
    parser.add_argument("--shard", type=int, default=NODE, help="ranks that share one copy of the model")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    threading.stack_size(1 << 18)
    logging.disable(logging.WARNING)
    began, columns = os.getloadavg()[0], []
    for world in args.counts:
        found: Found = {"ranks": world}
        for part in (meeting_and_watch, sockets, talk, step, checkpoint):
            found |= part(world, args.shard)
            gc.collect()
        columns.append(found)
        print(f"{world} ranks: done", file=sys.stderr, flush=True)
    rows = [{"what": key, **{str(each["ranks"]): each[key] for each in columns}} for key in columns[0]][1:]
    print(table(rows), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps({"command": " ".join(sys.argv), "load": began, "rows": rows}, indent=1))


def ranks(world: int) -> list[Rank]:
    return [Rank(n, n % NODE, world, NODE, "srun", backend="gloo", device="cpu") for n in range(world)]


def meeting_and_watch(world: int, _shard: int) -> Found:
    """All ranks meet; then some beats of all, until rank 0 takes note that half of them are silent."""
    with served() as store:
        began = time.perf_counter()
        links = [connect.connect("127.0.0.1", store.port, 60, 600, "the store", "") for _ in range(world)]
        found = {"connections, s": time.perf_counter() - began}
        with spent(store) as cost:
            corners = together(lambda rank: rendezvous.meet(links[rank.rank], rank, 300, "127.0.0.1")[0], ranks(world))
        found |= {"meet: s": cost.wall_s, "meet: store's CPU s": cost.cpu_s, "meet: KB a rank": cost.sent / world / 1e3}

        step_of, parallel = (lambda: 7), settings.load("tiny").parallel
        both = zip(corners, ranks(world), strict=True)
        dogs = [beat.Watchdog(corner, rank, parallel, step_of) for corner, rank in both]
        watch = [dist.PrefixStore("watch", corner) for corner in corners]

        def round_of(living: list[int]) -> None:
            for n in living:
                watch[n].add(f"beat/{n}", 1)
                dogs[n]._look(watch[n])

        everyone = [*range(1, world), 0]
        for _ in range(2):
            round_of(everyone)
        with spent(store) as cost:
            for _ in range(3):
                round_of(everyone)
        found |= {"watch: store's CPU ms a look": 1e3 * cost.cpu_s / 3, "watch: KB a rank": cost.sent / world / 3e3}
        began = time.perf_counter()
        dogs[0]._look(watch[0])
        found["watch: rank 0's look, ms"] = 1e3 * (time.perf_counter() - began)

        found |= lose_half(world, dogs, watch)
    return found


def lose_half(world: int, dogs: list[beat.Watchdog], watch: list[Any]) -> Found:
    """Only the first half beats on: what rank 0 and the living say."""
    said: list[str] = []

    def end(text: str) -> None:
        said.append(text)
        raise Lost

    real, beat.end, looks, dogs[0].every_s = beat.end, end, 0, 0
    try:
        while not said:
            looks += 1
            for n in range(1, world // 2):
                watch[n].add(f"beat/{n}", 1)
            with suppress(Lost):
                dogs[0]._look(watch[0])
        for n in range(1, world // 2):
            with suppress(Lost):
                dogs[n]._look(watch[n])
    finally:
        beat.end = real
    assert len(said) == world // 2
    assert f"rank {world // 2} on" in said[0]
    return {"half lost: looks": looks, "half lost: KB in the log": sum(map(len, said)) / 1e3}


def sockets(world: int, _shard: int) -> Found:
    """Of gloo itself, with real ranks: this machine can't have thousands."""
    if world > 64:
        return {"gloo: sockets a rank": "-"}
    os.environ |= {"TORCH_GLOO_LAZY_INIT": "1", "GLOO_SOCKET_IFNAME": "lo"}  # as launch.process_group does for many
    store, before = dist.HashStore(), open_files()

    def use(rank: Rank) -> Any:
        group = dist.ProcessGroupGloo(store, rank.rank, world, timedelta(seconds=60))
        group.allgather([[torch.empty(4) for _ in range(world)]], [torch.ones(4)]).wait()
        group.allreduce([torch.ones(4)]).wait()
        group.broadcast([torch.ones(4)]).wait()
        return group

    kept = together(use, ranks(world))
    return {"gloo: sockets a rank": (open_files() - before) / len(kept)}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def talk(world: int, shard: int) -> Found:
    """What ranks tell each other at a start, on one of them."""
    found: Found = {}
    with faked(world) as counted:
        rank = ranks(world)[0]
        peers = Peers(rank)
        about = LlamaConfig().to_json_string(use_diff=False)
        for what, do in {
            "first (a config)": lambda: peers.first(lambda: about),
            "each": lambda: peers.each(lambda: None),
            "agree (a number)": lambda: peers.agree(lambda: 12345),
            "same": lambda: peers.same("checksum 123456789abcdef0", "weights"),
            "plan": lambda: topology.plan(parallel(), rank, 1 << 30),
        }.items():
            counted.clear()
            began = time.perf_counter()
            do()
            found[f"{what}: ms"] = 1e3 * (time.perf_counter() - began)
            found[f"{what}: KB a rank"] = sum(counted) / 1e3
        plan = topology.plan(parallel(), rank, 1 << 30)
        assert len(plan.nodes) == world // NODE
        began = time.perf_counter()
        loop.make_gradients(torch.nn.Linear(8, 8), plan, config(world), rank, 1)
        for side in range(0, world, shard):
            dist.new_group(range(side, side + shard))
        found["process groups: ms"] = 1e3 * (time.perf_counter() - began)
    return found


def parallel() -> Any:
    return replace(settings.load("tiny").parallel, compress="none")


def config(world: int, *more: str) -> Config:
    small = ("model.hidden_size=16", "model.intermediate_size=16", "model.num_hidden_layers=2", "data.seq_len=8")
    return settings.load("tiny", [*(f"--{each}" for each in small), f"--train.batch={world}", *more])


def step(world: int, _shard: int) -> Found:
    """A step of a tiny model with a sample a rank: what it takes beside computing."""
    found: Found = {}
    with faked(world):
        rank = ranks(world)[0]
        for name, more in {"flat": [], "int8 between nodes": ["int8"]}.items():
            made = config(world, *(f"--parallel.compress={codec}" for codec in more))
            plan = topology.plan(replace(made.parallel, compress=more[0] if more else "none"), rank, 1 << 20)
            net = model.build(made.model, replace(rank, world=1), 1, lambda _: None)
            gradients = loop.make_gradients(net, plan, made, rank, 1)
            data, adam, stop = Samples(made.data, world, 1, 256), optimizer.make(net, made.train), StopSignals()
            times = []
            for number in range(12):
                began = time.perf_counter()
                loop.one_step(net, adam, gradients, data, number, made, rank, stop)
                times.append(time.perf_counter() - began)
            found[f"step, {name}: ms"] = 1e3 * float(np.median(times[2:]))
            gradients.close()
        began = time.perf_counter()
        for number in range(10):
            data.counts(data.ids(number, 0, 1))
        found["step, samples of all: ms"] = 1e2 * (time.perf_counter() - began)
    return found


def checkpoint(world: int, shard: int) -> Found:
    found: Found = {}
    Peers.aside = classmethod(lambda cls, rank: cls(rank))
    with faked(world) as counted, tempfile.TemporaryDirectory() as folder:
        rank, made = ranks(world)[0], config(world, f"--checkpoint.dir={folder}/ck", "--checkpoint.resume=false")
        sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
        about = LlamaConfig(num_hidden_layers=LAYERS, num_key_value_heads=2, **sizes)
        net = AutoModelForCausalLM.from_config(about, dtype=torch.float32)
        if shard > 1:
            sharding.slice_up(net, rank, shard, False, 60)
        state = State(net, torch.optim.AdamW(net.parameters()))
        state.common()  # makes AdamW's
        checkpoints = Checkpoints(made, rank, lambda _: None, shard)
        counted.clear()
        began = time.perf_counter()
        assert checkpoints.save(1, state), checkpoints.fault
        found["save: s"] = time.perf_counter() - began
        found["save: KB at rank 0"] = sum(counted) / 1e3
        rows, path = whole_index(state, world, shard), Path(folder)
        began = time.perf_counter()
        dcp.write_index(rows, path)
        found["index: s to write"] = time.perf_counter() - began
        found["index: rows"], found["index: MB"] = len(rows), (path / dcp.INDEX).stat().st_size / 1e6
        began = time.perf_counter()
        dcp.contents(path)
        found["index: s to read"] = time.perf_counter() - began
    return found


def whole_index(state: State, world: int, shard: int) -> list[dcp.Row]:
    """Of a checkpoint by all ranks: the slices of each tensor, in the files of a copy's ranks."""
    rows, owner = [], dcp.owners(state.common(), world // shard)
    for name, tensor in state.common().items():
        shape, parts = list(tensor.shape), shard if tensor.dim() else 1
        for place in range(parts):
            start, size = ([place] + [0] * (len(shape) - 1), [1, *shape[1:]]) if shape else ([], [])
            file = f"__{owner[name] * shard + place}_0.distcp"
            rows.append((name, "float32", shape, start, size, file, 1 << 30, 1 << 20))
    return rows


def together(do: Callable[[Rank], Any], of: list[Rank]) -> list[Any]:
    """On a thread for each rank."""
    made: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda rank=rank: made.update({rank.rank: do(rank)})) for rank in of]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == len(of)
    return [made[rank.rank] for rank in of]


@contextmanager
def served() -> Iterator[Any]:
    """A store in a process of its own, as rank 0's is in its."""
    line = [sys.executable, "-m", "rocstack_trainer", "--store", "127.0.0.1:0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield SimpleNamespace(pid=process.pid, port=int(process.stdout.readline().rpartition(":")[2]))
        finally:
            process.terminate()


@contextmanager
def spent(store: Any) -> Iterator[Any]:
    def now() -> tuple[float, float, int]:
        fields = Path(f"/proc/{store.pid}/stat").read_text().rpartition(")")[2].split()
        lo = re.search(r"lo:(?:\s+\d+){8}\s+(\d+)", Path("/proc/net/dev").read_text())
        return time.perf_counter(), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(lo[1])

    before, cost = now(), SimpleNamespace()
    yield cost
    cost.wall_s, cost.cpu_s, cost.sent = (after - b for after, b in zip(now(), before, strict=True))


@contextmanager
def faked(world: int) -> Iterator[list[int]]:
    """Rank 0 of so many. Gives the bytes that each collective but sums brings to a rank."""
    counted: list[int] = []
    real = {name: getattr(dist, name) for name in ("all_gather", "broadcast", "gather")}

    def all_gather(into: list[torch.Tensor], mine: torch.Tensor, **how: Any) -> None:
        counted.append(mine.nbytes * len(into))
        real["all_gather"](into, mine, **how)

    def broadcast(tensor: torch.Tensor, *args: Any, **how: Any) -> None:
        counted.append(tensor.nbytes)
        real["broadcast"](tensor, *args, **how)

    def gather(mine: torch.Tensor, into: list[torch.Tensor], **_: Any) -> None:
        """PyTorch's fake one leaves in `into` what was there."""
        counted.append(mine.nbytes * len(into))
        for each in into:
            each.copy_(mine)

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    dist.all_gather, dist.broadcast, dist.gather = all_gather, broadcast, gather
    try:
        yield counted
    finally:
        dist.all_gather, dist.broadcast, dist.gather = real.values()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)

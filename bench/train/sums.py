"""How fast gradients are summed here, and how training grows with the ranks. PYTHONPATH is images/trainer.

    sums.py all-reduce [--ranks N] [--nodes N] [--sides flat,ring,flat:int8] [--sizes 65536,16777216] [--json]
    sums.py scaling [--counts 1,2,4] [--start "srun -n {ranks} rocstack-train"] [--json] [--config tiny --a.b=c ...]

Without --ranks, `all-reduce` is started by srun, mpirun or torchrun, as rocstack-train is. Its busbw is
2(n-1)/n x bytes / time of rccl-tests (doc/PERFORMANCE.md), bytes being those of the fp32 tensor for every codec: what
a link would need to carry to be as fast without one. `ring` is the one of the trainer's tests, written out.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rocstack_trainer.config import Parallel
from rocstack_trainer.errors import ConfigError, TrainerError
from rocstack_trainer.rank import Rank, from_env
from rocstack_trainer.ranks import launch
from rocstack_trainer.ranks.spawn import die_with_parent, omp_threads, python, spawn
from rocstack_trainer.settings import load

BACKEND, RING = "dist.all_reduce", "ring"
SIDES = "flat,ring,hierarchical,flat:bf16,flat:int8,flat:int8+zstd"
SIZES = "4096,65536,1048576,16777216,67108864"
SKIP = 2  # first steps of a run


def main() -> None:
    try:
        code = run(sys.argv[1:])
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    sys.stdout.flush()
    os._exit(code)  # closing gloo's process group could hang


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("sums.py", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parts = parser.add_subparsers(dest="part", required=True)
    sums = parts.add_parser("all-reduce")
    sums.add_argument("--ranks", type=int, help="start N ranks on this machine")
    sums.add_argument("--nodes", type=int, default=0, help="act as if the ranks were on N nodes")
    sums.add_argument("--backend", default="auto", choices=("auto", "nccl", "gloo", "mpi"))
    sums.add_argument("--sides", type=lambda text: text.split(","), default=SIDES.split(","))
    sums.add_argument("--sizes", type=numbers, default=numbers(SIZES), help="bytes")
    sums.add_argument("--rounds", type=int, default=10, help="sums of each size and side, in turns")
    growth = parts.add_parser("scaling")
    growth.add_argument("--counts", type=numbers, default=numbers("1,2"), help="numbers of ranks")
    growth.add_argument("--start", default=f"{shlex.join(python())} rocstack_trainer --ranks {{ranks}}")
    growth.add_argument("--config", default="tiny")
    for part in (sums, growth):
        part.add_argument("--json", action="store_true")
    args, overrides = parser.parse_known_args(argv)
    if args.part == "scaling":
        found = scaling(args, overrides)
    elif overrides:
        raise ConfigError(f"unknown: {' '.join(overrides)}")
    else:
        rank = from_env(os.environ)
        started, nodes = "ROCSTACK_TRAINER_PARENT" in os.environ, args.nodes or 1
        world = rank.world if started else args.ranks or rank.world
        if world % nodes:
            raise ConfigError(f"--nodes {nodes} can't share {world} rank(s) evenly")
        for name in set(args.sides) - {RING}:
            side(name)
        if started:
            die_with_parent()
        elif args.ranks:
            os.environ.setdefault("OMP_NUM_THREADS", str(omp_threads(args.ranks)))
            return spawn(args.ranks, [sys.executable, __file__, *argv])
        local_world = world // args.nodes if args.nodes else rank.local_world
        rank = replace(launch.with_device(rank, args.backend), local_world=local_world)
        found = all_reduce(rank, args.sides, args.sizes, args.rounds)
        if rank.rank:
            return 0
    print(table(found), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(
            json.dumps({"command": " ".join(["sums.py", *argv]), "load": os.getloadavg()[0], "rows": found}, indent=1)
        )
    return 0


def all_reduce(rank: Rank, names: list[str], sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """A row per size and side; the sides take turns, after one sum of each that isn't timed. Times and sent bytes are
    the slowest rank's, `error` is relative, against the backend's own fp32 sum."""
    import torch
    import torch.distributed as dist

    rows = []
    with launch.process_group(rank, 600):
        for size in sizes:
            torch.manual_seed(rank.rank)
            mine = torch.randn(max(1, size // 4)).to(rank.device)
            total = mine.clone()
            dist.all_reduce(total)
            sides = {name: made(name, rank, mine.numel()) for name in [BACKEND, *names]}
            times: dict[str, list[float]] = {name: [] for name in sides}
            wrong = {}
            for _ in range(rounds + 1):
                for name, (collective, _) in sides.items():
                    values = mine.clone()
                    began = now(rank)
                    collective(values)
                    times[name].append(now(rank, False) - began)
                    wrong.setdefault(name, float((values - total).norm() / total.norm()))
            for name, (_, sent) in sides.items():
                each = torch.tensor([*times[name][1:], sent() / (rounds + 1)], dtype=torch.float64)
                each = each.to(rank.device)
                dist.all_reduce(each, op=dist.ReduceOp.MAX)
                *slowest, bytes_sent = each.tolist()
                took, bandwidth = median(slowest), 2 * (rank.world - 1) / rank.world * mine.nbytes / 1e9
                row = {"bytes": mine.nbytes, "side": name, "ms": took * 1e3, "min_ms": min(slowest) * 1e3}
                row |= {"busbw_gb_s": bandwidth / took, "sent_bytes": int(bytes_sent), "error": wrong[name]}
                rows.append(row)
    return rows


def side(name: str) -> Parallel:
    """Settings of ALGORITHM[:CODEC]. Raises ConfigError if there is no such."""
    algorithm, _, codec = name.partition(":")
    return load("tiny", [f"--parallel.algorithm={algorithm}", f"--parallel.compress={codec or 'none'}"]).parallel


def made(name: str, rank: Rank, numel: int) -> tuple[Callable[[Any], Any], Callable[[], int]]:
    """What sums up, as the trainer makes it, and what tells the bytes it sent."""
    import torch.distributed as dist

    from rocstack_trainer.gradients import topology
    from rocstack_trainer.gradients.collectives import Maker

    if name == BACKEND:
        return dist.all_reduce, lambda: 0
    if name == RING:
        sys.path.append(str(Path(topology.__file__).parents[2] / "tests"))
        from oracles import RingMaker

        ring = RingMaker()
        return ring(numel), lambda: ring.sent
    config = side(name)
    maker = Maker(topology.plan(config, rank, 4 * numel), rank, config.timeout_s)
    return maker(numel), lambda: maker.sent


def now(rank: Rank, together: bool = True) -> float:
    import torch
    import torch.distributed as dist

    if rank.device != "cpu":
        torch.cuda.synchronize()
    if together:
        dist.barrier()
    return time.perf_counter()


def scaling(args: argparse.Namespace, overrides: list[str]) -> list[dict[str, Any]]:
    """Weak: every rank has the settings' train.batch; strong: they share it. `efficiency` is tokens/s per rank, beside
    that of the first count."""
    batch, rows = load(args.config, overrides).train.batch, []
    for kind in ("weak", "strong"):
        first = 0.0
        for count in args.counts:
            samples = batch * count if kind == "weak" else batch
            with tempfile.TemporaryDirectory() as folder:
                metrics = Path(folder, "metrics.jsonl")
                command = [*shlex.split(args.start.format(ranks=count)), "--config", args.config, *overrides]
                command += [f"--train.batch={samples}", f"--output.metrics={metrics}"]
                if code := subprocess.run(command, stdout=sys.stderr, check=False).returncode:
                    raise TrainerError(f"{shlex.join(command)} ended with code {code}")
                steps = [json.loads(line) for line in metrics.read_text().splitlines()]
            speed = median(step["tokens_per_s"] for step in steps[SKIP:])
            first = first or speed / count
            about = {"kind": kind, "ranks": count, "batch": samples, "steps": len(steps), "tokens_per_s": speed}
            rows.append(about | {"efficiency": speed / count / first})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [list(rows[0])] + [[f"{v:.4g}" if type(v) is float else str(v) for v in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(f"{v:>{w}}" for v, w in zip(line, widths, strict=True)) for line in lines)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


if __name__ == "__main__":
    main()

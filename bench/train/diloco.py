"""DiLoCo beside DDP at equal tokens: groups of one rank, bytes at the interfaces, loss.

    python diloco.py [--rate 100mbit] [--model mini] [--steps 1000] [--min-lr 1] [--sides 2:int8+zstd:500,...]

A side is GROUPS:CODEC:INNER_STEPS. Its groups are `rocstack-train` in network namespaces of their own; the store in
which they meet is in another, and what they say to it, heartbeats too, goes over the same links and is counted. One
group alone reads what two would, in steps twice as large. DDP runs in two such namespaces, over the same samples. Bytes
are those in and out of a rank's interface with all headers, from the first step to the last one's end: what start-up
sends once is told apart.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import link
import workload

LAST = 50  # steps whose loss is averaged
SIDES = "2:int8+zstd:500,1:none:50,2:none:50,2:int8+zstd:50"  # bytes are judged by the first
STORE_PORT = 29500


def ddp(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """On one rank."""
    import sides
    import torch
    import torch.distributed as dist

    from rocstack_trainer import optimizer
    from rocstack_trainer.rank import from_env
    from rocstack_trainer.ranks import launch

    torch.set_num_threads(1)
    began = sum(link.wire())
    rank = launch.with_device(from_env(os.environ), "gloo")
    torch.use_deterministic_algorithms(True)
    with launch.process_group(rank, 600):
        side = sides.make("ddp", args.model, folder / "text.bin", rank, args.seed)
        rates = replace(side.config.train, steps=args.steps, min_lr=args.min_lr)
        losses = []
        dist.barrier()
        ready, started = sum(link.wire()), time.monotonic()
        for step in range(args.steps):
            optimizer.set_rate(side.optimizer, rates, step)
            losses.append(side.step(step))
        dist.barrier()
        seconds, bytes_used = time.monotonic() - started, sum(link.wire()) - ready
        every = torch.stack(losses)
        dist.all_reduce(every)
        return {
            "bytes": bytes_used,
            "start_bytes": ready - began,
            "seconds": seconds,
            "losses": (every / rank.world).tolist(),
            "held_out": sides.held_out(side.net, args.model, folder / "held-out.bin") if rank.rank == 0 else 0.0,
        }


def group(args: argparse.Namespace, folder: Path, groups: int, codec: str, inner: int) -> dict[str, Any]:
    """In one namespace: a rocstack-train that is one group."""
    import sides
    from transformers import AutoModelForCausalLM

    number = os.environ["RANK"]
    env = {key: value for key, value in os.environ.items() if key not in link.VARIABLES}
    metrics, export = folder / f"{number}.jsonl", folder / "model"
    settings = {
        "train.steps": args.steps,
        "train.seed": args.seed,
        "train.min_lr": args.min_lr,
        "diloco.inner_steps": inner,
        "diloco.compress": codec,
        "diloco.outer_lr": args.outer_lr,
        "diloco.outer_momentum": args.outer_momentum,
        "output.metrics": metrics,
        "output.every": inner,
        "checkpoint.export": export,
    }
    if groups > 1:
        store = f"{link.CONTROL}:{STORE_PORT}"
        settings |= {"diloco.groups": groups, "diloco.group": number, "parallel.store": store}
    else:
        settings["diloco.always"] = "true"
    words = workload.overrides(args.model, 2 // groups, folder / "text.bin")
    command = [sys.executable, "-m", "rocstack_trainer", *words]
    began = sum(link.wire())
    process = subprocess.Popen([*command, *(f"--{k}={v}" for k, v in settings.items())], env=env, stdout=sys.stderr)
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.005)
    ready, started = sum(link.wire()), time.monotonic()
    if process.wait():
        raise RuntimeError(f"group {number} ended with code {process.returncode}")
    bytes_used, seconds = sum(link.wire()) - ready, time.monotonic() - started
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    net = AutoModelForCausalLM.from_pretrained(export) if number == "0" else None
    return {
        "bytes": bytes_used,
        "start_bytes": ready - began,
        "seconds": seconds,
        "losses": [line["loss"] for line in lines],
        "outer_steps": lines[-1]["outer"],
        "trainer_says_bytes": sum(line["wire_mb"] for line in lines) * 1e6,
        "held_out": sides.held_out(net, args.model, folder / "held-out.bin") if net else 0.0,
    }


def summary(found: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """Of both ranks or groups; `tokens` are those that they saw together."""
    losses = [mean(step) for step in zip(*(rank["losses"] for rank in found), strict=True)]
    told = {key: value for key, value in found[0].items() if key in ("outer_steps", "trainer_says_bytes")}
    return told | {
        "steps": len(losses),
        "tokens": tokens,
        "bytes_per_token": sum(rank["bytes"] for rank in found) / tokens,
        "bytes": sum(rank["bytes"] for rank in found),
        "start_bytes": sum(rank["start_bytes"] for rank in found),
        "seconds": max(rank["seconds"] for rank in found),
        "loss": mean(losses[-LAST:]),
        "held_out_loss": found[0]["held_out"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="100mbit", help="of the links, as tc writes it; empty: not shaped")
    parser.add_argument("--model", default="mini", choices=workload.SHAPES)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sides", default=SIDES)
    parser.add_argument("--min-lr", type=float, default=1.0, help="part of the learning rate at the end (cosine)")
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    load, tokens = os.getloadavg()[0], workload.tokens(args.model, 2) * args.steps
    found = {}
    with tempfile.TemporaryDirectory() as name:
        texts = [Path(name, each) for each in ("text.bin", "held-out.bin")]
        workload.write_text(*texts)
        found["ddp"] = summary(link.ranks(2, args.rate, ddp, args, Path(name)), tokens)
        store = [sys.executable, "-m", "rocstack_trainer", "--store", str(STORE_PORT)]
        for side in args.sides.split(","):
            groups, codec, inner = side.split(":")
            what = int(groups), codec, int(inner)
            with tempfile.TemporaryDirectory() as own, subprocess.Popen(store, stdout=sys.stderr) as process:
                for text in texts:
                    Path(own, text.name).symlink_to(text)
                try:
                    found[side] = summary(link.ranks(what[0], args.rate, group, args, Path(own), *what), tokens)
                finally:
                    process.terminate()
    ratio = found["ddp"]["bytes_per_token"] / found[args.sides.partition(",")[0]]["bytes_per_token"]
    rows = [("", "outer steps", "bytes/token", "start-up MB", f"loss, last {LAST}", "held-out loss", "perplexity", "s")]
    for title, row in found.items():
        numbers = (row["bytes_per_token"], row["start_bytes"] / 1e6, row["loss"], row["held_out_loss"])
        numbers += (math.exp(row["held_out_loss"]), row["seconds"])
        rows.append((title, str(row.get("outer_steps", "-")), *(f"{number:.4g}" for number in numbers)))
    lines = ["| " + " | ".join(row) + " |" for row in [rows[0], ("---",) * len(rows[0]), *rows[1:]]]
    print("\n".join([*lines, f"{ratio:.0f} times fewer bytes per token"]), file=sys.stderr)
    about = {"command": " ".join(sys.argv), "load": [load, os.getloadavg()[0]], "bytes_ratio": ratio}
    text = json.dumps(about | {"sides": found}, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()

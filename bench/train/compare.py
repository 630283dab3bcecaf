"""Training steps of several sides in turns, in one process per rank: CPU time, time, bytes on the wire, loss.

    python compare.py --sides ddp,ddp#2,flat,trainer [--rate 100mbit] [--model s] [--steps 40] [--seeds 3] [--out FILE]
    python compare.py --device cuda --model gpu --sides ddp,flat,trainer

`trainer` is the Hugging Face Trainer, for the others see sides.py. The first side is what the rest is compared with;
a second one of it (#2) shows the noise. On CPUs each of the ranks (2) has a network namespace and one thread; the link
between them is shaped to --rate. On a GPU there is one rank and no network.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import link
import workload

SKIP = 3  # first steps allocate, connect and warm up
COLUMNS = (
    "side",
    "CPU ms",
    "CPU x",
    "ms",
    "p10 ms",
    "tokens/s",
    "speed x",
    "sent MB",
    "fewer x",
    "loss",
    "equal",
    "last 10",
    "speed x of each seed",
)
FORMATS = (
    ("cpu_ms", ".1f"),
    ("cpu_x", ".3f"),
    ("ms", ".1f"),
    ("p10_ms", ".1f"),
    ("tokens_per_s", ".0f"),
    ("speed_x", ".2f"),
)


class Meter:
    """What one side's step takes on this rank. All ranks start together."""

    def __init__(self, device: str) -> None:
        self.gpu = device != "cpu"
        self.rows: dict[str, list[tuple[float, ...]]] = {}
        self.losses: dict[str, list[float]] = {}

    def start(self) -> None:
        import torch
        import torch.distributed as dist

        if self.gpu:
            torch.cuda.synchronize()
        dist.barrier()
        self.began = link.wire()[1], time.process_time(), time.perf_counter()

    def stop(self, name: str) -> None:
        import torch
        import torch.distributed as dist

        if self.gpu:
            torch.cuda.synchronize()
        took, used = time.perf_counter() - self.began[2], time.process_time() - self.began[1]
        dist.barrier()  # until then the other rank waits for bytes that are still in this one's queue
        row = took, used, link.wire()[1] - self.began[0]
        self.rows.setdefault(name, []).append(row)


def compare(args: argparse.Namespace, text: Path) -> Meter:
    """On one rank. Runs the sides step by step, in turns that begin with another one each time."""
    import sides
    import torch

    from rocstack_trainer.rank import from_env
    from rocstack_trainer.ranks import launch

    torch.set_num_threads(1)
    rank = launch.with_device(from_env(os.environ), "nccl" if args.device == "cuda" else "gloo")
    torch.use_deterministic_algorithms(True, warn_only=args.device == "cuda")
    with launch.process_group(rank, 600):
        meter = Meter(rank.device)
        run = {name: sides.make(name, args.model, text, rank, args.seed) for name in args.sides if name != "trainer"}

        def turn(step: int) -> None:
            first = step % max(1, len(run))
            for name in [*run][first:] + [*run][:first]:
                meter.start()
                loss = run[name].step(step)
                meter.stop(name)
                meter.losses.setdefault(name, []).append(sides.mean(loss, rank))

        def after(step: int, loss: Any) -> None:
            meter.stop("trainer")
            meter.losses.setdefault("trainer", []).append(sides.mean(loss, rank))
            turn(step)
            meter.start()  # its time is all that happens outside of here

        if "trainer" in args.sides:
            with tempfile.TemporaryDirectory() as folder:
                meter.start()
                sides.hugging_face(args.model, text, rank, args.steps, Path(folder), after)
        else:
            for step in range(args.steps):
                turn(step)
        return meter


def summary(args: argparse.Namespace, meters: list[Meter], tokens: int) -> dict[str, Any]:
    """Per side: medians over the steps after the first SKIP of the slowest rank's time and the ranks' mean CPU time and
    bytes. The ratios are medians over the steps too, each beside the first side's step of the same turn."""
    found: dict[str, Any] = {}
    first: dict[str, list[float]] = {}
    for name in args.sides:
        steps = [list(zip(*ranks, strict=True)) for ranks in zip(*(m.rows[name][SKIP:] for m in meters), strict=True)]
        ms, cpu = [1e3 * max(step[0]) for step in steps], [1e3 * fmean(step[1]) for step in steps]
        losses = meters[0].losses[name]
        first = first or {"ms": ms, "cpu": cpu, "losses": losses}
        ratios = quantiles((mine / other for mine, other in zip(cpu, first["cpu"], strict=True)), n=4)
        found[name] = {
            "cpu_ms": median(cpu),
            "cpu_x": ratios[1],
            "cpu_x_quartiles": [ratios[0], ratios[2]],
            "ms": median(ms),
            "p10_ms": sorted(ms)[len(ms) // 10],
            "tokens_per_s": 1e3 * tokens / median(ms),
            "speed_x": median(other / mine for mine, other in zip(ms, first["ms"], strict=True)),
            "sent_bytes": median(fmean(step[2]) for step in steps),
            "loss": losses[-1],
            "loss_hex": losses[-1].hex(),
            "equal_steps": sum(a == b for a, b in zip(losses, first["losses"], strict=True)),
            "steps": len(losses),
        }
    return found


def table(found: dict[str, Any]) -> str:
    most, rows = next(iter(found.values()))["sent_bytes"], [COLUMNS, ("---",) * len(COLUMNS)]
    for name, row in found.items():
        numbers = [f"{row[key]:{form}}" for key, form in FORMATS]
        sent = f"{row['sent_bytes'] / 1e6:.2f}"
        fewer = f"{most / row['sent_bytes']:.2f}" if row["sent_bytes"] > 1e4 else "-"
        loss = f"{row['loss']:.4f} {row['loss_hex']}"
        last = ", ".join(f"{mean:.3f}" for mean in row["last_10"])
        speeds = ", ".join(f"{speed:.2f}" for speed in row["speeds_x"])
        rows.append((name, *numbers, sent, fewer, loss, f"{row['equal_steps']} of {row['steps']}", last, speeds))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", type=lambda text: text.split(","), default=["ddp", "ddp#2", "flat", "trainer"])
    parser.add_argument("--rate", default="", help="of the link, as tc writes it; empty: not shaped")
    parser.add_argument("--model", default="s")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1, help="runs; all columns but the last two are of the first")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    if any(name.startswith(("fsdp2", "sharded")) for name in args.sides):
        from rocstack_trainer import sharding
        from rocstack_trainer.errors import MissingError

        try:
            sharding.supported()
        except MissingError as error:
            print(error, file=sys.stderr)
            sys.exit(MissingError.exit_code)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.bin")
        workload.write_text(text)
        on_gpu = args.device == "cuda"
        with redirect_stdout(sys.stderr):  # what transformers prints
            runs = []
            for seed in range(1, args.seeds + 1):
                args.seed = seed
                runs.append([compare(args, text)] if on_gpu else link.ranks(2, args.rate, compare, args, text))
    found, *more = [summary(args, meters, workload.tokens(args.model, len(meters))) for meters in runs]
    for name, row in found.items():
        row["last_10"] = [fmean(meters[0].losses[name][-10:]) for meters in runs]
        row["speeds_x"] = [each[name]["speed_x"] for each in (found, *more)]
    print(table(found), file=sys.stderr)
    about = {
        "command": " ".join(sys.argv),
        "unit": "per step and rank; tokens_per_s of all",
        "load": [load, os.getloadavg()[0]],
    }
    result = json.dumps(about | {"sides": found}, indent=1)
    print(result)
    if args.out:
        args.out.write_text(result + "\n")


if __name__ == "__main__":
    main()

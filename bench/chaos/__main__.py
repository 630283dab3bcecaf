"""Disturbs a deploy at each step of its journal with each of many faults, and shows how it ends.

    python bench/chaos [--fault NAME,...] [--step NAME,...] [--results FILE] [--prefix IMAGES] [--again] [--table]

Every cell is a deploy of a small change on two virtual nodes (containers with an engine, sshd and Slurm), disturbed
once. A cell is good when the documented next step brings the cluster to the very state of an undisturbed deploy, both
jobs have completed, and nothing is left lying. Results go to FILE, one JSON line a cell; what stands there is not run
again, but with --again. --table shows the table of FILE and runs nothing. Needs root, loop devices and the default
stack's images (`rocstack build`).
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from cell import STEPS, Result, disturb
from cluster import Cluster
from faults import FAULTS


def table(rows: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Of Markdown: fault × step -> what it took to come to the undisturbed state."""
    lines = [f"| fault | {' | '.join(f'`{step}`' for step in STEPS)} |", f"| --- |{' --- |' * len(STEPS)}"]
    for name, fault in FAULTS.items():
        cells = [word(rows[name, step]) if (name, step) in rows else "not run" for step in STEPS]
        lines.append(f"| {fault.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def word(row: dict[str, Any]) -> str:
    steps = [each.partition(":")[0].removeprefix("--") for each in row["next"]]
    what = " + ".join(steps) if steps else "none"
    if all(each.startswith("keys are left") for each in row["wrong"]):
        return f"{what}, **keys left**" if row["wrong"] else what
    return "**differs**"


def read(file: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The last of each cell."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {(row["fault"], row["step"]): row for row in map(json.loads, lines)}


def chosen(text: str, known: list[str]) -> list[str]:
    names = text.split(",") if text else known
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", default="", help=", ".join(FAULTS))
    parser.add_argument("--step", default="", help=", ".join(STEPS))
    parser.add_argument("--cell", default="", help="FAULT:STEP,... instead of both")
    parser.add_argument("--results", type=Path, default=Path("chaos.jsonl"))
    parser.add_argument("--prefix", default="rocstack")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # also in the background, where a shell has Ctrl-C ignored
        signal.signal(number, signal.default_int_handler)
    faults, steps = chosen(args.fault, [*FAULTS]), chosen(args.step, [*STEPS])
    cells = [(fault, step) for step in steps for fault in faults]
    if args.cell:
        cells = [(fault, step) for fault, _, step in (each.partition(":") for each in args.cell.split(","))]
    done = read(args.results)
    todo = [cell for cell in cells if args.again or cell not in done]
    if todo and not args.table:
        work(todo, args.results, args.prefix)
    rows = read(args.results)
    print(table(rows))
    sys.exit(any(not rows[cell]["good"] for cell in cells if cell in rows))


def work(cells: list[tuple[str, str]], results: Path, prefix: str) -> None:
    """A cluster that doesn't come back is made anew."""
    todo = list(cells)
    while todo:
        with tempfile.TemporaryDirectory(prefix="rocstack-chaos-") as folder:
            cluster = Cluster(Path(folder), prefix)
            try:
                cluster.start()
                while todo:
                    name, step = todo.pop(0)
                    result = tried(cluster, name, step)
                    with results.open("a") as file:
                        file.write(json.dumps(result.to_dict()) + "\n")
                    print(
                        f"{result.seconds:6.1f} s  {name} at {step}: {result.deploy}; {result.next or 'nothing more'}"
                        f"{''.join(f' | {each}' for each in result.wrong)}",
                        file=sys.stderr,
                        flush=True,
                    )
                    if not result.good and not restored(cluster):
                        break
            finally:
                cluster.close()


def tried(cluster: Cluster, name: str, step: str) -> Result:
    try:
        return disturb(cluster, FAULTS[name], step)
    except (RuntimeError, TimeoutError, OSError, ValueError) as error:
        return Result(name, step, cluster.release, wrong=[f"the suite itself: {type(error).__name__}: {error}"])


def restored(cluster: Cluster) -> bool:
    """Whether an ordinary deploy makes it a state to begin at."""
    try:
        cluster.prepare(cluster.release)
        cluster.slurm("scancel --user=root", check=False)
        _, _, code = cluster.ended(cluster.deploy(cluster.release))
        for node in cluster.drained_by_slurm():
            cluster.slurm(f"scontrol update nodename={node} state=resume")
        return code == 0 and cluster.idle() and not cluster.status()
    except (RuntimeError, TimeoutError, OSError, ValueError):
        return False


if __name__ == "__main__":
    main()

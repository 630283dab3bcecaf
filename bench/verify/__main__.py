"""Measures `rocstack verify` on virtual nodes beside testinfra's usual way, in one run.

    python bench/verify [--nodes 2,4] [--level 1] [--rounds 2] [--out FILE]

For each number of nodes: a cluster is made, deployed, and verified at levels 0 to LEVEL; then the peer asks each node
the questions of peer.py, one after another, as a plain testinfra suite over `--hosts=ansible://workers` does. What
counts is how both grow with the nodes: they don't ask the same. Then the size of the report for 2 nodes, and for 1,000
simulated ones. Prints JSON; seconds are of the whole command, its own start included. Needs root, and the images.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/support"))
INVENTORY = ".rocstack/local/inventory.yml"
LIMITS = {"verify_2_nodes_s": 90.0, "verify_4_nodes_s": 100.0, "report_2_nodes_mb": 1.0, "report_1000_nodes_mb": 5.0}
PEER = Path(__file__).with_name("peer.py")


def rocstack(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "rocstack.cli.main", *words]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)


def must(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        sys.exit(f"{done.args} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")


def timed(folder: Path, *command: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    began = time.monotonic()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # testinfra asks ansible-inventory
    env = {**os.environ, "PATH": path}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=env)
    return round(time.monotonic() - began, 2), done


def measure(nodes: int, level: int, rounds: int) -> dict[str, Any]:
    """On a cluster of its own, which is gone afterwards; the two take turns."""
    ours, peer, load = [], [], []
    with tempfile.TemporaryDirectory(prefix="rocstack-bench-") as name:
        folder = Path(name)
        try:
            must(rocstack(folder, "local", "up", "--nodes", str(nodes)))
            must(rocstack(folder, "deploy", INVENTORY))
            for number in range(rounds):
                load.append(round(os.getloadavg()[0], 2))
                report = f"--report=r{number}"
                line = [sys.executable, "-m", "rocstack.cli.main", "verify", INVENTORY, f"--level={level}", report]
                seconds, done = timed(folder, *line)
                must(done)
                ours.append(seconds)
                line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(PEER)]
                seconds, done = timed(folder, *line, "--hosts=ansible://workers", f"--ansible-inventory={INVENTORY}")
                must(done)
                peer.append(seconds)
            run = json.loads((folder / "r0/report.json").read_text())
            page = (folder / "r0/report.html").stat().st_size
        finally:
            rocstack(folder, "local", "down")
    states = [result["state"] for result in run["results"]]
    return {
        "nodes": nodes,
        "verify_s": median(ours),
        "verify_all_s": ours,
        "checks": {state: states.count(state) for state in sorted(set(states))},
        "slowest": sorted(((r["seconds"], r["check"]["name"]) for r in run["results"]), reverse=True)[:5],
        "peer_s": median(peer),
        "peer_all_s": peer,
        "report_mb": round(page / 1e6, 3),
        "load": load,
    }


def simulated(nodes: int) -> float:
    """MB of the report of so many nodes."""
    from simulated_run import simulated_run

    from rocstack.verify import artifacts

    with tempfile.TemporaryDirectory() as name:
        artifacts.write(simulated_run(nodes), Path(name))
        return round((Path(name) / "report.html").stat().st_size / 1e6, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=lambda text: [int(word) for word in text.split(",")], default=[2, 4])
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [measure(nodes, args.level, args.rounds) for nodes in args.nodes]
    values = {f"verify_{row['nodes']}_nodes_s": row["verify_s"] for row in rows}
    values |= {f"report_{row['nodes']}_nodes_mb": row["report_mb"] for row in rows}
    values["report_1000_nodes_mb"] = simulated(1000)
    found: dict[str, Any] = {
        "command": " ".join(["python bench/verify", *sys.argv[1:]]),
        "virtual": True,
        "rows": rows,
        "growth": {
            "verify": round(rows[-1]["verify_s"] / rows[0]["verify_s"], 2),
            "peer": round(rows[-1]["peer_s"] / rows[0]["peer_s"], 2),
        },
        "judged": {
            key: {"value": value, "limit": LIMITS[key], "within": value <= LIMITS[key]}
            for key, value in values.items()
            if key in LIMITS
        },
    }
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

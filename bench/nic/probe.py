"""Measures `rocstack probe`: this host, virtual nodes over SSH, and beside it Ansible's own facts of the same nodes.

    python bench/nic/probe.py [--nodes 8] [--runs 3] [--out FILE]

Prints JSON. Every number is the wall time of a whole command, its start included. Probe and peer take turns; both go
through the same inventory, with pipelining and as many forks, and have their SSH connections to open: what a run
before left open is closed first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {"host": 2.0, "nodes": 10.0}  # seconds
INVENTORY = ".rocstack/local/inventory.yml"


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sockets = folder / "ssh"
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "cli"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ANSIBLE_PIPELINING": "True",
            "ANSIBLE_FORKS": "64",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self.sockets),
        }

    def run(self, *command: str) -> float:
        started = time.monotonic()
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return time.monotonic() - started

    def rocstack(self, *words: str) -> float:
        return self.run(sys.executable, "-m", "rocstack.cli.main", *words)

    def cold(self, *command: str) -> float:
        for socket in self.sockets.glob("*") if self.sockets.exists() else ():
            closing = ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "none"]
            subprocess.run(closing, capture_output=True, check=False)
        return self.run(*command)

    def host(self, runs: int) -> dict[str, Any]:
        return judged([self.rocstack("probe", "--json") for _ in range(runs)], LIMITS["host"])

    def nodes(self, number: int, runs: int) -> dict[str, Any]:
        self.rocstack("local", "up", "--nodes", str(number))
        try:
            ours, theirs = [], []
            for _ in range(runs):
                probe = (sys.executable, "-m", "rocstack.cli.main", "probe", INVENTORY, "--json")
                ours.append(self.cold(*probe))
                theirs.append(self.cold("ansible", "-i", INVENTORY, "all", "-m", "ansible.builtin.setup"))
        finally:
            self.rocstack("local", "down")
        peer = statistics.median(theirs)
        found = {"nodes": number, "virtual": True, **judged(ours, LIMITS["nodes"])}
        return {
            **found,
            "peer": "ansible -m ansible.builtin.setup",
            "peer_median_s": round(peer, 2),
            "peer_all_s": [round(t, 2) for t in theirs],
            "ratio": round(statistics.median(ours) / peer, 2),
        }


def judged(times: list[float], limit: float) -> dict[str, Any]:
    median = statistics.median(times)
    return {
        "median_s": round(median, 2),
        "all_s": [round(t, 2) for t in times],
        "limit_s": limit,
        "within": median < limit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "command": " ".join(["python bench/nic/probe.py", *sys.argv[1:]]),
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
    }
    folder = Path(tempfile.mkdtemp(prefix="rocstack-bench-"))
    try:
        bench = Bench(folder)
        result["host"] = bench.host(args.runs)
        result["virtual_nodes"] = bench.nodes(args.nodes, args.runs)
    finally:
        shutil.rmtree(folder)
    result["load_after"] = round(os.getloadavg()[0], 2)
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()

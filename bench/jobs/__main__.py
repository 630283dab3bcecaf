"""Measures jobs on two virtual nodes: from `rocstack submit` to the first rank's output, beside plain sbatch by ssh, in
turns; many submissions; and `rocstack size`, by formula and by the compiler.

    python bench/jobs [--only submit,queue,size,compile] [--rounds 5] [--submissions 200] [--out FILE]

A rank's output is the clock, which the nodes of one machine share with it; so what counts is when a rank said it, and
not when it was read. `queue` hands in jobs from eight threads of one process, each by its own ssh as `rocstack submit`
does it once it knows the way, to drained nodes, and cancels them. `compile` needs an image of stack maxtext-rocm-7.2,
as `rocstack size --compile` does. Prints JSON; seconds are of the whole command, its own start included. Needs root,
and the images.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

LIMITS = {
    "submit_s": 3.0,
    "over_sbatch_s": 1.5,
    "refused": 0,
    "size_s": 1.0,
    "compile_70b_s": 15.0,
    "compile_140b_s": 30.0,
}
INVENTORY = ".rocstack/local/inventory.yml"
SETTINGS = f"inventory: {INVENTORY}\ncluster: {{users: {{alice: {{uid: 2000}}}}}}\n"
CLOCK = re.compile(r"\b\d{10}\.\d{9}\b")
JOB = ("mine", "--nodes=2", "--tasks-per-node=1", "--gpus-per-node=0")
SBATCH = 'sbatch --wait --nodes=2 --ntasks-per-node=1 --output=out --wrap "srun date +%s.%N" >/dev/null; cat out'
PLAIN = f"docker exec --user alice --workdir /home/alice rocstack-worker sh -c '{SBATCH}'"
COMPILED = {
    "70b": ("llama-3.1-70b", "--gpu=mi300x", "--nodes=64"),
    "140b": ("lumi-140b", "--gpu=mi250x", "--nodes=768", "--tp=8", "--pp=8", "--accumulate=8", "--interleave=5"),
}
THREADS = 8


def rocstack(folder: Path, *words: str) -> str:
    line = [sys.executable, "-m", "rocstack.cli.main", *words]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"rocstack {' '.join(words)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        )
    return done.stdout


def until_said(run: Callable[[], str]) -> float:
    """Seconds until the first rank said what time it was."""
    began = time.time()
    return round(min(map(float, CLOCK.findall(run()))) - began, 2)


def submit(folder: Path, rounds: int) -> dict[str, Any]:
    plain_line = ["ssh", "-F", f"{folder}/.rocstack/local/ssh_config", "n1", PLAIN]
    ours, plain = [], []
    for _ in range(rounds):
        ours.append(until_said(lambda: rocstack(folder, "submit", *JOB, "--follow", "--", "date", "+%s.%N")))
        plain.append(until_said(lambda: subprocess.run(plain_line, capture_output=True, text=True, check=True).stdout))
    scripts = {rocstack(folder, "submit", *JOB, "--print", "--", "true") for _ in range(2)}
    return {
        "submit_s": round(median(ours), 2),
        "submit_all_s": ours,
        "sbatch_s": round(median(plain), 2),
        "sbatch_all_s": plain,
        "over_sbatch_s": round(median(ours) - median(plain), 2),
        "scripts_of_equal_input": len(scripts),
    }


def on_control(folder: Path, command: str) -> None:
    line = ["ssh", "-F", f"{folder}/.rocstack/local/ssh_config", "n1", f"docker exec rocstack-control {command}"]
    subprocess.run(line, check=True)


def queue(folder: Path, count: int) -> dict[str, Any]:
    from rocstack.base.errors import RocstackError
    from rocstack.jobs import remote

    script = rocstack(folder, "submit", *JOB, "--print", "--", "sleep", "600")
    control = remote.controller(folder / INVENTORY)

    def one(_: int) -> str:
        try:
            return "" if control.submit(script, "alice") else "no number"
        except RocstackError as error:
            return error.what

    on_control(folder, "scontrol update NodeName=ALL State=DRAIN Reason=bench")  # none of them begins
    with ThreadPoolExecutor(THREADS) as pool:
        began = time.monotonic()
        errors = [error for error in pool.map(one, range(count)) if error]
        seconds = round(time.monotonic() - began, 1)
    began = time.monotonic()
    listed = len(json.loads(rocstack(folder, "jobs", "--json"))["jobs"])
    shown_s = round(time.monotonic() - began, 2)
    on_control(folder, "scancel --user=alice")
    on_control(folder, "scontrol update NodeName=ALL State=RESUME")
    return {
        "submissions": count,
        "refused": len(errors),
        "first": errors[:1],
        "seconds": seconds,
        "listed": listed,
        "jobs_s": shown_s,
    }


def timed(folder: Path, *words: str) -> tuple[float, Any]:
    began = time.monotonic()
    said = rocstack(folder, "size", *words, "--json")
    return round(time.monotonic() - began, 2), json.loads(said)


def size(folder: Path, rounds: int) -> dict[str, Any]:
    times = [timed(folder, "llama-3.1-70b", "--gpu=mi300x", "--nodes=64")[0] for _ in range(rounds)]
    return {"size_s": round(median(times), 2), "size_all_s": times}


def compiled(folder: Path) -> dict[str, Any]:
    return {f"compile_{name}_s": timed(folder, *words, "--compile")[0] for name, words in COMPILED.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=["submit", "queue", "size", "compile"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--submissions", type=int, default=200)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {"command": " ".join(["python bench/jobs", *sys.argv[1:]]), "virtual": True}
    with tempfile.TemporaryDirectory(prefix="rocstack-bench-") as name:
        folder = Path(name)
        (folder / "rocstack.yml").write_text(SETTINGS)
        try:
            if {"submit", "queue"} & set(args.only):
                rocstack(folder, "local", "up", "--nodes=2", "--model=epyc-thor2")
                rocstack(folder, "deploy", "--nic=tcp")
            parts: dict[str, Callable[[], dict[str, Any]]] = {
                "submit": lambda: submit(folder, args.rounds),
                "queue": lambda: queue(folder, args.submissions),
                "size": lambda: size(folder, args.rounds),
                "compile": lambda: compiled(folder),
            }
            for part in args.only:
                load = round(os.getloadavg()[0], 2)
                found[part] = parts[part]() | {"load": load}
        finally:
            rocstack(folder, "local", "down")
    values = {key: value for part in args.only for key, value in found[part].items() if key in LIMITS}
    found["judged"] = {
        key: {"value": value, "limit": LIMITS[key], "within": value <= LIMITS[key]} for key, value in values.items()
    }
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

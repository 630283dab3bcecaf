"""Measures the static reading of provider libraries beside `readelf -VW`, which prints the symbol versions only.

    python bench/nic/elf.py FOLDER_OR_FILE... [--rounds 15]

Prints JSON: per library the medians in milliseconds. `read` is the reading in a running process, `script` and
`readelf` are whole commands.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cli"))

from rocstack.nic import elf  # noqa: E402

LIMIT_MS = 100  # a provider is read in under 0.1 s


def median_ms(work: Callable[[], object], rounds: int) -> float:
    def once() -> float:
        started = time.perf_counter()
        work()
        return (time.perf_counter() - started) * 1000

    return round(statistics.median(once() for _ in range(rounds)), 2)


def command(*words: str | Path) -> Callable[[], object]:
    return lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    files = [f for place in options.places for f in (sorted(place.glob("*.so")) if place.is_dir() else [place])]
    if not files:
        sys.exit("no libraries there")
    rows = []
    for file in files:
        data = file.read_bytes()
        read = median_ms(lambda data=data: elf.read_provider(data), options.rounds)
        script = median_ms(command(sys.executable, "-m", "rocstack.nic.elf", file), options.rounds)
        readelf = median_ms(command("readelf", "-VW", file), options.rounds)
        times = {"read_ms": read, "script_ms": script, "readelf_ms": readelf, "ratio": round(read / readelf, 2)}
        rows.append({"library": file.name, "bytes": len(data), **times})
    worst = max(row["read_ms"] for row in rows)
    summary = {"worst_read_ms": worst, "limit_ms": LIMIT_MS, "within": worst < LIMIT_MS, "rounds": options.rounds}
    print(json.dumps({**summary, "libraries": rows}, indent=1))
    sys.exit(0 if worst < LIMIT_MS else 1)


if __name__ == "__main__":
    main()

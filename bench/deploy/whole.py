"""Measures `rocstack deploy` itself on virtual nodes: from nothing, again, from images that are there, an update.

    python bench/deploy/whole.py [--nodes 4] [--image rocstack/worker:debian-13-tcp] [--out FILE]

Prints JSON; seconds are of the whole command, its own start included. The update's image has one more layer, as large
as a new trainer's. Needs root, and the control image beside the worker's. The machine's caches are dropped before:
ext4 takes no inode that was freed minutes ago, so unpacking images right after another run's were deleted took twice
as long (perf: recently_deleted, find_get_block_common).
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from testbed import Site, run, timed

LIMITS = {"again_s": 12.0, "from_images_s": 15.0, "change_ship_s": 5.0, "change_mb": 2.0}


class Cluster:
    def __init__(self, site: Site, control: str) -> None:
        self.site, self.control = site, control
        self.inventory = ".rocstack/local/inventory.yml"

    def rocstack(self, *words: str) -> str:
        return run(sys.executable, "-m", "rocstack.cli.main", *words, cwd=self.site.folder)

    def deploy(self, image: str, *words: str) -> tuple[float, dict[str, Any]]:
        images = ("--image", image, "--control-image", self.control)
        seconds, text = timed(lambda: self.rocstack("deploy", self.inventory, *images, "--json", *words))
        said: dict[str, Any] = json.loads(text)
        assert said["ok"], said
        return seconds, said


def shipped(said: dict[str, Any]) -> dict[str, Any]:
    """Of one deploy: publishing, then the slowest node, and what the nodes took."""
    pull = max(row["seconds"] for row in said["shipped"])
    publish = said["published"]["seconds"]
    mb = sum(row["bytes"] for row in said["shipped"]) / 1e6
    return {"publish_s": publish, "pull_s": pull, "ship_s": round(publish + pull, 2), "nodes_mb": round(mb, 2)}


def settle(*images: str) -> None:
    """As after a build: the images are in memory, and the file system forgets which inodes were freed."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    subprocess.run(["docker", "save", *images], stdout=subprocess.DEVNULL, check=True)


def measure(cluster: Cluster, image: str, changed: str) -> dict[str, Any]:
    settle(image, cluster.control)
    first_s, first = cluster.deploy(image)
    again = [cluster.deploy(image)[0] for _ in range(3)]
    cluster.rocstack("down", cluster.inventory)
    from_images_s, _ = cluster.deploy(image)
    update_s, update = cluster.deploy(changed)
    return {
        "first_s": first_s,
        "first": shipped(first),
        "again_s": median(again),
        "again_all_s": again,
        "from_images_s": from_images_s,
        "update_s": update_s,
        "update": shipped(update),
    }


def judged(found: dict[str, Any]) -> dict[str, Any]:
    values = {
        "again_s": found["again_s"],
        "from_images_s": found["from_images_s"],
        "change_ship_s": found["update"]["ship_s"],
        "change_mb": found["update"]["nodes_mb"],
    }
    return {
        key: {"value": value, "limit": LIMITS[key], "within": value <= LIMITS[key]} for key, value in values.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--image", default="rocstack/worker:debian-13-tcp")
    parser.add_argument("--control", default="rocstack/control:debian-13-tcp")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    name = f"rocstack-bench-{secrets.token_hex(3)}"
    result: dict[str, Any] = {
        "command": " ".join(["python bench/deploy/whole.py", *sys.argv[1:]]),
        "nodes": args.nodes,
        "virtual": True,
        "load_before": round(os.getloadavg()[0], 2),
    }
    with tempfile.TemporaryDirectory(prefix="rocstack-bench-") as folder:
        (Path(folder) / "Dockerfile").write_text(f"FROM {args.image}\nRUN head -c 300000 /dev/urandom >/opt/{name}\n")
        run("docker", "build", "-q", "-t", f"{name}:changed", folder)
        site = Site(Path(folder), args.nodes - 1)  # the head is one of them
        try:
            found = measure(Cluster(site, args.control), args.image, f"{name}:changed")
        finally:
            site.close()
            subprocess.run(["docker", "rmi", f"{name}:changed"], capture_output=True, check=False)
    result |= {**found, "judged": judged(found), "load_after": round(os.getloadavg()[0], 2)}
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

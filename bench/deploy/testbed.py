"""The virtual site that is measured on: a head node, workers, and shaped links between them and the operator."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rocstack.edge.ssh import SshHost, tunnel

LOCAL = ".rocstack/local"
CONFIG = f"{LOCAL}/ssh_config"
T = TypeVar("T")


def run(*command: str | Path, cwd: Path | None = None, stdin: bytes | None = None) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, input=stdin, capture_output=True, check=False)
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, command))} failed:\n{done.stdout.decode()[-2000:]}\n{done.stderr.decode()[-4000:]}"
        )
    return done.stdout.decode().strip()


class Site:
    """The head and `nodes` workers: containers with an engine each, made and removed by `rocstack local`."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.rocstack("up", "--nodes", str(nodes + 1), "--json")
        found = json.loads(self.rocstack("status", "--json"))["nodes"]
        self.address = {node["name"]: node["address"] for node in found}
        self.head, *self.workers = self.address
        with ThreadPoolExecutor() as pool:  # the interface outside that belongs to each node's own
            self.outside = dict(zip(self.address, pool.map(self._outside, self.address), strict=True))

    def rocstack(self, *words: str) -> str:
        return run(sys.executable, "-m", "rocstack.cli.main", "local", *words, cwd=self.folder)

    def close(self) -> None:
        self.rocstack("down")

    def ssh(self, node: str) -> list[str]:
        return ["ssh", "-F", str(self.folder / CONFIG), node]

    def on(self, node: str, *words: str, stdin: bytes | None = None) -> str:
        return run(*self.ssh(node), shlex.join(words), stdin=stdin)

    @contextmanager
    def tunnel(self, port: int) -> Iterator[int]:
        ssh_host = SshHost(self.head, ("ssh", "-F", str(self.folder / CONFIG)), self.head)
        with tunnel(ssh_host, "127.0.0.1", port) as (_, near):
            yield near

    def shape(self, mbit: int) -> None:
        """Limits each node's link, both ways; 0 takes the limit away."""
        for node, outside in self.outside.items():
            inside = self._inside(node)
            if not mbit:
                subprocess.run(["tc", "qdisc", "del", "dev", outside, "root"], capture_output=True, check=False)
                subprocess.run([*self.ssh(node), f"tc qdisc del dev {inside} root"], capture_output=True, check=False)
                continue
            # A bucket of 4 ms, and a queue of 200 ms (as a switch's): less of it, and TCP doesn't fill the link.
            rate = ["root", "tbf", "rate", f"{mbit}mbit", "burst", str(max(64_000, mbit * 500)), "latency", "200ms"]
            run("tc", "qdisc", "replace", "dev", outside, *rate)
            self.on(node, "tc", "qdisc", "replace", "dev", inside, *rate)

    def sent(self, node: str) -> int:
        """Bytes that have left the node, at its interface."""
        return self._counter(node, "rx_bytes")

    def received(self, node: str) -> int:
        return self._counter(node, "tx_bytes")

    def _counter(self, node: str, name: str) -> int:
        return int(Path(f"/sys/class/net/{self.outside[node]}/statistics/{name}").read_text())

    def _inside(self, node: str) -> str:
        (name,) = re.findall(r"^\d+: (\S+)@if\d+:", self.on(node, "ip", "-o", "link", "show", "up"), re.M)[:1]
        return str(name)

    def _outside(self, node: str) -> str:
        """The node's interface says the number of its other end."""
        peer = re.findall(r"^\d+: \S+@if(\d+):", self.on(node, "ip", "-o", "link", "show", "up"), re.M)[0]
        return next(name for name in os.listdir("/sys/class/net") if _index(name) == peer)

    def empty(self) -> None:
        """Removes all images of the workers."""
        remove = "docker image ls -q | xargs -r docker image rm -f >/dev/null; docker image ls -q"
        for left in each(lambda node: run(*self.ssh(node), remove), self.workers):
            assert not left, "an image stays"


def _index(name: str) -> str:
    return (Path("/sys/class/net") / name / "ifindex").read_text().strip()


def each(work: Callable[[str], T], nodes: Sequence[str]) -> list[T]:
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(work, nodes))


def timed(work: Callable[[], T]) -> tuple[float, T]:
    started = time.monotonic()
    result = work()
    return round(time.monotonic() - started, 2), result

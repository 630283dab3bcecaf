"""Ranks as hosts on a switch: each in a network namespace of its own, its link shaped both ways by `tc tbf`.

Needs the capabilities NET_ADMIN and SYS_ADMIN and Python 3.12. The namespaces have no names: the kernel removes them
with the processes in them. The switch is a bridge where this process lives, so it is the place of a control plane too.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from typing import Any

CONTROL = "10.77.0.254"
PORT = 29400
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torchrun's
SHAPE = "tbf rate {rate} burst 128kb latency 100ms"


def address(rank: int) -> str:
    return f"10.77.0.{rank + 1}"


def ranks(world: int, rate: str, function: Callable[..., Any], *args: Any, timeout_s: float = 3600) -> list[Any]:
    """What `function(*args)` returned on each of `world` linked ranks, with torchrun's variables set.

    `rate` as `tc` writes it ("100mbit"); "": not shaped. Raises RuntimeError when a rank fails; the others are killed.
    """
    _ip("link add switch type bridge", f"addr add {CONTROL}/24 dev switch", "link set switch up", "link set lo up")
    children = {}
    try:
        for rank in range(world):
            pid, pipe, go = _fork(rank, world, function, args)
            children[pid] = pipe
            pipe.read(1)  # it is in its namespace now
            _ip(
                f"link add port{rank} type veth peer name eth0 netns {pid}",
                f"link set port{rank} master switch up",
            )
            _shape(f"port{rank}", rate)
            os.write(go, rate.encode() or b"-")
            os.close(go)
        return _results(children, time.monotonic() + timeout_s)
    finally:
        for pid, pipe in children.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pipe.close()
        for device in ("switch", *(f"port{rank}" for rank in range(world))):  # ports may outlive their other end a bit
            subprocess.run(["ip", "link", "del", device], check=False, stderr=subprocess.DEVNULL)


def wire() -> tuple[int, int]:
    """Bytes that eth0 of this namespace has received and sent, headers included; (0, 0) if there is none."""
    with open("/proc/self/net/dev") as file:  # /sys shows the namespace that mounted it
        for line in file:
            name, _, numbers = line.partition(":")
            if name.strip() == "eth0":
                fields = numbers.split()
                return int(fields[0]), int(fields[8])
    return 0, 0


def _fork(rank: int, world: int, function: Callable[..., Any], args: Any) -> Any:
    reading, writing = os.pipe()
    waiting, go = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        os.close(waiting)
        return pid, open(reading, "rb", buffering=0), go
    failed = True
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # die with the parent
        os.close(go)
        os.unshare(os.CLONE_NEWNET | os.CLONE_NEWNS)
        subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)  # with this namespace's interfaces
        os.write(writing, b"!")
        rate = os.read(waiting, 99).decode()
        _ip("link set lo up", f"addr add {address(rank)}/24 dev eth0", "link set eth0 up")
        _shape("eth0", rate.strip("-"))
        values = (rank, world, 0, 1, address(0), PORT)
        os.environ |= dict(zip(VARIABLES, map(str, values), strict=True))
        os.environ |= {"GLOO_SOCKET_IFNAME": "eth0", "GLOG_minloglevel": "2"}
        result = function(*args)
        with open(writing, "wb") as pipe:
            pickle.dump(result, pipe)
        failed = False
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(failed)  # closing a gloo process group can hang


def _results(children: dict[int, Any], deadline: float) -> list[Any]:
    texts = dict.fromkeys(children.values(), b"")
    waiting = set(texts)
    while waiting:
        ready = select.select(waiting, [], [], max(0, deadline - time.monotonic()))[0]
        if not ready:
            raise RuntimeError("the ranks hang")
        for pipe in ready:
            part = pipe.read(1 << 20)
            texts[pipe] += part
            if not part:
                waiting.discard(pipe)
                if not texts[pipe]:
                    raise RuntimeError(f"rank {list(texts).index(pipe)} failed")
    return [pickle.loads(text) for text in texts.values()]


def _shape(device: str, rate: str) -> None:
    if rate:
        subprocess.run(["tc", "qdisc", "add", "dev", device, "root", *SHAPE.format(rate=rate).split()], check=True)


def _ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)

"""What Slurm says of its nodes, reduced to what a deploy asks. Pure; standard library only.

Words as `scontrol show nodes --json` and squeue of Slurm 23.11 to 24.11 have them.
"""

from __future__ import annotations

import re

from . import hostlist
from .engine import Row

OURS = "rocstack:"  # begins every reason that a deploy gives; a node with another reason is somebody else's matter
_BASE = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING"})
AWAY = frozenset({"NOT_RESPONDING", "UNKNOWN", "DOWN", "ERROR", "FUTURE", "INVALID_REG", "POWERED_DOWN",
                   "POWERING_DOWN", "POWERING_UP", "REBOOT_ISSUED", "REBOOT_REQUESTED"})  # fmt: skip
_ENDED = frozenset({"PENDING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL",
                    "DEADLINE", "OUT_OF_MEMORY"})  # fmt: skip


def slurm_nodes(nodes: Row, queue: str) -> dict[str, Row]:
    """Name -> {"state": words, "reason", "jobs": ids, "cpus", "busy_cpus", "gres", "busy_gres", "last_busy": epoch
    seconds, "started": when its slurmd did}, from an answer in JSON and the queue's lines NUMBER|STATE|NODES.

    Raises:
        ValueError: it is another answer.
    """
    jobs: dict[str, list[int]] = {}
    for line in queue.split():
        number, state, names = line.split("|")
        if state in _ENDED:
            continue
        for name in hostlist.expand(names) if names else ():
            jobs.setdefault(name, []).append(int(number))
    return {
        str(node["name"]): {
            "state": _words(node.get("state")),
            "reason": str(node.get("reason") or ""),
            "jobs": sorted(jobs.get(str(node["name"]), [])),
            "cpus": _number(node.get("cpus")),
            "busy_cpus": _number(node.get("alloc_cpus")),
            "gres": str(node.get("gres") or ""),
            "busy_gres": str(node.get("gres_used") or ""),
            "last_busy": _number(node.get("last_busy")),
            "started": _number(node.get("slurmd_start_time")),
        }
        for node in nodes.get("nodes") or []
    }


def not_empty(node: Row | None) -> str:
    """Why a draining node isn't free to be changed; "" where it is."""
    if node is None:
        return ""  # nothing can be scheduled there
    state = set(node["state"])
    if node["jobs"]:
        return f"runs job {', '.join(map(str, node['jobs']))}"
    if state & {"ALLOCATED", "MIXED", "COMPLETING"}:
        return "a job ends there"
    return "" if state & {"DRAIN", "DOWN"} else f"is {state_text(node)}"


def not_ready(node: Row | None, since: float = 0) -> str:
    """Why no job can start there; "" where one can. With `since` its slurmd must have started after that."""
    if node is None:
        return "Slurm doesn't know it"
    if away := not_back(node, since):
        return away
    return f"is {state_text(node)}" if set(node["state"]) & {"DRAIN", "FAIL"} else ""


def not_back(node: Row, since: float = 0) -> str:
    """Why its slurmd counts as away; "" where it answers, drained or not."""
    state = set(node["state"])
    if state & AWAY or not state & _BASE:
        return f"is {state_text(node)}"
    return "its slurmd has not started anew" if node["started"] < since else ""


def drained_by_deploy(node: Row) -> bool:
    return bool(node["reason"].startswith(OURS))


def state_text(node: Row) -> str:
    """Its state as people read it."""
    words = "+".join(node["state"]).lower() or "unknown"
    return f"{words} ({node['reason']})" if node["reason"] else words


def gres_gpus(gres: str) -> int:
    """How many of `gpu:mi300x:8(S:0-1),nic:2` are GPUs."""
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[^:,()]+)*:(\d+)", gres))


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else str(value or "").split("+")


def _number(value: object) -> int:
    """A plain number, or one as {"set": true, "infinite": false, "number": 1}."""
    number = value.get("number") if isinstance(value, dict) else value
    return number if isinstance(number, int) else 0

"""What is done to a deploy. Each fault begins at a step, lasts for a while, and is taken back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cluster import Cluster, pids, until

LOST = 40.0  # seconds: longer than the cluster's lock and ssh wait for a side that is silent
# Slurm takes a younger job for one that is just being started, and misses it half an hour later (BatchStartTimeout).
STARTED = 30.0
FULL = 120.0  # seconds, or until the deploy has ended
MIDDLE = 4_000_000  # bytes of a layer


@dataclass
class Disturbed:
    """A deploy under way. `said` is what the fault itself saw."""

    cluster: Cluster
    process: subprocess.Popen[str]
    release: str
    step: str
    said: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


Act = Callable[[Disturbed], None]


def nothing(deploy: Disturbed) -> None:
    pass


@dataclass(frozen=True)
class Fault:
    """`hold`: seconds that it lasts, or until the deploy has ended, if that is earlier. `age`: seconds that the job
    must have run before."""

    name: str
    title: str
    begin: Act
    end: Act = nothing
    hold: float = 0.0
    age: float = 0.0


def tree(pid: int) -> list[int]:
    """A process and all that it has started."""
    parents: dict[int, list[int]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents.setdefault(int(file.read_text().rpartition(")")[2].split()[1]), []).append(int(file.parent.name))
    found, rest = [], [pid]
    while rest:
        found.append(rest.pop())
        rest += parents.get(found[-1], [])
    return found


def _signal(number: int) -> Act:
    return lambda deploy: deploy.process.send_signal(number)


def _interrupt(deploy: Disturbed) -> None:
    """As a terminal does: to the whole group."""
    os.killpg(deploy.process.pid, signal.SIGINT)


def _stop(deploy: Disturbed) -> None:
    """A laptop that falls asleep: this process, Ansible and every ssh. Another takes over when the lock has expired."""
    stopped = tree(deploy.process.pid)
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    time.sleep(LOST)
    deploy.cluster.open_gate()
    out, err, code = deploy.cluster.ended(deploy.cluster.deploy(deploy.release, "--resume"))
    deploy.said.append(f"the other one ended with {code}")
    if code:
        deploy.wrong.append(f"the one that took over failed: {(out + err)[-600:]}")
    for pid in reversed(stopped):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _race(deploy: Disturbed) -> None:
    out, err, code = deploy.cluster.ended(deploy.cluster.deploy(deploy.release))
    if code == 0 and deploy.process.poll() is not None:
        deploy.said.append("the second one came after the first had ended")
    elif code != 1 or "another deploy of this cluster is running" not in out + err:
        deploy.wrong.append(f"the second deploy ended with {code}: {(out + err)[-600:]}")


def _filter(node: str, way: str) -> Act:
    """Only what goes between the operator and the node; the nodes still reach each other."""

    def act(deploy: Disturbed) -> None:
        operator = deploy.cluster.address(node).split()[1]
        rules = (f"INPUT --source {operator}", f"OUTPUT --destination {operator}")
        deploy.cluster.on(node, " && ".join(f"iptables -w --{way} {rule} --jump DROP" for rule in rules))

    return act


def _reboot(node: str) -> Act:
    def act(deploy: Disturbed) -> None:
        deploy.cluster.rocstack("local", "reboot", node)

    return act


def _kill_engine(node: str) -> Act:
    """Its containers start again with it. No job begins meanwhile: Slurm would miss it late, as STARTED says."""

    def act(deploy: Disturbed) -> None:
        deploy.cluster.on(node, _KILL)
        time.sleep(STARTED)

    return act


def _on(node: str, script: str) -> Act:
    def act(deploy: Disturbed) -> None:
        deploy.cluster.on(node, script)

    return act


def _kill_registry(deploy: Disturbed) -> None:
    """Early enough it dies while it sends a layer over a slow link. Its engine starts it again."""
    cluster = deploy.cluster
    if deploy.step == "pending":
        cluster.on("n1", "tc qdisc replace dev eno1 root tbf rate 30mbit burst 256k latency 200ms")
        began = cluster.received("n2")
        with suppress(TimeoutError):
            until(lambda: cluster.received("n2") > began + MIDDLE or deploy.process.poll() is not None, 60, 0.05)
        deploy.said.append(f"{(cluster.received('n2') - began) / 1e6:.1f} MB were there")
    cluster.on("n1", "kill -9 $(docker inspect --format '{{.State.Pid}}' rocstack-registry)")


def _unshape(deploy: Disturbed) -> None:
    deploy.cluster.on("n1", "tc qdisc del dev eno1 root 2>/dev/null || true")


# Of the node's own disk, to the last block.
_FILL = (
    "fallocate --length $(df --output=avail --block-size=1 /disk | tail -n 1) /disk/full 2>/dev/null; "
    "dd if=/dev/zero of=/disk/fuller bs=64k 2>/dev/null; true"
)
_EMPTY = "rm -f /disk/full /disk/fuller"
_FREEZE, _THAW, _KILL = (f"kill -{name} $({pids('dockerd')})" for name in ("STOP", "CONT", "KILL"))
_KILL_SLURM = f"kill -KILL $({pids('slurmctld')})"


def _cut(node: str, title: str) -> Fault:
    name = "control-cut" if node == "n1" else "worker-cut"
    return Fault(name, title, _filter(node, "append"), _filter(node, "delete"), LOST)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("killed", "the deploy is killed (SIGKILL)", _signal(signal.SIGKILL)),
        Fault("stopped", "it is stopped, another takes over, it goes on", _stop),
        Fault("interrupted", "Ctrl-C", _interrupt),
        Fault("terminated", "SIGTERM", _signal(signal.SIGTERM)),
        _cut("n1", "the operator loses the control node for 40 s"),
        _cut("n2", "the operator loses a worker for 40 s"),
        Fault("worker-reboots", "a worker reboots", _reboot("n2"), age=STARTED),
        Fault("control-reboots", "the control node reboots", _reboot("n1")),
        Fault("worker-full", "a worker's disk is full", _on("n2", _FILL), _on("n2", _EMPTY), FULL),
        Fault("control-full", "the control node's disk is full", _on("n1", _FILL), _on("n1", _EMPTY), FULL),
        Fault("engine-frozen", "a worker's engine is frozen for 40 s", _on("n2", _FREEZE), _on("n2", _THAW), LOST),
        Fault("engine-killed", "a worker's engine is killed", _kill_engine("n2"), age=STARTED),
        Fault("control-engine-killed", "the control node's engine is killed", _kill_engine("n1"), age=STARTED),
        Fault("registry-killed", "the registry is killed (`pending`: amid a layer)", _kill_registry, _unshape),
        Fault("race", "a second deploy begins", _race),
        Fault("slurmctld-killed", "slurmctld is killed", _on("n1", _KILL_SLURM)),
        Fault("database-stopped", "the database is stopped", _on("n1", "docker stop --time 1 rocstack-db")),
    )
}

"""MPI between the two machines, started as a person would, and what shows by which way its data went."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from machine import Machine, Outcome
from verbs import DEVICE, NETDEV, sent_packets

Pair = tuple[Machine, Machine]
DOUBLES = 65536  # 512 KiB; rdma_rxe loses many packets of larger messages on an emulated CPU
SETTINGS = {
    "UCX_TLS": "rc_verbs,tcp,self,sm",  # tcp helps to connect: UCX's other helper, ud_verbs, times out on rdma_rxe
    "UCX_LOG_LEVEL": "info",
}
DEVICES = {"UCX_NET_DEVICES": f"{DEVICE}:1,{NETDEV}"}
LANE = re.compile(r"inter-node cfg#\d+ tag\((\S+)\)")


def allreduce(machines: Pair, settings: Mapping[str, str], file: str = "/dev/null") -> Outcome:
    """One rank on each machine. Each reads its own `file` of variables too."""
    exported = " ".join(f"-x {name}={value}" for name, value in settings.items())
    hosts = ",".join(f"{machine.name}:1" for machine in machines)
    return machines[0].try_run(
        f"mpirun --allow-run-as-root -np 2 --host {hosts} --mca oob_tcp_if_include {NETDEV} --mca pml ucx {exported}"
        f' bash -c "set -a; . {file}; exec python3 /machine/allreduce.py {DOUBLES}"',
        seconds=120,
    )


def assert_summed(done: Outcome) -> None:
    assert done.code == 0, done.said
    assert {f"rank {rank} of 2 on n{rank + 1}: sum 3.0" for rank in (0, 1)} <= set(done.out.splitlines()), done.said


def assert_over_rdma(said: str, ends: int = 2) -> None:
    """UCX itself says by which transport the machines talk, once on each end."""
    assert LANE.findall(said) == [f"rc_verbs/{DEVICE}:1"] * ends, said


@contextmanager
def rdma_traffic(machines: Pair, packets: int = DOUBLES * 8 // 4096) -> Iterator[None]:
    """Each machine's device sends at least so many packets in the meantime, as the kernel counts."""
    before = [sent_packets(machine) for machine in machines]
    yield
    sent = [sent_packets(machine) - old for machine, old in zip(machines, before, strict=True)]
    assert min(sent) >= packets, f"only {sent} packets of RDMA"

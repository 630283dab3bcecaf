"""RDMA between two machines by the worker image's own libraries and tools. The machines stay as they were."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from machine import Machine, Outcome
from verbs import DEVICE, NETDEV, PORT, gids, index_of, mapped, sent_packets

Pair = tuple[Machine, Machine]
VERBS = "/usr/lib/x86_64-linux-gnu/libibverbs"
UCX = {
    "UCX_TLS": "rc_verbs,tcp,self,sm",  # tcp helps to connect: UCX's other helper, ud_verbs, times out on rdma_rxe
    "UCX_NET_DEVICES": f"{DEVICE}:1,{NETDEV}",
    "UCX_LOG_LEVEL": "info",
}
LANE = re.compile(r"inter-node cfg#\d+ tag\((\S+)\)")


def allreduce(machines: Pair, doubles: int = 65536) -> Outcome:
    """One rank on each machine, 512 KiB."""
    exported = " ".join(f"-x {name}={value}" for name, value in UCX.items())
    hosts = ",".join(f"{machine.name}:1" for machine in machines)
    return machines[0].try_run(
        f"mpirun --allow-run-as-root -np 2 --host {hosts} --mca oob_tcp_if_include {NETDEV} --mca pml ucx {exported}"
        f" python3 /machine/allreduce.py {doubles}",
        seconds=120,
    )


def assert_summed(done: Outcome) -> None:
    assert done.code == 0, done.said
    assert {f"rank {rank} of 2 on n{rank + 1}: sum 3.0" for rank in (0, 1)} <= set(done.out.splitlines()), done.said


def assert_over_rdma(said: str, ends: int) -> None:
    """UCX itself says by which transport the machines talk, once on each end."""
    assert LANE.findall(said) == [f"rc_verbs/{DEVICE}:1"] * ends, said


@contextmanager
def rdma_traffic(machines: Pair, packets: int) -> Iterator[None]:
    """Each machine's device sends at least so many packets in the meantime, as the kernel counts."""
    before = [sent_packets(machine) for machine in machines]
    yield
    sent = [sent_packets(machine) - old for machine, old in zip(machines, before, strict=True)]
    assert min(sent) >= packets, f"only {sent} packets of RDMA"


def test_the_files_are_the_images(machines: Pair, image: str) -> None:
    command = f"cat {VERBS}.so.1 {VERBS}/librxe-*.so /etc/libibverbs.d/* $(command -v mpirun ucx_perftest) | sha256sum"
    run = ["docker", "run", "--rm", "--entrypoint=bash", image, "-c", command]
    expected = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert [machine.run(command) for machine in machines] == [expected, expected]


def test_libibverbs_finds_the_device(machines: Pair) -> None:
    for machine in machines:
        said = machine.try_run("LD_DEBUG=libs ibv_devices").said
        assert re.search(rf"^\s+{DEVICE}\s+[0-9a-f]{{16}}$", said, re.MULTILINE), said
        assert re.search(rf"calling init: {VERBS}/librxe-rdmav\d+\.so", said), said
        assert "PORT_ACTIVE" in machine.run(f"ibv_devinfo -d {DEVICE}")


def test_gid_table(machines: Pair) -> None:
    """Not 3, the number that guides for other NICs tell people to set."""
    for machine in machines:
        rows = gids(machine)
        assert [row.index for row in rows] == [0, 1, 2]
        assert rows[0].gid.startswith("fe80:")
        assert rows[1].gid == mapped(machine.address)
        assert {(row.kind, row.netdev) for row in rows} == {("RoCE v2", NETDEV)}


@pytest.fixture
def readdressed(machines: Pair) -> Iterator[Pair]:
    """The first machine lost its address and got it back after a VLAN had taken the hole in the table."""
    first = machines[0]
    steps = [
        f"ip address del {first.address}/24 dev {NETDEV}",
        f"ip link add link {NETDEV} name vlan100 type vlan id 100",
        "ip link set vlan100 up",
        "ip address add 10.78.0.1/24 dev vlan100",
        f"ip address add {first.address}/24 dev {NETDEV}",
    ]
    first.run(" && ".join(steps))
    yield machines
    # Without the VLAN the first hole is 1 again.
    again = f"ip address del {first.address}/24 dev {NETDEV} && ip address add {first.address}/24 dev {NETDEV}"
    first.run(f"ip link del vlan100 && sleep 1 && {again} && sleep 1")
    assert index_of(first, first.address) == 1


def test_an_address_lost_leaves_a_hole(machines: Pair) -> None:
    first = machines[0]
    first.run(f"ip address del {first.address}/24 dev {NETDEV}; sleep 1")
    try:
        assert [row.index for row in gids(first)] == [0, 2]
        assert first.run(f"cat {PORT}/gids/1").strip() == "0000:0000:0000:0000:0000:0000:0000:0000"
        assert first.try_run(f"cat {PORT}/gid_attrs/types/1").code != 0
        assert index_of(first, first.address) is None
    finally:
        first.run(f"ip address add {first.address}/24 dev {NETDEV}; sleep 1")
    assert index_of(first, first.address) == 1


def test_the_index_moves_and_traffic_follows_it(readdressed: Pair) -> None:
    first, second = readdressed
    index = index_of(first, first.address)
    assert index not in (None, 1)
    assert index_of(first, "10.78.0.1") not in (None, index)
    with first.serving(f"ibv_rc_pingpong -d {DEVICE} -g {index} -p 18600 -n 100", port=18600):
        second.run(f"ibv_rc_pingpong -d {DEVICE} -g 1 -p 18600 -n 100 {first.name}")


def test_ibv_rc_pingpong(machines: Pair) -> None:
    first, second = machines
    pingpong = f"ibv_rc_pingpong -d {DEVICE} -g 1 -p 18601 -n 200 -c"  # -c: compares what arrives
    with rdma_traffic(machines, packets=200), first.serving(pingpong, port=18601):
        assert "200 iters in" in second.run(f"{pingpong} {first.name}")


def test_ib_write_bw(machines: Pair) -> None:
    first, second = machines
    write = f"ib_write_bw -d {DEVICE} -x 1 -n 200 -s 65536 -p 18602"
    with first.serving(write, port=18602):
        before = sent_packets(second)
        table = second.run(f"{write} {first.name}")
        assert sent_packets(second) - before >= 200 * 16  # of 4096 bytes
    row = re.search(r"^\s*65536\s+200\s+[\d.]+\s+([\d.]+)", table, re.MULTILINE)
    assert row, table
    assert float(row[1]) > 0


def test_ucx_perftest(machines: Pair) -> None:
    first, second = machines
    setting = " ".join(f"{name}={value}" for name, value in UCX.items())
    command = f"env {setting} ucx_perftest -P 0 -p 18603"  # -P 0: Debian's was built with MPI and would wait for it
    with rdma_traffic(machines, packets=100), first.serving(command, port=18603):
        said = second.try_run(f"{command} -t tag_bw -s 65536 -n 200 {first.name}").said
    assert re.search(r"^Final:\s+200", said, re.MULTILINE), said
    assert_over_rdma(said, ends=1)


def test_mpi(machines: Pair) -> None:
    with rdma_traffic(machines, packets=65536 * 8 // 4096):
        done = allreduce(machines)
    assert_summed(done)
    assert_over_rdma(done.said, ends=2)


@pytest.fixture
def without_rdma(machines: Pair) -> Iterator[Pair]:
    for machine in machines:
        machine.run(f"rdma link delete {DEVICE} && modprobe -r rdma_rxe")
    yield machines
    for machine in machines:
        machine.run(f"modprobe rdma_rxe && rdma link add {DEVICE} type rxe netdev {NETDEV} && sleep 1")


def test_without_rdma_it_is_seen(without_rdma: Pair) -> None:
    """MPI's result is right all the same, by TCP: what `test_mpi` looks at is what tells them apart."""
    done = allreduce(without_rdma)
    assert_summed(done)
    assert LANE.findall(done.said) == [f"tcp/{NETDEV}"] * 2
    with pytest.raises(AssertionError):
        assert_over_rdma(done.said, ends=2)

"""RDMA between two machines by the worker image's own libraries and tools. The machines stay as they were."""

from __future__ import annotations

import re
import subprocess

import pytest
from mpi import DEVICES, LANE, SETTINGS, Pair, allreduce, assert_over_rdma, assert_summed, rdma_traffic
from verbs import DEVICE, NETDEV, PORT, VLAN_ADDRESS, gids, index_of, mapped, sent_packets, until_row

VERBS = "/usr/lib/x86_64-linux-gnu/libibverbs"


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


def test_an_address_lost_leaves_a_hole(unaddressed: Pair) -> None:
    first = unaddressed[0]
    assert [row.index for row in gids(first)] == [0, 2]
    assert set(first.run(f"cat {PORT}/gids/1").strip()) == {"0", ":"}
    assert first.try_run(f"cat {PORT}/gid_attrs/types/1").code != 0
    first.run(f"ip address add {first.address}/24 dev {NETDEV}")
    until_row(first, first.address)
    assert index_of(first, first.address) == 1


def test_the_index_moves_and_traffic_follows_it(readdressed: Pair) -> None:
    first, second = readdressed
    index = index_of(first, first.address)
    assert index not in (None, 1)
    assert index_of(first, VLAN_ADDRESS) not in (None, index)
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
    setting = " ".join(f"{name}={value}" for name, value in {**SETTINGS, **DEVICES}.items())
    command = f"env {setting} ucx_perftest -P 0 -p 18603"  # -P 0: Debian's was built with MPI and would wait for it
    with rdma_traffic(machines, packets=100), first.serving(command, port=18603):
        said = second.try_run(f"{command} -t tag_bw -s 65536 -n 100 {first.name}").said
    assert re.search(r"^Final:\s+100", said, re.MULTILINE), said
    assert_over_rdma(said, ends=1)


def test_mpi(machines: Pair) -> None:
    with rdma_traffic(machines):
        done = allreduce(machines, {**SETTINGS, **DEVICES})
    assert_summed(done)
    assert_over_rdma(done.said)


def test_without_rdma_it_is_seen(without_rdma: Pair) -> None:
    """MPI's result is right all the same, by TCP: what `test_mpi` looks at is what tells them apart."""
    done = allreduce(without_rdma, {**SETTINGS, **DEVICES})
    assert_summed(done)
    assert LANE.findall(done.said) == [f"tcp/{NETDEV}"] * 2
    with pytest.raises(AssertionError):
        assert_over_rdma(done.said)

"""Two virtual machines that run the worker image's own files, for all tests here."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import pair
from mpi import Pair
from rootfs import prepare
from verbs import DEVICE, NETDEV, VLAN, VLAN_ADDRESS, index_of, until, until_row

ROCSTACK = Path(__file__).parents[2] / ".rocstack"
IMAGE = os.environ.pop("ROCSTACK_RDMA_IMAGE", "rocstack/worker:debian-13-tcp")  # rocstack refuses what it doesn't know

booted = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vm: needs QEMU (make test-rdma)")


def pytest_report_header() -> str:
    return f"machines: 2 virtual ones with the files of {IMAGE}; RDMA in software (soft-RoCE), no NIC is tested"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vm)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.write_line(config.stash.get(booted, "virtual machines: never up"))


@pytest.fixture(scope="session")
def image() -> str:
    if subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True).returncode:
        pytest.fail(f"no image {IMAGE}: `rocstack build --nic tcp` first, or name another in ROCSTACK_RDMA_IMAGE")
    return IMAGE


@pytest.fixture(scope="session")
def machines(image: str, pytestconfig: pytest.Config) -> Iterator[Pair]:
    ROCSTACK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="soft-roce-", dir=ROCSTACK) as folder:
        boot = prepare(image, Path(folder))
        with pair(boot, Path(folder)) as both:
            boot.disk.unlink()  # the machines hold it open; so it is gone even if this run is killed
            up = ", ".join(f"{machine.name} after {machine.boot_seconds:.1f} s" for machine in both)
            pytestconfig.stash[booted] = f"virtual machines up: {up}"
            yield both


@pytest.fixture
def unaddressed(machines: Pair) -> Iterator[Pair]:
    """The first machine has lost its address."""
    first = machines[0]
    own = f"{first.address}/24 dev {NETDEV}"
    first.run(f"ip address del {own}")
    until_row(first, first.address, False)
    yield machines
    if index_of(first, first.address) is None:
        first.run(f"ip address add {own}")
    until_row(first, first.address)


@pytest.fixture
def readdressed(unaddressed: Pair) -> Iterator[Pair]:
    """It has it again, but in the meantime a VLAN has taken the hole in the table."""
    first = unaddressed[0]
    own = f"{first.address}/24 dev {NETDEV}"
    first.run(f"ip link add link {NETDEV} name {VLAN} type vlan id 100 && ip link set {VLAN} up")
    until(first, lambda rows: any(row.netdev == VLAN for row in rows))
    first.run(f"ip address add {VLAN_ADDRESS}/24 dev {VLAN}")
    until_row(first, VLAN_ADDRESS)
    first.run(f"ip address add {own}")
    until_row(first, first.address)
    yield unaddressed
    first.run(f"ip link del {VLAN} && ip address del {own}")
    until_row(first, VLAN_ADDRESS, False)
    until_row(first, first.address, False)


@pytest.fixture
def without_rdma(machines: Pair) -> Iterator[Pair]:
    for machine in machines:
        machine.run(f"rdma link delete {DEVICE} && modprobe -r rdma_rxe")
    yield machines
    for machine in machines:
        machine.run(f"modprobe rdma_rxe && rdma link add {DEVICE} type rxe netdev {NETDEV}")
        until_row(machine, machine.address)

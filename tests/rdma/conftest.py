"""Two virtual machines that run the worker image's own files, for all tests here."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine import Machine, pair
from rootfs import prepare

ROCSTACK = Path(__file__).parents[2] / ".rocstack"
IMAGE = os.environ.get("ROCSTACK_RDMA_IMAGE", "rocstack/worker:debian-13-tcp")
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
def machines(image: str, pytestconfig: pytest.Config) -> Iterator[tuple[Machine, Machine]]:
    ROCSTACK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="soft-roce-", dir=ROCSTACK) as folder:
        boot = prepare(image, Path(folder))
        with pair(boot, Path(folder)) as both:
            boot.disk.unlink()  # the machines hold it open; so it is gone even if this run is killed
            up = ", ".join(f"{machine.name} after {machine.boot_seconds:.1f} s" for machine in both)
            pytestconfig.stash[booted] = f"virtual machines up: {up}"
            yield both

"""What a plain testinfra suite asks each node, by testinfra's own modules: the peer of `python bench/verify`."""

from typing import Any

import pytest


def test_kernel(host: Any) -> None:
    assert host.check_output("uname -r")


def test_os(host: Any) -> None:
    assert host.system_info.distribution


@pytest.mark.parametrize("name", ["net.ipv4.conf.all.rp_filter", "vm.swappiness"])
def test_sysctl(host: Any, name: str) -> None:
    assert host.sysctl(name) is not None


@pytest.mark.parametrize("number", range(128, 136))
def test_gpu_device(host: Any, number: int) -> None:
    assert host.file(f"/dev/dri/renderD{number}").exists


@pytest.mark.parametrize("number", range(8))
def test_rdma_device(host: Any, number: int) -> None:
    assert host.file(f"/dev/infiniband/uverbs{number}").exists


def test_cmdline(host: Any) -> None:
    assert host.file("/proc/cmdline").content_string


def test_worker_runs(host: Any) -> None:
    assert host.docker("rocstack-worker").is_running


def test_slurmd_listens(host: Any) -> None:
    assert host.socket("tcp://0.0.0.0:298").is_listening


def test_munge(host: Any) -> None:
    assert host.run("docker exec rocstack-worker sh -c 'munge -n | unmunge'").rc == 0


def test_limits(host: Any) -> None:
    assert host.check_output("ulimit -l")

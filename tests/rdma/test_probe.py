"""rocstack on machines with a real RDMA stack: the probe reads them, and what it computes from that carries traffic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mpi import SETTINGS, Pair, allreduce, assert_over_rdma, assert_summed, rdma_traffic
from rootfs import inspect
from verbs import DEVICE, NETDEV, VLAN_ADDRESS, gids, index_of

from rocstack.node.fabric import Fabric, fabric, render_env
from rocstack.node.nic_settings import SOFT_ROCE
from rocstack.node.profile import NodeProfile
from rocstack.probe import recordings


@pytest.fixture(scope="session")
def inventory(machines: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    common = "-F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    hosts = {
        machine.name: {
            "ansible_host": "127.0.0.1",
            "ansible_port": machine.port,
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(machine.key),
            "ansible_ssh_common_args": common,
        }
        for machine in machines
    }
    file = tmp_path_factory.mktemp("inventory") / "inventory.yml"
    file.write_text(json.dumps({"all": {"hosts": hosts}}))
    return file


def probe(inventory: Path) -> list[NodeProfile]:
    found = recordings.record_inventory(inventory)
    assert not found.failures
    profiles = recordings.profiles(found.recordings)
    assert [profile.name for profile in profiles] == ["n1", "n2"]
    return list(profiles)


@pytest.fixture(scope="session")
def profiles(inventory: Path) -> list[NodeProfile]:
    return probe(inventory)


def environment(profile: NodeProfile, machines: Pair) -> Fabric:
    return fabric(profile, SOFT_ROCE, control_address=machines[0].address)


def test_the_probe_reads_what_the_kernel_says(profiles: list[NodeProfile], machines: Pair, image: str) -> None:
    private_abi = int(inspect(image)["Labels"]["io.rocstack.verbs.private-abi"])
    for machine, profile in zip(machines, profiles, strict=True):
        (device,) = profile.verbs
        (port,) = device.ports
        abi = int(machine.run("cat /sys/class/infiniband_verbs/uverbs0/abi_version"))
        assert (device.name, device.uverbs, device.driver) == (DEVICE, "uverbs0", "rdma_rxe")
        assert (device.device_node, device.kernel_abi, device.netdevs) == (True, abi, (NETDEV,))
        assert (port.state, port.link_layer) == ("ACTIVE", "Ethernet")
        assert [(row.index, row.gid, row.type, row.netdev) for row in port.gids] == [
            (row.index, row.gid, row.kind, row.netdev) for row in gids(machine)
        ]
        libraries = {library.driver: library for library in profile.libraries}
        assert {libraries[name].private_abi for name in (None, "rxe")} == {private_abi}
        low, high = libraries["rxe"].kernel_abi or (0, 0)
        assert low <= abi <= high
        # An emulated CPU may be too slow for the programs that are asked; files are not.
        assert not [unread for unread in profile.unread if unread.what.startswith("/")]


def test_the_computed_gid_index_is_the_kernels(profiles: list[NodeProfile], machines: Pair) -> None:
    for machine, profile in zip(machines, profiles, strict=True):
        env = environment(profile, machines).env
        assert env["NCCL_IB_HCA"] == f"={DEVICE}:1"
        assert env["NCCL_IB_GID_INDEX"] == env["UCX_IB_GID_INDEX"] == str(index_of(machine, machine.address)) == "1"
        assert env["UCX_NET_DEVICES"] == f"{DEVICE}:1,{NETDEV}"


def test_the_computed_environment_carries_traffic(inventory: Path, readdressed: Pair) -> None:
    """3, the number that guides tell people to set, is the VLAN's row here, and the machines' indexes differ."""
    wanted = [index_of(machine, machine.address) for machine in readdressed]
    assert index_of(readdressed[0], VLAN_ADDRESS) == 3
    assert wanted == [4, 1]
    for machine, profile in zip(readdressed, probe(inventory), strict=True):
        computed = environment(profile, readdressed)
        assert computed.env["NCCL_IB_GID_INDEX"] == str(wanted.pop(0))
        machine.write("/run/fabric.env", render_env(computed))
    with rdma_traffic(readdressed):
        done = allreduce(readdressed, SETTINGS, file="/run/fabric.env")
    assert_summed(done)
    assert_over_rdma(done.said)


def test_the_image_proves_the_device(machines: Pair) -> None:
    """The trial at a container's start, on a device that is there: opened, 8 threads x 64 queue pairs."""
    done = machines[0].try_run("rocstack-node prove --all --many")
    assert done.code == 0, done.said
    assert f"{DEVICE}: device, PD, CQ and 512 queue pairs work" in done.err


def test_the_image_proves_nothing_without_a_device(without_rdma: Pair) -> None:
    done = without_rdma[0].try_run("rocstack-node prove --all")
    assert done.code == 1
    assert "no device" in done.err

"""Model -> machine -> tree on disk -> collector -> parser: the profile says what the model says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from rocstack.node import collect, collect_paths, parse
from rocstack.node.profile import Affinity, Gid, NodeProfile, Pcie
from rocstack.node.recording import RecordedAnswer, Recording
from rocstack.probe import recordings
from rocstack.probe.classes import traits
from rocstack.virtual import faults, machine, model, tree

KINDS = recordings.kinds()


def recording(name: str, *wanted: str, node: int = 1) -> Recording:
    spec = model.load(name)
    return tree.record(faults.apply(machine.expand(spec, node), map(faults.parse, wanted)))


@cache
def profile(name: str, *wanted: str) -> NodeProfile:
    return parse.parse(recording(name, *wanted), KINDS)


@pytest.mark.parametrize("name", model.names())
def test_the_tree_on_disk_reads_like_the_model(name: str, tmp_path: Path) -> None:
    made = recording(name)
    made.write_tree(tmp_path / "sys")
    collected = Recording.from_dict(collect.collect(str(tmp_path)))
    seen = parse.parse(replace(collected, devices=made.devices), KINDS)  # device nodes need root to make
    straight = parse.parse(made, KINDS)
    assert seen.gpus == straight.gpus
    assert seen.nics == straight.nics
    assert seen.verbs == straight.verbs
    assert seen.netdevs == straight.netdevs
    assert seen.affinity == straight.affinity
    assert seen.routes == straight.routes
    assert seen.addresses == straight.addresses
    assert (seen.virtual, seen.unread) == (name, ())


@pytest.mark.parametrize("name", model.names())
def test_the_tree_of_a_recording_reads_like_the_node(name: str, tmp_path: Path) -> None:
    made = recording(name)
    made.write_tree(tmp_path / "node/sys")
    taken = Recording.from_dict(collect.collect(str(tmp_path / "node"), tree=True))
    taken = replace(taken, devices=made.devices)
    tree.shown(taken).write_tree(tmp_path / "again/sys")
    for path, told in made.blobs.items():
        assert (tmp_path / f"again{path}").read_bytes() == told[: collect_paths.PCI_HEADER], "lspci reads it"
    again = Recording.from_dict(collect.collect(str(tmp_path / "again")))
    seen, straight = (parse.parse(replace(each, devices=made.devices), KINDS) for each in (again, made))
    assert traits(seen) == traits(straight)
    assert (seen.virtual, seen.addresses, seen.affinity) == (name, straight.addresses, straight.affinity)
    assert (tmp_path / "again/sys/devices/virtual/rocstack/devices").read_text().count("\n") == len(made.devices)


def test_the_tree_of_a_real_node_says_that_it_is_a_recording(tmp_path: Path) -> None:
    real = {path: text for path, text in recording("mi300x-thor2").files.items() if "/rocstack/" not in path}
    answers = {
        "uname -m": RecordedAnswer(0, "x86_64\n"),
        "which x": RecordedAnswer(1, ""),
        "rpm -qf /usr/lib/x": RecordedAnswer(0, "x\n"),
    }
    taken = Recording(host="n1", files=real, commands=answers)
    assert taken.virtual is None
    assert tree.shown(taken).virtual == "recording"
    tree.shown(taken).write_tree(tmp_path)
    assert [path.name for path in (tmp_path / "devices/virtual/rocstack/commands").iterdir()] == ["uname -m"]


def test_a_probe_reads_no_more_than_it_needs(tmp_path: Path) -> None:
    recording("mi300x-thor2").write_tree(tmp_path / "sys")
    plain, tools = (collect.collect(str(tmp_path), tree=tree) for tree in (False, True))
    assert not plain["blobs"]
    assert not [path for path in plain["files"] if "/hwmon/" in path]
    assert len(tools["files"]) > 1.5 * len(plain["files"])


@pytest.mark.parametrize("name", sorted({*model.names()} - {"mixed-broken"}))
def test_every_model_has_what_it_says(name: str) -> None:
    spec, seen = model.load(name), profile(name)
    gpus = spec.gpus
    assert len(seen.gpus) == (gpus.count if gpus else 0)
    assert seen.amdgpu == (gpus.driver if gpus else None)
    for index, gpu in enumerate(seen.gpus):
        assert gpus
        assert (gpu.device, gpu.gfx, gpu.name, gpu.firmware) == (gpus.pci, gpus.gfx, gpus.name, gpus.vbios)
        assert (gpu.memory, gpu.render_minor) == (gpus.memory_gib * 2**30, 128 + index)
        assert {link.kind for link in gpu.links} == {"xgmi"}
    assert sum(spec.count for spec in spec.nics) == len([netdev for netdev in seen.netdevs if netdev.pci])
    for kind in spec.nics:
        mine = [nic for nic in seen.nics if nic.netdevs and nic.netdevs[0] in model.counted(kind.netdev, kind.count)]
        assert {nic.nic for nic in mine} == {kind.nic}
        assert {nic.driver for nic in mine} == {kind.module}
        assert {nic.firmware for nic in mine} == {kind.firmware}
        abis = {verbs.kernel_abi for verbs in seen.verbs if verbs.pci in {nic.pci for nic in mine}}
        assert abis == ({kind.kernel_abi} if kind.verbs else set())
    for switch in spec.switches:
        for gpu in switch.gpus:
            near = {a.nic for a in seen.affinity if a.gpu == gpu and a.via == "switch"}
            verbs = {v.name for v in seen.verbs if set(v.netdevs) & set(switch.nics)}
            assert near == (verbs or set(switch.nics))


def test_a_node_without_gpus_shows_no_driver_of_them() -> None:
    seen = recording("epyc-thor2")
    assert not [path for path in (*seen.files, *seen.devices) if "kfd" in path or "/dri/" in path or "amdgpu" in path]
    assert [verbs.name for verbs in profile("epyc-thor2").verbs] == ["bnxt_re0", "bnxt_re1"]


def test_mi300x_with_thor2_in_full() -> None:
    seen = profile("mi300x-thor2")
    assert seen.name == "n1"
    assert seen.virtual == "mi300x-thor2"
    assert (seen.system.os, seen.system.kernel) == ("ubuntu-24.04", "6.8.0-79-generic")
    assert (seen.system.cpus, seen.system.numa_nodes, seen.system.memory) == (384, 2, 1536 * 2**30)
    assert seen.system.cmdline is not None
    assert "iommu=pt" in seen.system.cmdline
    gpu = seen.gpus[5]
    assert (gpu.pci, gpu.device, gpu.gfx, gpu.name) == (
        "0000:9d:00.0", "1002:74a1", "gfx942", "AMD Instinct MI300X OAM",
    )  # fmt: skip
    assert (gpu.numa, gpu.memory, gpu.render_minor, gpu.kfd_node) == (1, 206158430208, 133, 7)
    assert gpu.pcie == Pcie(32.0, 16, 32.0, 16)
    assert gpu.path == (
        "0000:98:01.1", "0000:99:00.0", "0000:9a:00.0", "0000:9b:00.0", "0000:9c:00.0", "0000:9d:00.0",
    )  # fmt: skip
    assert {(link.to, link.kind, link.weight) for link in gpu.links} == {
        (other, "xgmi", 15) for other in (0, 1, 2, 3, 4, 6, 7)
    }
    nic = next(nic for nic in seen.nics if nic.verbs == "bnxt_re5")
    assert (nic.pci, nic.device, nic.nic, nic.driver) == ("0000:9e:00.0", "14e4:1760", "broadcom", "bnxt_en")
    assert (nic.driver_version, nic.firmware, nic.numa) == ("232.0.164.5", "231.2.63.0", 1)
    assert nic.path == ("0000:98:01.1", "0000:99:00.0", "0000:9a:01.0", "0000:9e:00.0")
    verbs = next(verbs for verbs in seen.verbs if verbs.name == "bnxt_re5")
    assert (verbs.uverbs, verbs.kernel_abi, verbs.driver, verbs.device_node) == ("uverbs5", 6, "bnxt_re", True)
    assert verbs.netdevs == ("rdma5",)
    port = verbs.ports[0]
    assert (port.state, port.physical, port.link_layer, port.rate) == ("ACTIVE", "LinkUp", "Ethernet", 400000)
    assert port.gids == (
        Gid(0, "fe80:0000:0000:0000:0000:01ff:fe00:0005", "RoCE v2", "rdma5"),
        Gid(1, "0000:0000:0000:0000:0000:ffff:0a64:0501", "RoCE v2", "rdma5"),
    )
    assert seen.affinity[5] == Affinity(5, "bnxt_re5", "switch")
    assert ("rdma5", "10.100.5.1/24") in [(a.netdev, a.address) for a in seen.addresses]
    assert ("0.0.0.0/0", "eno1") in [(route.to, route.netdev) for route in seen.routes]
    assert seen.groups["/dev/kfd"] == 109
    assert seen.limits["memlock"] == -1
    assert seen.sysctl["net.ipv4.conf.all.arp_ignore"] == "1"


def test_kernel_abi_1_shows_the_pci_id_that_rdma_core_knows() -> None:
    seen = profile("mi325x-thor2")
    assert {nic.device for nic in seen.nics if nic.nic == "broadcom"} == {"14e4:1750"}
    assert seen.modules["bnxt_re"] == "in-tree"
    assert [gid.index for gid in seen.verbs[0].ports[0].gids if gid.type == "RoCE v2"] == [1, 3]


def test_mi250x_has_slingshot_devices_and_no_verbs() -> None:
    seen = profile("mi250x-slingshot")
    assert seen.verbs == ()
    assert seen.cxi == ("/dev/cxi0", "/dev/cxi1", "/dev/cxi2", "/dev/cxi3")
    assert [gpu.numa for gpu in seen.gpus] == [3, 3, 1, 1, 0, 0, 2, 2]
    assert [nic.device for nic in seen.nics if nic.nic == "slingshot"] == ["17db:0501"] * 4
    assert sorted(link.weight or 0 for link in seen.gpus[0].links) == [15, 15, 15, 30, 30, 30, 30]


def test_mixed_broken_is_as_broken_as_it_says() -> None:
    seen = profile("mixed-broken")
    assert len(seen.gpus) == 7
    assert [gpu.render_minor for gpu in seen.gpus] == [128, 129, 130, 131, 132, 133, 134]
    assert seen.gpus[5].pci == "0000:cd:00.0"
    by_name = {verbs.name: verbs for verbs in seen.verbs}
    assert list(by_name) == [*(f"bnxt_re{i}" for i in range(6)), "mlx5_0", "mlx5_1", "mlx5_bond_0"]
    assert by_name["bnxt_re2"].ports[0].state == "DOWN"
    assert [gid.index for gid in by_name["bnxt_re3"].ports[0].gids] == [0, 2]
    assert by_name["mlx5_1"].ports[0].gids == ()
    slow = next(nic for nic in seen.nics if nic.verbs == "bnxt_re1")
    assert (slow.pcie.width, slow.pcie.max_width) == (8, 16)
    bond = next(netdev for netdev in seen.netdevs if netdev.name == "bond0")
    assert bond.kind == "bond"
    assert {netdev.name: netdev.master for netdev in seen.netdevs if netdev.master} == {
        "eno1": "bond0", "eno2": "bond0",
    }  # fmt: skip
    assert seen.limits["memlock"] == 8388608


def test_nodes_of_one_model_differ_in_their_addresses_only() -> None:
    one, two = (parse.parse(recording("mi300x-cx7", node=node), KINDS) for node in (1, 2))
    assert one.gpus == two.gpus
    assert one.nics == two.nics
    assert two.name == "n2"
    assert two.verbs[3].ports[0].gids[3].gid == "0000:0000:0000:0000:0000:ffff:0a64:0302"
    assert not {a.address for a in one.addresses} & {a.address for a in two.addresses}


def test_a_live_node_leaves_its_own_network_and_userspace_to_the_container() -> None:
    spec = machine.expand(model.load("mi300x-thor2"), 1, "10.213.7.11/24", "10.213.7.1")
    live = tree.record(spec, live=True)
    assert "/etc/os-release" not in live.files
    assert "10.213.7" not in live.commands["ip -o -4 addr"].out
    assert "10.100.0.1/24" in live.commands["ip -o -4 addr"].out
    assert live.files["/sys/devices/virtual/rocstack/netdev"] == "eno1\n"
    assert "eno1" not in live.files["/proc/net/route"]

"""What names a site goes, what a machine is stays."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstack.node.profile import NodeProfile
from rocstack.node.recording import RecordedAnswer, Recording
from rocstack.probe import recordings
from rocstack.probe.classes import traits
from rocstack.probe.diagram import draw
from rocstack.probe.redact import mask
from rocstack.virtual import machine, model, tree

KEY = b"0" * 32
HEX = "0123456789abcdef"
MODELS = model.names()
KFD = "/sys/class/kfd/kfd/topology/nodes/2/properties"
ADDRESSES = "ip -o -4 addr"


@cache
def recorded(name: str, node: int = 1) -> Recording:
    return tree.record(machine.expand(model.load(name), node))


def profile(recording: Recording) -> NodeProfile:
    return recordings.profiles([recording])[0]


def dump(recording: Recording) -> str:
    return json.dumps(recording.to_dict())


def octets(raw: bytes) -> str:
    return raw.hex(":")


def eui64(mac: bytes) -> str:
    return (bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]).hex(":", 2)


def route(address: ipaddress.IPv4Address, bits: int) -> str:
    base = int(address) & (0xFFFFFFFF << (32 - bits))
    cells = [number.to_bytes(4, "little").hex().upper() for number in (base, 0, 0xFFFFFFFF << (32 - bits) & 0xFFFFFFFF)]
    return f"rdma0\t{cells[0]}\t{cells[1]}\t0001\t0\t0\t0\t{cells[2]}\t0\t0\t0\n"


# An address that a real host may have: no network of its own meaning, no network or broadcast address.
hosts = st.ip_addresses(v=4).filter(
    lambda a: (
        not (a.is_loopback or a.is_multicast or a.is_reserved or a.is_link_local or a.is_unspecified)
        and int(a) >> 24 != 0
        and int(a) & 255 not in (0, 255)
    )
)
macs = st.binary(min_size=6, max_size=6).filter(lambda raw: len(set(raw)) > 2)
serials = st.text(HEX, min_size=16, max_size=16).filter(lambda text: len(set(text)) > 4)
names = st.from_regex(r"[a-z]{4,8}-[0-9]{2,4}(\.[a-z]{5,8}\.[a-z]{3})?", fullmatch=True)
uuids = st.uuids(version=4).map(str)
passwords = st.from_regex(r"[A-Z][a-z]{6}[0-9]{4}", fullmatch=True)


@settings(max_examples=150, deadline=None)
@given(hosts, st.integers(12, 30), macs, serials, names, uuids, passwords, st.integers(10**15, 10**18))
def test_no_secret_survives(
    address: ipaddress.IPv4Address,
    bits: int,
    mac: bytes,
    serial: str,
    name: str,
    uuid: str,
    password: str,
    number: int,
) -> None:
    port = "/sys/class/infiniband/bnxt_re0/ports/1/gids"
    groups = int(address).to_bytes(4, "big").hex()
    recording = Recording(
        host=name,
        files={
            "/proc/cmdline": f"root=UUID={uuid} ip={address} token={password} amd_iommu=on hostname={name} {name}"
            f" -- --key {password}\n",
            "/proc/net/route": "Iface\tDestination\n" + route(address, bits),
            "/etc/group": f"video:x:44:{name.partition('.')[0]}u,{password}\nrender:x:109:\n",
            "/sys/class/drm/card0/device/unique_id": serial + "\n",
            KFD: f"simd_count 1216\nunique_id {number}\nhive_id {number}\n",
            f"/sys/devices/net/enx{mac.hex()}/address": octets(mac) + "\n",
            f"{port}/0": f"fe80:0000:0000:0000:{eui64(mac)}\n",
            f"{port}/1": f"0000:0000:0000:0000:0000:ffff:{groups[:4]}:{groups[4:]}\n",
            "/sys/class/infiniband/bnxt_re0/node_guid": eui64(mac) + "\n",
            "/sys/class/infiniband/bnxt_re0/node_desc": f"{name} bnxt_re0\n",
        },
        blobs={"/sys/bus/pci/devices/0000:01:00.0/config": bytes(256) + mac, "/sys/x/vpd": serial.encode()},
        links={f"/sys/class/net/enx{mac.hex()}": f"/sys/devices/net/enx{mac.hex()}"},
        commands={
            ADDRESSES: RecordedAnswer(0, f"2: rdma0    inet {address}/{bits}\n"),
            "slurmd -V": RecordedAnswer(1, f"slurmd: error on {name} ({address}): serial {serial}\n"),
        },
        unread={"/root/x": f"{name}: no permission"},
    )
    (masked,) = mask([recording], KEY)
    text = dump(masked).lower()
    secrets = [str(address), mac.hex(), octets(mac), eui64(mac), serial, name, uuid, password.lower(), str(number)]
    assert [secret for secret in secrets if secret in text] == []
    assert name.partition(".")[0] not in text
    assert all(mac not in data for data in masked.blobs.values())
    assert "amd_iommu=on" in masked.files["/proc/cmdline"]
    assert masked.files["/proc/cmdline"].endswith(" -- masked\n")
    assert masked.files["/etc/group"] == "video:x:44:\nrender:x:109:\n"
    _check_structure(masked, bits)


def _check_structure(masked: Recording, bits: int) -> None:
    """The same things are still the same, under their new names."""
    new = ipaddress.IPv4Interface(masked.commands[ADDRESSES].out.split()[-1])
    port = "/sys/class/infiniband/bnxt_re0/ports/1/gids"
    assert ipaddress.IPv6Address(masked.text(f"{port}/1")).ipv4_mapped == new.ip
    row = masked.files["/proc/net/route"].splitlines()[1].split("\t")
    assert int(new.network[0]) == int.from_bytes(bytes.fromhex(row[1]), "little"), "the route leads to its network"
    assert new.network.prefixlen == bits
    guid = masked.text("/sys/class/infiniband/bnxt_re0/node_guid")
    assert masked.text(f"{port}/0") == f"fe80:0000:0000:0000:{guid}"
    (netdev,) = (path.split("/")[4] for path in masked.files if path.endswith("/address"))
    assert masked.text(f"/sys/class/net/{netdev}/address") == octets(bytes.fromhex(netdev[3:]))
    assert eui64(bytes.fromhex(netdev[3:])) == guid
    properties = masked.files[KFD].split()
    assert properties[3] == properties[5]


@settings(max_examples=200, deadline=None)
@given(st.lists(hosts, min_size=2, max_size=6, unique=True), st.integers(12, 30))
def test_neighbours_stay_neighbours(addresses: list[ipaddress.IPv4Address], bits: int) -> None:
    lines = "".join(f"{n}: rdma{n}    inet {address}/{bits}\n" for n, address in enumerate(addresses))
    (masked,) = mask([Recording(commands={ADDRESSES: RecordedAnswer(0, lines)})], KEY)
    new = [ipaddress.IPv4Interface(line.split()[-1]) for line in masked.commands[ADDRESSES].out.splitlines()]
    assert len({one.ip for one in new}) == len(addresses)
    old = [ipaddress.IPv4Interface(f"{address}/{bits}") for address in addresses]
    for one, other in combinations(range(len(old)), 2):
        assert (old[one].network == old[other].network) == (new[one].network == new[other].network)
    for private in map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")):
        assert [each.ip in private for each in old] == [each.ip in private for each in new] or bits < private.prefixlen


@pytest.mark.parametrize("name", MODELS)
def test_a_masked_machine_is_the_same_machine(name: str) -> None:
    recording = recorded(name)
    (masked,) = mask([recording], KEY)
    before, after = profile(recording), profile(masked)
    assert traits(after) == traits(before)
    assert draw(replace(after, name=before.name)) == draw(before)
    assert [len(port.gids) for v in after.verbs for port in v.ports] == [
        len(port.gids) for v in before.verbs for port in v.ports
    ]
    own = {gid.gid for v in before.verbs for port in v.ports for gid in port.gids} | {
        a.address for a in before.addresses
    }
    left = {gid.gid for v in after.verbs for port in v.ports for gid in port.gids} | {
        a.address for a in after.addresses
    }
    assert own.isdisjoint(left)


def test_nodes_of_one_recording_keep_their_common_networks() -> None:
    nodes = [recorded("mi300x-thor2", number) for number in (1, 2)]
    first, second = (profile(each) for each in mask(nodes, KEY))
    assert (first.name, second.name) == ("node-1", "node-2")
    old = [{ipaddress.ip_interface(a.address).network for a in profile(node).addresses} for node in nodes]
    new = [{ipaddress.ip_interface(a.address).network for a in node.addresses} for node in (first, second)]
    assert len(new[0] & new[1]) == len(old[0] & old[1])


def test_another_key_gives_other_names() -> None:
    recording = recorded("mi300x-thor2")
    (one,), (other,) = mask([recording], KEY), mask([recording], b"1" * 32)
    assert one.commands[ADDRESSES] != other.commands[ADDRESSES]
    assert one.to_dict() == mask([recording], KEY)[0].to_dict()


def test_versions_that_look_like_addresses_stay() -> None:
    files = {"/sys/module/bnxt_re/version": "232.0.164.5\n", "/sys/class/infiniband/bnxt_re0/fw_ver": "231.2.63.0\n"}
    commands = {
        "ofed_info -s": RecordedAnswer(0, "OFED-24.10.1.1.4\n"),
        "niccli --version": RecordedAnswer(0, "v231.2.63.0"),
    }
    (masked,) = mask([Recording(host="n1", files=files, commands=commands)], KEY)
    assert masked.files == files
    assert masked.commands == commands


def test_pci_addresses_and_libraries_stay() -> None:
    library = b"\x7fELF" + bytes(range(256))
    (masked,) = mask([Recording(
        files={"/sys/devices/pci0000:00/0000:05:00.0/uevent": "PCI_SLOT_NAME=0000:05:00.0\n"},
        blobs={"/usr/lib/libibverbs.so.1": library},
    )], KEY)  # fmt: skip
    assert masked.files == {"/sys/devices/pci0000:00/0000:05:00.0/uevent": "PCI_SLOT_NAME=0000:05:00.0\n"}
    assert masked.blobs == {"/usr/lib/libibverbs.so.1": library}

"""States of nodes: each is found on a node that has it, and a sound node has none. The nodes are virtual ones, read
by the real parsers; what a /sys tree can't hold (libraries) is added to the profile."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_run import Cli

from rocstack.base import finding_texts, paths
from rocstack.base.findings import LEVELS
from rocstack.doctor import fleet
from rocstack.doctor import nodes as doctor
from rocstack.node import parse
from rocstack.node.nic_settings import NicSettings
from rocstack.node.profile import Address, Library, Netdev, NodeProfile, Pcie, Unread
from rocstack.probe import profiles
from rocstack.virtual import faults, machine, model, tree

TABLE = finding_texts.load()
KINDS = [
    NicSettings("broadcom", ("bnxt_en", "bnxt_re"), ("14e4:1750", "14e4:1760"), "bnxt_re"),
    NicSettings("mellanox", ("mlx5_core", "mlx5_ib"), ("15b3:1021", "15b3:101d"), "mlx5"),
    NicSettings("ainic", ("ionic", "ionic_rdma"), ("1dd8:1002",), "ionic"),
    NicSettings("slingshot", ("cxi_ss1",), ("17db:0501",)),
]
FOLDER = "/usr/lib/x86_64-linux-gnu/"
INBOX = FOLDER + "libibverbs/libbnxt_re-rdmav34.so"
VENDOR = "/usr/local/lib/libbnxt_re-rdmav34.so"
VERBS = Library(FOLDER + "libibverbs.so.1.14.56.1", private_abi=34, version="56.1-1")
FITTING = Library(VENDOR, "bnxt_re", "232.0.164.5", private_abi=34, kernel_abi=(6, 6))
OWN = Library(INBOX, "bnxt_re", "56.1-1", private_abi=34, kernel_abi=(1, 1))


def node(*broken: str, kind: str = "mi300x-thor2", number: int = 1, **changes: Any) -> NodeProfile:
    """A virtual node with these faults; `changes` go to the profile."""
    good = ["firmware=237.1.137.0"] if kind.endswith("thor2") else []
    asked = [faults.parse(text) for text in (*good, *broken)]
    made = faults.apply(machine.expand(model.load(kind), number), asked)
    profile = parse.parse(tree.record(made), KINDS)
    changes = {
        "libraries": (VERBS, FITTING),
        "driver_files": None,
        "limits": {"memlock": -1, "nofile": 1048576},
        **changes,
    }
    return replace(profile, **changes)


def ids(*nodes: NodeProfile) -> set[str]:
    return {finding.code for finding in doctor.examine(nodes, TABLE).findings}


def system(profile: NodeProfile, **changes: Any) -> NodeProfile:
    return replace(profile, system=replace(profile.system, **changes))


def other(profile: NodeProfile, name: str = "n2", **changes: Any) -> NodeProfile:
    return replace(profile, name=name, **changes)


SOUND = node()
TWO = (SOUND, node(number=2))


@pytest.mark.parametrize(
    "kind", ["mi300x-thor2", "mi300x-cx7", "mi325x-thor2", "mi300x-pollara", "mi355x-pollara", "mi250x-slingshot"]
)
def test_a_sound_node_has_no_finding(kind: str) -> None:
    driver, abi, name = {
        "mi300x-thor2": ("bnxt_re", 6, "232.0.164.5"),
        "mi325x-thor2": ("bnxt_re", 1, "63.0-1"),
        "mi300x-cx7": ("mlx5", 1, "56.1-1"),
        "mi300x-pollara": ("ionic", 4, "54.0-149"),
        "mi355x-pollara": ("ionic", 4, "54.0"),
        "mi250x-slingshot": ("cxi", 1, "1"),
    }[kind]
    libraries = (VERBS, Library(f"/usr/lib/lib{driver}.so", driver, name, 34, (abi, abi)))
    nodes = [node(kind=kind, number=number, libraries=libraries) for number in (1, 2)]
    assert ids(*nodes) == set()


def gid_type(profile: NodeProfile, index: int, kind: str) -> NodeProfile:
    """All rows of one device's GID table are of this type."""
    device = profile.verbs[index]
    ports = tuple(replace(port, gids=tuple(replace(gid, type=kind) for gid in port.gids)) for port in device.ports)
    verbs = (*profile.verbs[:index], replace(device, ports=ports), *profile.verbs[index + 1 :])
    return replace(profile, verbs=verbs)


def no_ipv4(profile: NodeProfile, *, every: bool) -> NodeProfile:
    def own(port: Any) -> Any:
        return replace(port, gids=tuple(gid for gid in port.gids if not gid.gid.startswith("0000:0000:0000:0000:0000")))

    verbs = tuple(
        replace(device, ports=tuple(map(own, device.ports))) if every or index == 0 else device
        for index, device in enumerate(profile.verbs)
    )
    return replace(profile, verbs=verbs)


def same_subnet(profile: NodeProfile, ignore: str) -> NodeProfile:
    """All data interfaces in one subnet."""
    names = [name for device in profile.verbs for name in device.netdevs]
    addresses = tuple(Address(name, f"10.9.0.{number}/24") for number, name in enumerate(names, 1))
    return replace(profile, addresses=addresses, sysctl={"net.ipv4.conf.all.arp_ignore": ignore})


def slow(profile: NodeProfile) -> NodeProfile:
    gpu = replace(profile.gpus[2], pcie=Pcie(16.0, 16, 32.0, 16))
    return replace(profile, gpus=(*profile.gpus[:2], gpu, *profile.gpus[3:]))


CASES: dict[str, Callable[[], tuple[NodeProfile, ...]]] = {
    "no-provider": lambda: (node(libraries=(VERBS,)),),
    "provider-kernel-abi": lambda: (node(libraries=(VERBS, OWN)),),
    "no-driver-file": lambda: (node(driver_files=("mlx5", "rxe")),),
    "provider-shadowed": lambda: (node(libraries=(VERBS, OWN, FITTING)),),
    "provider-private-abi": lambda: (node(libraries=(replace(VERBS, private_abi=59), FITTING)),),
    "qp-bug": lambda: (node("abi=1", libraries=(VERBS, OWN)),),
    "no-rdma-device": lambda: (replace(SOUND, verbs=(), nics=tuple(replace(nic, verbs=None) for nic in SOUND.nics)),),
    "gpu-without-nic": lambda: (node("nic-missing=bnxt_re2"),),
    "firmware-mixed": lambda: (node("firmware=bnxt_re2:237.1.139.0"),),
    "firmware-ibgda": lambda: (node("firmware=231.2.63.0"),),
    "no-uverbs": lambda: (node("no-device-node=bnxt_re3"),),
    "port-down": lambda: (node("port-down=bnxt_re2"),),
    "mtu-small": lambda: (node("mtu=1500"),),
    "mtu-differs": lambda: (node("mtu=bnxt_re3:4300"),),
    "gid-none": lambda: (gid_type(SOUND, 4, "IB/RoCE v1"),),
    "gid-no-ipv4": lambda: (no_ipv4(SOUND, every=True),),
    "gid-index-differs": lambda: (node("gid-holes=bnxt_re3"),),
    "pcie-width": lambda: (node("pcie=bnxt_re1:x8"),),
    "pcie-speed": lambda: (slow(SOUND),),
    "memlock-low": lambda: (node(limits={"memlock": 8 << 20}),),
    "nofile-low": lambda: (node(limits={"nofile": 1024}),),
    "iommu-pt": lambda: (system(SOUND, cmdline="ro quiet amd_iommu=on"),),
    "numa-balancing": lambda: (system(SOUND, numa_balancing=1),),
    "arp-flux": lambda: (same_subnet(SOUND, "0"),),
    "bnxt-releases": lambda: (replace(SOUND, modules={"bnxt_en": "1.10.3-235.2.86.0", "bnxt_re": "232.0.164.5"}),),
    "kfd-root": lambda: (replace(SOUND, groups={"/dev/kfd": 0}),),
    "gpu-count": lambda: (node("gpu-missing=5"),),
    "driver-rocm": lambda: (replace(SOUND, amdgpu="6.1.5", tools={"rocm": "7.2.1"}),),
    "nics-mixed": lambda: (node(kind="mixed-broken"),),
    "no-gpu": lambda: (replace(SOUND, gpus=(), affinity=()),),
    "gpus-fewer": lambda: (*TWO, node("gpu-missing=5", number=3)),
    "rdma-fewer": lambda: (*TWO, node("nic-missing=bnxt_re3", number=3)),
    "abi-differs": lambda: (*TWO, node("abi=1", number=3, libraries=(VERBS, replace(FITTING, kernel_abi=(1, 6))))),
    "nodes-differ": lambda: (*TWO, node("kernel=6.8.0-45-generic", number=3)),
    "clocks-differ": lambda: (system(TWO[0], clock=1000.0), system(TWO[1], clock=1400.0)),
}
# What a state brings along by its nature.
ALONG = {
    "mtu-differs": {"nodes-differ"},
    "nics-mixed": None,  # that model has many faults
    "gpus-fewer": {"gpu-count"},
    "rdma-fewer": {"gpu-without-nic"},
    "abi-differs": {"nodes-differ"},
}


def test_every_state_has_a_case() -> None:
    assert set(CASES) == {*doctor.RULES, *fleet.RULES}


@pytest.mark.parametrize("name", CASES)
def test_a_state_is_found(name: str) -> None:
    nodes = CASES[name]()
    found = ids(*nodes)
    assert name in found
    along = ALONG.get(name, set())
    assert along is None or found - {name} <= along
    report = doctor.examine(nodes, TABLE)
    finding = next(finding for finding in report.findings if finding.code == name)
    assert "{" not in finding.what + finding.next
    assert finding.nodes
    assert set(finding.nodes) <= set(report.nodes)
    assert len(finding.seen) >= 1


@pytest.mark.parametrize(
    "profile",
    [
        NodeProfile(schema=1, name="empty"),
        node(libraries=(VERBS,), unread=(Unread(FOLDER + "libibverbs", "permission denied"),)),
        node(libraries=(VERBS, replace(OWN, kernel_abi=None))),
        node(libraries=(VERBS, replace(OWN, path="/opt/x.so"), FITTING)),
        node(driver_files=None),
        node(driver_files=("mlx5", "bnxt_re")),
        node(driver_files=("/usr/local/lib/libbnxt_re",)),
        node(limits={}),
        node(limits={"memlock": 64 << 30}),
        system(SOUND, cmdline=None, numa_balancing=None),
        same_subnet(SOUND, "2"),
        replace(SOUND, modules={"bnxt_en": "1.10.3-232.0.164.5", "bnxt_re": "232.0.164.5"}),
        replace(SOUND, modules={"bnxt_en": "in-tree", "bnxt_re": "in-tree"}),
        replace(SOUND, amdgpu="in-tree", tools={"rocm": "7.2.1"}),
        replace(SOUND, amdgpu="30.20.1", tools={"rocm": "7.2.1"}),
    ],
    ids=lambda profile: None,
)
def test_what_is_right_or_not_known_is_no_finding(profile: NodeProfile) -> None:
    assert ids(profile) <= {"no-gpu"}


def test_a_version_of_thousands_of_digits_ends_no_examination() -> None:
    """Python reads no such number. A node says what its packages' versions are."""
    endless = replace(OWN, version=f"{'9' * 5000}.1-1")
    assert ids(node("abi=1", libraries=(VERBS, endless))) == ids(node("abi=1", libraries=(VERBS, OWN))) - {"qp-bug"}


def test_a_port_of_another_network_may_be_down() -> None:
    """The management card of mi300x-cx7, also where it doesn't hold the default route."""
    down = node("port-down=mlx5_8", kind="mi300x-cx7", libraries=())
    assert ids(down, replace(down, name="n2", routes=())) == {"no-provider"}
    assert "port-down" in ids(node("port-down=mlx5_7", kind="mi300x-cx7"))


def test_a_control_node_is_not_compared() -> None:
    control = NodeProfile(schema=1, name="c1")
    assert ids(*TWO, control) == {"no-gpu"}


def test_the_broken_model_is_seen_through() -> None:
    """Each fault that the model names has its finding."""
    wanted = {"gpu-count", "port-down", "pcie-width", "gid-index-differs", "gid-none", "mtu-differs", "memlock-low"}
    found = ids(node(kind="mixed-broken", limits={"memlock": 8 << 20}))
    assert wanted <= found
    assert "no-rdma-device" not in found, "the bond's second card has the bond's device"


def test_a_card_that_shares_a_bridge_needs_its_own_device() -> None:
    bridge = Netdev("br0", kind="bridge")
    netdevs = tuple(replace(n, master="br0") if n.name in ("rdma0", "rdma1") else n for n in SOUND.netdevs)
    nics = tuple(replace(nic, verbs=None) if nic.verbs == "bnxt_re1" else nic for nic in SOUND.nics)
    assert "no-rdma-device" in ids(replace(SOUND, netdevs=(*netdevs, bridge), nics=nics))


@pytest.mark.parametrize("kind", [name for name in model.names() if name != "mixed-broken"])
def test_a_sound_model_is_without_fault(kind: str) -> None:
    """As it is rehearsed: with its own limits, and no library of the vendor's yet."""
    nodes = [
        parse.parse(tree.record(faults.apply(machine.expand(model.load(kind), number), [])), KINDS) for number in (1, 2)
    ]
    found = {finding.code: finding.level for finding in doctor.examine(nodes, TABLE).findings}
    notes = {
        "mi250x-slingshot": (),
        "mi300x-thor2": ("no-provider", "firmware-ibgda"),
        "epyc-thor2": ("no-provider", "no-gpu"),
    }
    assert found == dict.fromkeys(notes.get(kind, ("no-provider",)), "note")


@pytest.mark.parametrize(
    ("fault", "alone", "among_others"),
    [
        ("port-down=hsn1", {"port-down"}, {"port-down", "rdma-fewer"}),
        ("nic-missing=hsn1", {"gpu-without-nic"}, {"gpu-without-nic", "rdma-fewer"}),
        ("mtu=1500", set(), {"nodes-differ"}),
        ("driver=2.1", set(), {"nodes-differ"}),
    ],
)
def test_slingshot(fault: str, alone: set[str], among_others: set[str]) -> None:
    two = [node(kind="mi250x-slingshot", number=number) for number in (1, 2)]
    broken = node(fault, kind="mi250x-slingshot", number=3)
    assert ids(broken) == alone
    assert ids(*two, broken) == among_others


def test_nodes_with_the_same_finding_stand_together() -> None:
    nodes = [node("pcie=bnxt_re1:x8", number=number) for number in (1, 2, 3)] + [node("pcie=bnxt_re2:x4", number=4)]
    (finding,) = [f for f in doctor.examine(nodes, TABLE).findings if f.code == "pcie-width"]
    assert finding.nodes == ("n1", "n2", "n3", "n4")
    assert finding.seen[0].startswith("n1, n2, n3: ")
    assert finding.seen[1].startswith("n4: ")


def test_the_odd_node_is_named() -> None:
    (finding,) = [f for f in doctor.examine(CASES["nodes-differ"](), TABLE).findings if f.code == "nodes-differ"]
    assert finding.nodes == ("n3",)
    assert "6.8.0-45-generic (n3)" in finding.what


def test_virtual_hardware_is_called_so() -> None:
    report = doctor.examine(TWO, TABLE)
    assert report.virtual == {"n1": "mi300x-thor2", "n2": "mi300x-thor2"}


def test_a_node_that_does_not_answer_is_a_finding() -> None:
    report = doctor.examine(TWO, TABLE, {"n3": "No route to host", "n4": "No route to host"})
    (finding,) = report.findings
    assert (finding.code, finding.level, finding.nodes) == ("node-unreached", "error", ("n3", "n4"))
    assert finding.seen == ("n3, n4: can't be read: No route to host",)
    assert report.nodes == ("n1", "n2", "n3", "n4")


# The command


def test_saved_profiles(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    profiles.write_profiles(file, [*TWO, node("port-down=bnxt_re2", number=3)])
    done = cli("doctor", "--profiles", str(file))
    assert done.code == 1
    assert "virtual, no real hardware (mi300x-thor2): n1, n2, n3" in done.out
    assert re.search(r"^error port-down \(1 of 3 nodes: n3\): bnxt_re2 port 1 ", done.out, re.MULTILINE)
    assert "bnxt_re2 port 1" in done.out
    said = cli("doctor", "--profiles", str(file), "--json").json()
    assert said["ok"] is False
    assert {finding["id"] for finding in said["findings"]} == {"port-down", "rdma-fewer"}
    profiles.write_profiles(file, TWO)
    done = cli("doctor", "--profiles", str(file))
    assert done.code == 0
    assert "nothing known was found on n1, n2" in done.out
    file.write_text("{}")
    assert cli("doctor", "--profiles", str(file)).code == 2


def test_what_differs_is_said_once_with_its_nodes(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    nodes = [node("pcie=bnxt_re1:x8", number=number) for number in (1, 2)]
    profiles.write_profiles(file, nodes)
    alike = cli("doctor", "--profiles", str(file)).out
    assert "(2 of 2 nodes: n1, n2): PCIe width is below the card's maximum: bnxt_re1 x8 of x16\n  cause" in alike
    profiles.write_profiles(file, [*nodes, node("pcie=bnxt_re2:x4", number=3)])
    differing = cli("doctor", "--profiles", str(file)).out
    assert (
        "  seen    n1, n2: PCIe width is below the card's maximum: bnxt_re1 x8 of x16\n  seen    n3: PCIe" in differing
    )
    profiles.write_profiles(file, [node(kind="mixed-broken", number=number, libraries=()) for number in (1, 2)])
    assert "(2 of 2 nodes: n1, n2): no provider library for bnxt_re" in cli("doctor", "--profiles", str(file)).out


def test_a_playbook_is_named_as_one_types_it(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    profiles.write_profiles(file, [node(limits={"memlock": 8 << 20})])
    here, elsewhere = (cli("doctor", "--profiles", str(file), cwd=at).out for at in (paths.data_root(), tmp_path))
    assert "-i INVENTORY playbooks/host-nic.yml`" in here
    assert f"-i INVENTORY {paths.playbooks()}/host-nic.yml`" in elsewhere


def test_narrow_lines_hold_the_whole_text(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    profiles.write_profiles(file, [node(kind="mixed-broken")])
    wide = cli("doctor", "--profiles", str(file)).out
    narrow = cli("doctor", "--profiles", str(file), env={"COLUMNS": "60", "FORCE_COLOR": "1"}).out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", narrow)
    assert max(map(len, plain.splitlines())) <= 60 or "https" in plain
    assert plain.split() == wide.split()


def test_this_host(cli: Cli) -> None:
    done = cli("doctor", "--json")
    assert done.code in (0, 1)
    assert len(done.json()["nodes"]) == 1


def test_an_inventory_that_is_not_there(cli: Cli) -> None:
    done = cli("doctor", "nodes.yml", "--json")
    assert (done.code, done.json()["error"]["code"]) == (2, "no-inventory")


def test_errors_come_first() -> None:
    levels = [finding.level for finding in doctor.examine([node(kind="mixed-broken")], TABLE).findings]
    assert levels == sorted(levels, key=LEVELS.index)


@pytest.mark.parametrize(
    ("kind", "firmware", "old"),
    [
        ("mi300x-pollara", "1.117.1-a-63", True),  # GPUs can't start transfers with it
        ("mi300x-pollara", "1.117.5-a-38", True),
        ("mi300x-pollara", "1.117.5-a-45", False),
        ("mi300x-pollara", "1.125.0-a-187", False),
        ("mi300x-thor2", "231.2.63.0", True),
        ("mi300x-thor2", "235.2.86.0", False),
        ("mi300x-thor2", "238.1.138.5", False),  # newer than what was tried
        ("mi300x-cx7", "28.1.1", False),
    ],
)
def test_firmware_where_gpus_start_transfers(kind: str, firmware: str, old: bool) -> None:
    assert ("firmware-ibgda" in ids(node(f"firmware={firmware}", kind=kind))) == old


def test_pollara_with_the_library_of_another_kernel_abi() -> None:
    """It is refused by name, and the next step is for this NIC."""
    newer = Library("/usr/lib/x86_64-linux-gnu/libibverbs/libionic-rdmav34.so", "ionic", "54.0-187-1", 34, (1, 1))
    found = doctor.examine([node(kind="mi300x-pollara", libraries=(VERBS, newer))], TABLE).findings
    finding = next(each for each in found if each.code == "provider-kernel-abi")
    assert "kernel ABI 4, but the installed ionic supports 1-1" in finding.what
    assert "`rocstack build --nic ainic --profiles FILE`" in finding.next

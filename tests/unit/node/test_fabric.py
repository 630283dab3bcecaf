"""The fabric's environment: each case is a profile and the text that must come out (data/fabric/*.json, *.env).
`UPDATE_FABRIC=1` writes the texts anew; read the difference before you commit it."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from rocstack.image import node_package
from rocstack.node import rdma_ports
from rocstack.node.fabric import Fabric, fabric, likely, parse_env, render_env
from rocstack.node.nic_settings import SOFT_ROCE, FabricSetting, NicSettings, holds
from rocstack.node.profile import Affinity, Gid, Netdev, NodeProfile, Port, Route, Verbs
from rocstack.node.rdma_ports import MOST_PORTS
from rocstack.probe.classes import fabric_differences
from rocstack.stack import component
from rocstack.stack.component import NicProfile, library, validate_head

DATA = Path(__file__).parents[1] / "data" / "fabric"
CASES = sorted(path.stem for path in DATA.glob("*.json"))
PROFILE = TypeAdapter(NodeProfile)
NICS = {
    "soft-roce": SOFT_ROCE,
    **{name: node_package.settings(validate_head(file, NicProfile)) for name, file in library("nic").files.items()},
}


def load(case: str) -> tuple[NodeProfile, NicSettings, dict[str, Any]]:
    data = json.loads((DATA / f"{case}.json").read_text())
    return PROFILE.validate_json(json.dumps(data["profile"])), NICS[data["nic"]], data["args"]


def of(case: str, **more: Any) -> Fabric:
    profile, nic, args = load(case)
    return fabric(profile, nic, **{**args, **more})


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    text, expected = render_env(of(case)), DATA / f"{case}.env"
    if os.environ.get("UPDATE_FABRIC"):
        expected.write_text(text)
    assert text == expected.read_text()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_reads_what_was_meant(case: str, shell: str, tmp_path: Path) -> None:
    made = of(case)
    path = tmp_path / "fabric.env"
    path.write_text(render_env(made))
    run = subprocess.run(
        [shell, "-euc", 'set -a; . "$1"; exec env -0', shell, str(path)],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
    )
    read = dict(line.split("=", 1) for line in run.stdout.decode().split("\0") if line)
    assert {name: read.get(name) for name in made.env} == made.env
    assert parse_env(path.read_text()) == made.env
    assert not run.stderr


@pytest.mark.parametrize(
    "line", ["'A; touch x #=1'", "'A B'=1", "=1", "A", "A=1 B=2", "1A=1", "A-B=1", "'$(x)'=1", "''=1"]
)
def test_what_is_no_variable_is_none(line: str) -> None:
    """A worker's file is read elsewhere, too, and made a script of for AMD's cvs."""
    with pytest.raises(ValueError, match="line 2 is no variable"):
        parse_env(f"# what a node says\n{line}\n")


@pytest.mark.parametrize("case", CASES)
def test_each_line_has_a_reason_of_one_line(case: str) -> None:
    assert all("\n" not in line.reason and line.reason for line in of(case).lines)


def test_what_is_virtual_says_so() -> None:
    assert "Virtual node, model mi300x-thor2" in render_env(of("mi300x-thor2"))
    assert "irtual" not in render_env(of("mi300x-cx7"))


# --- versions and settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "versions", "answer"),
    [
        (None, {}, True),
        ("rocm>=7.2.1", {"rocm": "7.2.1"}, True),
        ("rocm>=7.2.1", {"rocm": "7.2.1-43~24.04"}, True),
        ("rocm>=7.2.1", {"rocm": "7.2"}, False),
        ("rocm>=7.2.1", {"rocm": "7.15.0a20260801"}, True),
        ("rocm>=7.2.1", {"rocm": "10.0"}, True),
        ("rocm<7.2.1", {"rocm": "7.2.0"}, True),
        ("rocm>7.2", {"rocm": "7.2.0"}, False),
        ("rocm<=7.2", {"rocm": "7.2.0"}, True),
        ("rocm==7.2", {"rocm": "7.2.0"}, True),
        ("rocm>=7", {"rocm": "1:8.1"}, True),
        ("rocm>=7.2.1", {}, None),
        ("rocm>=7.2.1", {"rocm": "unknown"}, None),
        ("anp", {}, False),
        ("anp", {"anp": ""}, True),
        ("rocm<7.2.1, anp", {"rocm": "7.0"}, False),
        ("rocm<7.2.1, anp", {"anp": "1"}, None),
        ("rocm<7.2.1, anp", {"rocm": "7.0", "anp": "1.2.0"}, True),
    ],
)
def test_conditions(when: str | None, versions: dict[str, str], answer: bool | None) -> None:
    assert holds(when, versions) is answer


@pytest.mark.parametrize("when", ["rocm >= 7", "rocm>=", ">=7", "rocm>=7.", "a b", ",", "rocm~=7"])
def test_what_is_no_condition(when: str) -> None:
    with pytest.raises(ValueError, match="no condition"):
        holds(when, {"rocm": "7", "a": "1"})


def test_settings_travel_as_json() -> None:
    for nic in NICS.values():
        assert NicSettings.from_dict(json.loads(json.dumps(asdict(nic)))) == nic


@pytest.mark.parametrize("data", [{}, {"odd": 1}, {"env": [{"name": "A"}]}, {"env": 3}, {"env": ["A"]}])
def test_damaged_settings_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not the settings of a NIC profile"):
        NicSettings.from_dict({"nic": "x", **data} if data else {})


def test_every_nic_profile_of_ours_can_be_computed_with() -> None:
    for file in component.library("nic").files.values():
        nic = component.validate_head(file, component.NicProfile)
        data = nic.model_dump(include={"modules", "pci", "provider", "dscp", "dscp_source", "env"})
        own = NicSettings.from_dict({"nic": nic.name, **data})
        for setting in own.env:
            assert setting.source
            assert setting.why
        assert own.dscp is None or own.dscp_source
        for case in CASES:
            assert fabric(load(case)[0], own).nic == nic.name


def test_the_first_setting_that_holds_is_taken() -> None:
    env = tuple(FabricSetting("A", value, "w", "s", when) for value, when in [("1", "x"), ("2", "y"), ("3", None)])
    made = fabric(NodeProfile(1, "n"), NicSettings("tcp", env=env), versions={"y": "1"})
    assert made.env["A"] == "2"


# --- arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        {"control_address": "n1"},
        {"data_subnets": ["10.0.0.1/8"]},
        {"data_subnets": ["here"]},
        {"overrides": {"A B": "1"}},
        {"overrides": {"A": "1\nB=2"}},
        {"overrides": {"A=B": "1"}},
        {"overrides": {"": "1"}},
    ],
)
def test_what_can_not_be_computed_with(args: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        of("mi300x-thor2", **args)


def test_a_nic_profiles_dscp_is_the_traffic_class() -> None:
    profile, nic, args = load("mi300x-thor2")
    made = fabric(profile, replace(nic, dscp=24, dscp_source="the switches"), **args)
    assert (made.env["NCCL_IB_TC"], made.env["UCX_IB_TRAFFIC_CLASS"]) == ("96", "96")
    assert {line.source for line in made.lines if line.name == "NCCL_IB_TC"} == {"the switches"}


@pytest.mark.parametrize(
    ("address", "netdev"), [("10.1.2.3", "e1"), ("10.1.9.9", "e2"), ("10.2.0.1", "e3"), ("192.0.2.1", "e3")]
)
def test_the_longest_prefix_wins_then_the_metric(address: str, netdev: str) -> None:
    routes = (
        Route("0.0.0.0/0", "e3", metric=50),
        Route("0.0.0.0/0", "e4", metric=60),
        Route("10.1.0.0/16", "e2", metric=100),
        Route("10.1.2.0/24", "e1", metric=600),
        Route("odd", "e5"),
    )
    made = fabric(NodeProfile(1, "n", routes=routes), NicSettings("tcp"), control_address=address)
    assert made.env["GLOO_SOCKET_IFNAME"] == netdev


def test_an_ipv6_control_node_leaves_the_default_route() -> None:
    assert of("mi300x-thor2", control_address="fd00::1").env["GLOO_SOCKET_IFNAME"] == "eth0"


def test_more_ports_than_rccl_knows() -> None:
    profile, nic, _ = load("mi300x-thor2")
    many = tuple(replace(profile.verbs[0], name=f"bnxt_re{number}") for number in range(MOST_PORTS + 1))
    made = fabric(replace(profile, verbs=many, affinity=()), nic)
    assert len(made.hcas) == MOST_PORTS
    assert [port.name for port in made.excluded] == [f"bnxt_re{MOST_PORTS}:1"]


def test_which_nic_profile_a_node_suggests() -> None:
    known = list(NICS.values())
    suggested = {case: likely(load(case)[0], known) for case in CASES}
    names = {case: nic.nic if nic else None for case, nic in suggested.items()}
    assert names["mi300x-thor2"] == "broadcom"
    assert names["mi300x-cx7"] == "mellanox"
    assert names["mi250x-slingshot"] == "slingshot"
    assert names["rxe-vlan-hole"] == "soft-roce"
    assert names["no-nics"] is None


# --- several nodes ---------------------------------------------------------------------------------------------


def test_nodes_that_agree() -> None:
    one = of("mi300x-thor2")
    assert fabric_differences({"n1": one, "n2": one, "n3": one}) == ()
    assert fabric_differences({}) == ()


def test_what_may_differ_and_what_must_not() -> None:
    one, other = of("mi300x-cx7"), of("port-down")
    found = {what.what: what for what in fabric_differences({"n1": one, "n2": one, "n3": other})}
    assert found["NCCL_IB_HCA"].harmless
    assert found["NCCL_IB_GID_INDEX"].harmless
    assert not found["NIC profile"].harmless
    assert not found["NCCL_IGNORE_CPU_AFFINITY"].harmless
    assert not found["number of RDMA ports"].harmless
    assert "NCCL_IB_TC" not in found
    assert found["NIC profile"].sentence == "NIC profile differs: mellanox on n1, n2; broadcom on n3"
    assert found["NCCL_IGNORE_CPU_AFFINITY"].values == (("not set", ("n1", "n2")), ("1", ("n3",)))
    assert "each node uses its own" in found["NCCL_IB_HCA"].sentence


def test_mtu_and_traffic_class_must_not_differ() -> None:
    profile, nic, args = load("mi300x-thor2")
    small = tuple(replace(netdev, mtu=1500) for netdev in profile.netdevs)
    other = fabric(replace(profile, netdevs=small), replace(nic, dscp=24), **args)
    found = fabric_differences({"n1": of("mi300x-thor2"), "n2": other})
    assert [(one.what, one.harmless) for one in found] == [
        ("MTU", False),
        ("NCCL_IB_TC", False),
        ("UCX_IB_TRAFFIC_CLASS", False),
    ]


# --- properties ------------------------------------------------------------------------------------------------

ADDRESSES = ["192.168.1.1", "192.168.1.2", "10.0.0.1", "fe80::1", "fd00::1", "::", "fe80::"]


def _gid(index: int, address: str, kind: str | None, netdev: str | None) -> Gid:
    ip = ipaddress.ip_address(address)
    number = int(ip) if ip.version == 6 else (0xFFFF << 32) + int(ip)
    text = f"{number:032x}"
    return Gid(index, ":".join(text[at : at + 4] for at in range(0, 32, 4)), kind, netdev)


gid_tables = st.lists(
    st.builds(
        _gid,
        st.integers(0, 7),
        st.sampled_from(ADDRESSES),
        st.sampled_from(["RoCE v2", "IB/RoCE v1", None]),
        st.sampled_from(["e0", "e1", "e0.5", None]),
    ),
    unique_by=lambda gid: gid.index,
    max_size=6,
).map(tuple)
ports = st.builds(
    Port,
    number=st.just(1),
    state=st.sampled_from(["ACTIVE", "ACTIVE", "DOWN", "INIT", None]),
    link_layer=st.sampled_from(["Ethernet", "Ethernet", "InfiniBand", None]),
    rate=st.sampled_from([400000, 100000, None]),
    gids=gid_tables,
)
devices = st.lists(
    st.builds(
        Verbs,
        name=st.sampled_from(["bnxt_re0", "bnxt_re1", "bnxt_re10", "mlx5_bond_0", "odd,name", "x y"]),
        device_node=st.sampled_from([True, True, False, None]),
        driver=st.sampled_from(["bnxt_re", "bnxt_re", "mlx5_ib", None]),
        netdevs=st.sampled_from([("e0",), ("e1",), ("b0",), ()]),
        ports=ports.map(lambda port: (port,)),
    ),
    unique_by=lambda device: device.name,
    max_size=5,
).map(tuple)
profiles = st.builds(
    NodeProfile,
    schema=st.just(1),
    name=st.just("n1"),
    netdevs=st.just(
        (
            Netdev("e0", "up", 400000, 9000),
            Netdev("e1", "up", 400000, 1500),
            Netdev("e0.5", "up", kind="vlan"),
            Netdev("b0", "up", kind="bond"),
            Netdev("m0", "down"),
        )
    ),
    verbs=devices,
    affinity=st.lists(
        st.builds(
            Affinity,
            gpu=st.integers(0, 3),
            nic=st.sampled_from(["bnxt_re0", "bnxt_re1", "bnxt_re10"]),
            via=st.sampled_from(["switch", "numa"]),
        ),
        unique_by=lambda link: link.gpu,
        max_size=4,
    ).map(tuple),
    routes=st.lists(
        st.builds(
            Route,
            to=st.sampled_from(["0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/24"]),
            netdev=st.sampled_from(["e0", "e1", "m0", "docker0", "lo"]),
            metric=st.integers(0, 1),
        ),
        unique=True,
        max_size=4,
    ).map(tuple),
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "control_address": st.sampled_from(["10.0.0.9", "8.8.8.8"]),
        "data_subnets": st.sampled_from([["192.168.0.0/16"], ["10.0.0.0/8", "fd00::/8"]]),
        "versions": st.sampled_from([{"rccl": "2.20.5"}, {"rccl": "2.27.7", "rocm": "7.2.1"}]),
    },
)


@settings(max_examples=300, deadline=None)
@given(profiles, arguments)
def test_nothing_unusable_is_chosen(profile: NodeProfile, args: dict[str, Any]) -> None:
    made = fabric(profile, NICS["broadcom"], **args)
    known = {device.name: device for device in profile.verbs}
    listed = made.env.get("NCCL_IB_HCA", "=")[1:]
    assert listed == ",".join(hca.name for hca in made.hcas)
    for hca in made.hcas:
        port = known[hca.device].ports[0]
        assert port.state == "ACTIVE"
        assert known[hca.device].driver == "bnxt_re"
        assert known[hca.device].device_node is not False
        assert known[hca.device].netdevs != ("b0",)
        if port.link_layer == "InfiniBand":
            assert hca.gid is None
            continue
        assert hca.gid
        row = next(row for row in port.gids if row.index == hca.gid.index)
        assert row.type == "RoCE v2"
        assert row.gid.strip("0:")
        assert row.netdev != "e0.5" or "data_subnets" in args
        subnets = [ipaddress.ip_network(subnet) for subnet in args.get("data_subnets", ["::/0", "0.0.0.0/0"])]
        assert any(ipaddress.ip_address(hca.gid.address) in subnet for subnet in subnets)
    assert len({hca.gid.family for hca in made.hcas if hca.gid}) <= 1
    if "NCCL_IB_GID_INDEX" in made.env:
        assert {str(hca.gid.index) if hca.gid else None for hca in made.hcas} == {made.env["NCCL_IB_GID_INDEX"]}
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        assert made.env.get(name, "e0").lstrip("=") in ("e0", "e1")
    assert {hca.name for hca in made.hcas} | {port.name for port in made.excluded} == {
        f"{device.name}:1" for device in profile.verbs
    }
    assert made.hcas or any("TCP silently" in warning for warning in made.warnings)
    assert "NCCL_IB_DISABLE" not in made.env or made.hcas


@settings(max_examples=200, deadline=None)
@given(profiles, arguments, st.randoms())
def test_the_order_of_the_input_does_not_matter(profile: NodeProfile, args: dict[str, Any], random: Any) -> None:
    def mixed(items: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(random.sample(items, len(items)))

    verbs = tuple(
        replace(device, ports=tuple(replace(port, gids=mixed(port.gids)) for port in device.ports))
        for device in mixed(profile.verbs)
    )
    other = replace(
        profile,
        verbs=verbs,
        netdevs=mixed(profile.netdevs),
        affinity=mixed(profile.affinity),
        routes=mixed(profile.routes),
    )
    assert fabric(other, NICS["broadcom"], **args) == fabric(profile, NICS["broadcom"], **args)


@settings(max_examples=300, deadline=None)
@given(gid_tables, st.sampled_from([rdma_ports.IPV4, rdma_ports.IPV6]))
def test_rccl_by_itself_agrees_where_the_table_is_plain(rows: tuple[Gid, ...], family: str) -> None:
    """Without VLANs, and with a table that starts with the card's own link-local row as drivers make it, RCCL's rule
    and ours find the same row."""
    own = [row for row in rows if row.index > 1 and row.netdev == "e0" and row.type and rdma_ports.gid_address(row.gid)]
    port = Port(1, gids=(_gid(0, "fe80::9", "RoCE v2", "e0"), _gid(1, "fe80::9", "RoCE v2", "e0"), *own))
    wanted = [choice for choice in rdma_ports.usable_gids(port, ["e0"], [], []) if choice.family == family]
    if wanted:
        assert rdma_ports.rccl_gid(port, family) == wanted[0].index

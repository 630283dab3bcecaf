"""The nearest NIC of each GPU."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rocstack.node.parse_cards import NEARNESS, affinity
from rocstack.node.profile import Gpu, Netdev, Nic


def gpu(index: int, *path: str, numa: int | None = None) -> Gpu:
    return Gpu(index, path[-1] if path else f"0000:f{index}:00.0", "1002:74a1", path=path, numa=numa)


def nic(number: int, *path: str, numa: int | None = None, kind: str | None = "broadcom", rdma: bool = True) -> Nic:
    verbs = f"bnxt_re{number}" if rdma else None
    pci = path[-1] if path else f"0000:e{number}:00.0"
    return Nic(pci, "14e4:1760", kind, path=path, numa=numa, netdevs=(f"rdma{number}",), verbs=verbs)


def near(gpus: list[Gpu], nics: list[Nic], netdevs: tuple[Netdev, ...] = ()) -> list[tuple[str, str]]:
    return [(link.nic, link.via) for link in affinity(gpus, nics, netdevs)]


def test_switch_before_root_before_numa_before_anything() -> None:
    one = gpu(0, "0000:00:01.1", "0000:02:00.0", "0000:05:00.0", numa=0)
    switch = nic(0, "0000:00:01.1", "0000:02:01.0", "0000:06:00.0", numa=1)
    root = nic(1, "0000:00:03.1", "0000:09:00.0", numa=1)
    numa = nic(2, "0000:40:03.1", "0000:41:00.0", numa=0)
    far = nic(3, "0000:80:03.1", "0000:81:00.0", numa=1)
    left = [far, numa, root, switch]
    for expected in (("bnxt_re0", "switch"), ("bnxt_re1", "root"), ("bnxt_re2", "numa"), ("bnxt_re3", "system")):
        assert near([one], left) == [expected]
        left.pop()
    assert near([one], left) == []


def test_the_deeper_switch_wins() -> None:
    one = gpu(0, "0000:00:01.1", "0000:02:00.0", "0000:03:00.0", "0000:05:00.0")
    outer = nic(0, "0000:00:01.1", "0000:02:00.0", "0000:04:00.0")
    inner = nic(1, "0000:00:01.1", "0000:02:00.0", "0000:03:00.0", "0000:06:00.0")
    assert near([one], [outer, inner]) == [("bnxt_re1", "switch")]


def test_eight_and_eight_pair_up_where_four_share_a_socket() -> None:
    gpus = [gpu(i, f"0000:{i:x}0:01.1", f"0000:{i:x}1:00.0", numa=i // 4) for i in range(8)]
    nics = [nic(i, f"0000:{i:x}8:01.1", f"0000:{i:x}9:00.0", numa=i // 4) for i in range(8)]
    assert near(gpus, nics) == [(f"bnxt_re{i}", "numa") for i in range(8)]
    assert affinity(gpus, nics[::-1]) == affinity(gpus, nics)


def test_two_gpus_share_each_of_four_nics() -> None:
    gpus = [gpu(i, f"0000:{i:x}0:01.1", f"0000:{i:x}1:00.0", numa=0) for i in range(8)]
    nics = [nic(i, f"0000:{i:x}8:01.1", f"0000:{i:x}9:00.0", numa=0) for i in range(4)]
    assert Counter(name for name, _ in near(gpus, nics)) == {f"bnxt_re{i}": 2 for i in range(4)}


def test_a_nearer_nic_is_used_twice_before_a_far_one() -> None:
    gpus = [gpu(i, "0000:00:01.1", f"0000:0{i + 1}:00.0") for i in range(2)]
    assert near(gpus, [nic(0, "0000:00:01.1", "0000:09:00.0"), nic(1, "0000:80:01.1", "0000:89:00.0")]) == [
        ("bnxt_re0", "switch"),
        ("bnxt_re0", "switch"),
    ]


def test_not_the_management_network() -> None:
    one = gpu(0, "0000:00:01.1", "0000:05:00.0")
    onboard = nic(7, "0000:00:01.1", "0000:06:00.0", kind=None)
    bonded = nic(8, "0000:00:01.1", "0000:07:00.0")
    data = nic(0, "0000:80:01.1", "0000:81:00.0")
    netdevs = (Netdev("rdma8", master="bond0"), Netdev("rdma0"))
    assert near([one], [onboard, bonded, data], netdevs) == [("bnxt_re0", "system")]
    assert near([one], [onboard, bonded], netdevs) == [("bnxt_re8", "switch")]  # there is no other
    assert near([one], [onboard]) == [("bnxt_re7", "switch")]


def test_slingshot_has_no_verbs_device() -> None:
    one = gpu(0, "0000:c0:01.1", "0000:c1:00.0")
    card = nic(0, "0000:c0:03.1", "0000:c8:00.0", kind="slingshot", rdma=False)
    assert near([one], [card]) == [("rdma0", "root")]
    assert near([one], [nic(0, "0000:c0:03.1", "0000:c8:00.0", kind=None, rdma=False)]) == []


def test_without_a_known_place() -> None:
    assert near([gpu(0)], [nic(0)]) == [("bnxt_re0", "system")]
    assert near([gpu(0, numa=1)], [nic(0, numa=0), nic(1, numa=1)]) == [("bnxt_re1", "numa")]


addresses = st.builds("0000:{:02x}:{:02x}.0".format, st.integers(0, 3), st.integers(0, 3))
paths = st.lists(addresses, max_size=4).map(tuple)
numas = st.one_of(st.none(), st.integers(0, 1))


@given(st.lists(st.tuples(paths, numas), max_size=9), st.lists(st.tuples(paths, numas), max_size=9))
def test_each_gpu_has_one_and_equals_are_shared_evenly(
    gpus: list[tuple[tuple[str, ...], int | None]], nics: list[tuple[tuple[str, ...], int | None]]
) -> None:
    cards = [nic(i, *path, numa=numa) for i, (path, numa) in enumerate(nics)]
    found = affinity([gpu(i, *path, numa=numa) for i, (path, numa) in enumerate(gpus)], cards)
    assert [link.gpu for link in found] == (list(range(len(gpus))) if cards else [])
    assert {link.via for link in found} <= set(NEARNESS)
    assert {link.nic for link in found} <= {card.verbs for card in cards}

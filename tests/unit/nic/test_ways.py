"""Which way a NIC's provider gets into the image: chosen from what the nodes need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cli_run import refusal
from gate_cases import plain, profile

from rocstack.nic import ways
from rocstack.nic.vendor_release import VendorRelease
from rocstack.nic.ways import Need, Offer, ProviderPlan, ProviderRow, plan
from rocstack.node.gate import UNFIT, UNKNOWN, judge
from rocstack.stack import component, stack
from rocstack.stack.component import NicProfile
from rocstack.stack.resolve import ProviderSpec

V232, V235, V237 = "232.0.164.5", "235.2.86.0", "237.1.137.0"
CORE = VendorRelease("rdma-core-65.0.tar.gz", "65.0", None, "c" * 64, "/opt/rdma-core-65.0.tar.gz", data=b"core")
STACK = {name: choice.version for name, choice in stack.load("debian-13", None).components.items()}


def nic(name: str) -> NicProfile:
    return component.validate_head(component.library("nic").get(name), NicProfile)


def release(version: str, abi: int | None = 6, sha: str = "a") -> VendorRelease:
    name = f"libbnxt_re-{version}.tar.gz"
    return VendorRelease(name, version, abi, sha * 64, f"/opt/bcm.zip > {name}", data=version.encode())


def offer(*found: VendorRelease, **rest: Any) -> Offer:
    return Offer(lambda: found, lambda: CORE, **{"versions": STACK, **rest})


def never() -> Any:
    raise AssertionError("looked for, though nothing needs it")


NOTHING = Offer(never, never, versions=STACK)


def need(abi: int, release: str | None = None, *nodes: str) -> Need:
    return Need(abi, release, nodes or ("n1",))


def chosen(made: ProviderPlan) -> list[tuple[str, str, str | None, int | None]]:
    return [(each.place, each.way, each.version, each.kernel_abi) for each in made.providers]


def test_the_kernels_own_driver_takes_the_inbox_library() -> None:
    made = plan(nic("broadcom"), [need(1, None, "n1", "n2")], NOTHING)
    assert chosen(made) == [("inbox", "inbox", None, 1)]
    (row,) = made.rows
    assert row.nodes == ("n1", "n2")
    assert row.why.startswith("speaks kernel ABI 1-1 (rdma-core providers/bnxt_re/main.c")
    assert (made.archives, made.notes) == ({}, ())


def test_a_vendors_driver_takes_the_source_of_its_release() -> None:
    made = plan(nic("broadcom"), [need(6, V232)], offer(release(V235, 8, "b"), release(V232)))
    assert chosen(made) == [("source", "source", V232, 6)]
    (provider,) = made.providers
    assert (provider.archive, provider.sha256, provider.packages) == (f"libbnxt_re-{V232}.tar.gz", "a" * 64, ())
    assert made.archives == {f"nic/source/libbnxt_re-{V232}.tar.gz": V232.encode()}
    assert made.rows[0].why == f"the host's driver is {V232}"


@pytest.mark.parametrize(
    ("abi", "driver", "options", "expected"),
    [
        # The vendor's repository is taken where the source isn't at hand, or nobody asked for another release.
        (6, V232, {"repository": True}, ("package", "package", V232, 6)),
        (8, V235, {"repository": True, "found": [release(V232)]}, ("package", "package", V235, 8)),
        (6, V232, {"repository": True, "found": [release(V232)]}, ("source", "source", V232, 6)),
        (6, V235, {"repository": True, "found": [release(V232)], "accept": V232}, ("source", "source", V232, 6)),
        (6, V235, {"found": [release(V232), release(V235, 8, "b")], "accept": V232}, ("source", "source", V232, 6)),
        # A driver whose release could not be read: the only source.
        (6, None, {"found": [release(V232)]}, ("source", "source", V232, 6)),
        (1, None, {"repository": True}, ("inbox", "inbox", None, 1)),
        (1, V232, {"repository": True}, ("inbox", "inbox", None, 1)),
    ],
)
def test_chosen(
    abi: int, driver: str | None, options: dict[str, Any], expected: tuple[str, str, str | None, int]
) -> None:
    found = options.pop("found", [])
    assert chosen(plan(nic("broadcom"), [need(abi, driver)], offer(*found, **options))) == [expected]


def test_a_package_is_pinned_to_the_drivers_release() -> None:
    (provider,) = plan(nic("broadcom"), [need(8, V235)], offer(repository=True)).providers
    assert (provider.pins, provider.archive) == ((f"bnxt-rocelib={V235}*",), None)


@pytest.mark.parametrize("abi", range(1, 12))
@pytest.mark.parametrize("name", ["broadcom", "mellanox", "ainic"])
def test_what_is_only_for_asking_is_never_chosen(name: str, abi: int) -> None:
    profile = nic(name)
    asked = {way for way, each in profile.ways.items() if each.asked}
    assert "host" in asked
    for driver in (None, V232):
        for options in ({}, {"repository": True}, {"accept": V232}):
            made: list[ProviderPlan] = []
            error = refusal(lambda: made.append(plan(profile, [need(abi, driver)], offer(release(V232), **options))))  # noqa: B023
            assert error or not {each.way for each in made[0].providers} & asked


@pytest.mark.parametrize(
    ("name", "way", "version"),
    [
        ("broadcom", "inbox", None),
        ("broadcom", "source", V232),
        ("broadcom", "package", V232),
        ("broadcom", "newer", "65.0"),
        ("broadcom", "host", None),
        ("mellanox", "host", None),
        ("ainic", "newer", "65.0"),
        ("ainic", "host", None),
    ],
)
def test_asked_for_by_name(name: str, way: str, version: str | None) -> None:
    made = plan(nic(name), [need(6, V232)], offer(release(V232)), way=way)
    assert chosen(made) == [(way, way, version, 6)]
    assert made.rows[0].why == "asked for"
    if way == "newer":
        assert made.archives == {"nic/newer/rdma-core-65.0.tar.gz": b"core"}


@pytest.mark.parametrize(
    ("way", "hint"), [("sauce", "did you mean 'source'?"), ("inbx", "did you mean 'inbox'?"), ("x", "known: ")]
)
def test_no_such_way(way: str, hint: str) -> None:
    error = refusal(lambda: plan(nic("broadcom"), [], NOTHING, way=way))
    assert error is not None
    assert error.code == "unknown-way"
    assert hint in error.what


# AMD's Pollara: rdma-core has its provider from release 61 on


INBOX = {
    "56.1": False,
    "60.0": False,
    "61": True,
    "61.0-1": True,
    "65.0": True,
    "": False,
    "1:65.0-1": False,
    "new": False,
}


@pytest.mark.parametrize(("rdma", "way"), [(rdma, "inbox" if there else None) for rdma, there in INBOX.items()])
def test_ainic_inbox_needs_an_rdma_core_that_has_it(rdma: str, way: str | None) -> None:
    made: list[ProviderPlan] = []
    error = refusal(lambda: made.append(plan(nic("ainic"), [need(1)], offer(versions={"rdma": rdma}))))
    if way:
        assert chosen(made[0]) == [(way, way, None, 1)]
        return
    assert error is not None
    assert error.code == "no-provider"
    assert error.what == "no way to a ionic provider that speaks kernel ABI 1 (known: inbox 1-1, newer 1-1)"
    assert error.cause == f"way 'inbox' needs rdma >=61, the stack has {rdma}"
    assert str(error.next_step).startswith("--way newer: a newer rdma-core from source")
    assert "nic_repository" in str(error.next_step)


def test_ainic_of_the_vendors_driver() -> None:
    """The driver's numbers are not the package's, so the package's is named."""
    made = plan(nic("ainic"), [need(4, "25.11.1.001")], offer(repository=True, accept="54.0-149"))
    assert chosen(made) == [("package", "package", "54.0-149", 4)]
    error = refusal(lambda: plan(nic("ainic"), [need(4, "25.11.1.001")], offer(repository=True)))
    assert error is not None
    assert (error.code, error.cause) == ("no-release", "the package has its own version numbers")
    assert error.next_step == "give it with --nic-accept VERSION"
    error = refusal(lambda: plan(nic("ainic"), [need(4, "54.0-149")], offer()))
    assert error is not None
    assert (error.code, error.next_step) == ("no-provider", "set nic_repository to the vendor's apt repository")


def test_mellanox_has_one_abi() -> None:
    assert chosen(plan(nic("mellanox"), [need(1, "24.10-1.1.4")], NOTHING)) == [("inbox", "inbox", None, 1)]
    error = refusal(lambda: plan(nic("mellanox"), [need(2)], NOTHING))
    assert error is not None
    assert error.what == "no way to a mlx5 provider that speaks kernel ABI 2 (known: inbox 1-1)"
    assert error.next_step == "load the kernel's own driver on the nodes"


# What is refused


@pytest.mark.parametrize(
    ("abi", "driver", "options", "words"),
    [
        (6, V235, {"found": [release(V232)]}, [f"driver is {V235}", f"{V232} (kernel ABI 6)", "--nic-accept 232"]),
        (6, V235, {}, [f"driver is {V235}", "no release was found", "--nic-source"]),
        (6, None, {"found": [release(V232), release(V235, 8, "b")]}, ["not known", V232, V235]),
        (6, V232, {"found": [release(V232)], "accept": V237}, [f"no libbnxt_re {V237} to accept", V232]),
        (6, None, {"repository": True}, ["version of bnxt-rocelib to install is not known", "--nic-accept"]),
        (6, V232, {"accept": "1; reboot", "way": "package"}, ["'1; reboot' is not a version"]),
    ],
)  # fmt: skip
def test_the_release_is_missing(abi: int, driver: str | None, options: dict[str, Any], words: list[str]) -> None:
    found, way = options.pop("found", []), options.pop("way", None)
    error = refusal(lambda: plan(nic("broadcom"), [need(abi, driver)], offer(*found, **options), way=way))
    assert error is not None
    assert error.code == "no-release"
    text = f"{error.what}. {error.cause}. {error.next_step}"
    assert [word for word in words if word not in text] == []


def test_several_abis_are_refused_or_each_gets_its_own() -> None:
    several = [need(6, V232, "n2", "n3"), need(1, None, "n1"), need(8, V237, "n4")]
    error = refusal(lambda: plan(nic("broadcom"), several, NOTHING))
    assert error is not None
    assert error.code == "several-abis"
    assert error.what == "the nodes' NIC drivers speak 3 different kernel ABIs (1: n1; 6: n2, n3; 8: n4)"
    assert "--nic-variants" in str(error.next_step)
    made = plan(nic("broadcom"), several, offer(release(V232), release(V237, 8, "b")), variants=True)
    assert chosen(made) == [("abi-1", "inbox", None, 1), ("abi-6", "source", V232, 6), ("abi-8", "source", V237, 8)]
    assert [row.nodes for row in made.rows] == [("n1",), ("n2", "n3"), ("n4",)]
    assert set(made.archives) == {f"nic/abi-6/libbnxt_re-{V232}.tar.gz", f"nic/abi-8/libbnxt_re-{V237}.tar.gz"}
    assert made.notes == ()


def test_variants_with_one_abi_are_nothing_special() -> None:
    one = plan(nic("broadcom"), [need(6, V232)], offer(release(V232)), variants=True)
    assert one == plan(nic("broadcom"), [need(6, V232)], offer(release(V232)))


def test_a_way_cannot_be_asked_for_where_each_abi_has_its_own() -> None:
    several = [need(1), need(6, V232)]
    made = plan(nic("broadcom"), several, offer(release(V232)), way="source", variants=True)
    assert [each.way for each in made.providers] == ["inbox", "source"]
    assert made.notes == ("--way source is for one kernel ABI; here each has its own",)


def test_two_releases_of_one_abi() -> None:
    """The one that most nodes have; the others are named."""
    rows = [need(8, V235, "n1", "n2"), need(8, V237, "n3"), need(8, None, *(f"n{i}" for i in range(4, 10)))]
    made = plan(nic("broadcom"), rows, offer(release(V235, 8)))
    assert chosen(made) == [("source", "source", V235, 8)]
    assert made.rows[0].nodes == ("n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9")
    assert made.notes == (
        f"n3: driver {V237}, not {V235}; both speak kernel ABI 8",
        f"n4, n5, n6 and 3 more: driver in-tree, not {V235}; both speak kernel ABI 8",
    )


# Where no node is known


@pytest.mark.parametrize("name", ["broadcom", "mellanox", "ainic", "slingshot", "tcp"])
def test_the_profiles_first_way(name: str) -> None:
    made = plan(nic(name), [], replace(NOTHING, versions={"rdma": "61.0"}))
    first = next(iter(nic(name).ways))
    assert chosen(made) == [(first, first, None, None)]
    assert made.rows[0].why == "no node is known"


@pytest.mark.parametrize("way", [None, "inbox"])
def test_a_way_that_the_stack_is_too_old_for(way: str | None) -> None:
    error = refusal(lambda: plan(nic("ainic"), [], replace(NOTHING, versions={"rdma": "56.1"}), way=way))
    assert error is not None
    assert (error.code, error.what) == (
        "no-provider", "way 'inbox' to the ionic provider needs rdma >=61; this stack has rdma 56.1"
    )  # fmt: skip
    assert "--way package or --way newer or --way host" in str(error.next_step)


def test_a_release_by_its_name() -> None:
    made = plan(nic("broadcom"), [], offer(release(V232), release(V235, 8, "b"), accept=V235))
    assert chosen(made) == [("source", "source", V235, None)]
    assert made.rows[0].why == "no node is known; a release was named"
    assert chosen(plan(nic("broadcom"), [], offer(release(V232)), way="source")) == [("source", "source", V232, None)]
    assert plan(nic("broadcom"), [], NOTHING, way="host").rows[0].why == "asked for"
    error = refusal(lambda: plan(nic("broadcom"), [], offer(repository=True), way="package"))
    assert error is not None
    assert error.code == "no-release"


@pytest.mark.parametrize(
    ("text", "inside", "outside"), [("1-1", [1], [0, 2, 11]), ("6-8", [6, 7, 8], [5, 9, 68]), ("0-10", [0, 10], [11])]
)
def test_ranges(text: str, inside: list[int], outside: list[int]) -> None:
    assert all(ways.holds(text, abi) for abi in inside)
    assert not any(ways.holds(text, abi) for abi in outside)


def test_sources_are_only_looked_for_where_they_are_needed() -> None:
    looked: list[str] = []
    both: Callable[[], Any] = lambda: looked.append("release") or (release(V232),)  # noqa: E731
    lazily = Offer(both, never, versions=STACK)
    plan(nic("broadcom"), [need(1)], lazily)
    assert looked == []
    plan(nic("broadcom"), [need(6, V232)], lazily)
    assert looked == ["release"]


# What can't fit is refused before anything is built


def row(way: str, abi: int | None, supports: tuple[int, int] | None = None, place: str = "") -> ProviderRow:
    return ProviderRow(ProviderSpec(place=place or way, way=way, kernel_abi=abi), ("n1",), "", supports)


@pytest.mark.parametrize(
    ("name", "case", "rows", "result", "says"),
    [
        ("broadcom", "thor2 abi 6", [row("inbox", 6, (1, 1))], UNFIT, "kernel ABI 6, the image's bnxt_re supports 1-1"),
        ("broadcom", "thor2 abi 6", [row("source", 6, (8, 8))], UNFIT, "the image's bnxt_re supports 8-8"),
        ("broadcom", "thor2 abi 6", [row("source", 6, (6, 6))], UNKNOWN, "private ABI"),
        ("broadcom", "thor2 abi 6", [row("package", 6)], UNKNOWN, "private ABI"),
        (
            "broadcom",
            "cx7",
            [row("inbox", None, (1, 1))],
            UNFIT,
            "the NICs are mellanox, the image is built for broadcom",
        ),
        ("mellanox", "cx7", [row("inbox", 1, (1, 1))], UNKNOWN, "private ABI"),
        ("broadcom", "no nic", [row("inbox", None, (1, 1))], UNFIT, "no broadcom NIC"),
    ],
)
def test_planned(name: str, case: str, rows: list[ProviderRow], result: str, says: str) -> None:
    verdict = judge(ways.planned(nic(name), ProviderPlan(tuple(rows))), profile({**plain(case), "name": "n1"}))
    assert (verdict.result, says in verdict.sentence) == (result, True), verdict.sentence


@pytest.mark.parametrize(
    ("rdma_core", "result"), [("39.0", UNFIT), ("49.9", UNFIT), ("50.0", UNKNOWN), ("56.1", UNKNOWN), (None, UNKNOWN)]
)
def test_planned_for_a_card_that_needs_a_newer_rdma_core(rdma_core: str | None, result: str) -> None:
    """Thor2: rdma-core 50. Unknown is the private ABI, which is measured in the image."""
    made = ways.planned(nic("broadcom"), ProviderPlan((row("inbox", 1, (1, 1)),)), rdma_core)
    verdict = judge(made, profile({**plain("thor2 abi 1"), "name": "n1"}))
    assert verdict.result == result, verdict.sentence
    assert (result == UNFIT) == ("14e4:1760 needs rdma-core 50 or newer" in verdict.sentence)
    older = judge(made, profile({**plain("thor 1 abi 1"), "name": "n1"}))
    assert older.result == UNKNOWN
    assert "rdma-core" not in older.sentence


def test_planned_variants() -> None:
    made = ways.planned(
        nic("broadcom"), ProviderPlan((row("inbox", 1, (1, 1), "abi-1"), row("source", 6, (6, 6), "abi-6")))
    )
    for case in ("thor2 abi 1", "thor2 abi 6"):
        assert judge(made, profile({**plain(case), "name": "n1"})).result == UNKNOWN
    assert judge(made, profile({**plain("thor2 abi 8"), "name": "n1"})).result == UNFIT


def test_releases_stand_for_nodes_that_are_not_known_yet() -> None:
    """One provider for each kernel ABI, by the releases' own sources."""
    found = (release(V235, 6, "a"), release(V237, 7, "b"))
    wanted = ways.needs_of_releases(nic("broadcom"), (), found, [V235, V237])
    made = plan(nic("broadcom"), wanted, offer(*found), variants=True)
    assert chosen(made) == [("abi-6", "source", V235, 6), ("abi-7", "source", V237, 7)]
    both = ways.needs_of_releases(nic("broadcom"), [need(1)], found, [V237])
    assert chosen(plan(nic("broadcom"), both, offer(*found), variants=True)) == [
        ("abi-1", "inbox", None, 1),
        ("abi-7", "source", V237, 7),
    ]


@pytest.mark.parametrize(
    ("known", "found", "named", "words"),
    [
        ([], [release(V235)], [V237], "no libbnxt_re 237.1.137.0 was found"),
        ([], [release(V235, None)], [V235], "doesn't say which kernel ABI"),
        ([], [release(V235, 6, "a"), release(V237, 6, "b")], [V235, V237], "speak the same kernel ABI, 6"),
        ([need(6, V232)], [release(V235)], [V235], "the driver of n1 speak the same kernel ABI"),
        ([], [release(V235)], [V235, V235], "speak the same kernel ABI"),
    ],
)
def test_releases_that_no_image_can_have_are_refused(known: Any, found: Any, named: list[str], words: str) -> None:
    error = refusal(lambda: ways.needs_of_releases(nic("broadcom"), known, found, named))
    assert error
    assert error.code == "no-release"
    assert words in error.what

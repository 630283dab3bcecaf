"""What can't fit is refused before anything is built."""

from __future__ import annotations

import pytest
from gate_cases import plain, profile

from rocstack.nic.planned_image import planned
from rocstack.nic.ways import ProviderPlan, ProviderRow
from rocstack.node.gate import UNFIT, UNKNOWN, judge
from rocstack.stack import component
from rocstack.stack.component import NicProfile


def nic(name: str) -> NicProfile:
    return component.validate_head(component.library("nic").get(name), NicProfile)


def plan(*rows: ProviderRow) -> ProviderPlan:
    return ProviderPlan((), rows)


def row(way: str, abi: int | None, supports: tuple[int, int] | None = None, place: str = "") -> ProviderRow:
    return ProviderRow(place or way, way, None, abi, ("n1",), "", supports)


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
    verdict = judge(planned(nic(name), plan(*rows)), profile({**plain(case), "name": "n1"}))
    assert (verdict.result, says in verdict.sentence) == (result, True), verdict.sentence


def test_variants() -> None:
    made = planned(nic("broadcom"), plan(row("inbox", 1, (1, 1), "abi-1"), row("source", 6, (6, 6), "abi-6")))
    for case in ("thor2 abi 1", "thor2 abi 6"):
        assert judge(made, profile({**plain(case), "name": "n1"})).result == UNKNOWN
    assert judge(made, profile({**plain("thor2 abi 8"), "name": "n1"})).result == UNFIT

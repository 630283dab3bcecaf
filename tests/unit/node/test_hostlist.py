"""Hostlists: what Slurm's own would be, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocstack.node import hostlist

FOLDED = {
    "": [],
    "n1": ["n1"],
    "n[1-3,5]": ["n1", "n2", "n3", "n5"],
    "node[08-11]": ["node08", "node09", "node10", "node11"],
    "n[9-11]": ["n9", "n10", "n11"],
    "n[1,01]": ["n1", "n01"],
    "a[1-2],b1": ["a1", "a2", "b1"],
    "head,n[1-2]": ["head", "n1", "n2"],
    "10.0.0.[12,11]": ["10.0.0.12", "10.0.0.11"],
    "10.0.0.255,10.0.1.[0-1]": ["10.0.0.255", "10.0.1.0", "10.0.1.1"],
    "r1-n[1-2],r2-n1": ["r1-n1", "r1-n2", "r2-n1"],
    "gpu-a,gpu-b": ["gpu-a", "gpu-b"],
    "/dev/dri/renderD[131,128-130]": [f"/dev/dri/renderD{minor}" for minor in (131, 128, 129, 130)],
}


@pytest.mark.parametrize(("text", "names"), FOLDED.items())
def test_fold_and_back(text: str, names: list[str]) -> None:
    assert hostlist.fold(names) == text
    if names:
        assert list(hostlist.expand(text)) == names


@given(st.lists(st.from_regex(r"[a-z]{1,2}-?[0-9]{0,3}", fullmatch=True), min_size=1))
def test_no_name_is_lost_and_the_order_stays(names: list[str]) -> None:
    assert list(hostlist.expand(hostlist.fold(names))) == names


def test_ranges_in_the_middle() -> None:
    assert hostlist.expand("r[0-1]n[09-10]x,m") == ("r0n09x", "r0n10x", "r1n09x", "r1n10x", "m")


@pytest.mark.parametrize(
    "text", ["", ",", "n1,", "n[", "n[1", "n1]", "n[]", "n[a]", "n[3-1]", "n[1-]", "n[[1]]", "n[-2]"]
)
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no hostlist"):
        hostlist.expand(text)


@pytest.mark.parametrize("text", ["n[1-99999]", "n[1-300]m[1-300]", "a[1-65536],b"])
def test_too_many(text: str) -> None:
    with pytest.raises(ValueError, match="more than 65536"):
        hostlist.expand(text)


def test_what_is_too_many_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of brackets filled the memory before anybody counted."""
    made: list[str] = []
    real = hostlist._numbers

    def noted(text: str, whole: str) -> list[str]:
        made.append(text)
        return real(text, whole)

    monkeypatch.setattr(hostlist, "_numbers", noted)
    with pytest.raises(ValueError, match="more than 65536"):
        hostlist.expand("n" + "[1-300]" * 50)
    assert len(made) == 2


def test_natural_order() -> None:
    names = ["n10", "n2", "n1", "a", "n1b", "r2n1", "r1n10"]
    assert sorted(names, key=hostlist.natural) == ["a", "n1", "n1b", "n2", "n10", "r1n10", "r2n1"]


@pytest.mark.parametrize("text", ["[" * 200_000, "n[" * 100_000, "n[1" * 100_000, "a" * 200_000 + "["], ids="abcd")
def test_a_text_of_nothing_but_brackets_is_refused_at_once(text: str) -> None:
    """Of each bracket, the whole rest was read."""
    with pytest.raises(ValueError, match=r"is no hostlist|more than 65536"):
        hostlist.expand(text)

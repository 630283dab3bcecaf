"""Lists and numbers in sentences."""

from __future__ import annotations

import pytest

from rocstack.base.text import count, listed


@pytest.mark.parametrize(
    ("names", "text"),
    [("", ""), ("a", "a"), ("abcd", "a, b, c, d"), ("abcde", "a, b, c and 2 more"), ("abcdefgh", "a, b, c and 5 more")],
)
def test_a_long_list_is_cut(names: str, text: str) -> None:
    assert listed(names) == text


def test_the_length_can_be_chosen() -> None:
    assert listed(iter("abcdefgh"), 8) == "a, b, c, d, e, f, g, h"
    assert listed(iter("abcdefghi"), 8) == "a, b, c, d, e, f, g and 2 more"


def test_one_and_more() -> None:
    assert [count(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]

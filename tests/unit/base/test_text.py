"""Lists and numbers in sentences."""

from __future__ import annotations

import pytest

from rocstack.base.text import count, filled, from_json, listed


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


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "18446744073709551616", "9" * 5000])
def test_numbers_that_no_answer_has_are_refused(number: str) -> None:
    with pytest.raises(ValueError, match=r"a number (that|of)"):
        from_json(f'{{"deep": [{number}]}}')


def test_the_largest_counters_are_read() -> None:
    assert from_json("[18446744073709551615, -9223372036854775808, 1.5e300]") == [2**64 - 1, -(2**63), 1.5e300]


def test_an_answer_nested_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        from_json("[" * 100_000)


@pytest.mark.parametrize(
    ("sentence", "values", "text"),
    [
        ("`ls {a}`; {a}", {"a": "/x y"}, "`ls '/x y'`; /x y"),
        ("`ls {a}{b}`", {"a": "", "b": "$(id)"}, "`ls '$(id)'`"),
        ("run `do {a} {b}`", {"a": "n[1-2]", "b": ["x", "y z"]}, "run `do 'n[1-2]' x 'y z'`"),
        ("`sport = :{a}` {{b}}", {"a": 6817}, "`sport = :6817` {b}"),
        ("{a:.0f} s, {b}", {"a": 1.4, "b": "`x`"}, "1 s, `x`"),
    ],
)
def test_what_people_paste_is_a_word_of_the_shell(sentence: str, values: dict[str, object], text: str) -> None:
    assert filled(sentence, values) == text

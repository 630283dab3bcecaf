"""Checked strings: nothing that a shell or a Dockerfile reads as more than a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from rocstack.base import words

CASES: dict[str, dict[str, list[str]]] = yaml.safe_load((Path(__file__).parents[1] / "data/words.yml").read_text())
# What ends a word, starts another command, quotes, expands or ends a line, in a shell or in a Dockerfile.
SPECIAL = set("\n\r\0\x0b\x0c\x1b \t\"'`$\\;|&<>(){}[]!#*?\u0085\u2028\u2029")
NEEDS = {  # the special letters a word can't do without, where its place is not a bare shell word
    "EnvValue": {" "},
    "PackageGlob": {"*"},
    "Glob": {"*", "?"},
    "PlainUrl": {"?"},
    "Url": {"?"},
    "Origin": {" "},
    "Hostlist": {"[", "]"},
    "SlurmText": {"[", "]", "(", ")", "*", " "},
}


ADAPTERS: dict[str, TypeAdapter[str]] = {word: TypeAdapter(getattr(words, word)) for word in CASES}


def accepts(word: str, text: Any) -> bool:
    try:
        ADAPTERS[word].validate_python(text, strict=True)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("word", CASES)
def test_accepted_and_refused(word: str) -> None:
    assert [text for text in CASES[word]["good"] if not accepts(word, text)] == []
    assert [text for text in CASES[word]["bad"] if accepts(word, text)] == []


def test_every_word_has_cases() -> None:
    own = {name for name in dir(words) if hasattr(getattr(words, name), "__metadata__")}
    assert set(CASES) == own


@pytest.mark.parametrize("word", sorted(set(CASES) - {"Line"}))
def test_no_word_holds_a_special_letter(word: str) -> None:
    """Every letter of Unicode's first pages, in every place of every accepted word."""
    found = set()
    letters = [*map(chr, range(0x250)), *SPECIAL, "\ud7ff", "\uff04", "\U0001f600"]
    for text in CASES[word]["good"]:
        for letter in letters:
            for place in {0, 1, len(text) // 2, max(len(text) - 1, 0), len(text)}:
                if any(accepts(word, text[:place] + letter + text[place + cut :]) for cut in (0, 1)):
                    found.add(letter)
    assert found & SPECIAL == NEEDS.get(word, set())
    assert max(found) < "\x7f"


@given(st.text())
def test_a_line_is_one_line(text: str) -> None:
    assert not accepts("Line", text) or not set(text) & set("\n\r\0\x0b\x0c\x1b")


@pytest.mark.parametrize("value", [None, 1, 1.5, True, ["a"], {"a": "b"}, b"a"])
def test_only_text(value: object) -> None:
    assert [word for word in sorted(CASES) if accepts(word, value)] == []


@pytest.mark.parametrize("word", sorted(CASES))
def test_length_is_bounded(word: str) -> None:
    text = next(filter(None, CASES[word]["good"]))
    assert not accepts(word, text + text[-1] * 100_000)

"""YAML with line numbers: what is read, what is refused, and that every complaint names the right line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_run import refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator

from rocstack.base import document
from rocstack.base.errors import BadInput
from rocstack.base.words import Name, Value

BAD = yaml.safe_load((Path(__file__).parents[1] / "data/bad-yaml.yml").read_text())


@pytest.mark.parametrize("case", BAD, ids=lambda case: case["name"])
@pytest.mark.parametrize("first_line", [1, 7])
def test_refused(case: dict[str, Any], first_line: int) -> None:
    with pytest.raises(BadInput) as refused:
        document.parse(case["text"], "some.yml", first_line=first_line)
    error = refused.value
    assert case["says"] in error.what
    assert error.code == case["code"]
    assert error.where is not None
    assert (error.where.path, error.where.line) == ("some.yml", case["line"] + first_line - 1)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
@pytest.mark.parametrize("closing", [True, False])
def test_deep_nests_are_refused_at_once(opening: str, closing: bool) -> None:
    """A million brackets would overflow the parser's stack and end the process."""
    deep = 300_000 // len(opening)
    text = "a: " + opening * deep + ("]" if opening == "[" else "}") * (deep * closing)
    if opening == "- ":
        text = "a:\n " + "- " * deep + "x"
    with pytest.raises(BadInput) as refused:
        document.parse(text, "some.yml")
    assert refused.value.code == "bad-yaml"


def test_nests_of_common_depth_are_read() -> None:
    assert document.parse("a: " + "[" * 15 + "]" * 15, "some.yml").data


def test_a_bomb_is_refused() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x]"]
    for name, last in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join(['*' + last] * 8)}]")
    with pytest.raises(BadInput, match="aliases") as refused:
        document.parse("\n".join(lines), "some.yml")
    assert refused.value.where
    assert refused.value.where.line == 2


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("", {}),
        ("# nothing but a comment\n", {}),
        ("\ufeffa: 1\n", {"a": 1}),
        ("a: 1\r\nb: [x,\r\n  y]\r\n", {"a": 1, "b": ["x", "y"]}),
        ("on: x\nyes: y\n1: z\n~: w\n", {"on": "x", "yes": "y", "1": "z", "~": "w"}),
        ("a: {b: }\n", {"a": {"b": None}}),
        ("a: |\n  x\n  y\nb: 2\n", {"a": "x\ny\n", "b": 2}),
        ("a: '1.10'\nb: 1.10\n", {"a": "1.10", "b": 1.1}),
    ],
)
def test_read(text: str, data: dict[str, Any]) -> None:
    assert document.parse(text, "some.yml").data == data


def test_lines() -> None:
    text = """\
about: x
base:
  image: y

  # a comment
  os: z
gfx: [a,
      b]
layers:
  - [c, d]
  -
    - e
text: |
  one
  two
last: 1
"""
    doc = document.parse(text, "some.yml", first_line=11)
    assert {loc: line - 10 for loc, line in doc.lines.items()} == {
        (): 1,
        ("about",): 1,
        ("base",): 2,
        ("base", "image"): 3,
        ("base", "os"): 6,
        ("gfx",): 7,
        ("gfx", 0): 7,
        ("gfx", 1): 8,
        ("layers",): 9,
        ("layers", 0): 10,
        ("layers", 0, 0): 10,
        ("layers", 0, 1): 10,
        ("layers", 1): 12,
        ("layers", 1, 0): 12,
        ("text",): 13,
        ("last",): 16,
    }
    assert str(doc.where(("base", "os"))) == "some.yml:16"
    assert str(doc.where(("base", "gone", "deeper"))) == "some.yml:12"
    assert str(document.Document("some.yml", {}).where(("a",))) == "some.yml"
    assert doc.texts(("gfx",)) == {("gfx", 0): "a", ("gfx", 1): "b"}


KEYS = st.text("abcdefgh_", min_size=1, max_size=4)
LEAVES = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=9)
TREES = st.recursive(LEAVES, lambda more: st.lists(more, max_size=3) | st.dictionaries(KEYS, more, max_size=3))


@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=4), st.booleans())
def test_what_was_written_is_read_and_every_key_is_found_on_its_line(tree: dict[str, Any], flow: bool) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True, default_flow_style=flow)
    doc = document.parse(text, "some.yml")
    assert doc.data == tree
    lines = text.splitlines() if "\x85" not in text and "\u2028" not in text and "\u2029" not in text else []
    for loc, line in doc.lines.items():
        value: Any = tree
        for part in loc:
            value = value[part]
        if lines and loc and isinstance(loc[-1], str):
            assert loc[-1] in lines[line - 1]


@settings(max_examples=400)
@given(st.text(st.sampled_from("ab:- \n\t[]{},&*!|>'\"#?%@~<0:\x00\x85\ufeff\U0001f600"), max_size=40))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    error = refusal(lambda: document.parse(text, "some.yml"))
    assert error is None or error.what


def test_not_utf8(tmp_path: Path) -> None:
    file = tmp_path / "some.yml"
    file.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(BadInput, match="0xe9") as refused:
        document.read(file)
    assert (refused.value.code, str(refused.value.where)) == ("not-utf8", f"{file}:2")


def test_too_large(tmp_path: Path) -> None:
    file = tmp_path / "some.yml"
    file.write_bytes(b"a: [" + b"1," * 5_000_000 + b"]")
    with pytest.raises(BadInput, match=r"10\.0 MB") as refused:
        document.read(file)
    assert refused.value.code == "too-large"


def test_endless(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        document.read(Path("/dev/zero"))
    assert refused.value.code == "too-large"


def test_missing_folder_and_no_permission(tmp_path: Path) -> None:
    for path, says in ((tmp_path / "none.yml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(BadInput, match=says) as refused:
            document.read(path, code="unknown-stack")
        assert refused.value.code == "unknown-stack"
    closed = tmp_path / "closed.yml"
    closed.write_text("a: 1")
    closed.chmod(0)
    if os.geteuid() != 0:
        with pytest.raises(BadInput, match="Permission denied"):
            document.read(closed)


class Inner(Value):
    image: str
    size: int = Field(1, gt=0)


class Outer(Value):
    about: str
    inner: Inner | None = None
    many: dict[Name, Inner] = {}
    row: tuple[Inner, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Outer:
        if self.about == "wrong":
            raise ValueError("row: does not fit 'about'")
        return self


@pytest.mark.parametrize(
    ("text", "line", "code", "says"),
    [
        ("about: x\nabuot: y\n", 2, "unknown-key", "unknown key 'abuot': did you mean 'about'?"),
        ("about: x\ninner:\n  image: a\n  imago: b\n", 4, "unknown-key", "'imago': did you mean 'image'?"),
        ("about: x\nmany:\n  a: {image: b}\n  c:\n    image: d\n    sice: 1\n", 6, "unknown-key", "'sice': did you"),
        (
            "about: x\nrow:\n  - image: a\n  - image: b\n    sizes: 2\n",
            5,
            "unknown-key",
            "'sizes': did you mean 'size'",
        ),
        ("about: x\nzzz: y\n", 2, "unknown-key", "unknown key 'zzz': known: about, inner, many, row"),
        ("inner: {image: a}\n", 1, "bad-value", "about: it is missing"),
        ("about: 1.10\n", 1, "bad-value", "about: must be text: write it in quotes (YAML reads 1.1 as a number)"),
        ("about: yes\n", 1, "bad-value", "write it in quotes (YAML reads true as a truth)"),
        ("about: 2026-11-20\n", 1, "bad-value", "write it in quotes (YAML reads 2026-11-20 as a date)"),
        ("about:\n", 1, "bad-value", "about: must be text, and nothing is there"),
        ("about: [a]\n", 1, "bad-value", "about: must be text, not a list or mapping"),
        ("about: x\ninner:\n  image: a\n  size: 0\n", 4, "bad-value", "inner.size: must be more than 0, not 0"),
        ("about: x\nmany:\n  Bad Name: {image: a}\n", 3, "bad-value", "many.Bad Name: 'Bad Name' is not a name"),
        ("about: x\ninner: {image: a, size: -3}\n", 2, "bad-value", "inner.size: must be more than 0, not -3"),
        ("ABOUT: x\n", 1, "unknown-key", "'ABOUT': did you mean 'about'?"),
        ("\u0430bout: x\n", 1, "unknown-key", "did you mean 'about'? (U+0430 is none of its letters)"),
        ("about\u200b: x\n", 1, "unknown-key", "did you mean 'about'? (U+200B is none of its letters)"),
        ("about: wrong\n\nrow: []\n", 3, "bad-value", "row: does not fit 'about'"),
        ("about: x\nmany: 3\n", 2, "bad-value", "many: must be a mapping (key: value), not '3'"),
        ("about: x\nmany:\n  image: {imgae: a}\n", 3, "unknown-key", "'imgae': did you mean 'image'?"),
        ("about: x\nmany:\n  row: {image: a, sice: 1}\n", 3, "unknown-key", "'sice': did you mean 'size'?"),
        ("about: x\ninner: [a]\n", 2, "bad-value", "inner: must be a mapping (key: value), not a list"),
        ("about: x\ninner: {image: a, size: big}\n", 2, "bad-value", "size: must be a whole number, not 'big'"),
        ("about: x\ninner: {image: a, size: 1.5}\n", 2, "bad-value", "size: must be a whole number, not '1.5'"),
        ("about: x\nx: 1\ny: 2\n", 2, "unknown-key", "1 more problem)"),
        ("x: 1\ny: 2\n", 1, "unknown-key", "(2 more problems)"),
        ("inner:\n  image: a\nabout_: x\n", 3, "unknown-key", "'about_': did you mean 'about'?"),
    ],
)
def test_explained(text: str, line: int, code: str, says: str) -> None:
    doc = document.parse(text, "some.yml")
    plain = document.Document(doc.path, {k: tuple(v) if k == "row" else v for k, v in doc.data.items()}, doc.lines)
    with pytest.raises(BadInput) as refused:
        plain.validate(Outer)
    assert says in refused.value.what
    assert (refused.value.code, str(refused.value.where)) == (code, f"some.yml:{line}")
    assert refused.value.next_step


def test_a_file_does_not_name_itself() -> None:
    doc = document.parse("image: x\nsize: 3\n", "some.yml")
    assert document.parse("size: 3\n", "some.yml").validate(Inner, extra={"image": "x"}) == Inner(image="x", size=3)
    with pytest.raises(BadInput) as refused:
        doc.validate(Inner, extra={"image": "y"})
    assert str(refused.value.where) == "some.yml:1"


def test_other_values_leave_the_rest_as_it_is() -> None:
    text = 'a: {method: apt, version: "1.0"}  # kept\nb:\n  version: 1.0 # too\n'
    text += "list:\n  - {version: '1'}\n  - x\nc: \"a\"\n"
    values = {
        ("a", "version"): "2.0",
        ("b", "version"): "1:2+ds",
        ("list", 0, "version"): "3",
        ("list", 1): 'y "z"',
        ("c", "none"): "9",
        ("d",): "9",
    }
    assert document.with_values(text, values) == (
        'a: {method: apt, version: "2.0"}  # kept\nb:\n  version: "1:2+ds" # too\nlist:\n  - {version: "3"}\n'
        '  - "y \\"z\\""\nc: "a"\n'
    )
    assert document.with_values("", {("a",): "1"}) == ""

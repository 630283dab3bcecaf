"""The tools' output, recorded or written in their form, is in data/verify/parsers/TOOL/CASE.txt, and what is read of it
in CASE.yml beside it. A case more is two files more."""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.base.errors import CheckFailed

DATA = Path(__file__).parents[1] / "data/verify/parsers"
CASES = sorted(DATA.glob("*/*.yml"))
TOOLS = sorted(folder.name for folder in DATA.iterdir())


def parsed(path: Path) -> Any:
    """What the parser that the case names makes of its text."""
    return parser(path)(path.with_suffix(".txt").read_text(encoding="utf-8"))


def parser(path: Path) -> Any:
    module, name = yaml.safe_load(path.read_text())["parse"].split(".")
    return getattr(importlib.import_module(f"rocstack.verify.parsers.{module}"), name)


def found(value: Any, way: str) -> Any:
    """`rows.-1.out_of_place.us` of a value; `len` is its length."""
    while way:
        name, _, way = way.partition(".")
        if name == "len":
            value = len(value)
        elif isinstance(value, dict):
            value = value[int(name) if name.isdecimal() else name]
        elif isinstance(value, tuple | list):
            value = value[int(name)]
        else:
            value = getattr(value, name)
    return value


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_case(path: Path) -> None:
    case = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert case["source"]
    if "error" not in case:
        value = parsed(path)
        for way, wanted in case["expect"].items():
            assert found(value, way) == (pytest.approx(wanted) if isinstance(wanted, float) else wanted), way
        return
    with pytest.raises(CheckFailed) as raised:
        parsed(path)
    error = raised.value
    assert error.code == case["error"].get("code", "bad-output")
    assert case["error"]["what"] in error.what
    assert (error.where.line if error.where else None) == case["error"].get("line")
    assert error.next_step
    assert error.next_step.startswith("run ")


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_has_good_and_broken_samples(tool: str) -> None:
    cases = [yaml.safe_load(path.read_text()) for path in DATA.glob(f"{tool}/*.yml")]
    assert any("expect" in case for case in cases)
    assert any("error" in case for case in cases)


def test_every_parser_has_samples() -> None:
    folder = Path(importlib.import_module("rocstack.verify.parsers").__file__ or "").parent
    tested = {yaml.safe_load(path.read_text())["parse"].split(".")[0] for path in CASES}
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == tested


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_cut_anywhere_it_is_a_value_or_the_one_error(path: Path) -> None:
    """However a tool ends, nothing else is raised."""
    text = path.with_suffix(".txt").read_text(encoding="utf-8")
    parse = parser(path)
    for end in range(0, len(text), max(1, len(text) // 60)):
        for part in (text[:end], text[end:]):
            with suppress(CheckFailed):
                parse(part)

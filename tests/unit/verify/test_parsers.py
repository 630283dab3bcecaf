"""The tools' output, recorded or written in their form, is in data/verify/parsers/TOOL/CASE.txt, and what is read of it
in CASE.yml beside it. A case more is two files more."""

from __future__ import annotations

import importlib
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from growth import LINEAR, growth

from rocstack.base.errors import CheckFailed
from rocstack.verify import evidence, parsers
from rocstack.verify.parsers import gpu_tools, rccl, rdma_tools, rvs

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


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_with_odd_numbers_it_is_a_value_or_the_one_error(path: Path) -> None:
    text, parse = path.with_suffix(".txt").read_text(encoding="utf-8"), parser(path)
    numbers = list(re.finditer(r"\d+(?:\.\d+)?", text))
    for each in numbers[:: max(1, len(numbers) // 40)]:
        for odd in ("9" * 5000, "²", "٣", "1e999", ".", "1.1.1", "nan", ""):
            with suppress(CheckFailed):
                parse(text[: each.start()] + odd + text[each.end() :])


def test_rvs_ends_that_never_end_cost_little() -> None:
    """A worker's line of some MB: each beginning was read to the end of the line."""
    text = "p2p 1 2 peers: true " + "[GPU:: " * 400_000
    assert rvs._good(text) is True
    assert rvs._END.findall("p2p [GPU:: 1 - a] [CPU:: 0] peers: true") == ["1 - a", "0"]


def test_a_long_line_that_looks_like_rccls_costs_little() -> None:
    for part in ("a", "a:1:1 [0] ", "1 1.0 1.0 1 ", "[2026-04-28 "):
        assert rccl.without_rccl(part * 200_000)
        with pytest.raises(CheckFailed):
            rccl.parse("1000 250 float sum -1\n" + part * 200_000)


class Watched:
    """A pattern that remembers how long the texts are in which it was searched."""

    def __init__(self, pattern: re.Pattern[str], seen: list[int]) -> None:
        self.pattern, self.seen = pattern, seen

    def __getattr__(self, name: str) -> Any:
        def call(*given: str) -> Any:
            self.seen.append(len(given[-1]))
            return getattr(self.pattern, name)(*given)

        return call


def watched(value: Any, seen: list[int]) -> Any:
    if isinstance(value, re.Pattern):
        return Watched(value, seen)
    return {key: watched(each, seen) for key, each in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_pattern_sees_more_of_a_line_than_its_beginning(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a worker prints, with which searches would take hours."""
    seen: list[int] = []
    parse = parser(path)
    for module in (parsers, gpu_tools, rccl, rdma_tools, rvs):
        for name, value in vars(module).copy().items():
            if isinstance(value, re.Pattern) or name == "_FIELDS":
                monkeypatch.setattr(module, name, watched(value, seen))
    text = path.with_suffix(".txt").read_text(encoding="utf-8")
    for some in (text + "x" * 5000, "x" * 5000 + f"\n{text}", re.sub(r"$", " x" * 2500, text, flags=re.MULTILINE)):
        with suppress(CheckFailed):
            parse(some)
    assert max(seen) <= parsers.LONGEST


@pytest.mark.parametrize("part", ["a[", "x", " ", "[", "8"])
def test_columns_of_any_length_cost_as_much_as_they_are_long(part: str) -> None:
    assert growth(rdma_tools._COLUMN.findall, part) < LINEAR


def test_a_kernels_log_is_as_long_as_a_node_may_send() -> None:
    log = [*("old" for _ in range(5000)), "amdgpu" * 1000, "new"]
    answers = evidence.parse("on_hosts", evidence.ON_HOSTS, {"n1": {"log": log}})
    answer = answers["n1"]
    assert isinstance(answer, evidence.HostAnswer)
    assert answer.log is not None
    assert len(answer.log) == evidence.LOG_LINES
    assert max(len(line) for line in answer.log) == evidence.LOG_LINE
    assert answer.log[-1] == "new"

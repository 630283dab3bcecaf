"""Which layouts are compiled, in which order they stand then, and their picture."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from module_file import module_of

from rocstack.base import paths
from rocstack.base.errors import BadInput
from rocstack.size import advice, ask, compiled, maxtext, picture, search
from rocstack.size.layout import Asked
from rocstack.size.search import Searched, Tried
from rocstack.size.sizing import Sized
from rocstack.steps.job_options import SizeOptions

GIB = 1 << 30


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return module_of(paths.images() / "maxtext/compile.py")


def sized(model: str = "llama-3.1-8b", nodes: int = 8, **given: object) -> tuple[Sized, Asked]:
    options = SizeOptions(model=model, nodes=nodes, **given)  # type: ignore[arg-type]
    return ask.size(options), ask.layout(options)


def tried(own: Sized, *lines: str, temporaries: int = GIB, refused: str = "") -> Tried:
    layout = own.layout
    axes = [["stage", layout.pp], ["data", layout.copies], ["fsdp", layout.shard], ["tensor", layout.tp]]
    said: dict[str, object] = {"arguments": GIB, "temporaries": temporaries, "axes": axes, "seconds": {"compile": 5.0}}
    if lines:
        said["text"] = ["ENTRY %main {", *lines, "}"]
    if refused:
        said = {"refused": {"phase": "trace", "type": refused, "says": "an axis isn't divisible"}}
    return Tried(sized=own, said=compiled.read(json.dumps(said).encode(), own, "flash"), cpu=7.5)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"])
def test_the_best_of_each_kind_are_compiled(model: str) -> None:
    own, asked = sized(model, 32)
    choice = search.choose(own, asked)
    assert 2 < len(choice.layouts) <= search.MOST <= choice.fitting - choice.untaken
    layouts = [each.layout for each in choice.layouts]
    assert len(set(layouts)) == len(layouts)
    assert {each.pp > 1 for each in layouts} == {True, False} or model == "deepseek-v3"
    assert {each.shard > 1 for each in layouts} == {True, False} or model == "deepseek-v3"
    assert layouts[0].recompute == own.layout.recompute
    scores = [each.speed.score for each in choice.layouts if each.speed]
    assert scores == sorted(scores, reverse=True)
    for each in choice.layouts:
        assert each.ok
        maxtext.degrees(each.shape, each.layout)
        assert not advice.narrow(each.shape, each.layout)


def test_options_narrow_the_search() -> None:
    own, asked = sized(tp=2, recompute="layers")
    assert {(each.layout.tp, each.layout.recompute) for each in search.choose(own, asked).layouts} == {(2, True)}


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (
            {"tp": 1, "pp": 1, "dp": 64, "shard": 64, "micro_batch": 2, "accumulate": 1, "recompute": "none"},
            "search-of-one-layout",
        ),
        ({"gpu": "mi210"}, "search-without-times"),
        ({"model": "mpt-7b"}, "no-such-maxtext-model"),
        ({"pp": 8, "accumulate": 9, "interleave": 1}, "uneven-rounds"),
    ],
)
def test_what_is_no_search(given: dict[str, object], code: str) -> None:
    own, asked = sized(**given)  # type: ignore[arg-type]
    with pytest.raises(BadInput) as refused:
        search.choose(own, asked)
    assert refused.value.code == code


def test_the_compilers_collectives_make_the_time() -> None:
    """They take the place of the formula's; what no layer waits for is hidden in the fast bound."""
    own, _ = sized(tp=1, pp=1, shard=64, micro_batch=2)
    gather = "%w = bf16[{}] all-gather(), replica_groups=[1,64]<=[64]"
    little, much = tried(own, gather.format(8 << 30)), tried(own, gather.format(80 << 30))
    assert own.speed
    for one in (little, much):
        for part, step in zip(own.speed.steps, one.speed.steps, strict=True):
            assert step.parts["products"] == part.parts["products"]
            assert not any(name.startswith("FSDP") for name in step.parts)
            assert sum(step.kinds.values()) == pytest.approx(step.seconds)
    assert much.speed.steps[0].kinds["communication"] == pytest.approx(
        10 * little.speed.steps[0].kinds["communication"]
    )
    assert little.speed.steps[1].kinds["communication"] == 0
    assert search.in_order([much, little]) == (little, much)


def test_layers_wait_for_the_sums_of_their_tensor_group() -> None:
    own, _ = sized(tp=2, pp=1, shard=32)
    inside = tried(own, "%s = bf16[8589934592] all-reduce(), replica_groups=[32,2]<=[64]")
    slow, fast = inside.speed.steps
    assert slow.kinds["communication"] == pytest.approx(fast.kinds["communication"])
    assert fast.kinds["communication"] > 0


def test_what_does_not_fit_and_what_is_refused_stand_last() -> None:
    own, _ = sized()
    good, large, bad = tried(own), tried(own, temporaries=300 * GIB), tried(own, refused="ValueError")
    assert search.in_order([bad, large, good]) == (good, large, bad)
    assert large.fault
    assert "300.0 GiB are temporaries" in large.fault.what
    assert bad.fault
    assert "doesn't divide" in bad.fault.what
    assert (good.fault, good.lasting, bad.lasting) == (None, True, True)
    died = tried(own, refused="Died")
    assert died.fault
    assert "died with this layout" in died.fault.what
    assert not died.lasting


@pytest.fixture(scope="module")
def searched() -> Searched:
    own, asked = sized()
    choice = search.choose(own, asked)
    many = [tried(each) for each in choice.layouts[:4]]
    many += [tried(choice.layouts[4], temporaries=300 * GIB), tried(choice.layouts[5], refused="ValueError")]
    return Searched(choice=choice, tried=search.in_order(many))


def test_the_document(searched: Searched) -> None:
    said = json.loads(json.dumps(searched.to_dict()))
    assert [each["fits"] for each in said["layouts"]] == [True] * 4 + [False] * 2
    first, *_, large, refused = said["layouts"]
    assert first["flags"].startswith("--tp 1 ")
    assert first["cpu_seconds"] == 7.5
    assert set(first["time"]["parts"]["slow"]) >= {"products", "attention"}
    assert large["why_not"]
    assert refused["time"] is None


def test_the_picture(searched: Searched) -> None:
    """A bar of parts for what fits, memory for what was compiled, and a word for the rest."""
    drawn = ElementTree.fromstring(picture.draw(searched))
    name = "{http://www.w3.org/2000/svg}"
    width = float(drawn.attrib["width"])
    for each in drawn.iter(f"{name}rect"):
        assert float(each.get("x", 0)) + float(each.attrib["width"]) <= width
    texts = [each.text or "" for each in drawn.iter(f"{name}text")]
    assert sum(each.endswith(" s") for each in texts) == 4
    assert texts.count("2 GiB") == 4
    assert texts.count("301 GiB") == texts.count("doesn't fit") == texts.count("refused") == 1
    assert str(searched.tried[0].sized.layout) in texts


def test_a_layout_that_hangs_grows_or_dies_is_alone_with_it(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In images/maxtext/compile.py: each step in a fork of its own, and the others go on."""

    def answer(step: dict[str, str]) -> dict[str, object]:
        if step["do"] == "grow":
            large = bytearray(300 << 20)
            large[:: 1 << 10] = b"x" * len(large[:: 1 << 10])
        if step["do"] in ("grow", "hang"):
            time.sleep(30)
        while step["do"] == "spin":
            pass
        if step["do"] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"arguments": 1}

    monkeypatch.setattr(program, "answer", answer)
    monkeypatch.setattr(program, "libraries", lambda: None)
    monkeypatch.setattr(program.tempfile, "tempdir", str(tmp_path))
    steps = [{"do": each} for each in ("hang", "grow", "die", "well", "well", "spin")]
    most = program.held(os.getpid()) + (200 << 20)
    found: Iterator[tuple[int, float, dict[str, object]]] = program.side_by_side(
        {"steps": steps, "at_once": 3, "seconds": 1, "bytes": most}
    )
    said = {number: answer.get("refused", answer) for number, _, answer in found}
    assert said[3] == said[4] == {"arguments": 1}
    assert [said[number]["type"] for number in (0, 1, 2, 5)] == ["TooLong", "TooLarge", "Died", "TooLong"]
    assert not list(next(tmp_path.iterdir()).iterdir())

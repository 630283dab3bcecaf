"""Scaling: what programs say of their speed, and what is made of it."""

from typing import Any
from xml.etree import ElementTree

import pytest

from rocstack.base.errors import BadInput
from rocstack.jobs import recipe as recipes
from rocstack.jobs.recipe import Figures
from rocstack.size import scaling, scaling_picture
from rocstack.size.scaling import FigureReader, NodePlaces, Scaled, ScalePoint

VIRTUAL = NodePlaces(nodes=2, hosts=1, virtual=("mi300x-thor2",))
# Lines as the programs print them, the first one slower; and tokens/s of 4 ranks, TFLOPS of each.
SAID: dict[str, tuple[str, float | None, float | None]] = {
    "trainer": (
        "0: step=1 loss=5.5 tokens_per_s=10\n"
        "0: done: step 3, loss 5.5549 -> 4.6011 (0x1.2678eb0000000p+2), median step 250.1 ms, 4323 tokens/s\n",
        4323.0,
        None,
    ),
    "finetune": (
        "0: done: step 9, loss 2.1 -> 1.0 (0x1p+0), median step 9.0 ms, 800 tokens/s, 40.0% MFU, 523.0 TFLOPS a GPU\n",
        800.0,
        523.0,
    ),
    "maxtext": (
        "0: completed step: 0, seconds: 44.923, TFLOP/s/device: 17.022, Tokens/s/device: 1094.129, loss: 12.0\n"
        "0: completed step: 1, seconds: 18.7, TFLOP/s/device: 220.6, Tokens/s/device: 885, loss: 9.5\n"
        "0: completed step: 2, seconds: 18.5, TFLOP/s/device: 221.8, Tokens/s/device: 887, loss: 9.4\n",
        4 * 886.0,
        221.2,
    ),
    "megatron-lm": (
        " iteration       50/    5000 | consumed samples:        51200 | elapsed time per iteration"
        " (ms): 61674.3 | throughput per GPU (TFLOP/s/GPU): 68.2 | learning rate: 1.0E-05\n",
        None,
        68.2,
    ),
    "megatron-deepspeed": (
        " iteration        6/      10 | lm loss: 1.1E+01 | samples per second: 4.457 | tokens"
        " per gpu per second (tgs): 142.612 | TFLOPs: 153.38 |\n",
        4 * 142.612,
        153.38,
    ),
}


def point(nodes: int, tokens: float | None, batch: int = 8, **more: Any) -> ScalePoint:
    return ScalePoint(
        **{
            "job": str(nodes),
            "nodes": nodes,
            "ranks": 2 * nodes,
            "batch": batch,
            "tokens": tokens,
            "tflops": None,
            **more,
        }
    )


@pytest.mark.parametrize("name", sorted(each.name for each in recipes.recipes().values() if each.figures))
def test_what_each_program_says_is_read(name: str) -> None:
    said, tokens, tflops = SAID[name]
    figures = recipes.find(name).figures
    assert figures is not None
    reader = FigureReader(figures)
    for at in range(0, len(said), 7):  # pieces of a log end anywhere
        reader.read(said[at : at + 7])
    found = reader.point(job="1", nodes=2, ranks=4, batch=8, bubble=0.0)
    assert found is not None
    assert (found.tokens, found.tflops) == (pytest.approx(tokens) if tokens else None, tflops and pytest.approx(tflops))


@pytest.mark.parametrize(
    "text",
    [
        "nothing\n",
        "tps: 0\n",
        "tps: 0.0000000000000000000000001\n",
        "tps: 1e99\n",
        "tps: nan\n",
        "tps: .\n",
        "x" * 5000 + "tps: 5\n",
    ],
)
def test_what_is_no_speed_is_none(text: str) -> None:
    reader = FigureReader(Figures(tokens=r"tps: (\S+)"))
    reader.read(text)
    assert reader.point(job="1", nodes=1, ranks=1, batch=1, bubble=0.0) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("1", "shows no scaling"), ("", "no list"), ("1,,2", "no list"), ("1,2.5", "no list"), ("-1,2", "no list"),
        ("0,1", "1 to 65,536"), ("1,70000", "1 to 65,536"), ("2,2", "twice"), ("1,2,1", "twice"), ("1;2", "no list"),
        (",".join(map(str, range(1, 40))), "at most 32"),
    ],
)  # fmt: skip
def test_wrong_numbers_of_nodes(given: str, why: str) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        scaling.counts(given)
    assert caught.value.code == "bad-node-counts"


def test_the_batch_stays_or_grows() -> None:
    assert scaling.counts("4, 1,2") == (1, 2, 4)
    trainer = recipes.find("trainer")
    assert scaling.batches(trainer, {"batch": 8}, (1, 2, 4), "strong") == (8, 8, 8)
    assert scaling.batches(trainer, {"batch": 8}, (2, 3, 4), "weak") == (8, 12, 16)
    for name, batch, nodes, code in (
        ("trainer", None, (1, 2), "scale-without-batch"), ("trainer", 3, (2, 3), "uneven-batch"),
        ("mine", None, (1, 2), "no-figures"), ("diloco", None, (1, 2), "no-figures"),
    ):  # fmt: skip
        with pytest.raises(BadInput) as caught:
            scaling.batches(recipes.find(name), {"batch": batch}, nodes, "weak")
        assert caught.value.code == code


def test_ideal_efficiency_and_bubble_as_on_lumi() -> None:
    """768 sequences at TP 8 and PP 8: 128 micro-batches on 384 ranks, 8 on 6,144."""
    values = {"tp": 8, "pp": 8, "micro_batch": 1}
    bubbles = [scaling.bubble(values, ranks, 768) for ranks in (384, 6144)]
    assert bubbles == [pytest.approx(7 / 135), pytest.approx(7 / 15)]
    first = point(48, None, 768, ranks=384, tflops=80.6, bubble=bubbles[0])
    last = point(768, None, 768, ranks=6144, tflops=64.48, bubble=bubbles[1])
    found = Scaled(recipe="megatron-deepspeed", kind="strong", points=(first, last))
    assert found.unit == "TFLOPS"
    assert found.efficiency(last) == pytest.approx(0.8)
    assert found.ideal(last) == pytest.approx(80.6 * 6144)
    assert found.bubble(last) == pytest.approx(80.6 * 6144 * (8 / 15) / (128 / 135))
    assert found.to_dict()["points"][1]["bubble"] == pytest.approx(7 / 15)
    plain = Scaled(recipe="trainer", kind="weak", points=(point(1, 100.0), point(2, 150.0)))
    assert plain.bubble(plain.points[1]) is None
    assert plain.efficiency(plain.points[1]) == 0.75


def test_ranks_of_one_host_are_no_cluster() -> None:
    assert NodePlaces(nodes=4, hosts=4).says == ""
    assert NodePlaces(nodes=4, hosts=4).cluster
    for places, says in (
        (VIRTUAL, "virtual nodes (mi300x-thor2)"), (NodePlaces(nodes=4, hosts=2), "4 nodes on 2 hosts"),
        (NodePlaces(nodes=2, hosts=0), "don't say which machines"),
    ):  # fmt: skip
        assert not places.cluster
        assert says in places.says
        assert "no cluster" in places.says
    found = Scaled(recipe="trainer", kind="weak", points=(point(1, 1.0), point(2, 2.0)), places=VIRTUAL).to_dict()
    assert (found["cluster"], found["virtual"]) == (False, ["mi300x-thor2"])


@pytest.mark.parametrize("bubble", [0.0, 0.1])
def test_the_picture_has_its_lines(bubble: float) -> None:
    points = (point(1, 1000.0), point(2, 1500.0, bubble=bubble), point(4, 9.0, bubble=2 * bubble))
    found = Scaled(recipe="<x>", kind="strong", points=points, places=VIRTUAL)
    drawn = ElementTree.fromstring(scaling_picture.draw(found))
    name = "{http://www.w3.org/2000/svg}"
    lines = [each.attrib["class"] for each in drawn.iter(f"{name}path") if "line" in each.attrib["class"].split()]
    assert sorted(lines) == sorted(["line ideal", "line seen", *(["line stages"] if bubble else [])])
    assert len(list(drawn.iter(f"{name}circle"))) == 3
    texts = " ".join(each.text or "" for each in drawn.iter(f"{name}text"))
    assert "<x>: strong scaling" in texts
    assert "a rehearsal" in texts
    assert scaling_picture.draw(Scaled(recipe="x", kind="weak", points=points[:1])).count("<circle") == 1

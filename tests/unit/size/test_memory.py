"""What a GPU needs: the trainer's arithmetic, and what holds for every layout."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from rocstack.size import hardware, memory, models
from rocstack.size.layout import GpuLayout, problem, shares
from rocstack.size.memory import need

TRAINER = Path(__file__).resolve().parents[3] / "images/trainer/rocstack_trainer"
DENSE = ["llama-3.1-8b", "llama-3.1-70b", "llama-2-7b"]


@dataclass(frozen=True)
class Trainer:
    """The trainer's own arithmetic, without PyTorch, which isn't here."""

    need: Any
    layout: Any
    sizes: Any
    room: float
    piece: int


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    def run(file: str, names: set[str], known: dict[str, Any]) -> dict[str, Any]:
        tree = ast.parse((TRAINER / file).read_text())
        tree.body = [each for each in tree.body if _name(each) in names]
        assert {_name(each) for each in tree.body} == names
        exec(compile(tree, file, "exec"), known)
        return known

    def _name(node: ast.AST) -> str:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            return node.targets[0].id
        return getattr(node, "name", "")

    loss = SimpleNamespace(**run("loss.py", {"PIECE_BYTES", "pieces_of"}, {}))
    known = {"loss": loss, "dataclass": dataclass, "__name__": __name__}
    found = run("memory.py", {"KEPT", "ROOM", "Sizes", "Layout", "need"}, known)
    return Trainer(found["need"], found["Layout"], found["Sizes"], found["ROOM"], loss.PIECE_BYTES)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", DENSE)
def test_shards_are_those_of_the_trainer(name: str, again: bool, trainer: Trainer) -> None:
    shape, _ = models.find(name)
    block = shape.attention + shape.dense + shape.small
    theirs = trainer.sizes(shape.parameters, block, shape.layers, shape.hidden, shape.mlp, shape.keys * shape.head,
                           shape.vocabulary, shape.parameters)  # fmt: skip
    for shard, micro in ((8, 1), (64, 4)):
        expected = trainer.need(theirs, trainer.layout(shard, again), micro * 4096, True)
        found = need(shape, GpuLayout(dp=shard, shard=shard, micro=micro, recompute=again), 4096).parts
        assert {"optimizer": expected.pop("AdamW"), **expected} == pytest.approx(found)


@pytest.mark.parametrize("name", DENSE)
def test_whole_weights_are_as_much_as_the_trainers(name: str, trainer: Trainer) -> None:
    """One GPU has the same 18 bytes a parameter, called otherwise: its master copy is the optimizer's here."""
    shape, _ = models.find(name)
    theirs = trainer.sizes(shape.parameters, 0, shape.layers, 1, 1, 1, 1, shape.parameters)
    expected = trainer.need(theirs, trainer.layout(1), 1, True)
    found = need(shape, GpuLayout(), 1).parts
    states = ("weights", "gradients", "AdamW", "bf16 copies")
    assert sum(expected[part] for part in states) == 18 * shape.parameters
    assert sum(found[part] for part in ("weights", "gradients", "optimizer")) == 18 * shape.parameters


def test_adapters_are_those_of_the_trainer(trainer: Trainer) -> None:
    shape, _ = models.find("llama-3.1-8b")
    trained = shape.adapters(16)
    theirs = trainer.sizes(shape.parameters, 0, shape.layers, 1, 1, 1, 1, trained)
    for shard in (1, 8):
        expected = trainer.need(theirs, trainer.layout(shard), 1, True)
        found = need(shape, GpuLayout(dp=shard, shard=shard), 1, 16).parts
        for part, name in (("weights", "weights"), ("gradients", "gradients"), ("optimizer", "AdamW")):
            assert found[part] == pytest.approx(expected[name])


def test_the_trainers_constants(trainer: Trainer) -> None:
    assert hardware.sizing().room == trainer.room
    assert trainer.piece == memory.PIECE


@pytest.mark.parametrize(
    ("model", "layout", "gigabytes"),
    [
        ("llama-3.1-8b", GpuLayout(dp=64, shard=64), 1.5),
        ("llama-3.1-70b", GpuLayout(dp=512, shard=512), 1.7),
        ("llama-3.1-70b", GpuLayout(tp=8, dp=64, shard=64), 1.7),
        ("llama-3.1-405b", GpuLayout(tp=8, dp=128, shard=128), 4.8),
        ("mixtral-8x7b", GpuLayout(dp=64, shard=64), 8.8),
        ("deepseek-v3", GpuLayout(dp=256, shard=256, ep=8), 31.5),
        ("gpt-3-175b", GpuLayout(tp=8, dp=32, shard=32), 8.2),
    ],
)
def test_states_are_what_a_compiler_says(model: str, layout: GpuLayout, gigabytes: float) -> None:
    """Arguments of MaxText's train step, compiled for MI300X in these layouts: weights and the optimizer's states."""
    shape, _ = models.find(model)
    found = need(shape, layout, 8192).parts
    assert (found["weights"] + found["optimizer"]) / 1e9 == pytest.approx(gigabytes, abs=0.06)


def test_lora_of_70b_fits_on_one_gpu_and_all_of_it_does_not() -> None:
    shape, _ = models.find("llama-3.1-70b")
    budget = hardware.find("mi300x").budget
    assert (
        need(shape, GpuLayout(recompute=True), 8192, 16).total
        < budget
        < need(shape, GpuLayout(recompute=True), 8192).total
    )


LAYOUTS = some.builds(
    GpuLayout,
    tp=some.sampled_from([1, 2, 4, 8]),
    pp=some.sampled_from([1, 2, 3, 4, 8, 16]),
    dp=some.sampled_from([1, 2, 4, 8, 16]),
    shard=some.sampled_from([1, 2, 8, 16]),
    ep=some.sampled_from([1, 2, 8]),
    micro=some.sampled_from([1, 2, 4]),
    accumulate=some.sampled_from([1, 4, 16]),
    interleave=some.sampled_from([1, 2]),
    recompute=some.booleans(),
)


@given(some.sampled_from(models.names()), LAYOUTS, some.sampled_from([0, 16]))
def test_memory_grows_with_what_is_asked_of_it(name: str, layout: GpuLayout, rank: int) -> None:
    shape, _ = models.find(name)
    assume(problem(shape, layout, layout.gpus) is None)
    found = need(shape, layout, 2048, rank)
    assert found.total == sum(found.parts.values()) > 0
    assert all(part >= 0 for part in found.parts.values())
    assert need(shape, layout, 4096, rank).total > found.total
    assert need(shape, replace(layout, micro=2 * layout.micro), 2048, rank).total > found.total
    if not rank:
        assert need(shape, layout, 2048, 16).parts["weights"] > 0
        assert need(shape, layout, 2048, 16).parts["optimizer"] < found.parts["optimizer"]
    more = replace(layout, dp=2 * layout.dp, shard=2 * layout.shard if layout.shard > 1 else 1)
    assert need(shape, more, 2048, rank).total <= found.total


@given(some.sampled_from(models.names()), some.sampled_from([1, 2, 4, 8]))
def test_gpus_hold_the_whole_model_together(name: str, tp: int) -> None:
    """Every parameter once, and routers and norms on each."""
    shape, _ = models.find(name)
    (stage,) = memory.held(shape, GpuLayout(tp=tp))
    parts = shape.parts()
    everywhere = parts.get("router", 0) + parts["norms and biases"] + shape.positions * shape.hidden
    assert stage.all * tp == pytest.approx(shape.parameters + (tp - 1) * everywhere, rel=1e-12)


@given(some.integers(1, 200), some.integers(1, 64))
def test_stages_have_all_layers(layers: int, pp: int) -> None:
    assume(pp <= layers)
    found = shares(layers, pp)
    assert sum(found) == layers
    assert max(found) - min(found) <= 1
    assert found[0] == min(found)

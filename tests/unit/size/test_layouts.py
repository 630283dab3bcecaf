"""Which layouts are possible, what they send, and how long a step takes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rocstack.base.errors import BadInput
from rocstack.size import advice, hardware, models, published
from rocstack.size.layout import Asked, GpuLayout, divisors, possible, problem
from rocstack.size.memory import held, need
from rocstack.size.sizing import ALIKE, answer, flags
from rocstack.size.speed import speed
from rocstack.size.traffic import traffic

MI300X = hardware.find("mi300x")


def shape_of(name: str) -> models.Shape:
    return models.find(name)[0]


@pytest.mark.parametrize(
    ("model", "layout", "gpus", "why"),
    [
        ("llama-3.1-70b", GpuLayout(tp=3, dp=8), 24, "TP 3 doesn't divide the model's 64 heads"),
        ("llama-3.1-70b", GpuLayout(tp=128), 128, "TP 128 doesn't divide the model's 64 heads"),
        ("qwen-2.5-7b", GpuLayout(tp=7), 7, "TP 7 doesn't divide the model's 4 heads of keys, nor is it a multiple"),
        ("llama-3.1-8b", GpuLayout(pp=33), 33, "PP 33 is more than the model's 32 layers"),
        ("llama-3.1-8b", GpuLayout(pp=8, interleave=5, accumulate=8), 8, "PP 8 with 5 chunks a stage is more than"),
        ("llama-3.1-8b", GpuLayout(pp=8, interleave=2, accumulate=9), 8, "micro-batches by the 8, and there are 9"),
        ("llama-3.1-8b", GpuLayout(dp=8, interleave=2), 8, "only a pipeline has chunks"),
        ("llama-3.1-8b", GpuLayout(dp=8, ep=2), 8, "no experts to share"),
        ("mixtral-8x7b", GpuLayout(dp=12, ep=3), 12, "EP 3 doesn't divide the model's 8 experts"),
        ("mixtral-8x7b", GpuLayout(dp=4, ep=8), 4, "EP 8 doesn't divide DP 4"),
        ("mixtral-8x7b", GpuLayout(dp=8, ep=8, shard=4), 8, "EP 8 doesn't divide the shards of 4"),
        ("llama-3.1-8b", GpuLayout(dp=8, shard=3), 8, "shards of 3 don't divide DP 8"),
        ("llama-3.1-8b", GpuLayout(dp=0), 8, "less than 1"),
        ("lumi-140b", GpuLayout(tp=8, pp=8, dp=48), 6144, "are 3,072 GPUs, and there are 6,144: DP 96"),
        ("llama-3.1-8b", GpuLayout(tp=8, dp=3), 28, "are 24 GPUs, and there are 28"),
        ("llama-3.1-8b", GpuLayout(tp=2, cp=2, dp=2), 16, "TP 2 × CP 2 × PP 1 × DP 2 are 8 GPUs"),
        ("llama-3.1-8b", GpuLayout(cp=0, dp=8), 8, "less than 1"),
        ("llama-3.1-8b", GpuLayout(cp=3), 3, "needs 6 equal pieces of each sequence, which 8,192 tokens don't give"),
    ],
)
def test_why_a_layout_is_impossible(model: str, layout: GpuLayout, gpus: int, why: str) -> None:
    assert why in (problem(shape_of(model), layout, gpus, 8192) or "possible")


def test_lumis_text_has_a_misprint() -> None:
    """768 nodes of 8 dies at TP 8 and PP 8 are DP 96, where the text has 48; its 8 micro-batches say the same."""
    right = GpuLayout(tp=8, pp=8, dp=96, accumulate=8)
    assert problem(shape_of("lumi-140b"), right, 768 * 8) is None
    assert right.batch == 768
    assert GpuLayout(tp=8, pp=8, dp=6, accumulate=128).gpus == 48 * 8
    assert "are DP 96" in models.load("lumi-140b").note


GIVEN = some.builds(
    Asked,
    tp=some.sampled_from([None, 1, 2, 8]),
    cp=some.sampled_from([None, 1, 2]),
    pp=some.sampled_from([None, 1, 4]),
    shard=some.sampled_from([None, 1, 8]),
    micro=some.sampled_from([None, 2]),
    batch=some.sampled_from([None, 64, 768]),
)


@given(some.sampled_from(models.names()), some.sampled_from([1, 8, 24, 64, 512]), GIVEN)
def test_every_layout_that_is_tried_is_possible_and_as_asked(name: str, gpus: int, asked: Asked) -> None:
    shape = shape_of(name)
    for layout in islice(possible(shape, gpus, 8, asked, 128, 8192), 200):
        assert problem(shape, layout, gpus, 8192) is None
        assert layout.gpus == gpus
        assert {key: getattr(layout, key) for key in asked.given()} == asked.given()
        assert asked.like(layout) == 0


@given(some.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]


def test_fsdp_gathers_weights_twice_and_sums_gradients_up_once() -> None:
    """In bf16 and float32. MaxText's step, compiled for 64 MI300X, has 29.4 GB of each."""
    shape = shape_of("llama-3.1-8b")
    gather, reduce = traffic(shape, GpuLayout(dp=64, shard=64), 4096, 8)
    assert gather.bytes == pytest.approx(2 * 2 * shape.parameters * 63 / 64)
    assert reduce.bytes == pytest.approx(4 * shape.parameters * 63 / 64)
    assert (gather.bytes, reduce.bytes) == pytest.approx((29.4e9, 29.4e9), rel=0.08)
    assert gather.fabric
    assert not gather.blocks
    assert not traffic(shape, GpuLayout(dp=8, shard=8), 4096, 8)[0].fabric


def test_what_a_layer_exchanges() -> None:
    shape = shape_of("llama-3.1-70b")
    tensor, *_ = traffic(shape, GpuLayout(tp=8, accumulate=3), 8192, 8)
    assert tensor.bytes == 3 * 80 * 4 * 2 * 7 / 8 * 8192 * 8192 * 2
    again, *_ = traffic(shape, GpuLayout(tp=8, accumulate=3, recompute=True), 8192, 8)
    assert again.bytes == tensor.bytes * 6 / 4
    mixtral = shape_of("mixtral-8x7b")
    experts, *_ = traffic(mixtral, GpuLayout(dp=8, ep=8), 4096, 8)
    assert experts.bytes == pytest.approx(32 * 4 * 7 / 8 * 4096 * 2 * 4096 * 2)
    pipe, *_ = traffic(shape, GpuLayout(pp=8, accumulate=8, interleave=2), 8192, 8)
    assert pipe.bytes == 2 * 2 * 8 * 8192 * 8192 * 2


def test_gpus_that_share_a_sequence() -> None:
    """They share the weights, too. MaxText's step for 8 MI300X, CP 2 and shards of 4, has 12.05 GB of arguments, and
    exchanges 3.29 GB among the two."""
    shape = shape_of("llama-3.1-8b")
    layout = GpuLayout(cp=2, dp=4, shard=4, recompute=True)
    context, gather, reduce = traffic(shape, layout, 16384, 8)
    assert (context.kind, context.members, context.fabric, context.blocks) == ("CP", 2, False, True)
    assert context.bytes == pytest.approx(3.29e9, rel=0.03)
    assert (gather.members, reduce.members) == (8, 8)
    alone = GpuLayout(dp=8, shard=8, recompute=True)
    half, whole = need(shape, layout, 16384).parts, need(shape, alone, 16384).parts
    assert half["activations"] == pytest.approx(whole["activations"] / 2)
    assert half["optimizer"] == whole["optimizer"] == pytest.approx(8 * shape.parameters / 8)


def test_only_long_sequences_are_shared_without_being_asked_for() -> None:
    shape = shape_of("llama-3.1-8b")
    degrees = [{each.cp for each in possible(shape, 8, 8, Asked(), 8, sequence)} for sequence in (32768, 131072)]
    assert degrees == [{1}, {1, 2, 4, 8}]


def test_one_gpu_sends_nothing() -> None:
    assert traffic(shape_of("llama-3.1-8b"), GpuLayout(), 8192, 8) == ()


def test_groups_that_span_nodes() -> None:
    shape = shape_of("llama-3.1-70b")
    kinds = {each.kind: each.fabric for each in traffic(shape, GpuLayout(tp=8, pp=2, dp=2, accumulate=4), 8192, 8)}
    assert kinds == {"TP": False, "PP": True, "DP": True, "ZeRO": True}
    kinds = {each.kind: each.fabric for each in traffic(shape, GpuLayout(tp=2, pp=2, dp=2, accumulate=4), 8192, 8)}
    assert set(kinds.values()) == {False}
    copies = {each.kind: each for each in traffic(shape, GpuLayout(dp=32, shard=8), 8192, 8)}
    assert not copies["FSDP gather"].fabric
    assert (copies["DP"].fabric, copies["DP"].members) == (True, 4)


@given(some.sampled_from(models.names()), some.sampled_from([8, 64]), some.integers(0, 10_000), some.booleans())
def test_the_slow_bound_is_slower(name: str, gpus: int, which: int, again: bool) -> None:
    shape = shape_of(name)
    layouts = list(islice(possible(shape, gpus, 8, Asked(), 128, 8192), 400))
    layout = replace(layouts[which % len(layouts)], recompute=again)
    found = speed(shape, layout, 2048, MI300X)
    assert found is not None
    slow, fast = found.seconds
    assert slow >= fast > 0
    assert found.seconds[0] == sum(found.steps[0].parts.values())
    assert all(part >= 0 for step in found.steps for part in step.parts.values())
    assert found.mfu is not None
    assert max(found.mfu) < max(MI300X.gemm or ()) / (MI300X.peak or 1), "no layout beats its products"
    assert found.tokens == layout.batch * 2048


def test_a_pipeline_waits_as_the_formula_says() -> None:
    shape = shape_of("lumi-140b")
    die = hardware.find("mi250x")
    for chunks, waits in ((1, 7 / 15), (5, 7 / 47)):
        layout = GpuLayout(tp=8, pp=8, dp=96, accumulate=8, interleave=chunks)
        assert layout.bubble == pytest.approx(waits)
        found = speed(shape, layout, 5120, die)
        assert found is not None
        slow = found.steps[0].parts
        layers = sum(slow[part] for part in ("products", "attention", "memory", "TP"))
        assert slow["bubble"] / (slow["bubble"] + layers) == pytest.approx(waits)


def test_fewer_links_are_slower() -> None:
    assert MI300X.ring(8) == 304e9
    assert MI300X.ring(2) == pytest.approx(304e9 / 7)
    assert hardware.find("mi300x", network="4x200").share == pytest.approx(MI300X.share / 4)
    assert hardware.find("mi250x").ring(2) == 125e9, "its links differ, so the whole board's rate stands for all"


@pytest.mark.parametrize("name", hardware.known())
def test_the_memory_of_node_models(name: str) -> None:
    """Both files say it: as much."""
    rate = hardware.sizing().gpus.get(name)
    if rate and name != "MI350X":  # has no node model of its own
        gpus = hardware.node_model.load(rate.node).gpus
        assert gpus is not None
        assert (gpus.memory_gib, gpus.compute_units) == (hardware.known()[name].memory, hardware.known()[name].units)


@pytest.mark.parametrize("value", ["8", "8x", "x400", "0x400", "8x0", "8×400Gb", "-1x400", "999x1"])
def test_a_network_that_is_none(value: str) -> None:
    with pytest.raises(BadInput) as raised:
        hardware.find("mi300x", network=value)
    assert raised.value.code == "bad-network"


def test_published_runs_lie_within_the_bounds() -> None:
    """Fitted or not; the middle is within an eighth of them."""
    found = published.table()
    assert len(found) >= 6
    assert {each.name: each.outside for each in found if each.outside} == {}
    assert {each.name for each in found if abs(each.middle) > 1 / 8} == set()
    assert sum(not each.run.fitted for each in found) >= 4


def test_without_interleaving_lumis_largest_run_is_inexplicable() -> None:
    run = published.load()["lumi-140b-768-nodes"]
    plain = published.compare("plain", run.model_copy(update={"layout": {**run.layout, "interleave": 1}}))
    assert plain.fast < 0.8 * run.published


def test_advice() -> None:
    def codes(model: str, layout: GpuLayout) -> list[str]:
        shape = shape_of(model)
        wires = traffic(shape, layout, 8192, 8)
        fast = speed(shape, layout, 8192, MI300X)
        return [each.code for each in advice.findings(shape, layout, MI300X, wires, fast, lambda _: True)]

    assert codes("llama-3.1-70b", GpuLayout(dp=64, accumulate=4)) == []
    assert codes("llama-3.1-70b", GpuLayout(tp=8, accumulate=4)) == ["narrow-tensor-parallel"]
    assert codes("llama-3.1-405b", GpuLayout(tp=8, accumulate=4)) == []
    assert codes("llama-3.1-405b", GpuLayout(tp=16, accumulate=4)) == ["tensor-parallel-over-fabric"]
    assert codes("qwen-2.5-7b", GpuLayout(accumulate=4)) == ["odd-hidden-size"]
    assert codes("llama-3.1-8b", GpuLayout(pp=8, accumulate=8)) == ["long-bubble"]
    assert codes("llama-3.1-8b", GpuLayout(dp=8)) == ["no-accumulation-left"]
    assert codes("llama-3.1-70b", GpuLayout(tp=4, dp=512, shard=512, accumulate=8)) == ["weights-gathered-anew"]


@pytest.mark.parametrize(
    ("model", "gpu", "nodes", "code", "not_advised"),
    [
        ("deepseek-v3", "mi300x", 8, "weights-gathered-anew", "--shard"),
        ("llama-3.1-405b", "mi300x", 5, "weights-gathered-anew", "--shard"),
        ("deepseek-v3", "mi250x", 32, "long-bubble", "--interleave"),
        ("deepseek-v3", "mi250x", 24, "narrow-tensor-parallel", "take --tp"),
    ],
)
def test_what_does_not_fit_is_not_advised(model: str, gpu: str, nodes: int, code: str, not_advised: str) -> None:
    shape, about = models.find(model)
    found = answer(about, shape, hardware.find(gpu), Asked(), nodes=nodes, sequence=8192)
    (advised,) = [each.next for each in found.findings if each.code == code]
    assert advised
    assert not_advised not in advised


def test_the_stage_with_the_output_has_no_more_than_its_share() -> None:
    stages = held(shape_of("llama-3.1-405b"), GpuLayout(pp=16))
    assert [stage.layers for stage in stages] == [7, 8, 7]
    experts = held(shape_of("deepseek-v3"), GpuLayout(pp=32))
    assert [(stage.number, stage.dense, stage.sparse) for stage in experts] == [
        (0, 1, 0),
        (1, 2, 0),
        (2, 0, 2),
        (31, 0, 1),
    ]
    assert stages[0].root == stages[-1].root - 16384


def test_the_best_is_among_those_that_fit() -> None:
    shape, model = models.find("llama-3.1-70b")
    found = answer(model, shape, MI300X, Asked(), nodes=4, sequence=8192)
    assert found.ok
    again = Asked(tp=found.layout.tp, pp=found.layout.pp, dp=found.layout.dp, shard=found.layout.shard, ep=1,
                  micro=found.layout.micro, accumulate=found.layout.accumulate)  # fmt: skip
    assert answer(model, shape, MI300X, again, nodes=None, sequence=8192).layout == found.layout
    for less in (Asked(tp=8), Asked(tp=4, pp=2), Asked(pp=4), Asked(shard=8)):
        other = answer(model, shape, MI300X, less, nodes=4, sequence=8192)
        if other.ok and found.speed and other.speed and not advice.narrow(shape, other.layout):
            assert other.speed.score * (1 - ALIKE) <= found.speed.score
            assert found.layout.effort <= other.layout.effort or other.speed.score < found.speed.score


def test_the_fewest_nodes_are_the_fewest() -> None:
    shape, model = models.find("deepseek-v3")
    least = answer(model, shape, MI300X, Asked(), nodes=None, sequence=4096).least
    assert least
    assert least > 1
    assert not answer(model, shape, MI300X, Asked(), nodes=least // 2, sequence=4096).ok
    big, about = models.find("llama-3.1-405b")
    fewest = answer(about, big, MI300X, Asked(), nodes=None, sequence=8192).least
    assert fewest == 5
    assert not answer(about, big, MI300X, Asked(), nodes=4, sequence=8192).ok


def test_what_does_not_fit_says_what_does() -> None:
    shape, model = models.find("llama-3.1-70b")
    one = answer(model, shape, MI300X, Asked(tp=8, recompute=False), nodes=1, sequence=8192)
    assert not one.ok
    assert one.over > 0
    assert one.instead is not None
    assert one.instead.recompute
    assert "--recompute layers" in flags(one.instead)
    big, about = models.find("llama-3.1-405b")
    two = answer(about, big, MI300X, Asked(), nodes=1, sequence=8192)
    assert (two.ok, two.instead) == (False, None)
    assert two.least
    assert two.least > 1


@pytest.mark.parametrize(
    ("asked", "nodes", "near"),
    [
        (Asked(tp=3), 4, "--tp 4"),
        (Asked(pp=200), 4, "--pp 32"),
        (Asked(tp=8, pp=8, dp=48), 768, "--tp 8 --pp 8 --dp 96"),
        (Asked(tp=1, pp=1, batch=7), 1, "--accumulate 7"),
        (Asked(ep=8), 1, "--tp 1"),
    ],
)
def test_the_nearest_possible_layout(asked: Asked, nodes: int, near: str) -> None:
    shape, model = models.find("llama-3.1-70b")
    with pytest.raises(BadInput) as raised:
        answer(model, shape, MI300X, asked, nodes=nodes, sequence=8192)
    assert raised.value.code == "impossible-layout"
    assert near in (raised.value.next_step or "")


@given(
    some.sampled_from(models.names()),
    some.sampled_from(sorted(hardware.known())),
    some.sampled_from([None, 1, 3, 17]),
    some.sampled_from([0, 16]),
    some.sampled_from([512, 5000, 65536]),
)
def test_every_model_has_an_answer_on_every_gpu(
    name: str, gpu: str, nodes: int | None, rank: int, sequence: int
) -> None:
    shape, model = models.find(name)
    found = answer(model, shape, hardware.find(gpu), Asked(), nodes=nodes, sequence=sequence, rank=rank)
    document = found.to_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["fits"] == (document["memory"]["total"] <= document["memory"]["budget"])
    assert document["memory"]["total"] == sum(document["memory"]["parts"].values())
    assert document["model"]["parameters"] == sum(document["model"]["parts"].values())
    assert found.nodes == nodes or nodes is None
    assert found.ok or found.least != found.nodes


def test_more_gpus_than_any_cluster_has() -> None:
    shape, model = models.find("llama-3.1-8b")
    with pytest.raises(BadInput) as raised:
        answer(model, shape, MI300X, Asked(tp=8, pp=32, dp=1 << 22), nodes=None, sequence=8192)
    assert raised.value.code == "layout-too-large"


def test_a_gpu_of_which_nobody_knows_a_rate_has_memory_all_the_same() -> None:
    shape, model = models.find("llama-3.1-8b")
    found = answer(model, shape, hardware.find("mi308x"), Asked(), nodes=1, sequence=8192)
    assert found.ok
    assert found.speed is None
    assert found.to_dict()["time"] is None

"""The arithmetic of memory, against what autograd keeps and what a run takes."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import grouped, needs_fsdp, ranks, run, small
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoModelForCausalLM, LlamaConfig

from rocstack_trainer import loss, memory, sharding, train
from rocstack_trainer.config import Config
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.memory import Layout
from rocstack_trainer.rank import Rank

GQA_COPIES = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)
GPU = 0.9 * 192 * 2**30  # of an MI300X, as memory.available gives it
LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA_70B = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}


def sizes(**about: int) -> memory.Sizes:
    return memory.sizes(LlamaConfig(**about, num_key_value_heads=8, vocab_size=128256))


def test_parameters_are_counted_right() -> None:
    assert sizes(**LLAMA_8B).parameters == 8_030_261_248  # as Meta has them
    assert sizes(**LLAMA_70B).parameters == 70_553_706_496
    assert sizes(**LLAMA_8B).root == 2 * 4096 * 128256 + 4096


@pytest.mark.parametrize(
    ("about", "ranks", "first"),
    [
        (LLAMA_8B, 1, Layout(1, False)),
        (LLAMA_8B, 8, Layout(1, False)),
        (LLAMA_70B, 8, Layout(8, True)),
        (LLAMA_70B, 16, Layout(8, True)),
    ],
)
def test_8b_and_70b_fit_on_one_node_of_8_times_192_gib(about: dict[str, int], ranks: int, first: Layout) -> None:
    model, rank = sizes(**about), Rank(world=ranks, local_world=min(8, ranks))
    tried = memory.layouts(rank, memory.possible(rank), "auto")
    found = next(each for each in tried if memory.total(model, each, 4096, bf16=True) <= GPU)
    assert found == first


def test_layouts_inside_a_node_come_first_and_those_that_compute_once() -> None:
    rank = Rank(world=8, local_world=4)
    assert [(each.shard, each.recompute) for each in memory.layouts(rank, memory.possible(rank), "auto")] == [
        *((n, again) for again in (False, True) for n in (1, 2, 4)),
        (8, False),
        (8, True),
    ]
    assert memory.possible(Rank(world=12, local_world=4)) == [1, 2, 4, 12]


def kept(about: LlamaConfig, kind: str, rows: int, recompute: bool) -> int:
    """Bytes that autograd keeps of a forward pass through the layers, but for weights and copies of them."""
    net = AutoModelForCausalLM.from_config(about, dtype=torch.bfloat16 if kind == "bf16" else torch.float32).train()
    if recompute:
        sharding.recompute(net)
    seen: dict[int, int] = {}
    tensors = []  # an address is nobody else's while its tensor lives
    sizes = {tuple(sorted(p.shape)) for p in net.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(sorted(tensor.shape)) not in sizes:
            tensors.append(tensor)
            seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    half = torch.autocast("cpu", torch.bfloat16) if kind == "autocast" else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), half:
        net.model(input_ids=torch.randint(0, 64, (rows, 48)))
    return sum(seen.values())


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", ["fp32", "autocast", "bf16"])
@pytest.mark.parametrize(("h", "i", "kv"), [(128, 384, 2), (192, 256, 4), (256, 896, 1)])
def test_activations_are_those_that_autograd_keeps(h: int, i: int, kv: int, kind: str, recompute: bool) -> None:
    """Of two layers more, so that what the layers have together doesn't count."""
    more = {"num_attention_heads": 4, "num_key_value_heads": kv, "vocab_size": 64}

    def about(layers: int) -> LlamaConfig:
        return LlamaConfig(hidden_size=h, intermediate_size=i, num_hidden_layers=layers, use_cache=False, **more)

    measured = kept(about(4), kind, 3, recompute) - kept(about(2), kind, 3, recompute)
    layout = Layout(2 if kind == "bf16" else 1, recompute)
    parts = [memory.need(memory.sizes(about(n)), layout, 3 * 48, kind != "fp32")["activations"] for n in (4, 2)]
    if GQA_COPIES and kv < 4 and not recompute:  # each head gets its own copy of keys and values
        assert parts[0] - parts[1] < measured <= 1.35 * (parts[0] - parts[1])
    else:
        assert parts[0] - parts[1] == pytest.approx(measured, rel=0.02)


BIG = ("model.hidden_size=256", "model.intermediate_size=704", "model.num_hidden_layers=6", "data.seq_len=64")
BIG += ("model.num_attention_heads=8", "model.num_key_value_heads=8", "train.batch=16", "train.steps=2")
SHAPE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6, "num_attention_heads": 8}
ABOUT = LlamaConfig(**SHAPE, vocab_size=256)


def peak(rank: Rank, config: Config) -> int:
    """Bytes of all tensors at the peak of the second step, as torch's own tracker counts them."""
    one_step, found = train.one_step, []

    def tracked(net: Any, adam: Any, gradients: Any, data: Any, step: int, *more: Any) -> Any:
        if step == 0:
            return one_step(net, adam, gradients, data, step, *more)
        tracker = MemTracker()
        tracker.track_external(net, adam)
        with tracker:
            made = one_step(net, adam, gradients, data, step, *more)
        found.append(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
        return made

    train.one_step = tracked
    assert run(rank, config) == 0
    return found[0]


MORE = [(1, "layers"), (2, "none")]


@needs_fsdp
@pytest.mark.parametrize(
    ("world", "recompute"),
    [(1, "none"), (2, "layers"), *(pytest.param(*rest, marks=pytest.mark.slow) for rest in MORE)],
)
def test_a_real_step_takes_what_the_arithmetic_says(world: int, recompute: str) -> None:
    """Of one rank, and of two that share the model."""
    asked = (f"train.recompute={recompute}", f"parallel.shard={world}", f"train.batch={16 * world}")
    measured, *_ = ranks(world, peak, small(*BIG, *asked))
    parts = memory.need(memory.sizes(ABOUT), Layout(world, recompute == "layers"), 16 * 64, bf16=False)
    assert 0.95 * measured <= sum(parts.values()) <= 1.4 * measured, (measured, parts)


def refused(rank: Rank, config: Config) -> str:
    with pytest.raises(ConfigError) as error:
        memory.choose(config, replace(rank, local_world=rank.world), ABOUT, bf16=False)
    assert error.value.everywhere  # so it is told once
    return str(error.value)


def test_a_model_that_does_not_fit_says_by_how_much_and_what_would() -> None:
    needs = [memory.total(memory.sizes(ABOUT), Layout(n, True), 16 * 64, False) for n in (1, 2, 4)]
    assert sorted(needs, reverse=True) == needs
    one, two = (needs[0] + needs[1]) / 2e9, (needs[1] + needs[2]) / 2e9
    asked = (*BIG, "parallel.shard=1", f"parallel.memory_gb={one}", "train.batch=32")
    for said in ranks(2, grouped, refused, small(*asked)):
        assert f"a rank would need {memory.size_of(needs[0])} (weights " in said
        assert f"has {memory.size_of(one * 1e9)}: {memory.size_of(needs[0] - one * 1e9)} too little\n" in said
        assert "it fits with --parallel.shard=2 --train.recompute=layers" in said
    (said,) = ranks(1, grouped, refused, small(*BIG, f"parallel.memory_gb={two}"))
    assert "it fits on 4 ranks that share it (--parallel.shard=4)" in said


def chosen(rank: Rank, config: Config) -> Layout:
    """On nodes of two ranks and of one."""
    return memory.choose(config, replace(rank, local_world=2 if rank.rank < 2 else 1), ABOUT, bf16=False)[0]


def test_ranks_of_uneven_nodes_choose_the_same() -> None:
    small_enough = memory.total(memory.sizes(ABOUT), Layout(3, True), 16 * 64, False)
    config = small(*BIG, "train.batch=48", f"parallel.memory_gb={small_enough * 1.01 / 1e9}")
    assert ranks(3, grouped, chosen, config) == [Layout(3, True)] * 3


def impossible(rank: Rank) -> str:
    about = LlamaConfig(**SHAPE, hidden_act="nonsense")
    with pytest.raises(ConfigError) as error:
        memory.choose(small(), rank, about, bf16=False)
    return str(error.value)


def test_sizes_that_the_model_refuses_end_all_ranks() -> None:
    assert ranks(2, grouped, impossible) == [f"rank 0 on {socket.gethostname()}: model.type=llama: 'nonsense'"] * 2


# The loss in pieces


def in_pieces(_: Rank) -> None:
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    net = AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=97, **sizes, tie_word_embeddings=True))
    inputs, targets = {"input_ids": torch.randint(0, 97, (3, 21))}, torch.randint(0, 97, (3, 21))
    targets[0, :9] = -100

    def made() -> tuple[float, torch.Tensor]:
        net.zero_grad()
        total = loss.total(net, inputs, targets)
        total.backward()
        return total.item(), torch.cat([p.grad.flatten() for p in net.parameters()])

    value, gradient = made()
    largest: list[int] = []
    net.get_output_embeddings().register_forward_hook(lambda _, __, out: largest.append(out.numel() // 97))
    loss.PIECE_BYTES = 10 * 97 * 4
    again, same = made()
    assert max(largest) <= 10, "the logits of more positions than a piece has"
    assert again == pytest.approx(value, rel=1e-6)
    torch.testing.assert_close(same, gradient, rtol=1e-5, atol=1e-6)


def test_the_loss_in_pieces_is_the_loss() -> None:
    """In a process of its own: where a backward pass ran, older PyTorch lets no forked process run another."""
    assert ranks(1, in_pieces) == [None]


def test_a_model_that_caps_its_logits_keeps_them_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Gemma2Config

    about = Gemma2Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, final_logit_softcapping=0.5,
    )  # fmt: skip
    net = AutoModelForCausalLM.from_config(about)
    inputs, targets = {"input_ids": torch.arange(12)[None]}, torch.arange(12)[None]
    whole = loss.total(net, inputs, targets).item()
    monkeypatch.setattr(loss, "PIECE_BYTES", 64)
    assert loss.total(net, inputs, targets).item() == whole
    assert whole == pytest.approx(torch.nn.functional.cross_entropy(
        net(**inputs).logits[0], targets[0], reduction="sum").item())  # fmt: skip


def used(config: Any) -> set[str]:
    return {key for key in ("final_logit_softcapping", "logits_scaling", "logit_scale") if getattr(config, key, None)}


@pytest.mark.parametrize("kind", sorted(loss.PLAIN))
def test_models_whose_loss_comes_in_pieces_have_plain_logits(kind: str) -> None:
    from transformers import AutoConfig

    assert not used(AutoConfig.for_model(kind))

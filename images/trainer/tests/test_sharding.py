"""A model in slices (FSDP2) trains as the whole one does: codecs between its groups, checkpoints across layouts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import grouped, lines, needs_bf16, needs_fsdp, ranks, relative, run, small, state, trained
from safetensors.torch import load_file

from rocstack_trainer import precision, sharding, slices
from rocstack_trainer.config import Config
from rocstack_trainer.data.samples import Samples
from rocstack_trainer.errors import CheckpointError, ConfigError, MissingError
from rocstack_trainer.gradients import topology
from rocstack_trainer.models import fingerprint, model
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks.peers import Peers
from rocstack_trainer.train import Ahead, forward_backward, make_gradients

ODD = ("model.vocab_size=251", "data.seq_len=16", "train.batch=8")  # rows that no number of ranks divides


def built(rank: Rank, config: Config, shard: int) -> Any:
    if shard > 1:
        return sharding.build(config, rank, shard, False)
    return model.build(config.model, rank, config.train.seed)


def gradient(rank: Rank, config: Config, shard: int, hosts: int = 1) -> list[torch.Tensor]:
    """The whole gradients of step 3, each rank acting as one of `hosts` nodes."""
    rank = replace(rank, local_world=rank.world // hosts)
    net = built(rank, config, shard)
    assert sum(slices.local(p).numel() for p in net.parameters()) <= 1.1 * model.n_params(net) / shard
    data = Samples(config.data, config.train.batch, config.train.seed, 251)
    plan = topology.plan(config.parallel, rank, 0)
    gradients = make_gradients(net, plan, config, rank, shard)
    for step in (2, 3):
        learned = config.train.batch * data.seq_len
        forward_backward(net, gradients, Ahead(data, config, rank)(step), learned, config, rank)
        gradients.finish()
    norm = gradients.clip(0).item()
    whole = [p.grad.full_tensor() if slices.of(p).sliced else p.grad for p in net.parameters()]
    flat = torch.cat([each.reshape(-1) for each in whole])
    assert norm == pytest.approx(flat.norm().item(), rel=1e-5)
    gradients.clip(norm / 2)
    clipped = [p.grad.full_tensor() if slices.of(p).sliced else p.grad for p in net.parameters()]
    assert torch.cat([each.reshape(-1) for each in clipped]).norm().item() == pytest.approx(norm / 2, rel=1e-4)
    return flat


@pytest.fixture(scope="module")
def one_rank() -> dict[str, torch.Tensor]:
    return {tied: ranks(1, grouped, gradient, small(*ODD, tied), 1)[0] for tied in TIED}


EXACT = ("parallel.compress=none",)  # what `auto` takes is measured
TIED = ("model.tie_word_embeddings=false", "model.tie_word_embeddings=true")


@needs_fsdp
@pytest.mark.parametrize("tied", TIED)
@pytest.mark.parametrize(
    ("world", "shard", "more", "tolerance"),
    [
        (2, 2, EXACT, 1e-6),
        (4, 2, EXACT, 1e-6),
        (4, 2, (*EXACT, "train.micro_batch=1"), 1e-6),
        (4, 4, (*EXACT, "train.micro_batch=1"), 1e-6),
        pytest.param(4, 2, ("parallel.compress=bf16",), 0.006, marks=needs_bf16),
        (4, 2, ("parallel.compress=int8", "train.micro_batch=1"), 0.03),
    ],
)
def test_slices_have_the_gradient_of_one_rank(
    one_rank: dict[str, torch.Tensor], world: int, shard: int, more: tuple[str, ...], tolerance: float, tied: str
) -> None:
    found = ranks(world, grouped, gradient, small(*ODD, tied, *more), shard, world // shard)
    assert all(torch.equal(grad, found[0]) for grad in found)
    assert relative(found[0], one_rank[tied]) <= tolerance
    assert tolerance <= 1e-6 or relative(found[0], one_rank[tied]) > 1e-4, "nothing was compressed"


def test_gloo_without_bfloat16_is_said_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def __init__(self, *_: Any) -> None: ...
        def allreduce(self, _: Any) -> Any:
            raise RuntimeError("Invalid scalar type")

    monkeypatch.setattr(precision.dist, "ProcessGroupGloo", Old)
    with pytest.raises(MissingError, match="send bfloat16 between ranks, which parallel"):
        precision.require_bf16_between_ranks("gloo", "parallel.compress=bf16")
    precision.require_bf16_between_ranks("nccl", "parallel.compress=bf16")


def losses(folder: Path, name: str, world: int, *more: str) -> list[float]:
    metrics = folder / f"{name}.jsonl"
    trained(world, small("train.steps=6", *ODD, *more, f"output.metrics={metrics}"))
    return [line["loss"] for line in lines(metrics)]


@needs_fsdp
@pytest.mark.parametrize(
    "more", [(), ("train.recompute=layers",), pytest.param(("train.precision=bf16",), marks=needs_bf16)]
)
def test_a_sharded_run_learns_what_a_whole_one_learns(tmp_path: Path, more: tuple[str, ...]) -> None:
    whole = losses(tmp_path, "whole", 2, *more)
    sharded = losses(tmp_path, "sharded", 4, "parallel.shard=2", *more)
    assert len(set(whole)) == 6
    assert sharded == [pytest.approx(each, rel=5e-3 if "bf16" in str(more) else 1e-5) for each in whole]


def test_computing_layers_again_changes_no_bit(tmp_path: Path) -> None:
    assert losses(tmp_path, "a", 2, "train.recompute=layers") == losses(tmp_path, "b", 2, "train.recompute=none")


MORE = [("none", "true"), ("int8", "false")]


@needs_fsdp
@pytest.mark.parametrize(
    ("codec", "background"),
    [("none", "false"), ("int8", "true"), *(pytest.param(*rest, marks=pytest.mark.slow) for rest in MORE)],
)
def test_a_resumed_sharded_run_is_bitwise_the_same(tmp_path: Path, codec: str, background: str) -> None:
    asked = ("parallel.shard=2", f"parallel.compress={codec}", f"checkpoint.background={background}", "train.min_lr=1")
    asked += ("train.warmup=0", "checkpoint.every=3", *ODD)
    for name, steps in (("straight", 6), ("resumed", 3), ("resumed", 6)):
        where = (f"checkpoint.dir={tmp_path / name}", f"output.metrics={tmp_path / name}.jsonl")
        trained(4, small(f"train.steps={steps}", *asked, *where))
    first, second = ([line["loss_hex"] for line in lines(tmp_path / f"{n}.jsonl")] for n in ("straight", "resumed"))
    assert first == second
    assert len(set(first)) == 6
    assert state(tmp_path / "straight", 6)["weights_sha256"] == state(tmp_path / "resumed", 6)["weights_sha256"]


@needs_fsdp
@pytest.mark.parametrize(
    ("before", "after"), [((4, 2), (2, 1)), ((2, 1), (4, 4)), ((4, 4), (3, 3)), ((3, 3), (4, 2)), ((2, 2), (1, 1))]
)
def test_a_checkpoint_goes_on_in_another_layout(
    tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """With the rate 0, weights stay as they were read, and losses tell whether they are those of before."""
    fixed = ("train.warmup=0", "train.min_lr=1", "checkpoint.every=2", "train.batch=12", "model.vocab_size=251")
    fixed += (f"checkpoint.dir={tmp_path / 'c'}", f"output.metrics={tmp_path}/m.jsonl", "data.seq_len=16")
    for (world, shard), steps in ((before, 2), (after, 4)):
        trained(world, small(f"train.steps={steps}", f"parallel.shard={shard}", *fixed))
    straight = small(*(each for each in fixed if "checkpoint" not in each and "metrics" not in each), "train.steps=4")
    trained(1, replace(straight, output=replace(straight.output, metrics=f"{tmp_path}/s.jsonl")))
    found, right = ([line["loss"] for line in lines(tmp_path / f"{name}.jsonl")] for name in "ms")
    assert found == [pytest.approx(each, rel=1e-4) for each in right]


@needs_fsdp
def test_each_rank_reads_its_slices_of_a_model_and_the_export_is_whole(tmp_path: Path) -> None:
    made = ("train.steps=2", *ODD, "model.tie_word_embeddings=true")
    trained(1, small(*made, f"checkpoint.export={tmp_path / 'm'}"))
    fixed = (f"model.path={tmp_path / 'm'}", "train.steps=1", "train.lr=0", *ODD)
    trained(4, small(*fixed, "parallel.shard=4", f"checkpoint.export={tmp_path / 'n'}"))
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in "mn")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    same = losses(tmp_path, "w", 1, f"model.path={tmp_path / 'm'}")
    assert losses(tmp_path, "s", 2, f"model.path={tmp_path / 'm'}", "parallel.shard=2") == [
        pytest.approx(each, rel=1e-5) for each in same
    ]


def refused(rank: Rank, config: Config) -> str:
    try:
        run(rank, config)
    except (ConfigError, CheckpointError, MissingError) as error:
        return f"{type(error).__name__}: {error}"
    return "trained"


@needs_fsdp
def test_a_model_of_other_sizes_is_refused_by_all_ranks(tmp_path: Path) -> None:
    trained(1, small("train.steps=1", *ODD, f"checkpoint.export={tmp_path / 'm'}"))
    about = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(about | {"intermediate_size": 96}))
    for said in ranks(2, refused, small(f"model.path={tmp_path / 'm'}", "parallel.shard=2", *ODD)):
        assert "is (64, 32), config.json makes it (96, 32)" in said


def test_without_fsdp2_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.distributed.fsdp, "FSDPModule", raising=False)
    with pytest.raises(MissingError, match=r"2\.8 or later"):
        sharding.supported()


def test_a_shard_that_does_not_divide_the_ranks_is_refused() -> None:
    for said in ranks(3, refused, small("parallel.shard=2", "train.batch=3")):
        assert "parallel.shard=2 doesn't divide the 3 ranks: [1, 3] do" in said


def test_diloco_with_slices_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.shard must be 1 with DiLoCo"):
        small("parallel.shard=2", "diloco.groups=2")


def drifted(rank: Rank) -> None:
    """Rank 3 has another bit in its slice: rank 1 has the same slice, and 0 and 2 others."""
    config = small(*ODD, "parallel.shard=2")
    net = sharding.build(config, rank, 2, False)
    fingerprint.compare(net, Peers(rank), "before", 2)
    with torch.no_grad():
        weight = slices.local(next(net.parameters())).view(torch.int32).view(-1)[7:8]
        weight ^= rank.rank == 3
    fingerprint.compare(net, Peers(rank), "after", 2)


@needs_fsdp
def test_a_slice_that_drifted_is_found_beside_its_copies() -> None:
    for error in ranks(4, grouped, drifted):
        assert isinstance(error, CheckpointError)
        assert "the weights after differ between the ranks: rank " in str(error)

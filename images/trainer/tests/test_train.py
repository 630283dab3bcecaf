import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import lines, ranks, run, small, state, trained

from rocstack_trainer import optimizer, settings, train
from rocstack_trainer.config import Config
from rocstack_trainer.errors import ConfigError, NonFiniteError
from rocstack_trainer.ranks.launch import Rank


def test_the_loss_of_the_tiny_model_goes_down(tmp_path: Path) -> None:
    metrics = tmp_path / "m.jsonl"
    trained(2, settings.load("tiny", [f"--output.metrics={metrics}"]))
    losses = [line["loss"] for line in lines(metrics)]
    assert len(losses) == 30
    assert losses[0] == pytest.approx(math.log(256), abs=0.3)  # it knows nothing yet
    assert losses[-1] < 3.0
    assert np.mean(losses[-5:]) < np.mean(losses[5:10])


def test_metrics_are_complete_and_exact(tmp_path: Path) -> None:
    metrics = tmp_path / "a" / "m.jsonl"
    trained(2, small("train.steps=3", f"output.metrics={metrics}"))
    assert [line["step"] for line in lines(metrics)] == [1, 2, 3]
    for line in lines(metrics):
        assert float.fromhex(line["loss_hex"]) == line["loss"]
        assert line["tokens_per_s"] == pytest.approx(4 * 16 / (line["step_ms"] / 1e3))
        assert 0 <= line["comm_ms"] < line["step_ms"]
        assert line["memory_mb"] > 50


def test_bucketed_and_naive_train_the_same_weights(tmp_path: Path) -> None:
    for kind in ("naive", "flat"):
        trained(2, small("train.steps=6", f"parallel.algorithm={kind}", f"checkpoint.dir={tmp_path / kind}"))
    assert state(tmp_path / "naive", 6)["weights_sha256"] == state(tmp_path / "flat", 6)["weights_sha256"]


def poisoned(rank: Rank, config: Config, bad: float) -> int:
    """The loss of rank 1 goes wrong in the third step, its gradient with it."""
    calls = 0
    original = train.cross_entropy

    def cross_entropy(*args):
        nonlocal calls
        calls += 1
        return original(*args) * (bad if rank.rank == 1 and calls == 3 else 1)

    train.cross_entropy = cross_entropy
    return run(rank, config)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_on_one_rank_stops_all_before_the_optimizer(tmp_path: Path, bad: float) -> None:
    folder = tmp_path / "c"
    config = small("train.steps=5", f"checkpoint.dir={folder}", "checkpoint.every=1", "checkpoint.keep=9")
    for error in ranks(2, poisoned, config, bad):
        assert isinstance(error, NonFiniteError)
        assert error.everywhere  # so it is told once
        assert str(error).startswith("step 3: loss ")
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_learning_rate_far_too_high_ends_in_a_message() -> None:
    (error,) = ranks(1, run, small("train.steps=9", "train.lr=1e30", "train.warmup=0"))
    assert isinstance(error, NonFiniteError)
    assert "lower train.lr" in str(error)


def test_training_from_a_token_file(tmp_path: Path) -> None:
    path, metrics = tmp_path / "t.bin", tmp_path / "m.jsonl"
    np.tile(np.arange(64, dtype=np.uint16), 40).tofile(path)
    trained(2, small("train.steps=25", f"data.path={path}", "train.lr=1e-2", f"output.metrics={metrics}"))
    losses = [line["loss"] for line in lines(metrics)]
    assert losses[-1] < losses[0] / 2


def test_training_goes_on_from_a_local_model_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    exported = f"checkpoint.export={tmp_path / 'model'}"
    trained(1, small("train.steps=3", f"checkpoint.dir={first}", exported))
    trained(2, small("train.steps=0", f"model.path={tmp_path / 'model'}", f"checkpoint.dir={second}"))
    assert state(second, 0)["weights_sha256"] == state(first, 3)["weights_sha256"]


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    (error,) = ranks(1, run, small(f"model.path={tmp_path}"))
    assert isinstance(error, ConfigError)
    assert str(tmp_path) in str(error)


def test_bf16_autocast_trains_float32_weights(tmp_path: Path) -> None:
    metrics = tmp_path / "m.jsonl"
    trained(2, small("train.steps=20", "train.precision=bf16", f"output.metrics={metrics}"))
    losses = [line["loss"] for line in lines(metrics)]
    assert losses[-1] < losses[0]


def test_learning_rate_warms_up_and_comes_down() -> None:
    plan = small("train.lr=1", "train.warmup=4", "train.steps=14", "train.min_lr=0.1").train
    adam = torch.optim.AdamW([torch.zeros(1)])
    rates = [optimizer.set_rate(adam, plan, step) for step in range(15)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[14] == pytest.approx(0.1)


def test_weight_decay_is_for_matrices_only() -> None:
    net = torch.nn.Linear(3, 2)
    groups = optimizer.make(net, small().train).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(1, 0.1), (1, 0.0)]


def test_random_numbers_differ_by_step_and_rank_and_repeat() -> None:
    seeds = [train.step_seed(1, step, rank) for step in range(50) for rank in range(8)]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [train.step_seed(1, step, rank) for step in range(50) for rank in range(8)]

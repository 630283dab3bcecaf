import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Ranks, grouped, lines, ranks, run, small, state, trained
from torch.nn.functional import cross_entropy

from rocstack_trainer import optimizer, settings, train
from rocstack_trainer.config import Config
from rocstack_trainer.data.samples import Samples
from rocstack_trainer.errors import ConfigError, NonFiniteError
from rocstack_trainer.models import fingerprint
from rocstack_trainer.rank import Rank

CONSTANT = ("train.warmup=0", "train.min_lr=1")  # the rate doesn't depend on train.steps, so a part is a beginning


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


def plainly(rank: Rank, config: Config) -> tuple[list[tuple[float, float, float]], str]:
    """The same run written out in plain PyTorch: loss, gradient norm and rate of each step; sha256 of the weights."""
    settings, said = config.train, []
    net = train.model.build(config.model, rank, settings.seed, print)
    data = Samples(config.data, settings.batch, settings.seed, 256)
    adam = optimizer.make(net, settings)
    for step in range(settings.steps):
        adam.zero_grad()
        inputs, targets, _ = data.load(data.ids(step, 0, 1), "cpu")
        loss = cross_entropy(net(input_ids=inputs).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.cat([parameter.grad.flatten() for parameter in net.parameters()]).double().norm()
        if settings.clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), settings.clip)
        rate = settings.lr * min(1, (step + 1) / settings.warmup)
        for group in adam.param_groups:
            group["lr"] = rate
        adam.step()
        said.append((loss.item(), norm.item(), rate))
    return said, fingerprint.sha256(fingerprint.weights(net))


@pytest.mark.parametrize("clip", [0, 0.2])
def test_one_rank_is_plain_pytorch_to_the_bit(tmp_path: Path, clip: float) -> None:
    metrics = tmp_path / "m.jsonl"
    asked = ("train.steps=6", "train.warmup=3", "train.min_lr=1", f"train.clip={clip}")
    config = small(*asked, f"checkpoint.dir={tmp_path / 'c'}", f"output.metrics={metrics}")
    ((said, weights),) = ranks(1, grouped, plainly, config)
    trained(1, config)
    assert state(tmp_path / "c", 6)["weights_sha256"] == weights
    found = [(line["loss"], line["grad_norm"], line["lr"]) for line in lines(metrics)]
    assert found == [pytest.approx(each, rel=2e-6) for each in said]
    assert all(norm > 0.4 for _, norm, _ in said)  # so clipping matters; the norm told is the one before


def test_ranks_and_micro_batches_change_nothing(tmp_path: Path) -> None:
    """The rate is 0: Adam makes much of rounding errors, here each step measures new samples with the same weights."""
    found = {}
    for world, micro in ((1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (4, 0)):
        metrics = tmp_path / f"{world}-{micro}.jsonl"
        asked = ("train.lr=0", "train.steps=2", f"train.micro_batch={micro}", f"output.metrics={metrics}")
        trained(world, small(*asked, "parallel.compress=none"))
        found[world, micro] = [(line["loss"], line["grad_norm"]) for line in lines(metrics)]
    whole = found[1, 0]
    assert len(whole) == 2
    for each in found.values():
        assert each == [pytest.approx(step, rel=2e-6) for step in whole]


def watched(rank: Rank, config: Config, group: int = 0) -> list[tuple[int, int]]:
    """What a run of this rank of DiLoCo group `group` loaded: samples, and the random seed at that time."""
    loaded, load = [], Samples.load

    def spy(self: Samples, ids: np.ndarray, device: str) -> Any:
        loaded.extend((int(number), torch.initial_seed()) for number in ids)
        return load(self, ids, device)

    Samples.load = spy
    assert run(replace(rank, group=group, groups=config.diloco.groups), config) == 0
    return loaded


def first(config: Config, count: int) -> list[int]:
    """The first samples of the stream, sorted."""
    return sorted(Samples(config.data, count, config.train.seed, 256).ids(0, 0, 1).tolist())


def test_a_restart_with_another_batch_skips_and_repeats_nothing(tmp_path: Path) -> None:
    seen: list[int] = []
    for steps, batch, world in ((3, 4, 2), (5, 8, 2), (8, 3, 1)):
        config = small(f"train.steps={steps}", f"train.batch={batch}", f"checkpoint.dir={tmp_path}")
        seen += [sample for rank in ranks(world, watched, config) for sample, _ in rank]
        assert sorted(seen) == first(config, len(seen))
    assert len(seen) == 3 * 4 + 2 * 8 + 3 * 3


def test_groups_take_different_samples_agree_and_go_on_bitwise(store, tmp_path: Path) -> None:
    """2 groups x 2 ranks, outer steps after 2 and 4; and after 6 and 8 in the same run, or in another."""
    seen: dict[str, list[tuple[int, int]]] = {"straight": [], "resumed": []}
    for name, steps in (("straight", 8), ("resumed", 4), ("resumed", 8)):
        folders = (f"checkpoint.dir={tmp_path / name}", f"output.metrics={tmp_path / name}.jsonl")
        asked = ("diloco.groups=2", "diloco.inner_steps=2", "diloco.beat_s=0.1", f"parallel.store={store[0]}")
        config = small(*asked, f"train.steps={steps}", *CONSTANT, *folders)
        groups = [Ranks(2, watched, config, group) for group in range(2)]
        seen[name] += [each for group in groups for rank in group.results() for each in rank]
    for name, loaded in seen.items():
        assert sorted(sample for sample, _ in loaded) == first(config, 8 * 2 * 4), name
        assert len({seed for _, seed in loaded}) == 8 * 2 * 2, name  # of each step and rank its own
        outer = [(line["group"], line["step"], line["outer"]) for line in lines(tmp_path / f"{name}.jsonl")]
        assert sorted(outer) == [(group, step, step // 2) for group in range(2) for step in range(1, 9)]
    last = {state(tmp_path / name / f"group-{group}", 8)["weights_sha256"] for name in seen for group in range(2)}
    assert len(last) == 1


def test_an_outer_rate_of_zero_goes_back_to_the_first_weights(tmp_path: Path) -> None:
    for steps in (0, 3):
        asked = (f"train.steps={steps}", "diloco.always=true", "diloco.outer_lr=0", f"checkpoint.dir={tmp_path / 'c'}")
        trained(1, small(*asked, "checkpoint.resume=false"))
    assert state(tmp_path / "c", 3)["weights_sha256"] == state(tmp_path / "c", 0)["weights_sha256"]


def test_a_restart_takes_the_plan_of_the_checkpoint(tmp_path: Path) -> None:
    """Inside one node `auto` is no codec; the run before was told to take one, and sums must stay what they were."""
    told = "parallel.compress=int8"
    for name, parts in {"straight": [(4, told)], "resumed": [(2, told), (4, "parallel.compress=auto")]}.items():
        for steps, codec in parts:
            trained(2, small(f"train.steps={steps}", codec, *CONSTANT, f"checkpoint.dir={tmp_path / name}"))
    straight, resumed = (state(tmp_path / name, 4) for name in ("straight", "resumed"))
    assert resumed["notes"]["plan"]["codec"] == "int8"
    assert resumed["weights_sha256"] == straight["weights_sha256"]


POISON = {
    "nan": lambda loss, _: loss * math.nan,
    "inf": lambda loss, _: loss * math.inf,
    "only the loss": lambda loss, _: loss + math.nan,
    "only the gradient": lambda loss, logits: loss + (logits.sum() * 0).sqrt(),
}


def poisoned(rank: Rank, config: Config, how: str, look: int = 1) -> tuple[NonFiniteError, str]:
    """Rank 1 goes wrong in the third step. The error, and the sha256 of the weights that are left. The host looks at
    the device after every `look` steps."""
    calls, nets = 0, []
    train.look_every = lambda config, rank: look
    original, build = train.loss.cross_entropy, train.model.build

    def cross_entropy(logits: torch.Tensor, targets: torch.Tensor, **how_to: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        loss = original(logits, targets, **how_to)
        return POISON[how](loss, logits) if rank.rank == 1 and calls == 3 else loss

    def keep(*args: Any) -> torch.nn.Module:
        nets.append(build(*args))
        return nets[0]

    train.loss.cross_entropy, train.model.build = cross_entropy, keep
    with pytest.raises(NonFiniteError) as caught:
        run(rank, config)
    return caught.value, fingerprint.sha256(fingerprint.weights(nets[0]))


@pytest.mark.parametrize("how", POISON)
def test_nan_on_one_rank_stops_all_before_the_optimizer(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "c"
    config = small("train.steps=5", f"checkpoint.dir={folder}", "checkpoint.every=1", "checkpoint.keep=9")
    for error, weights in ranks(2, poisoned, config, how):
        assert error.everywhere  # so it is told once
        assert str(error).startswith("step 3: loss ")
        assert weights == state(folder, 2)["weights_sha256"]
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000001", "step-00000002"]


@pytest.mark.parametrize("how", POISON)
def test_steps_after_one_that_is_not_finite_change_nothing_until_the_host_looks(tmp_path: Path, how: str) -> None:
    """It looks after 7 of them: steps 3 to 7 have all been made, on all ranks, and left the weights alone."""
    config = small("train.steps=9", f"checkpoint.dir={tmp_path / 'c'}")
    trained(2, small("train.steps=2", *CONSTANT, f"checkpoint.dir={tmp_path / 'two'}"))
    for error, weights in ranks(
        2, poisoned, replace(config, train=replace(config.train, warmup=0, min_lr=1.0)), how, 7
    ):
        assert str(error).startswith("step 3: loss ")
        assert weights == state(tmp_path / "two", 2)["weights_sha256"]


def looking(rank: Rank, config: Config, look: int, ahead: bool) -> int:
    """As on a GPU: the host looks seldom, and a thread reads the next batch."""
    train.look_every = lambda config, rank: look
    if ahead:
        torch.Tensor.pin_memory = lambda self: self
        init = train.Ahead.__init__

        def with_thread(self: train.Ahead, *about: Any) -> None:
            init(self, *about)
            self.pool = train.ThreadPoolExecutor(1)

        train.Ahead.__init__ = with_thread
    return run(rank, config)


@pytest.mark.parametrize("ahead", [False, True])
def test_looking_seldom_and_reading_ahead_changes_no_bit(tmp_path: Path, ahead: bool) -> None:
    found = {}
    for look in (1, 4):
        name = tmp_path / f"{look}.jsonl"
        asked = (
            "train.steps=10",
            "train.micro_batch=1",
            "checkpoint.every=3",
            f"checkpoint.dir={tmp_path / str(look)}",
        )
        config = small(*asked, f"output.metrics={name}", "model.attention_dropout=0.1")
        assert ranks(2, looking, config, look, ahead and look > 1) == [0, 0]
        found[look] = [(line["step"], line["loss_hex"], line["grad_norm"], line["lr"]) for line in lines(name)]
        found[look].append(state(tmp_path / str(look), 10)["weights_sha256"])
    assert found[1] == found[4]
    assert len(found[1]) == 11


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a compiler here")
def test_compiled_layers_learn_the_same(tmp_path: Path) -> None:
    for name in ("true", "false"):
        trained(1, small("train.steps=3", f"train.compile={name}", f"output.metrics={tmp_path / name}"), timeout_s=300)
    compiled, plain = ([line["loss"] for line in lines(tmp_path / name)] for name in ("true", "false"))
    assert compiled == [pytest.approx(each, rel=1e-5) for each in plain]


def test_a_trace_is_written_on_request(tmp_path: Path) -> None:
    trained(2, small("train.steps=8", f"output.profile={tmp_path / 'trace'}"))
    (trace,) = (tmp_path / "trace").glob("*.json*")
    assert "aten::mm" in trace.read_text()


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
    """The rate is 0, so what differs is how the loss was computed; of float32 on both ranks nothing would."""
    found = {}
    for precision in ("bf16", "fp32"):
        metrics = tmp_path / f"{precision}.jsonl"
        asked = (
            "train.steps=3",
            "train.lr=0",
            f"train.precision={precision}",
            f"checkpoint.dir={tmp_path / precision}",
        )
        trained(2, small(*asked, f"output.metrics={metrics}"))
        found[precision] = [line["loss"] for line in lines(metrics)]
    off = [abs(half - full) / full for half, full in zip(*found.values(), strict=True)]
    assert all(1e-6 < each < 0.01 for each in off), off
    assert state(tmp_path / "bf16", 3)["weights_sha256"] == state(tmp_path / "fp32", 3)["weights_sha256"]


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


def drifting(rank: Rank, config: Config) -> int:
    """Rank 1's memory flips a bit after step 3."""
    original = torch.optim.AdamW.step

    def step(self, *args):
        original(self, *args)
        drifting.made += 1
        if rank.rank == 1 and drifting.made == 3:
            self.param_groups[0]["params"][0].data.view(torch.int32).view(-1)[7] ^= 1

    drifting.made = 0
    torch.optim.AdamW.step = step
    return run(rank, config)


def test_ranks_compare_their_weights_now_and_then() -> None:
    for error in ranks(3, drifting, small("train.steps=9", "train.batch=6", "parallel.compare_every=2")):
        assert "the weights at step 4 differ between the ranks: rank 1 on" in str(error)
    for error in ranks(2, drifting, small("train.steps=9", "parallel.compare_every=0")):
        assert "the weights at step 9 differ" in str(error)  # at the end it is seen too

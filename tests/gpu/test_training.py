"""Whole runs of the trainer on the device, as a person starts them: bf16, checkpoints, resume, DiLoCo; on several GPUs
the sums between them."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import BACKEND, DEVICE, TRAINER

from rocstack_trainer import precision
from rocstack_trainer.errors import MissingError

pytest.importorskip("transformers", reason="the trainer's models need the package transformers")
SECONDS = 300
SMALL = ("--model.hidden_size=64", "--model.intermediate_size=128", "--model.num_hidden_layers=2", "--train.warmup=2")
Step = dict[str, Any]


def start(*words: str) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ROCSTACK_")}
    env |= {"PYTHONPATH": str(TRAINER), "PYTHONUNBUFFERED": "1"}
    line = [sys.executable, "-m", "rocstack_trainer", "--config", "tiny", f"--parallel.backend={BACKEND}", *SMALL]
    pipe = subprocess.PIPE
    return subprocess.Popen([*line, *words], env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def run(folder: Path, *words: str) -> list[Step]:
    """The steps of a run that must succeed, as its metrics have them."""
    metrics = folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    process = start(f"--output.metrics={metrics}", *words)
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, f"{out[-3000:]}{err[-3000:]}"
    assert f"{BACKEND} on {DEVICE}" in out, "another device was used"
    return [each for each in map(json.loads, metrics.read_text().splitlines()) if "loss" in each]


def losses(steps: list[Step]) -> list[float]:
    return [each["loss"] for each in steps]


def near(one: list[float], other: list[float], share: float) -> bool:
    return all(abs(a - b) <= share * abs(b) for a, b in zip(one, other, strict=True))


def test_it_learns_in_bf16_and_in_fp32(tmp_path: Path) -> None:
    exact = run(tmp_path, "--train.steps=30", "--train.precision=fp32")
    half = run(tmp_path, "--train.steps=30", "--train.precision=bf16")
    for steps in (exact, half):
        assert all(math.isfinite(each["loss"]) for each in steps)
        assert steps[-1]["loss"] < 0.8 * steps[0]["loss"]
        assert all(each["memory_mb"] > 0 and each["tokens_per_s"] > 0 for each in steps)
        assert all(each["mfu"] is None or 0 < each["mfu"] < 1 for each in steps)
    assert losses(exact) != losses(half)
    assert near(losses(half), losses(exact), 0.05)


def test_it_learns_nearly_the_same_in_fp8(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    try:
        precision.require_fp8(DEVICE)
    except MissingError as error:
        pytest.skip(str(error))
    half = run(tmp_path, "--train.steps=30", "--train.precision=bf16")
    eighth = run(tmp_path, "--train.steps=30", "--train.precision=fp8")
    assert losses(half) != losses(eighth)
    assert near(losses(eighth), losses(half), 0.05)


def test_it_learns_what_a_cpu_learns(tmp_path: Path) -> None:
    words = ("--train.steps=12", "--train.precision=fp32")
    here = run(tmp_path, *words)
    metrics = tmp_path / "cpu.jsonl"
    process = start("--parallel.backend=gloo", f"--output.metrics={metrics}", *words)
    assert process.wait(SECONDS) == 0
    there = [each for each in map(json.loads, metrics.read_text().splitlines()) if "loss" in each]
    assert near(losses(here), losses(there), 2e-3)


def test_micro_batches_sum_up_to_the_batch(tmp_path: Path) -> None:
    words = ("--train.steps=8", "--train.precision=fp32")
    assert near(losses(run(tmp_path, *words)), losses(run(tmp_path, *words, "--train.micro_batch=2")), 1e-3)


@pytest.mark.parametrize("more", [(), ("--checkpoint.background=true",)], ids=["at-once", "background"])
def test_it_goes_on_from_a_checkpoint(tmp_path: Path, more: tuple[str, ...]) -> None:
    saved = tmp_path / "run"
    words = ("--train.steps=12", "--checkpoint.every=4", "--checkpoint.keep=3", f"--checkpoint.dir={saved}", *more)
    whole = run(tmp_path, *words)
    for step in (8, 12):
        shutil.rmtree(saved / f"step-{step:08d}")
    again = run(tmp_path, *words)
    assert [each["step"] for each in again] == list(range(5, 13)), "it went on from step 4"
    assert near(losses(again), losses(whole[4:]), 1e-3)
    assert again[0]["loss_hex"] == whole[4]["loss_hex"], "the first step after it is the same to the bit"


def test_a_checkpoint_of_a_gpu_goes_on_on_a_cpu(tmp_path: Path) -> None:
    words = (
        "--train.steps=8",
        "--train.precision=fp32",
        "--checkpoint.every=4",
        f"--checkpoint.dir={tmp_path / 'run'}",
    )
    whole = run(tmp_path, *words, "--checkpoint.keep=3")
    shutil.rmtree(tmp_path / "run/step-00000008")
    metrics = tmp_path / "cpu.jsonl"
    process = start("--parallel.backend=gloo", f"--output.metrics={metrics}", *words)
    assert process.wait(SECONDS) == 0
    again = [each for each in map(json.loads, metrics.read_text().splitlines()) if "loss" in each]
    assert [each["step"] for each in again] == [5, 6, 7, 8]
    assert near(losses(again), losses(whole[4:]), 2e-3)


def test_layers_computed_twice_learn_the_same_in_less_memory(tmp_path: Path) -> None:
    words = ("--train.steps=8", "--train.precision=fp32", "--model.num_hidden_layers=8", "--train.batch=64")
    kept = run(tmp_path, *words, "--train.recompute=none")
    twice = run(tmp_path, *words, "--train.recompute=layers")
    assert near(losses(twice), losses(kept), 1e-3)
    assert DEVICE == "cpu" or twice[-1]["memory_mb"] < kept[-1]["memory_mb"]


def test_how_seldom_the_host_looks_changes_nothing(tmp_path: Path) -> None:
    words = ("--train.steps=12", "--train.precision=fp32")
    assert near(
        losses(run(tmp_path, *words, "--output.every=1")), losses(run(tmp_path, *words, "--output.every=5")), 1e-3
    )


@pytest.mark.parametrize("every", [1, 7])
def test_what_is_not_finite_stops_with_the_weights_of_before(tmp_path: Path, every: int) -> None:
    """A rate of 1e30 spoils the weights in step 1; nothing is saved after it."""
    saved = tmp_path / "run"
    words = ("--train.steps=30", "--train.lr=1e30", "--train.warmup=0", f"--checkpoint.dir={saved}")
    process = start(*words, f"--output.every={every}")
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "stopped before the optimizer" in err
    assert not [path for path in saved.glob("step-*") if (path / "state.json").exists()]


@pytest.mark.gpus(2)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recompute", ["none", "layers"])
def test_ranks_that_share_a_model_learn_what_one_learns(tmp_path: Path, precision: str, recompute: str) -> None:
    """And go on from their checkpoint, written in the background from pinned memory, as one rank with all of it."""
    saved = tmp_path / "run"
    words = ("--train.steps=8", f"--train.precision={precision}", "--train.warmup=2", "--train.min_lr=1")
    one = run(tmp_path, *words)
    share = ("--ranks=2", "--parallel.shard=2", f"--train.recompute={recompute}")
    saving = ("--checkpoint.every=4", "--checkpoint.keep=3", "--checkpoint.background=true")
    two = run(tmp_path, *words, *share, *saving, f"--checkpoint.dir={saved}")
    assert near(losses(two), losses(one), 1e-3 if precision == "fp32" else 0.05)
    shutil.rmtree(saved / "step-00000008")
    again = run(tmp_path, *words, f"--checkpoint.dir={saved}")
    assert [each["step"] for each in again] == [5, 6, 7, 8]
    assert near(losses(again), losses(two[4:]), 1e-3 if precision == "fp32" else 0.05)


def test_a_stop_signal_saves(tmp_path: Path) -> None:
    saved, metrics = tmp_path / "run", tmp_path / "metrics.jsonl"
    process = start("--train.steps=1000000", f"--checkpoint.dir={saved}", f"--output.metrics={metrics}")
    try:
        deadline = time.monotonic() + SECONDS
        while not (metrics.exists() and metrics.read_text().count("\n") > 3):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "no step was made"
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    assert [path for path in saved.glob("step-*") if (path / "state.json").exists()]


def test_diloco_steps_by_pinned_memory(tmp_path: Path) -> None:
    """With an outer rate of 1 and no momentum the outer step changes nothing: its copies must not either."""
    words = ("--train.steps=12", "--train.precision=fp32")
    outer = ("--diloco.always=true", "--diloco.inner_steps=3", "--diloco.outer_lr=1", "--diloco.outer_momentum=0")
    plain, steps = run(tmp_path, *words), run(tmp_path, *words, *outer, "--diloco.compress=none")
    assert steps[-1]["outer"] == 4
    assert near(losses(steps), losses(plain), 1e-3)


@pytest.mark.gpus(2)
@pytest.mark.parametrize("codec", ["none", "bf16", "int8", "int8+zstd"])
def test_two_ranks_learn_what_one_learns(tmp_path: Path, codec: str) -> None:
    words = ("--train.steps=12", "--train.precision=fp32", "--parallel.compare_every=4")
    one = run(tmp_path, *words)
    two = run(tmp_path, *words, "--ranks=2", "--parallel.algorithm=flat", f"--parallel.compress={codec}")
    assert near(losses(two), losses(one), 1e-3 if codec == "none" else 0.05)
    assert all(each["sent_mb"] > 0 for each in two)


@pytest.mark.gpus(2)
@pytest.mark.parametrize("algorithm", ["flat", "hierarchical"])
def test_other_ways_of_two_ranks(tmp_path: Path, algorithm: str) -> None:
    words = ("--train.steps=12", "--train.precision=fp32")
    two = run(tmp_path, *words, "--ranks=2", f"--parallel.algorithm={algorithm}")
    assert near(losses(two), losses(run(tmp_path, *words)), 1e-3)


@pytest.mark.gpus(2)
def test_the_backend_adds_up_on_all_gpus() -> None:
    ranks = 2 if DEVICE == "cpu" else torch.cuda.device_count()
    line = [sys.executable, "-m", "rocstack_trainer", "--check-backend", BACKEND, f"--ranks={ranks}"]
    env = os.environ | {"PYTHONPATH": str(TRAINER)}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert f"all-reduce is right on {ranks} rank(s)" in done.stdout

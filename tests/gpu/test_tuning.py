"""Fine-tuning on the device: LoRA on conversations, packed samples, compiled layers."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from conftest import BACKEND, DEVICE, TRAINER
from test_training import losses, near, run

pytest.importorskip("transformers", reason="the trainer's models need the package transformers")
pytest.importorskip("peft", reason="LoRA needs the package peft")
sys.path.append(str(TRAINER / "tests"))
IDS = torch.arange(60).reshape(4, 15)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A base model with a tokenizer, and conversations."""
    import chats
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("material")
    torch.manual_seed(3)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    chats.tokenizer(folder / "base")
    LlamaForCausalLM(LlamaConfig(vocab_size=260, **sizes)).save_pretrained(folder / "base")
    talks = chats.jsonl(folder / "talks.jsonl", chats.conversations(60))
    wanted = ("--data.seq_len=64", "--train.lr=1e-2", "--train.warmup=0", "--train.min_lr=1")
    return (f"--model.path={folder / 'base'}", f"--data.path={talks}", *wanted)


LORA = ("--lora.rank=4", "--lora.alpha=8")


def test_lora_learns_and_its_adapter_answers_in_peft(tmp_path: Path, material: tuple[str, ...]) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    words = (*material, *LORA, "--train.steps=20")
    half = run(tmp_path, *words, "--train.precision=bf16", f"--checkpoint.export={tmp_path / 'adapter'}")
    exact = run(tmp_path, *words, "--train.precision=fp32")
    assert half[-1]["loss"] < half[0]["loss"] - 0.2
    assert all(math.isfinite(each["loss"]) for each in half)
    assert near(losses(half), losses(exact), 0.05)
    base = material[0].removeprefix("--model.path=")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).to(DEVICE)
    with torch.no_grad():
        before = plain(input_ids=IDS.to(DEVICE)).logits
        after = PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()(input_ids=IDS.to(DEVICE)).logits
    assert (after - before).abs().max() > 0.1


def test_lora_goes_on_from_its_checkpoint(tmp_path: Path, material: tuple[str, ...]) -> None:
    words = (*material, *LORA, "--train.precision=bf16")
    straight = run(tmp_path, *words, "--train.steps=10")
    kept = f"--checkpoint.dir={tmp_path / 'c'}"
    first = run(tmp_path, *words, "--train.steps=5", kept)
    then = run(tmp_path, *words, "--train.steps=10", kept)
    assert near(losses(first + then), losses(straight), 2e-2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_packed_conversations_are_those_alone(tmp_path: Path, material: tuple[str, ...], precision: str) -> None:
    """Two steps with a rate of 0: the mean loss over all answers is the same however they lie in the samples."""
    words = (*material, "--train.lr=0", f"--train.precision={precision}", "--train.steps=1", "--train.batch=60")
    packed = run(tmp_path, *words, "--data.layout=packed", f"--data.cache={tmp_path / 'packed'}")
    padded = run(tmp_path, *words, "--data.layout=padded", f"--data.cache={tmp_path / 'padded'}")
    assert math.isfinite(packed[0]["loss"])
    assert near(losses(packed), losses(padded), 0.1)


@pytest.mark.skipif(BACKEND == "gloo", reason="a compiler for the CPU may be missing")
@pytest.mark.parametrize("more", [(), LORA], ids=["whole", "lora"])
def test_compiled_layers_learn_the_same(tmp_path: Path, material: tuple[str, ...], more: tuple[str, ...]) -> None:
    words = (*material, *more, "--train.steps=10", "--train.precision=fp32")
    compiled = run(tmp_path, *words, "--train.compile=true")
    assert near(losses(compiled), losses(run(tmp_path, *words)), 1e-2)

"""train.precision=fp8, emulated on the CPU: it learns nearly what bf16 does and goes on to the bit, or says why not."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import lines, needs_bf16, needs_fsdp, ranks, run, small, state, trained
from transformers import LlamaConfig, LlamaForCausalLM

from rocstack_trainer import precision, sharding
from rocstack_trainer.errors import ConfigError, MissingError

needs_torchao = pytest.mark.skipif(not find_spec("torchao"), reason="torchao isn't installed")
LONG = ("train.steps=30", "train.lr=5e-3")


def losses(folder: Path, name: str, world: int, *more: str) -> list[float]:
    metrics = folder / f"{name}.jsonl"
    trained(world, small(*more, f"output.metrics={metrics}"), timeout_s=120)
    return [line["loss"] for line in lines(metrics)]


def near(one: list[float], other: list[float]) -> bool:
    return all(abs(a - b) < 0.01 * b for a, b in zip(one, other, strict=True))


@needs_torchao
def test_it_learns_nearly_what_bf16_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    half = losses(tmp_path, "bf16", 2, *LONG, "train.precision=bf16")
    eighth = losses(tmp_path, "fp8", 2, *LONG, "train.precision=fp8")
    assert "emulated in fp32 on a CPU" in capfd.readouterr().out
    assert eighth[-1] < 0.8 * eighth[0]
    assert near(eighth, half)
    assert all(a != b for a, b in zip(half, eighth, strict=True)), "nothing was in fp8"


@needs_torchao
@needs_fsdp
@needs_bf16
@pytest.mark.parametrize("more", [(), ("train.recompute=layers",)])
def test_slices_learn_what_the_whole_model_does(tmp_path: Path, more: tuple[str, ...]) -> None:
    whole = losses(tmp_path, "whole", 2, *LONG, "train.precision=fp8")
    shared = losses(tmp_path, "shared", 2, *LONG, "train.precision=fp8", "parallel.shard=2", *more)
    assert near(shared, whole)


@needs_torchao
@pytest.mark.parametrize("shard", [1, pytest.param(2, marks=[needs_fsdp, needs_bf16])])
def test_a_checkpoint_goes_on_to_the_bit(tmp_path: Path, shard: int) -> None:
    saved = tmp_path / "ck"
    asked = ("train.steps=6", "train.precision=fp8", f"parallel.shard={shard}", "checkpoint.every=3")
    trained(2, small(*asked, f"checkpoint.dir={saved}"))
    ended = state(saved, 6)["weights_sha256"]
    shutil.rmtree(saved / "step-00000006")
    trained(2, small(*asked, f"checkpoint.dir={saved}"))
    assert state(saved, 6)["weights_sha256"] == ended


@needs_torchao
def test_layers_alone_are_in_fp8() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1}
    net = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
    names = {name: id(parameter) for name, parameter in net.named_parameters()}
    precision.fp8(sharding.blocks(net), "cpu")
    assert {name: id(parameter) for name, parameter in net.named_parameters()} == names
    found = {name.rpartition(".")[2] for name, each in net.named_modules() if type(each).__name__ == "Float8Linear"}
    assert found == {"q_proj", "k_proj", "v_proj", "o_proj"}, "40 is no multiple of 16, and lm_head is outside"


@needs_torchao
def test_a_large_neighbour_takes_nothing_from_a_row() -> None:
    block = torch.nn.Sequential(torch.nn.Linear(32, 32))
    precision.fp8([block], "cpu")
    rows = torch.stack([torch.randn(32), 1e6 * torch.randn(32)])
    torch.testing.assert_close(block(rows)[0], block(rows[:1])[0])


@needs_torchao
@pytest.mark.parametrize("shard", [1, pytest.param(2, marks=[needs_fsdp, needs_bf16])])
def test_a_model_without_such_layers_is_refused(shard: int) -> None:
    odd = ("model.hidden_size=40", "model.intermediate_size=40", "model.num_key_value_heads=4")
    for error in ranks(2, run, small("train.precision=fp8", f"parallel.shard={shard}", *odd)):
        assert isinstance(error, ConfigError)
        assert "multiples of 16" in str(error)


def test_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(MissingError, match="needs torchao"):
        precision.require_fp8("cpu")


@pytest.mark.parametrize(
    ("hip", "about", "refused"),
    [
        ("7.2", {"gcnArchName": "gfx942:sramecc+:xnack-"}, ""),
        ("7.2", {"gcnArchName": "gfx950"}, ""),
        ("7.2", {"gcnArchName": "gfx90a:sramecc+:xnack-"}, "GPU 1 has no fp8, MI300 and MI350 have"),
        (None, {"major": 9, "minor": 0}, ""),
        (None, {"major": 8, "minor": 0}, "GPU 1 has no fp8, compute capability 8.9 and later have"),
    ],
)
def test_gpus_without_fp8(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, about: dict[str, object], refused: str
) -> None:
    monkeypatch.setitem(sys.modules, "torchao", SimpleNamespace(__version__="1"))
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="GPU 1", **about))
    if refused:
        with pytest.raises(MissingError, match=refused):
            precision.require_fp8("cuda:0")
    else:
        assert "emulated" not in precision.require_fp8("cuda:0")


def test_adapters_are_refused() -> None:
    with pytest.raises(ConfigError, match="whole models"):
        small("train.precision=fp8", "lora.rank=4")

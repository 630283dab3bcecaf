"""LoRA: what is trained, kept, resumed and refused; and what plain peft and transformers make of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chats import conversations, jsonl, tokenizer
from conftest import SMALL, command, grouped, lines, needs_fsdp, ranks, run, small, start, state, trained, wait_for

from rocstack_trainer import cli, train
from rocstack_trainer.config import Config, Lora
from rocstack_trainer.errors import CheckpointError, ConfigError
from rocstack_trainer.models import lora, model
from rocstack_trainer.rank import Rank
from rocstack_trainer.saving import dcp

IDS = torch.arange(60).reshape(4, 15)
CONSTANT = ("train.warmup=0", "train.min_lr=1")


def in_a_rank(function: Callable[..., Any], *args: Any) -> Any:
    """transformers reads weights with threads: the test process, which forks, mustn't."""
    (result,) = ranks(1, lambda _: function(*args))
    assert not isinstance(result, BaseException), result
    return result


def make_base(folder: Path, seed: int = 3) -> None:
    tokenizer(folder)
    net = model.build(replace(small().model, vocab_size=260), Rank(device="cpu", backend="gloo"), seed)
    net.save_pretrained(folder)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    in_a_rank(make_base, folder)
    return folder


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jsonl(tmp_path_factory.mktemp("talks") / "a.jsonl", conversations(60))


def tuning(base: Path, talks: Path, *more: str) -> Config:
    asked = ("lora.rank=4", "lora.alpha=8", "data.seq_len=64", "train.lr=1e-2", *CONSTANT)
    return small(f"model.path={base}", f"data.path={talks}", *asked, *more)


def by_peft(base: Path, adapter: Path, merge: bool = False) -> torch.Tensor:
    """As anybody would, without this package."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    net = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    net = net.merge_and_unload() if merge else net
    with torch.no_grad():
        return net.eval()(input_ids=IDS).logits


def by_transformers(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder).float()(input_ids=IDS).logits


@pytest.fixture(scope="module")
def straight(base: Path, talks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps on two ranks: checkpoints, an adapter and metrics."""
    out = tmp_path_factory.mktemp("straight")
    kept = (f"checkpoint.dir={out}/c", f"checkpoint.export={out}/adapter", f"output.metrics={out}/m.jsonl")
    trained(2, tuning(base, talks, "train.steps=8", "checkpoint.every=4", "checkpoint.keep=9", *kept))
    return out


def test_only_adapters_are_trained_and_kept(straight: Path) -> None:
    losses = [line["loss"] for line in lines(straight / "m.jsonl")]
    assert losses[-1] < losses[0] - 0.2
    names = dcp.contents(straight / "c/step-00000008")
    weights = [name for name in names if name.startswith("model.")]
    assert len(weights) == 2 * 2 * 7  # A and B of all linear layers
    assert all(".lora_" in name for name in names)
    assert state(straight / "c", 8)["notes"]["lora"]["r"] == 4


def test_the_adapter_is_pefts_own(straight: Path, base: Path) -> None:
    found, plain = in_a_rank(by_peft, base, straight / "adapter"), in_a_rank(by_transformers, base)
    assert (found - plain).abs().max() > 0.1
    about = json.loads((straight / "adapter/adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == str(base)
    assert (straight / "adapter/tokenizer_config.json").exists()


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_a_killed_run_ends_with_the_same_bits(
    straight: Path, base: Path, talks: Path, tmp_path: Path, dropout: float
) -> None:
    expected = straight
    if dropout:
        expected = tmp_path / "straight"
        trained(2, tuning(base, talks, f"lora.dropout={dropout}", "train.steps=8", f"checkpoint.dir={expected}/c"))
    for steps in (4, 8):
        asked = (f"train.steps={steps}", f"checkpoint.dir={tmp_path}/c", f"lora.dropout={dropout}")
        trained(2, tuning(base, talks, *asked))
    assert state(tmp_path / "c", 8)["weights_sha256"] == state(expected / "c", 8)["weights_sha256"]
    if dropout:
        assert state(tmp_path / "c", 8)["weights_sha256"] != state(straight / "c", 8)["weights_sha256"]


def gradients(rank: Rank, config: Config) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    clip = torch.nn.utils.clip_grad_norm_

    def keep(parameters: Any, most: float) -> torch.Tensor:
        parameters = [p for p in parameters if p.grad is not None]
        found.update({str(i): p.grad.clone() for i, p in enumerate(parameters)})
        return clip(parameters, most)

    torch.nn.utils.clip_grad_norm_ = keep
    assert run(rank, config) == 0
    return found


def test_ranks_change_nothing(base: Path, talks: Path) -> None:
    config = tuning(base, talks, "train.steps=1", "train.clip=0", "parallel.compress=none")
    (one,), two = ranks(1, gradients, config), ranks(2, gradients, config)
    assert len(one) == 28
    for name, gradient in one.items():
        assert torch.allclose(two[0][name], gradient, rtol=1e-4, atol=1e-6)
        assert torch.equal(two[0][name], two[1][name])


def test_training_goes_on_from_an_adapter(straight: Path, base: Path, talks: Path, tmp_path: Path) -> None:
    more = (f"lora.adapter={straight}/adapter", "lora.rank=0", f"checkpoint.export={tmp_path}/out", "train.steps=0")
    trained(2, tuning(base, talks, *more))
    first, second = (in_a_rank(by_peft, base, folder) for folder in (straight / "adapter", tmp_path / "out"))
    assert torch.equal(first, second)


def plain_adapter(base: Path, folder: Path, **sizes: Any) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    net = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **sizes))
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    net.save_pretrained(folder)


def test_an_adapter_that_plain_peft_made_is_taken(base: Path, talks: Path, tmp_path: Path) -> None:
    in_a_rank(plain_adapter, base, tmp_path / "a")  # peft's own modules for this type
    more = (f"lora.adapter={tmp_path}/a", "lora.rank=0", f"checkpoint.export={tmp_path}/out", "train.steps=0")
    trained(1, tuning(base, talks, *more))
    assert torch.equal(in_a_rank(by_peft, base, tmp_path / "a"), in_a_rank(by_peft, base, tmp_path / "out"))


def refused(*config: Any) -> str:
    first, second = ranks(2, run, tuning(*config))
    assert isinstance(first, ConfigError | CheckpointError), first
    assert str(first) == str(second)
    return str(first)


def test_an_adapter_of_another_model_is_refused(straight: Path, base: Path, talks: Path, tmp_path: Path) -> None:
    in_a_rank(make_base, tmp_path / "other", 4)  # of the same sizes
    asked = (f"lora.adapter={straight}/adapter", "lora.rank=0")
    assert "adapter was trained for another model" in refused(tmp_path / "other", talks, *asked)
    copy = shutil.copytree(straight / "c", tmp_path / "c")
    assert "an adapter for another model" in refused(
        tmp_path / "other", talks, f"checkpoint.dir={copy}", "train.steps=9"
    )
    assert "tensors are others" in refused(base, talks, f"checkpoint.dir={copy}", "train.steps=9", "lora.rank=8")
    in_a_rank(plain_adapter, base, tmp_path / "plain")
    about = tmp_path / "plain/adapter_config.json"
    about.write_text(about.read_text().replace('"r": 8', '"r": 4'))
    assert "tensors differ: base_model" in refused(base, talks, f"lora.adapter={tmp_path}/plain", "lora.rank=0")
    in_a_rank(lambda: plain_adapter(base, tmp_path / "dora", use_dora=True))
    assert "another kind than plain LoRA: use_dora=True" in refused(base, talks, f"lora.adapter={tmp_path}/dora")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("lora.modules=q_porj", "lora: the model has no module 'q_porj'"),
        ("lora.rank=1025", "lora: r is 1025; it can be 1 to 1,024"),
        ("lora.adapter=/nowhere", "/nowhere: no adapter of peft"),
    ],
)
def test_what_peft_can_not_do_is_refused(base: Path, talks: Path, setting: str, message: str) -> None:
    assert message in refused(base, talks, setting)


@pytest.mark.parametrize("settings", ['{"peft_type": "LORA", "r": 4, "target_modules": "("}', '{"a":' * 100_000])
def test_an_adapter_of_a_stranger_is_refused(base: Path, talks: Path, tmp_path: Path, settings: str) -> None:
    """A pattern that is none, and JSON of any depth."""
    (tmp_path / "adapter_config.json").write_text(settings)
    assert "lora" in refused(base, talks, f"lora.adapter={tmp_path}", "lora.rank=0")


ENDLESS = "(.*)*" * 20 + "$"  # as a regular expression: longer than the universe is old


STRANGERS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"r": 10**9}, "r is 1000000000; it can be 1 to 1,024"),
    ({"r": 0}, "r is 0"),
    ({"r": "8"}, "r is '8'"),
    ({"lora_alpha": 1e300}, "lora_alpha is 1e+300"),
    ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
    ({"lora_dropout": 2}, "lora_dropout is 2"),
    ({"rank_pattern": {ENDLESS: 4}}, "no layer's name"),
    ({"rank_pattern": {"q_proj": 10**9}}, "rank_pattern of q_proj is 1000000000"),
    ({"alpha_pattern": {ENDLESS: 4}}, "no layer's name"),
    ({"rank_pattern": {f"a{each}": 4 for each in range(1001)}}, "no mapping of at most 1,000"),
    ({"x": "y" * (1 << 20)}, "more than 1 MB"),
    ({"use_dora": "y" * 100_000}, "another kind than plain LoRA"),
)


def test_numbers_and_patterns_of_a_stranger_are_bounded(straight: Path, base: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(straight / "adapter", tmp_path / "a")

    def messages() -> list[str]:
        net, plain = model_of(base), json.loads((copy / "adapter_config.json").read_text())
        return [refusal(net, copy, plain | change) for change, _ in STRANGERS]

    for said, (_, expected) in zip(in_a_rank(messages), STRANGERS, strict=True):
        assert expected in said
        assert len(said) < 1000


def refusal(net: Any, folder: Path, about: dict[str, Any]) -> str:
    (folder / "adapter_config.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError) as raised:
        lora.inject(net, lora.asked(Lora(adapter=str(folder)), Rank(device="cpu", backend="gloo")))
    return str(raised.value)


def test_the_tensors_say_which_modules_are_meant(straight: Path, base: Path, talks: Path, tmp_path: Path) -> None:
    """Not patterns, which a stranger may have made to take for ever."""
    copy = shutil.copytree(straight / "adapter", tmp_path / "a")
    patterns = {"target_modules": ENDLESS, "exclude_modules": ENDLESS, "layers_to_transform": 0}
    about = json.loads((copy / "adapter_config.json").read_text()) | patterns | {"layers_pattern": ENDLESS}
    (copy / "adapter_config.json").write_text(json.dumps(about))
    more = (f"lora.adapter={copy}", "lora.rank=0", f"checkpoint.export={tmp_path}/out", "train.steps=0")
    trained(1, tuning(base, talks, *more))
    assert torch.equal(in_a_rank(by_peft, base, straight / "adapter"), in_a_rank(by_peft, base, tmp_path / "out"))


def test_a_pattern_in_a_checkpoint_is_not_read(straight: Path, base: Path) -> None:
    notes = state(straight / "c", 8)["notes"]["lora"]
    (error,) = ranks(1, lambda _: lora.inject(model_of(base), notes | {"target_modules": ENDLESS}))
    assert isinstance(error, ConfigError)
    assert "no list of names" in str(error)


def model_of(base: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(base)


@pytest.mark.parametrize(
    "name", ["base_model.model.lm_head.weight", "x\n" * 999, "base_model.model.no.lora_A.weight"], ids=[1, 2, 3]
)
def test_other_tensors_are_refused(straight: Path, base: Path, talks: Path, tmp_path: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(straight / "adapter", tmp_path / "a")
    save_file(load_file(copy / lora.WEIGHTS) | {name: torch.zeros(1)}, copy / lora.WEIGHTS)
    said = refused(base, talks, f"lora.adapter={copy}", "lora.rank=0")
    assert "another kind than plain LoRA" in said or "the model has no module 'no'" in said
    assert len(said) < 1000


@pytest.mark.parametrize("text", ["[1]", '"' + "x" * (1 << 20) + '"', "["])
def test_a_note_of_a_stranger_that_is_none(straight: Path, base: Path, talks: Path, tmp_path: Path, text: str) -> None:
    copy = shutil.copytree(straight / "adapter", tmp_path / "a")
    (copy / lora.OURS).write_text(text)
    assert "can't be read" in refused(base, talks, f"lora.adapter={copy}", "lora.rank=0")


def test_without_peft_it_says_so(base: Path, talks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    (error,) = ranks(1, run, tuning(base, talks))
    assert error.exit_code == 3
    assert "lora.rank needs peft" in str(error)


# Export


@pytest.mark.parametrize(("dtype", "close"), [("fp32", 1e-5), ("bf16", 0.05)])
def test_any_checkpoint_is_exported_merged_or_not(
    straight: Path, base: Path, tmp_path: Path, dtype: str, close: float, capsys: pytest.CaptureFixture[str]
) -> None:
    for merged in ("false", "true"):
        asked = [f"--checkpoint.export_dtype={dtype}", f"--checkpoint.export_merged={merged}"]
        source = ["--export", f"{tmp_path}/{merged}", "--from", f"{straight}/c/step-00000004"]
        assert in_a_rank(cli.run, [*source, *asked]) == 0
    said = json.loads((tmp_path / "true/rocstack-train.json").read_text())
    assert (said["step"], said["from"]) == (4, str(base))
    # Also the weights, which safetensors makes for their owner alone.
    for folder in (tmp_path / "true", tmp_path / "false"):
        modes = {oct(file.stat().st_mode) for file in folder.iterdir()}
        assert modes == {oct((folder / "rocstack-train.json").stat().st_mode)}, list(folder.iterdir())
    adapted = in_a_rank(by_peft, base, tmp_path / "false")
    found = in_a_rank(by_transformers, tmp_path / "true")
    assert (found - adapted).abs().max() < close
    assert (found - in_a_rank(by_peft, base, straight / "adapter")).abs().max() > 0.01  # that is of step 8
    assert json.loads((tmp_path / "true/config.json").read_text())["dtype"] == {"fp32": "float32"}.get(
        dtype, "bfloat16"
    )


def test_a_checkpoint_of_a_whole_model_is_exported(tmp_path: Path) -> None:
    out = (f"checkpoint.dir={tmp_path}/c", f"checkpoint.export={tmp_path}/end")
    trained(2, small("train.steps=2", "model.tie_word_embeddings=true", *out))
    assert in_a_rank(cli.run, ["--export", f"{tmp_path}/any", "--from", f"{tmp_path}/c/step-00000002"]) == 0
    assert torch.equal(in_a_rank(by_transformers, tmp_path / "any"), in_a_rank(by_transformers, tmp_path / "end"))
    (tmp_path / "c/step-00000002/__0_0.distcp").write_bytes(b"")
    assert in_a_rank(cli.run, ["--export", f"{tmp_path}/no", "--from", f"{tmp_path}/c/step-00000002"]) == 2
    assert not (tmp_path / "no").exists()


def test_frozen_weights_are_kept_in_what_they_are_multiplied_in(base: Path) -> None:
    (kinds,) = ranks(1, grouped, kinds_of, small(f"model.path={base}", "lora.rank=2"))
    assert kinds == {("frozen", torch.bfloat16), ("trained", torch.float32)}


def kinds_of(rank: Rank, config: Config) -> set[tuple[str, torch.dtype]]:
    net, _ = lora.apply(train.model.build(config.model, rank, 1, print), config, rank, bf16=True)
    assert {buffer.dtype for buffer in net.buffers() if buffer.is_floating_point()} == {torch.float32}
    return {("trained" if p.requires_grad else "frozen", p.dtype) for p in net.parameters()}


# From the command line, as a person does it


def answers(base: Path, adapter: Path, merged: Path) -> tuple[str, str, float, float]:
    """What plain peft and plain transformers answer, and how likely each finds a right answer without and with it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words = AutoTokenizer.from_pretrained(adapter)
    asked = words.apply_chat_template([{"role": "user", "content": "bob says hi"}], add_generation_prompt=True)
    ids = torch.tensor([asked["input_ids"]])
    right = torch.tensor([asked["input_ids"] + words("hello bob<|end|>")["input_ids"]])
    labels = right.masked_fill(torch.arange(right.shape[1]) < ids.shape[1], -100)
    plain = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        before = plain(input_ids=right, labels=labels).loss.item()
        tuned = PeftModel.from_pretrained(plain, adapter).eval()
        after = tuned(input_ids=right, labels=labels).loss.item()
        said = []
        for net in (tuned, AutoModelForCausalLM.from_pretrained(merged)):
            out = net.generate(input_ids=ids, max_new_tokens=12, do_sample=False)
            said.append(words.decode(out[0, ids.shape[1] :]))
    return said[0], said[1], before, after


@pytest.mark.slow
def test_from_conversations_to_an_answer(base: Path, talks: Path, tmp_path: Path) -> None:
    """Two ranks, one of which is killed; the same command goes on to the same bits as a run that nobody killed."""
    asked = [*SMALL, "--ranks=2", f"--model.path={base}", f"--data.path={talks}", "--data.seq_len=64", "--lora.rank=8"]
    asked += ["--train.lr=2e-2", "--train.steps=60", "--checkpoint.every=5"]

    def into(name: str) -> list[str]:
        folder = tmp_path / name
        return [f"--checkpoint.dir={folder}/c", f"--output.metrics={folder}/m", f"--export={folder}/adapter"]

    done = command(*asked, *into("straight"))
    assert done.returncode == 0, done.stderr
    process = start(*asked, *into("killed"))
    try:
        wait_for(lambda: len(lines(tmp_path / "killed/m")) > 12, process)
        child = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[1]
        os.kill(int(child), signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "was ended by SIGKILL" in err
    assert not (tmp_path / "killed/adapter").exists()
    again = command(*asked, *into("killed"))
    assert "resume: step " in again.stdout
    assert again.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]
    for name in ("straight", "killed"):
        assert (tmp_path / name / "adapter/adapter_model.safetensors").read_bytes() == (
            tmp_path / "straight/adapter/adapter_model.safetensors"
        ).read_bytes()
    last = f"{tmp_path}/killed/c/step-00000060"
    merged = command(f"--from={last}", f"--export={tmp_path}/merged", "--checkpoint.export_merged=true")
    assert merged.stdout == f"export: {tmp_path}/merged is a Hugging Face model, of step 60\n", merged.stderr
    said, same, before, after = in_a_rank(answers, base, tmp_path / "killed/adapter", tmp_path / "merged")
    assert said == same
    assert after < before - 0.2  # the base is random, and frozen


# In slices


SHARDED = ("parallel.shard=2", "parallel.compress=none")


@pytest.mark.slow
@needs_fsdp
def test_a_model_in_slices_trains_the_same_adapters(base: Path, talks: Path, tmp_path: Path) -> None:
    """Four ranks, two of which share a model; checkpoints of one layout go on in the other, to the same bits in the
    same one; the base model is known to be the same."""
    found: dict[str, list[float]] = {}
    for name, steps, more in (
        ("whole", 6, ()),
        ("sliced", 6, SHARDED),
        ("resumed", 3, SHARDED),
        ("resumed", 6, SHARDED),
        ("other", 3, SHARDED),
        ("other", 6, ("parallel.shard=1",)),
    ):
        folder = tmp_path / name
        kept = (f"checkpoint.dir={folder}/c", f"output.metrics={folder}/m", f"checkpoint.export={folder}/adapter")
        trained(4, tuning(base, talks, f"train.steps={steps}", *kept, *more))
        found[name] = [line["loss"] for line in lines(folder / "m")]
    for losses in found.values():
        assert losses == [pytest.approx(each, rel=1e-4) for each in found["whole"]]
    saved = {name: state(tmp_path / name / "c", 6) for name in found}
    assert saved["sliced"]["weights_sha256"] == saved["resumed"]["weights_sha256"]
    assert len({each["notes"]["base"] for each in saved.values()}) == 1
    whole, sliced = (in_a_rank(by_peft, base, tmp_path / name / "adapter") for name in ("whole", "sliced"))
    assert torch.allclose(whole, sliced, atol=1e-3)


@needs_fsdp
def test_a_model_in_slices_begins_with_an_adapter(straight: Path, base: Path, talks: Path, tmp_path: Path) -> None:
    more = (f"lora.adapter={straight}/adapter", "lora.rank=0", f"checkpoint.export={tmp_path}/out", "train.steps=0")
    trained(2, tuning(base, talks, *more, "parallel.shard=2"))
    first, second = (in_a_rank(by_peft, base, folder) for folder in (straight / "adapter", tmp_path / "out"))
    assert torch.equal(first, second)
    in_a_rank(make_base, tmp_path / "another", 4)
    assert "trained for another model" in refused(tmp_path / "another", talks, *more[:2], "parallel.shard=2")


def in_slices(
    rank: Rank, config: Config, shard: bool, bf16: bool
) -> tuple[dict[str, torch.Tensor], float, dict[str, Any]]:
    """Gradients and loss of one forward and backward pass, with each block in slices or not."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from rocstack_trainer import precision

    net = lora.inject(train.model.build(config.model, rank, 1, print), lora.asked(config.lora, rank), bf16)
    if shard:
        how = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
        mesh = init_device_mesh("cpu", (rank.world,))
        for block in (*net.get_base_model().model.layers, net):
            fully_shard(block, mesh=mesh, mp_policy=how)
    notes = lora.begin(net, config, rank)
    with precision.autocast("bf16" if bf16 and not shard else "fp32", "cpu"):
        loss = net(input_ids=IDS, labels=IDS).loss
    loss.backward()
    parts = {name: p.grad for name, p in net.named_parameters() if p.requires_grad}
    return {name: g.full_tensor() if shard else g for name, g in parts.items()}, loss.item(), notes


@needs_fsdp
@pytest.mark.parametrize("bf16", [False, True])
def test_adapters_can_be_in_slices(straight: Path, base: Path, bf16: bool) -> None:
    """Their first values, from the seed or another adapter, their gradients and their base's name are the same."""
    for asked in ("lora.rank=4", f"lora.adapter={straight}/adapter"):
        config = small(f"model.path={base}", asked)
        whole, sliced = (ranks(2, grouped, in_slices, config, shard, bf16)[0] for shard in (False, True))
        assert sliced[1] == pytest.approx(whole[1], rel=1e-3 if bf16 else 1e-6)
        assert sliced[2] == whole[2]
        for name, gradient in whole[0].items():
            assert torch.allclose(sliced[0][name], gradient, rtol=0.02 if bf16 else 1e-5, atol=1e-3 if bf16 else 1e-7)

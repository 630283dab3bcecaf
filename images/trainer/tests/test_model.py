import json
import os
import shlex
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import grouped, ranks, small
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rocstack_trainer.config import Model
from rocstack_trainer.errors import ConfigError, TrainerError
from rocstack_trainer.models import fingerprint, model
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks.peers import Peers

TINY = small().model
HOST = socket.gethostname()
ALONE = Rank(device="cpu", backend="gloo")


def made(**sizes: Any) -> Any:
    return model.build(replace(TINY, **sizes), ALONE, seed=1)


def digest(net: torch.nn.Module) -> str:
    return fingerprint.sha256(fingerprint.weights(net))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made().save_pretrained(tmp_path / "m")
    return tmp_path / "m"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    made().save_pretrained(tmp_path / "m", max_shard_size="50KB")
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    return tmp_path / "m"


def everything(rank: Rank, config: Model) -> tuple[str, torch.Tensor, list[str]]:
    """A hash over all tensors, what the model computes, and its parameters."""
    net = model.build(config, rank, seed=rank.rank)  # only rank 0's random numbers count
    tensors = dict(net.named_parameters()) | dict(net.named_buffers())
    with torch.no_grad():
        logits = net.eval()(input_ids=torch.arange(24).view(2, 12)).logits
    assert {tensor.dtype for tensor in net.parameters()} == {torch.float32}
    return fingerprint.sha256(tensors), logits, [name for name, _ in net.named_parameters()]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2", "gemma3_text", "gpt_neox"])
@pytest.mark.parametrize("tied", [False, True])
def test_new_weights_are_rank_0s_on_every_rank(kind: str, tied: bool) -> None:
    """With the frequencies of the rotary embedding, which no checkpoint has, and ties that stay ties."""
    first, *others = ranks(3, grouped, everything, replace(TINY, type=kind, tie_word_embeddings=tied))
    assert ("lm_head.weight" in first[2] or "embed_out.weight" in first[2]) != tied
    for other in others:
        assert other[0] == first[0]
        assert torch.equal(other[1], first[1])
        assert other[2] == first[2]
    torch.manual_seed(0)
    alone = AutoModelForCausalLM.from_config(model.shape(replace(TINY, type=kind, tie_word_embeddings=tied), ALONE))
    with torch.no_grad():
        assert torch.equal(alone.eval()(input_ids=torch.arange(24).view(2, 12)).logits, first[1])


@pytest.mark.parametrize("shards", ["1GB", "50KB"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_rank_0_needs_the_folder(tmp_path: Path, shards: str, dtype: torch.dtype) -> None:
    net = made(type="qwen2", tie_word_embeddings=True).to(dtype)
    net.save_pretrained(tmp_path / "m", max_shard_size=shards)
    found = ranks(2, grouped, from_own_disk, tmp_path / "m")
    assert found == [digest(net.float())] * 2


def from_own_disk(rank: Rank, folder: Path) -> str:
    path = str(folder) if rank.rank == 0 else "/not/on/this/node"
    return digest(model.build(replace(TINY, path=path), rank, 1))


def offline(rank: Rank, path: str) -> Any:
    asked = []
    socket.getaddrinfo = lambda *name, **_: asked.append(name) or []
    socket.socket.connect = lambda _, address: asked.append(address)
    try:
        model.build(replace(TINY, path=path), rank, 1)
    finally:
        assert asked == []
        assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_the_network_is_never_asked(folder: Path) -> None:
    assert ranks(1, grouped, offline, str(folder)) == [None]
    (error,) = ranks(1, grouped, offline, "gpt2")
    assert str(error) == "model.path: gpt2: no such folder"
    (error,) = ranks(1, grouped, offline, "meta-llama/Llama-3.1-8B")
    assert isinstance(error, ConfigError)
    assert "never downloaded" in str(error)


def built(rank: Rank, config: Model) -> None:
    model.build(config, rank, 1, say=lambda _: None)


def refused(config: Model) -> str:
    """What both of two ranks say, the same and at once."""
    first, second = ranks(2, grouped, built, config)
    assert isinstance(first, ConfigError), first
    assert first.everywhere
    assert isinstance(second, ConfigError), second
    assert str(first) == str(second)
    return str(first)


def test_a_missing_shard_is_named_on_all_ranks(sharded: Path) -> None:
    gone = sorted(sharded.glob("*.safetensors"))[1]
    gone.unlink()
    assert f"{gone.name} missing (1 of the " in refused(replace(TINY, path=str(sharded)))


def test_a_cut_shard_is_named_on_all_ranks(sharded: Path) -> None:
    cut = sorted(sharded.glob("*.safetensors"))[1]
    os.truncate(cut, cut.stat().st_size - 8)
    assert f"{cut} is broken" in refused(replace(TINY, path=str(sharded)))


def spoil(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    about = json.loads((folder / "config.json").read_text())
    match how:
        case "garbage":
            weights.write_bytes(b"no model")
        case "empty":
            weights.write_bytes(b"")
        case "pickle":
            weights.rename(folder / "pytorch_model.bin")
        case "no weights":
            weights.unlink()
        case "index":
            (folder / "model.safetensors.index.json").write_text("[]")
        case "tensor":
            tensors = load_file(weights)
            del tensors["model.layers.1.mlp.up_proj.weight"]
            save_file(tensors, weights, metadata={"format": "pt"})
        case "other size":
            about["hidden_size"] *= 2
        case "bert":
            about = {"model_type": "clip"}
        case "unknown":
            about = {"model_type": "lama"}
        case "quantised":
            about["quantization_config"] = {"quant_method": "fp8"}
        case "code":
            about = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Net"}}
        case "json":
            (folder / "config.json").write_text("{")
            return
        case "no config":
            (folder / "config.json").unlink()
            return
        case "adapter":
            (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "target_modules": "(.*)*$"}')
            return
        case "checkpoint":
            (folder / "config.json").rename(folder / ".metadata")
            return
        case "nothing":
            shutil.rmtree(folder)
            return
    (folder / "config.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("garbage", "model.safetensors is broken"),
        ("empty", "model.safetensors is broken"),
        ("pickle", "only pytorch_model.bin\n  convert it once: python3 -c"),
        ("no weights", "no weights"),
        ("index", "not an index of weights"),
        ("tensor", "1 tensors of the model are not in its files: model.layers.1.mlp.up_proj.weight"),
        ("other size", "lm_head.weight is (256, 32), config.json makes it (256, 64)"),
        ("bert", "clip is no causal language model"),
        ("unknown", "lama is no causal language model that transformers 5"),
        ("quantised", "is quantised"),
        ("code", "own is no causal language model that transformers"),
        ("code", "the code that comes with it is not run"),
        ("json", "config.json: no model's config"),
        ("no config", "no config.json in it"),
        ("adapter", "an adapter beside the model (adapter_config.json)"),
        ("checkpoint", "writes a model with --checkpoint.export=FOLDER"),
        ("nothing", "no such folder"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(folder: Path, how: str, message: str) -> None:
    spoil(folder, how)
    with pytest.raises(ConfigError) as error:
        model.build(replace(TINY, path=str(folder)), ALONE, 1)
    assert message in str(error.value)
    assert str(error.value).startswith(f"model.path: {folder}")


def test_the_way_to_convert_works(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError) as error:
        model.build(replace(TINY, path=str(folder)), ALONE, 1)
    python, option, code = shlex.split(str(error.value).partition("once: ")[2])
    assert (python, option) == ("python3", "-c")
    exec(code)  # here, where transformers is imported already
    assert digest(model.build(replace(TINY, path=str(folder)), ALONE, 9)) == digest(made())


def test_tensors_nobody_uses_are_said(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"vision.weight": torch.ones(2)}, folder / "model.safetensors", metadata={"format": "pt"})
    said: list[str] = []
    model.build(replace(TINY, path=str(folder)), ALONE, 1, said.append)
    assert f"model: 1 tensors of {folder} are not used, such as vision.weight" in said


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"type": "lama"}, "did you mean llama?"), ({"type": "zzz"}, "no causal"), ({"type": "clip"}, "no causal")],
)
def test_an_unknown_type_is_refused_with_the_nearest(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made(**sizes)


def test_a_size_that_the_type_does_not_have_is_said() -> None:
    said: list[str] = []
    model.shape(replace(TINY, type="gpt2"), ALONE, said.append)
    assert said == ["model: gpt2 has no intermediate_size: ignored"]


def another(rank: Rank) -> None:
    """Rank 1 has another release of transformers, in which the model has a bias."""
    if rank.rank:
        Net = AutoModelForCausalLM.from_config
        AutoModelForCausalLM.from_config = lambda about, **how: grown(Net(about, **how))
    model.build(TINY, rank, 1)


def grown(net: Any) -> Any:
    net.lm_head.bias = torch.nn.Parameter(torch.zeros(3, device="meta"))
    return net


def test_ranks_with_different_models_end_with_a_message() -> None:
    for error in ranks(2, grouped, another):
        assert isinstance(error, TrainerError), error
        assert "is transformers the same on all nodes?" in str(error)


def differing(rank: Rank) -> None:
    Peers(rank).same("ab" if rank.rank == 0 else "cd", "weights", hint="look there")


def test_a_rank_with_other_weights_is_named() -> None:
    for error in ranks(3, grouped, differing):
        assert str(error) == f"weights differ between the ranks: rank 0 on {HOST} has ab, the others cd\n  look there"


def test_the_fingerprint_sees_each_bit_of_weights_and_saved_buffers() -> None:
    net = torch.nn.BatchNorm1d(3)
    before = digest(net)
    for tensor in (net.weight.data, net.running_mean):
        tensor[1] += 1e-7
        after = digest(net)
        assert after != before
        before = after
    assert list(fingerprint.weights(made(tie_word_embeddings=True)))[-1] == "model.norm.weight"


def test_flops_by_hand() -> None:
    """Llama: 2 layers of q, o 32x32, k, v 16x32, three MLP matrices 32x64, norms, and the head 256x32."""
    layer = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64 + 2 * 32
    n = 2 * layer + 32 + 256 * 32
    assert model.flops_per_token(made(), 16) == 6 * n + 12 * 2 * 32 * 16
    assert model.flops_per_token(made(tie_word_embeddings=True), 16) == 6 * n + 12 * 2 * 32 * 16
    assert model.n_params(made()) == n + 256 * 32
    assert model.n_params(made(tie_word_embeddings=True)) == n
    gpt2 = made(type="gpt2", tie_word_embeddings=True)  # the positions are looked up only
    assert model.flops_per_token(gpt2, 1) == 6 * (model.n_params(gpt2) - 64 * 32) + 12 * 2 * 32
    assert model.flops_per_token(made(type="mamba"), 16) > 0


def test_a_new_model_from_a_config_file_has_all_that_it_says(tmp_path: Path) -> None:
    about = {"model_type": "llama", "vocab_size": 300, "hidden_size": 48, "intermediate_size": 80, "head_dim": 24}
    about |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-4}
    about |= {"rope_theta": 500000.0, "max_position_embeddings": 4096, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(about))
    for path in (tmp_path, tmp_path / "config.json"):
        net = model.build(Model(config=str(path)), ALONE, 1)
        assert net.config.rope_parameters["rope_theta"] == 500000.0
        kept = {key: value for key, value in about.items() if key != "rope_theta"}
        assert {key: getattr(net.config, key) for key in kept} == kept
        assert net.model.layers[0].self_attn.q_proj.weight.shape == (96, 48)
        frequencies = net.model.rotary_emb.inv_freq
        assert torch.allclose(frequencies, 500000.0 ** -(torch.arange(0, 24, 2) / 24))
    with pytest.raises(ConfigError, match=r"model.config: .*nowhere: no such folder"):
        model.build(Model(config=str(tmp_path / "nowhere")), ALONE, 1)
    with pytest.raises(ConfigError, match="set one of them"):
        small(f"model.config={tmp_path}", f"model.path={tmp_path}")

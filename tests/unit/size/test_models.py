"""Every model's parameters are those of its published weights; a config that can't be is refused by name and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rocstack.base.errors import BadInput, Where
from rocstack.size import models
from rocstack.size.shape import Shape

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def shape(**changes: Any) -> Shape:
    return models.shape_of({**LLAMA, **changes}, Where("config.json"))


@pytest.mark.parametrize("name", models.names())
def test_parameters_are_the_published_ones(name: str) -> None:
    found, model = models.find(name)
    assert model.source
    if model.parameters is None:
        assert name in ("gpt-3-175b", "lumi-140b"), "of published weights the number is known"
    else:
        assert found.parameters == model.parameters


def test_well_known_numbers() -> None:
    """Beside the files, so that a file and the arithmetic can't be wrong together."""
    known = {"llama-3.1-8b": 8_030_261_248, "llama-3.1-70b": 70_553_706_496, "mixtral-8x7b": 46_702_792_704}
    known |= {"llama-3.1-405b": 405_853_388_800, "qwen-2.5-7b": 7_615_616_512, "gemma-2-9b": 9_241_705_984}
    assert {name: models.find(name)[0].parameters for name in known} == known
    assert models.find("gpt-3-175b")[0].parameters == pytest.approx(174.6e9, rel=1e-3)
    assert models.find("lumi-140b")[0].parameters == pytest.approx(140e9, rel=0.05)


@pytest.mark.parametrize(("name", "billions"), [("mixtral-8x7b", 12.9), ("deepseek-v3", 37), ("qwen-3-30b-a3b", 3.3)])
def test_parameters_at_work(name: str, billions: float) -> None:
    """Their cards count the embedding as well, which is no product."""
    found = models.find(name)[0]
    assert (found.active_parameters + found.embedding) / 1e9 == pytest.approx(billions, rel=0.03)


def test_a_config_and_its_folder_are_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for text in (str(tmp_path), str(tmp_path / "config.json")):
        found, model = models.find(text)
        assert found.parameters == 8_030_261_248
        assert model.about == text


def test_the_text_part_of_a_larger_model() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48}
    text |= {"num_attention_heads": 16, "num_key_value_heads": 8, "sliding_window": 1024}
    found = models.shape_of({"model_type": "gemma3", "text_config": text}, Where("config.json"))
    assert (found.type, found.windowed, found.vocabulary) == ("gemma3_text", 40, 262208)
    assert found.parameters / 1e9 == pytest.approx(11.77, abs=0.01)


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        ("lama-3.1-8b", "no-such-model", "did you mean 'llama-3.1-8b'"),
        ("x", "no-such-model", "no model 'x'"),
        ("none/config.json", "no-file", "can't read"),
    ],
)
def test_an_unknown_model(text: str, code: str, what: str) -> None:
    with pytest.raises(BadInput) as raised:
        models.find(text)
    assert raised.value.code == code
    assert what in raised.value.what


@pytest.mark.parametrize(
    ("changes", "code", "what"),
    [
        ({"model_type": "lama"}, "unknown-model-type", "'lama' is unknown: did you mean 'llama'?"),
        ({"model_type": None}, "unknown-model-type", "'None' is unknown"),
        ({"model_type": ["llama"]}, "unknown-model-type", "is unknown"),
        ({"vocab_size": None}, "config-without-key", "no vocab_size"),
        ({"hidden_size": 0}, "config-bad-number", "hidden_size is 0"),
        ({"hidden_size": 4096.5}, "config-bad-number", "hidden_size is 4096.5"),
        ({"hidden_size": True}, "config-bad-number", "hidden_size is True"),
        ({"num_hidden_layers": 10**30}, "config-bad-number", "num_hidden_layers is 1"),
        ({"num_hidden_layers": 1 << 24}, "config-bad-number", "from 1 to 4096"),
        ({"num_hidden_layers": "\x1b[31m"}, "config-bad-number", "\\x1b[31m"),
        ({"tie_word_embeddings": "false"}, "config-bad-switch", "tie_word_embeddings is false"),
        ({"num_key_value_heads": 5}, "config-bad-heads", "32 heads"),
        ({"num_key_value_heads": 64}, "config-bad-heads", "64 heads of keys"),
        ({"num_attention_heads": 8192, "num_key_value_heads": 1}, "config-bad-heads", "8192 heads"),
    ],
)
def test_a_config_that_cannot_be(changes: dict[str, Any], code: str, what: str) -> None:
    with pytest.raises(BadInput) as raised:
        shape(**changes)
    assert raised.value.code == code
    assert what in raised.value.what
    assert str(raised.value.where) == "config.json"


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("qwen-3-30b-a3b", {"decoder_sparse_step": 2}),
        ("qwen-3-30b-a3b", {"mlp_only_layers": [0, 1]}),
        ("deepseek-v3", {"moe_layer_freq": 2}),
    ],
)
def test_experts_in_some_layers_are_not_miscounted(model: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as raised:
        models.shape_of(models.load(model).config | changes, Where("config.json"))
    assert raised.value.code == "config-not-counted"
    assert f"{next(iter(changes))} is" in raised.value.what


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"a": NaN}', "[" * 100_000])
def test_what_is_no_config(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadInput) as raised:
        models.find(str(tmp_path))
    assert raised.value.code == "config-not-json"


def test_more_experts_at_work_than_there_are() -> None:
    with pytest.raises(BadInput, match="9 experts"):
        shape(model_type="mixtral", num_local_experts=8, num_experts_per_tok=9)


@given(some.sampled_from(models.names()), some.integers(1, 256))
def test_the_parts_are_the_whole(name: str, rank: int) -> None:
    found, _ = models.find(name)
    assert sum(found.parts().values()) == found.parameters
    assert all(part > 0 for part in found.parts().values())
    assert 0 < found.adapters(rank) == rank * found.adapters(1)


@given(some.sampled_from(models.names()), some.integers(1, 1 << 20), some.integers(1, 1 << 20))
def test_longer_sequences_are_more_work(name: str, one: int, other: int) -> None:
    found, _ = models.find(name)
    short, long = sorted((one, other))
    assert found.attention_flops(short) <= found.attention_flops(long)
    assert found.flops(short, trained=False) < found.flops(short)
    assert found.flops(short) > 6 * found.active_parameters


def test_maxtexts_own_names() -> None:
    """They mean the same models, and take no name from another one."""
    known = models.maxtext_names()
    assert models.find("llama3.1-70b") == models.find("llama-3.1-70b")
    assert set(known.values()) <= set(models.names())
    assert not set(known) & set(models.names())

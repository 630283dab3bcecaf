"""Models and layouts as MaxText is told of them."""

from __future__ import annotations

import ast
import json

import pytest

from rocstack.base import paths
from rocstack.base.errors import BadInput
from rocstack.size import hardware, maxtext, models
from rocstack.size.layout import GpuLayout

MI300X = hardware.find("mi300x")


def asked(name: str, layout: GpuLayout, sequence: int = 8192) -> dict[str, object]:
    found = maxtext.request(models.find(name)[0], layout, MI300X, sequence, "gfx942", 304)
    json.dumps(found)
    return found


def config(name: str, layout: GpuLayout) -> dict[str, object]:
    found = asked(name, layout)["config"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", sorted(set(models.names()) - {"mpt-7b"}))
def test_every_model_is_known_by_its_block(name: str) -> None:
    found = config(name, GpuLayout(dp=8, shard=8))
    shape = models.find(name)[0]
    assert found["base_emb_dim"] == shape.hidden
    assert found["vocab_size"] == shape.vocabulary
    halves = 2 if shape.type == "gemma2" else 1
    assert found["base_num_decoder_layers"] == shape.layers // halves


def test_a_layout_on_the_mesh() -> None:
    sharded = config("llama-3.1-70b", GpuLayout(tp=8, dp=64, shard=16, recompute=True))
    assert [sharded[f"ici_{axis}_parallelism"] for axis in ("tensor", "fsdp", "data", "pipeline")] == [8, 16, 4, 1]
    assert sharded["remat_policy"] == "full"
    assert not sharded["shard_optimizer_over_data"]
    assert int(sharded["per_device_batch_size"] * 512) == 64  # type: ignore[operator]
    whole = config("llama-3.1-8b", GpuLayout(dp=8, micro=2, accumulate=4))
    assert whole["shard_optimizer_over_data"]
    assert whole["gradient_accumulation_steps"] == 4
    experts = config("mixtral-8x7b", GpuLayout(dp=64, shard=64, ep=8))
    assert (experts["ici_expert_parallelism"], experts["ici_fsdp_parallelism"]) == (8, 8)


def test_a_pipeline_has_its_micro_batches() -> None:
    found = config("lumi-140b", GpuLayout(tp=8, pp=8, dp=6, accumulate=128, interleave=5))
    assert (found["num_layers_per_pipeline_stage"], found["num_pipeline_microbatches"]) == (2, 128)
    assert int(found["per_device_batch_size"] * 384) == 768  # type: ignore[operator]
    assert "gradient_accumulation_steps" not in found


def test_which_attention() -> None:
    def kernel(name: str, sequence: int = 8192, cp: int = 1) -> str:
        return maxtext.attention(models.find(name)[0], GpuLayout(cp=cp), sequence)

    assert {kernel(name) for name in ("llama-3.1-70b", "qwen-3-8b", "mixtral-8x7b", "gpt-3-175b")} == {"flash"}
    assert {kernel(name) for name in ("deepseek-v3", "gemma-2-9b")} == {"dot_product"}
    assert kernel("llama-3.1-8b", 1000) == "dot_product"
    assert kernel("llama-3.1-8b", cp=2) == "dot_product"


@pytest.mark.parametrize(
    ("name", "layout", "code"),
    [
        ("mpt-7b", GpuLayout(dp=8), "no-such-maxtext-model"),
        ("llama-3.1-70b", GpuLayout(pp=3, dp=8, accumulate=3), "uneven-stages"),
        ("llama-3.1-70b", GpuLayout(pp=8, accumulate=9), "uneven-rounds"),
        ("deepseek-v3", GpuLayout(pp=61, dp=8, accumulate=61), "mixed-stages"),
        ("llama-3.1-8b", GpuLayout(dp=12, shard=12), "uneven-nodes"),
        ("llama-3.1-8b", GpuLayout(dp=1 << 18), "too-many-to-compile"),
    ],
)
def test_what_maxtext_has_not(name: str, layout: GpuLayout, code: str) -> None:
    with pytest.raises(BadInput) as caught:
        asked(name, layout)
    assert caught.value.code == code


def test_the_targets_are_those_of_the_program() -> None:
    text = (paths.images() / "maxtext/compile.py").read_text()
    line = next(line for line in ast.parse(text).body if names(line) == ["TARGETS"])
    described = ast.literal_eval(line.value)  # type: ignore[attr-defined]
    assert set(maxtext.TARGETS) == set(described)
    with pytest.raises(BadInput, match="no description of"):
        maxtext.request(models.find("llama-3.1-8b")[0], GpuLayout(dp=8), MI300X, 8192, "gfx908", 120)


def names(line: ast.stmt) -> list[str]:
    return [each.id for each in line.targets if isinstance(each, ast.Name)] if isinstance(line, ast.Assign) else []

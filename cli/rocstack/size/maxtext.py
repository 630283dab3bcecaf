"""A model and a layout as MaxText 0.2.1 is told of them, or why it can't be. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocstack.base.errors import BadInput
from rocstack.size.hardware import Hardware
from rocstack.size.layout import GpuLayout
from rocstack.size.shape import Shape

Settings = dict[str, Any]
FLASH, DOT_PRODUCT = "flash", "dot_product"
# The axes of its mesh that a layout uses, as GPUs lie beside each other, the outermost first: as `GpuLayout` has them.
ORDER = ("stage", "data", "fsdp", "expert", "context", "tensor")
BLOCK = 64  # tokens of the flash kernel's blocks
MOST_GPUS = 1 << 17
TARGETS = ("gfx90a", "gfx942", "gfx950")  # those that images/maxtext/compile.py describes
_BLOCKS: dict[str, Callable[[Shape], Settings]] = {}


def request(shape: Shape, layout: GpuLayout, hardware: Hardware, sequence: int, gfx: str, units: int) -> Settings:
    """What images/maxtext/compile.py is asked.

    Raises:
        BadInput: MaxText has no such model, or no such layout; the step isn't compiled for such a GPU.
    """
    if gfx not in TARGETS:
        raise BadInput.of("no-compile-target", gpu=hardware.gpu, gfx=gfx, known=", ".join(TARGETS))
    if layout.gpus > MOST_GPUS:
        raise BadInput.of("too-many-to-compile", gpus=f"{layout.gpus:,}", most=f"{MOST_GPUS:,}")
    gpus = min(hardware.gpus, layout.gpus)
    if layout.gpus % gpus:
        raise BadInput.of("uneven-nodes", gpus=f"{layout.gpus:,}", per_node=gpus)
    return {
        "config": {
            **model(shape), **degrees(shape, layout), "max_target_length": sequence,
            # Who trains with such a vocabulary fills it up.
            "vocab_size": -(-shape.vocabulary // layout.tp) * layout.tp,
        },
        "gpu": {"gfx": gfx, "units": units, "memory": int(hardware.memory), "name": f"AMD Instinct {hardware.gpu}"},
        "nodes": layout.gpus // gpus, "per_node": gpus, "order": list(ORDER),
        "attention": attention(shape, layout, sequence),
    }  # fmt: skip


def attention(shape: Shape, layout: GpuLayout, sequence: int) -> str:
    """The kernel that the compiler is asked for. The flash kernel of JAX knows whole attention alone, heads whose width
    is a power of two, and whole sequences in whole blocks."""
    simple = layout.cp == 1 and not shape.key_rank and not shape.windowed and shape.head == shape.value
    return FLASH if simple and shape.head in (64, 128, 256) and sequence % BLOCK == 0 else DOT_PRODUCT


def model(shape: Shape) -> Settings:
    """
    Raises:
        BadInput: MaxText has no such model.
    """
    block = _BLOCKS.get(shape.type)
    if block is None:
        raise BadInput.of("no-such-maxtext-model", type=shape.type, known=", ".join(sorted(_BLOCKS)))
    return {
        "base_emb_dim": shape.hidden, "base_num_query_heads": shape.heads, "base_num_kv_heads": shape.keys,
        "base_num_decoder_layers": shape.layers, "base_mlp_dim": shape.mlp, "head_dim": shape.head,
        "vocab_size": shape.vocabulary, "logits_via_embedding": shape.tied, "enable_dropout": False,
        "mlp_activations": "['silu','linear']", **block(shape),
    }  # fmt: skip


def degrees(shape: Shape, layout: GpuLayout) -> Settings:
    """
    Raises:
        BadInput: MaxText has no such layout.
    """
    expert = layout.ep
    shard = max(1, layout.shard // expert)
    found: Settings = {
        "ici_tensor_parallelism": layout.tp, "ici_context_parallelism": layout.cp,
        "ici_pipeline_parallelism": layout.pp, "ici_fsdp_parallelism": shard,
        "ici_expert_parallelism": expert, "ici_data_parallelism": layout.dp // (shard * expert),
        "dcn_data_parallelism": 1,
        "remat_policy": "full" if layout.recompute else "minimal",
        "shard_optimizer_over_data": layout.shard == 1 and layout.dp > expert,
    }  # fmt: skip
    rounds = 1
    if layout.pp > 1:
        chunks = layout.pp * layout.interleave
        if shape.layers % chunks:
            raise BadInput.of("uneven-stages", layers=shape.layers, stages=layout.pp, chunks=layout.interleave)
        if shape.experts and shape.dense_layers:
            raise BadInput.of("mixed-stages", dense=shape.dense_layers)
        if layout.accumulate % layout.pp:
            nearest = max(1, round(layout.accumulate / layout.pp)) * layout.pp
            raise BadInput.of("uneven-rounds", micro=layout.accumulate, stages=layout.pp, nearest=nearest)
        each = shape.layers // chunks
        found["num_layers_per_pipeline_stage"] = each
        found["scan_layers_per_stage"] = each > 1
        found["num_pipeline_microbatches"] = rounds = layout.accumulate
    elif layout.accumulate > 1:
        found["gradient_accumulation_steps"] = layout.accumulate
    share = (
        layout.micro * rounds / (layout.tp * layout.cp * layout.pp)
    )  # of each GPU; a whole number where it can be one
    found["per_device_batch_size"] = int(share) if share == int(share) else share
    return found


def _block(*types: str) -> Callable[[Callable[[Shape], Settings]], Callable[[Shape], Settings]]:
    def register(block: Callable[[Shape], Settings]) -> Callable[[Shape], Settings]:
        _BLOCKS.update(dict.fromkeys(types, block))
        return block

    return register


def _refuse_bias(shape: Shape) -> None:
    if shape.key_bias or shape.out_bias or shape.mlp_bias:
        raise BadInput.of("no-such-maxtext-bias", type=shape.type)


@_block("llama", "mistral")
def _llama(shape: Shape) -> Settings:
    _refuse_bias(shape)
    return {"decoder_block": "llama2" if shape.type == "llama" else "mistral"}


@_block("qwen2")
def _qwen2(_: Shape) -> Settings:
    return {"decoder_block": "qwen2", "attention_bias": True, "normalize_embedding_logits": False}


@_block("qwen3")
def _qwen3(_: Shape) -> Settings:
    return {"decoder_block": "qwen3", "use_qk_norm": True, "normalize_embedding_logits": False}


@_block("qwen3_moe")
def _qwen3_moe(shape: Shape) -> Settings:
    return {
        "decoder_block": "qwen3_moe", "use_qk_norm": True, "norm_topk_prob": True, "base_mlp_dim": shape.expert_mlp,
        **_experts(shape),
    }  # fmt: skip


@_block("mixtral")
def _mixtral(shape: Shape) -> Settings:
    return {"decoder_block": "mixtral", **_experts(shape)}


def _experts(shape: Shape) -> Settings:
    """As JAX's ragged products: MaxText's own grouped ones are a kernel for TPUs."""
    return {
        "num_experts": shape.experts, "num_experts_per_tok": shape.active, "base_moe_mlp_dim": shape.expert_mlp,
        "megablox": False, "sparse_matmul": True,
    }  # fmt: skip


@_block("deepseek_v3")
def _deepseek(shape: Shape) -> Settings:
    return {
        "decoder_block": "deepseek", "attention_type": "mla", "q_lora_rank": shape.query_rank,
        "kv_lora_rank": shape.key_rank, "qk_nope_head_dim": shape.head - shape.rope, "qk_rope_head_dim": shape.rope,
        "v_head_dim": shape.value, "first_num_dense_layers": shape.dense_layers, "routed_bias": shape.router_bias,
        "routed_score_func": "sigmoid", "shared_experts": shape.shared_mlp // shape.expert_mlp,
        "rope_type": "yarn", "head_dim": shape.value, **_experts(shape),
    }  # fmt: skip


@_block("gemma")
def _gemma(_: Shape) -> Settings:
    return {"decoder_block": "gemma", "mlp_activations": "['gelu','linear']"}


@_block("gemma2")
def _gemma2(shape: Shape) -> Settings:
    """MaxText counts pairs of layers, one that looks at everything and one that doesn't."""
    return {
        **_gemma(shape), **_after(shape), "decoder_block": "gemma2", "base_num_decoder_layers": shape.layers // 2,
        "attn_logits_soft_cap": 50.0, "final_logits_soft_cap": 30.0,
    }  # fmt: skip


@_block("gemma3_text")
def _gemma3(shape: Shape) -> Settings:
    return {**_gemma(shape), **_after(shape), "decoder_block": "gemma3"}


def _after(shape: Shape) -> Settings:
    return {"use_post_attn_norm": True, "use_post_ffw_norm": True, "sliding_window_size": shape.window}


@_block("gpt2")
def _gpt(shape: Shape) -> Settings:
    return {
        "decoder_block": "gpt3", "mlp_activations": "['gelu']", "trainable_position_size": shape.positions or -1,
        "fused_qkv": True, "use_iota_embed": True, "normalize_embedding_logits": False,
    }  # fmt: skip

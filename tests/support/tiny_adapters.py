"""A base model's folder and adapters for it in peft's format, made without peft: seeded, a few kilobytes each."""

from __future__ import annotations

import json
import random
import struct
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Shape = tuple[int, ...]
HIDDEN, INNER, KV, LAYERS = 64, 128, 32, 2
LINEAR = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KV, HIDDEN),
    "self_attn.v_proj": (KV, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
TARGETS = ("self_attn.q_proj", "self_attn.v_proj")


def safetensors(tensors: Mapping[str, tuple[Shape, bytes]], metadata: Mapping[str, str] | None = None) -> bytes:
    """A whole file, of float32."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, (shape, raw) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(raw for _, raw in tensors.values())


def base(folder: Path) -> Path:
    """A Llama's folder with weights of zeros: its shapes are what counts."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": HIDDEN}))
    weights: dict[str, Shape] = {"model.embed_tokens.weight": (128, HIDDEN), "lm_head.weight": (128, HIDDEN)}
    for layer in range(LAYERS):
        weights |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in LINEAR.items()}
    tensors = {name: (shape, bytes(4 * shape[0] * shape[1])) for name, shape in weights.items()}
    (folder / "model.safetensors").write_bytes(safetensors(tensors, {"format": "pt"}))
    return folder


def pairs(
    seed: int, rank: int = 4, targets: Sequence[str] = TARGETS, layers: int = LAYERS, scale: float = 0.5
) -> dict[str, tuple[Shape, bytes]]:
    """A and B of each layer: all random, so that the adapter changes what the model says."""
    numbers = random.Random(seed)
    found: dict[str, tuple[Shape, bytes]] = {}
    for layer in range(layers):
        for name in targets:
            outputs, inputs = LINEAR[name]
            for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                values = array("f", (numbers.gauss(0, scale) for _ in range(shape[0] * shape[1])))
                found[f"base_model.model.model.layers.{layer}.{name}.lora_{side}.weight"] = (shape, values.tobytes())
    return found


def settings(base_name: str, rank: int = 4, targets: Sequence[str] = TARGETS, **other: Any) -> dict[str, Any]:
    """adapter_config.json, as peft writes it."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": [name.rpartition(".")[2] for name in targets],
        "init_lora_weights": True,
        "rank_pattern": {},
        "alpha_pattern": {},
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        "inference_mode": True,
        **other,
    }


def adapter(folder: Path, base_name: str, seed: int = 0, rank: int = 4, **other: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings(base_name, rank, **other)))
    (folder / "adapter_model.safetensors").write_bytes(safetensors(pairs(seed, rank)))
    return folder


def llama(folder: Path, seed: int = 1) -> Path:
    """A whole Llama with weights from a seed, and a tokenizer whose tokens are the letters of ASCII: what real engines
    load. Its answers are nonsense, but always the same."""
    numbers = random.Random(seed)
    folder.mkdir(parents=True)
    weights: dict[str, Shape] = {"model.embed_tokens.weight": (128, HIDDEN), "lm_head.weight": (128, HIDDEN)}
    ones: dict[str, Shape] = {"model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        weights |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in LINEAR.items()}
        ones |= {f"model.layers.{layer}.{name}_layernorm.weight": (HIDDEN,) for name in ("input", "post_attention")}
    tensors = {name: (shape, array("f", [1.0] * HIDDEN).tobytes()) for name, shape in ones.items()}
    for name, shape in weights.items():
        values = array("f", (numbers.gauss(0, 0.06) for _ in range(shape[0] * shape[1])))
        tensors[name] = (shape, values.tobytes())
    (folder / "model.safetensors").write_bytes(safetensors(tensors, {"format": "pt"}))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "vocab_size": 128,
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 512, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = {chr(code) if code >= 32 else f"<{code}>": code for code in range(127)} | {"<unk>": 127}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    named = ("<0>", "<1>", "<2>", "<unk>")
    special = [{"id": vocabulary[name], "content": name, "special": True, **plain} for name in named]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False},
        "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    template = "{% for each in messages %}{{ each['role'] }}: {{ each['content'] }}\n{% endfor %}assistant: "
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<2>", "eos_token": "<1>", "pad_token": "<0>",
        "unk_token": "<unk>", "chat_template": template, "model_max_length": 512,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder

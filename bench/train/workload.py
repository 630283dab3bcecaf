"""The models, the text and the trainer's settings that every part measures with. Imports nothing heavy."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from rocstack_trainer import settings
from rocstack_trainer.config import Config

SHAPES = {  # vocabulary, hidden, MLP, layers, heads, sequence, samples per step and rank
    "s": (4096, 256, 688, 4, 4, 128, 4),  # 5.3 M parameters
    "dense": (256, 256, 688, 6, 4, 128, 2),  # 4.9 M, nearly all of them in layers: no empty embedding rows
    "mini": (256, 64, 172, 2, 4, 64, 2),  # 0.13 M
    "mini16": (256, 64, 172, 2, 4, 64, 16),  # the same with more samples a step
    "gpu": (32000, 1024, 2816, 16, 16, 1024, 16),  # 271 M
}
MODEL_KEYS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def overrides(shape: str, world: int, text: Path) -> list[str]:
    """The trainer's settings for a shape, as its command line takes them: a constant learning rate, no compression."""
    *sizes, heads, length, batch = SHAPES[shape]
    pairs = dict(zip([f"model.{key}" for key in MODEL_KEYS], [*sizes, heads], strict=True))
    pairs |= {"model.num_key_value_heads": heads, "model.max_position_embeddings": length, "data.seq_len": length}
    pairs |= {"data.path": text, "train.batch": batch * world, "train.lr": 1e-3, "train.warmup": 0, "train.min_lr": 1}
    return [f"--{key}={value}" for key, value in pairs.items()]


def config(shape: str, world: int, text: Path, *more: str) -> Config:
    return settings.load("tiny", [*overrides(shape, world, text), *more])


def tokens(shape: str, world: int) -> int:
    """Of one step, over all ranks."""
    *_, length, batch = SHAPES[shape]
    return length * batch * world


def write_text(path: Path, held_out: Path | None = None, limit: int = 4 << 20) -> None:
    """Real text, the same wherever Python is: its standard library's sources, one byte per uint16 token. The last
    sixteenth is not in `path`."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)[:limit]
    tokens = bytearray(2 * len(text))
    tokens[::2] = text
    split = len(tokens) // 32 * 30
    path.write_bytes(tokens[:split])
    if held_out:
        held_out.write_bytes(tokens[split:])

"""The settings of a run: one frozen dataclass per section of the TOML file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rocstack_trainer.errors import ConfigError


def _at_least(minimum: float, default: float) -> Any:
    return field(default=default, metadata={"min": minimum})


@dataclass(frozen=True)
class Model:
    """`path` is a local Hugging Face folder; without it the model is made new from the sizes below."""

    path: str = ""
    type: str = "llama"
    vocab_size: int = _at_least(2, 256)
    hidden_size: int = _at_least(1, 192)
    intermediate_size: int = _at_least(1, 512)
    num_hidden_layers: int = _at_least(1, 4)
    num_attention_heads: int = _at_least(1, 4)
    num_key_value_heads: int = _at_least(1, 2)
    max_position_embeddings: int = _at_least(1, 512)
    attention_dropout: float = _at_least(0, 0.0)
    tie_word_embeddings: bool = False


@dataclass(frozen=True)
class Data:
    """`tokens` is a raw file of little-endian token numbers; without it, synthetic bytes are made."""

    tokens: str = ""
    dtype: Literal["uint16", "uint32"] = "uint16"
    seq_len: int = _at_least(1, 128)


@dataclass(frozen=True)
class Train:
    """`batch` is in samples per step over all ranks, so a run means the same on any number of ranks."""

    steps: int = _at_least(0, 30)
    batch: int = _at_least(1, 8)
    micro_batch: int = _at_least(0, 0)  # samples per forward pass and rank; 0: as many as the batch gives
    lr: float = _at_least(0, 3e-3)
    warmup: int = _at_least(0, 5)
    min_lr: float = _at_least(0, 0.1)  # as a fraction of lr, reached at the last step (cosine)
    weight_decay: float = _at_least(0, 0.1)
    clip: float = _at_least(0, 1.0)  # largest gradient norm; 0: no clipping
    seed: int = _at_least(0, 1)
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 autocast on a GPU, fp32 on a CPU
    deterministic: bool = True


@dataclass(frozen=True)
class Parallel:
    """`naive` is one blocking all-reduce per parameter: the oracle that `bucketed` is tested against."""

    backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    gradients: Literal["bucketed", "naive"] = "bucketed"
    bucket_mb: float = _at_least(0.001, 25.0)
    timeout_s: float = _at_least(1, 600.0)


@dataclass(frozen=True)
class Checkpoint:
    """Without `dir` nothing is saved. `every` is in steps; the last step is always saved."""

    dir: str = ""
    every: int = _at_least(0, 0)
    keep: int = _at_least(1, 2)
    resume: bool = True


@dataclass(frozen=True)
class Output:
    """`metrics` is a file that gets one JSON line per step; `every` is how often a step is printed."""

    metrics: str = ""
    every: int = _at_least(1, 1)


@dataclass(frozen=True)
class Config:
    model: Model = Model()
    data: Data = Data()
    train: Train = Train()
    parallel: Parallel = Parallel()
    checkpoint: Checkpoint = Checkpoint()
    output: Output = Output()

    def to_toml(self) -> str:
        """One line per section; saved to a file, `--config` reads it back to an equal Config."""
        lines = []
        for name, section in asdict(self).items():
            pairs = (f"{key} = {json.dumps(value)}" for key, value in section.items())
            lines.append(f"{name} = {{ {', '.join(pairs)} }}")
        return "\n".join(lines)

    def check(self) -> None:
        """Rules between settings. Raises ConfigError."""
        model, train = self.model, self.train
        rules = {
            "model.hidden_size must be a multiple of model.num_attention_heads": (
                model.hidden_size % model.num_attention_heads == 0
            ),
            "model.num_attention_heads must be a multiple of model.num_key_value_heads": (
                model.num_attention_heads % model.num_key_value_heads == 0
            ),
            "data.seq_len must be at most model.max_position_embeddings": (
                bool(model.path) or self.data.seq_len <= model.max_position_embeddings
            ),
            "model.attention_dropout must be below 1": model.attention_dropout < 1,
            "train.min_lr is a fraction of train.lr: at most 1": train.min_lr <= 1,
            "checkpoint.every needs checkpoint.dir": not self.checkpoint.every or bool(self.checkpoint.dir),
        }
        for rule, holds in rules.items():
            if not holds:
                raise ConfigError(rule)


def micro_batches(train: Train, world: int) -> tuple[int, int]:
    """(samples per forward pass, forward passes per step) of each rank."""
    if train.batch % world:
        fits = train.batch // world * world or world
        raise ConfigError(f"train.batch={train.batch} can't be shared by {world} ranks evenly: try {fits}")
    share = train.batch // world
    micro = train.micro_batch or share
    if share % micro:
        raise ConfigError(f"train.micro_batch={micro} doesn't divide the {share} samples of each rank")
    return micro, share // micro

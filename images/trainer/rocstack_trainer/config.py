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
    """`path` is a local Hugging Face folder; without it the model is made new, of the sizes in `config` or below."""

    path: str = ""
    config: str = ""  # a config.json of Hugging Face, or its folder; the settings below don't count then
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
    """`path` is a .bin file of little-endian token numbers, a .parquet, .jsonl or .arrow file, or a folder or pattern
    of one kind; without it, synthetic bytes are made. `layout` says what becomes of documents: `stream` puts them one
    after the other and cuts that into samples, `padded` makes a sample of each, `packed` puts several into a sample,
    none of which sees another, and in `pairs` an answer that was chosen and one that was rejected teach by DPO."""

    path: str = ""
    eval: str = ""  # what the model is measured with, and not trained on
    dtype: Literal["uint16", "uint32"] = "uint16"  # of .bin files
    column: str = ""  # "": the first there is of messages, input_ids and text
    tokenizer: str = ""  # Hugging Face folder for text; "": the one of model.path, else bytes
    chat_template: str = ""  # Jinja file for conversations; "": the tokenizer's own
    layout: Literal["auto", "stream", "padded", "packed", "pairs"] = "auto"  # auto: padded for chats, else stream
    cache: str = ""  # where tokens are kept; "": beside the data
    seq_len: int = _at_least(1, 128)


@dataclass(frozen=True)
class Train:
    """`batch` is in samples per step over all ranks, so a run means the same on any number of ranks."""

    steps: int = _at_least(0, 30)
    batch: int = _at_least(1, 8)
    micro_batch: int = _at_least(0, 0)  # samples per forward pass and rank, at most; 0: as many as the batch gives
    lr: float = _at_least(0, 3e-3)
    warmup: int = _at_least(0, 5)
    eval_every: int = _at_least(0, 0)  # steps between measurements with data.eval; 0: only at the end
    min_lr: float = _at_least(0, 0.1)  # as a fraction of lr, reached at the last step (cosine)
    weight_decay: float = _at_least(0, 0.1)
    clip: float = _at_least(0, 1.0)  # largest gradient norm; 0: no clipping
    dpo_beta: float = _at_least(0, 0.1)  # of pairs: the more, the nearer the model stays to what it was
    seed: int = _at_least(0, 1)
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"  # auto: bf16 autocast on a GPU, fp32 on a CPU
    deterministic: bool = True
    recompute: Literal["auto", "none", "layers"] = "auto"  # layers: backward computes each again; auto: if memory asks
    compile: bool = False  # each layer by torch.compile, which takes a minute or two at the start


@dataclass(frozen=True)
class Lora:
    """Small matrices beside the layers are trained, and nothing else. `adapter` is a folder of peft to start from,
    which says all the rest."""

    rank: int = _at_least(0, 0)  # 0: off, the whole model is trained
    alpha: float = _at_least(0, 16.0)  # what they add is multiplied by alpha / rank
    dropout: float = _at_least(0, 0.0)
    modules: str = "all-linear"  # or their names with commas between; "": peft's choice for this type
    adapter: str = ""

    @property
    def on(self) -> bool:
        return bool(self.rank or self.adapter)


@dataclass(frozen=True)
class Parallel:
    """How gradients are summed. `flat` is over all ranks at once; `hierarchical` first inside each node, exactly, then
    between the nodes. `compress` goes by the link, unless it says more."""

    backend: Literal["auto", "nccl", "gloo", "mpi"] = "auto"
    algorithm: Literal["auto", "flat", "hierarchical"] = "auto"
    compress: Literal["auto", "none", "bf16", "int8", "int8+zstd", "int5+zstd", "int4+zstd", "int3+zstd"] = "auto"
    bucket_mb: float = _at_least(0, 0.0)  # 0: 25, or 4 with int8, which then works while backward does
    shard: int = _at_least(0, 0)  # ranks that share one copy of the model (FSDP2); 0: as few as memory allows
    memory_gb: float = _at_least(0, 0.0)  # what a rank may use; 0: nine tenths of its GPU, or its share of the host's
    store: str = ""  # HOST:PORT of `rocstack-train --store`, which outlives any rank; "": rank 0 has it
    timeout_s: float = _at_least(1, 600.0)
    start_s: float = _at_least(1, 600.0)  # how long ranks wait for each other at the start
    compare_every: int = _at_least(0, 1000)  # steps after which the ranks' weights are compared; also at checkpoints
    lost_after_s: float = _at_least(1, 15.0)  # a rank that gives no sign of life for so long is lost


@dataclass(frozen=True)
class DiLoCo:
    """Groups train apart for `inner_steps` steps, then average how far they went (arXiv 2311.08105).

    `group` says which group this launch is; -1: this launch has all of them, side by side.
    """

    groups: int = _at_least(1, 1)  # 1: no DiLoCo, unless `always`
    group: int = _at_least(-1, -1)
    inner_steps: int = _at_least(1, 500)
    outer_lr: float = _at_least(0, 0.7)
    outer_momentum: float = _at_least(0, 0.9)
    compress: Literal["none", "bf16", "int8", "int8+zstd", "int5+zstd", "int4+zstd", "int3+zstd"] = "int8+zstd"
    always: bool = False  # the outer step also with one group (a lookahead optimizer)
    beat_s: float = _at_least(0.1, 2.0)
    lost_after_s: float = _at_least(0.5, 10.0)
    port: int = _at_least(0, 0)  # where the leader of this group listens for the others; 0: a free one
    address: str = ""  # where the others reach it, behind a NAT for example; "": the one that leads to the store


@dataclass(frozen=True)
class Checkpoint:
    """Without `dir` nothing is saved. `every` is in steps; the last step is always saved."""

    dir: str = ""
    every: int = _at_least(0, 0)
    keep: int = _at_least(1, 2)
    resume: bool = True
    background: bool = False  # write while training goes on
    export: str = ""  # folder for a Hugging Face model at the end, or for an adapter if LoRA was trained
    export_dtype: Literal["fp32", "bf16"] = "fp32"
    export_merged: bool = False  # LoRA: the whole model, with the adapter in its weights
    requeue: bool = False  # on SIGUSR1 in a Slurm job: save, then `scontrol requeue`


@dataclass(frozen=True)
class Output:
    """`metrics` is a file that gets one JSON line per step; `every` is how often a step is printed. On a GPU the host
    looks at losses, stop signals and what isn't finite no more often, so that it never waits for the GPU in between."""

    metrics: str = ""
    every: int = _at_least(0, 0)  # 0: each on CPUs, every tenth on GPUs
    profile: str = ""  # folder for a trace of steps 4 to 6 of rank 0, by torch.profiler
    curves: str = ""  # SVG file, drawn at the end
    trackers: str = ""  # tensorboard, wandb, mlflow, with commas between: those that are installed
    tracking: str = "runs"  # the folder that they write into


@dataclass(frozen=True)
class Config:
    model: Model = Model()
    data: Data = Data()
    train: Train = Train()
    lora: Lora = Lora()
    parallel: Parallel = Parallel()
    diloco: DiLoCo = DiLoCo()
    checkpoint: Checkpoint = Checkpoint()
    output: Output = Output()

    def to_toml(self) -> str:
        """One line per section; saved to a file, `--config` reads it back to an equal Config."""
        lines = []
        for name, section in asdict(self).items():
            pairs = (f"{key} = {json.dumps(value)}" for key, value in section.items())
            lines.append(f"{name} = {{ {', '.join(pairs)} }}")
        return "\n".join(lines)

    @property
    def outer(self) -> bool:
        """Is there an outer (DiLoCo) optimizer?"""
        return self.diloco.groups > 1 or self.diloco.always

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
                bool(model.path or model.config) or self.data.seq_len <= model.max_position_embeddings
            ),
            "model.path has weights, model.config makes new ones: set one of them": not (model.path and model.config),
            "model.attention_dropout must be below 1": model.attention_dropout < 1,
            "train.precision=fp8 is for whole models: leave lora.rank and lora.adapter out": (
                train.precision != "fp8" or not self.lora.on
            ),
            "data.layout=pairs compares with the model without adapters: set lora.rank": (
                self.data.layout != "pairs" or self.lora.on
            ),
            "data.column doesn't go with data.layout=pairs, which are in chosen and rejected": (
                self.data.layout != "pairs" or not self.data.column
            ),
            "lora.dropout must be below 1": self.lora.dropout < 1,
            "train.min_lr is a fraction of train.lr: at most 1": train.min_lr <= 1,
            "parallel.shard must be 1 with DiLoCo: its outer step needs whole weights": (
                not self.outer or self.parallel.shard < 2
            ),
            "diloco.group must be below diloco.groups": self.diloco.group < self.diloco.groups,
            "diloco.port and diloco.address are one group's: each launch has its own diloco.group": (
                self.diloco.group >= 0 or not (self.diloco.port or self.diloco.address)
            ),
            "diloco.port must be below 65536": self.diloco.port < 65536,
            "checkpoint.every must be a multiple of diloco.inner_steps: only there all groups are alike": (
                not self.outer or self.checkpoint.every % self.diloco.inner_steps == 0
            ),
            "train.eval_every needs data.eval": not self.train.eval_every or bool(self.data.eval),
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
    micro = min(train.micro_batch or share, share)
    if share % micro:
        raise ConfigError(f"train.micro_batch={micro} doesn't divide the {share} samples of each rank")
    return micro, share // micro

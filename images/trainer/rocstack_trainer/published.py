"""Reads the configuration files of prime (ZeroBand), such as AMD published for DiLoCo on MI300, as our settings.

Source of the keys, their defaults and the models' sizes: src/zeroband/config.py, models/llama/__init__.py and
train.py in CloudEngineHub/prime at de5b931. What has no counterpart here is told, with the reason.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from rocstack_trainer.errors import ConfigError

Tree = dict[str, dict[str, Any]]

# Its name and version of Llama: hidden size, layers, heads, key and value heads, factor on the MLP's width, of which
# that is a multiple.
SIZES = {
    ("debugmodel", "llama2"): (256, 2, 8, 8, 1.0, 256),
    ("70M", "llama2"): (512, 6, 8, 8, 1.0, 256),
    ("150M", "llama2"): (1024, 12, 16, 16, 1.0, 256),
    ("271M", "llama2"): (1024, 16, 8, 8, 1.0, 256),
    ("1B", "llama2"): (2048, 18, 16, 16, 1.0, 256),
    ("7B", "llama2"): (4096, 32, 32, 32, 1.0, 256),
    ("10B", "llama2"): (5120, 32, 40, 40, 1.0, 256),
    ("13B", "llama2"): (5120, 40, 40, 40, 1.0, 256),
    ("26B", "llama2"): (5120, 80, 40, 40, 1.0, 256),
    ("70B", "llama2"): (8192, 80, 64, 8, 1.3, 4096),
    ("debugmodel", "llama3"): (256, 8, 16, 16, 1.0, 256),
    ("1B", "llama3"): (2048, 18, 16, 8, 1.3, 512),
    ("10B", "llama3"): (4096, 42, 32, 8, 1.3, 1024),
    ("70B", "llama3"): (8192, 80, 64, 8, 1.3, 4096),
}
TOKENIZERS = {"llama2": ("mistralai/Mistral-7B-v0.1", 32000), "llama3": ("meta-llama/Meta-Llama-3-8B", 128256)}

# Keys that mean the same here, and their default there.
SAME: dict[str, tuple[str, Any]] = {
    "data.seq_length": ("data.seq_len", 1024),
    "train.micro_bs": ("train.micro_batch", 1),
    "optim.batch_size": ("train.batch", 512),  # of one group, in both
    "optim.warmup_steps": ("train.warmup", 1000),
    "optim.total_steps": ("train.steps", 88_000),
    "optim.optim.lr": ("train.lr", 4e-4),
    "optim.optim.weight_decay": ("train.weight_decay", 0.1),
    "diloco.inner_steps": ("diloco.inner_steps", None),
    "diloco.outer_lr": ("diloco.outer_lr", 0.7),
    "ckpt.path": ("checkpoint.dir", None),
    "ckpt.interval": ("checkpoint.every", None),
    "ckpt.topk": ("checkpoint.keep", None),
}
HANDLED = {"name_model", "type_model", "diloco.compression"}
HANDLED |= {f"data.{key}" for key in ("data_path", "dataset_name_or_paths", "fake", "data_rank", "data_world_size")}
TRACKING = ("project", "run_id", "run_name", "metric_logger_type", "wandb_resume")
WHY_NOT = {
    **dict.fromkeys(TRACKING, "no experiment tracker here: output.metrics has the numbers, output.curves draws them"),
    "train.reshard_after_forward": "layers are always given back after forward",
    "train.fsdp_cpu_offload": "nothing is kept on the CPU: parallel.shard takes more ranks instead",
    "train.torch_profiler": "name a folder as output.profile",
    "train.torch_compile": "set train.compile",
    "train.attn_fn": "attention is transformers' own",
    "train.log_model_hash": "checkpoints always compare the ranks' weights",
    "diloco.retry_all_reduce": "an outer step goes on with the groups that are there",
    "ckpt.resume": "a run always goes on from the newest whole checkpoint in checkpoint.dir",
    "data.split_by_data_rank": "groups always take different samples of one stream",
}
PRIME = {*SAME, *HANDLED, *WHY_NOT}


def translate(
    text: str, path: str, overrides: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> tuple[Tree, list[str], list[str]] | None:
    """Our settings as sections of keys, the overrides (`--a.b=c`) that are not prime's, and what a person should know.

    `env` has prime's GLOBAL_RANK, GLOBAL_WORLD_SIZE, GLOBAL_ADDR and GLOBAL_PORT: which DiLoCo group this launch is,
    of how many, and where they meet.

    Returns:
        None if the text is no configuration of prime.

    Raises:
        ConfigError: not valid TOML, or a model, schedule or value that can't be had here.
    """
    if not re.search(r"(?m)^\s*(name_model\s*=|\[(optim|ckpt)[\].])", text):
        return None
    tree, notes = _parse(text, path)
    given, ours = _flat(tree), []
    for override in overrides:
        key, _, raw = override.removeprefix("--").partition("=")
        if key in PRIME or key.startswith(("optim.", "ckpt.")):
            given[key] = _value(raw)
        else:
            ours.append(override)
    values = {name: given.get(key, default) for key, (name, default) in SAME.items()}
    values = {name: value for name, value in values.items() if value is not None}
    values |= {"train.min_lr": 0.0, **_model(given, path, notes), **_data(given, notes)}
    values |= _groups(given, env or {}, path, notes)
    if given.get("optim.sched_type", "cosine") != "cosine" or given.get("optim.optim.type", "adam") != "adam":
        raise ConfigError(f"{path}: only AdamW with a cosine schedule can be had here")
    for key in given.keys() - SAME.keys() - HANDLED - {"optim.sched_type", "optim.optim.type"}:
        notes.append(f"{key} is not used: {WHY_NOT.get(key, 'there is nothing like it here')}")
    out: Tree = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        out.setdefault(section, {})[key] = value
    return out, ours, [f"{path}: {note}" for note in sorted(notes)]


def _parse(text: str, path: str) -> tuple[dict[str, Any], list[str]]:
    """TOML forbids a table that is there twice; the published file has [data] twice."""
    names = re.findall(r"(?m)^\s*\[([\w.]+)\]", text)
    twice = sorted({name for name in names if names.count(name) > 1})
    try:
        if not twice:
            return tomllib.loads(text), []
        merged: dict[str, Any] = {}
        for part in re.split(r"(?m)^(?=\s*\[)", text):
            _merge(merged, tomllib.loads(part))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    return merged, [f"[{name}] is there more than once: read as one" for name in twice]


def _merge(into: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


def _value(raw: str) -> Any:
    try:
        return tomllib.loads(f"x = {raw}")["x"]
    except tomllib.TOMLDecodeError:
        return raw


def _model(given: Mapping[str, Any], path: str, notes: list[str]) -> dict[str, Any]:
    name, version = given.get("name_model", "150M"), given.get("type_model", "llama3")
    if (name, version) not in SIZES:
        known = ", ".join(f"{n} of {v}" for n, v in SIZES)
        raise ConfigError(f"{path}: no sizes are published for {name} of {version}\n  there are {known}")
    hidden, layers, heads, kv_heads, factor, multiple = SIZES[name, version]
    width = int(int(2 * 4 * hidden / 3) * factor)  # FeedForward in models/llama/model.py
    if version == "llama3":
        notes.append("type_model=llama3: its rope_theta=500000 can't be set here: 10000 as in llama2")
    return {
        "model.vocab_size": TOKENIZERS[version][1],
        "model.hidden_size": hidden,
        "model.intermediate_size": -(-width // multiple) * multiple,
        "model.num_hidden_layers": layers,
        "model.num_attention_heads": heads,
        "model.num_key_value_heads": kv_heads,
        "model.max_position_embeddings": given.get("data.seq_length", 1024),
    }


def _data(given: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    folder = given.get("data.data_path", given.get("data.dataset_name_or_paths", "datasets/fineweb-edu"))
    if given.get("data.fake", False):
        notes.append("data.fake: made-up words as bytes, where prime draws each token at random (which nobody learns)")
        return {}
    tokenizer = TOKENIZERS[given.get("type_model", "llama3")][0]
    notes.append(f"nothing is downloaded here: --data.tokenizer=FOLDER should be a copy of {tokenizer}, else bytes")
    return {"data.path": folder}


def _groups(given: Mapping[str, Any], env: Mapping[str, str], path: str, notes: list[str]) -> dict[str, Any]:
    if not any(key.startswith("diloco.") for key in given):
        return {}
    compression = given.get("diloco.compression", "no")
    if compression not in ("no", "uint8"):
        raise ConfigError(f"{path}: diloco.compression must be no or uint8, not {compression!r}")
    if compression == "uint8":
        notes.append("diloco.compression=uint8: int8 in blocks of their own scale, where prime has 256 bins for all")
    values = {"diloco.compress": {"no": "none", "uint8": "int8"}[compression], "diloco.outer_momentum": 0.9}
    groups = env.get("GLOBAL_WORLD_SIZE", str(given.get("data.data_world_size", 1)))
    group = env.get("GLOBAL_RANK", str(given.get("data.data_rank", 0)))
    if not groups.isdecimal() or not group.isdecimal():
        raise ConfigError(f"GLOBAL_RANK={group} and GLOBAL_WORLD_SIZE={groups} must be whole numbers")
    if int(groups) < 2:
        return values | {"diloco.always": True}  # a lookahead optimizer; --diloco.groups=2 splits this launch
    values |= {"diloco.groups": int(groups), "diloco.group": int(group)}
    if "GLOBAL_ADDR" in env and "GLOBAL_PORT" in env:
        host, port = env["GLOBAL_ADDR"], env["GLOBAL_PORT"]
        notes.append(f"the groups meet at {host}:{port}, where `rocstack-train --store {port}` must run")
        values["parallel.store"] = f"{host}:{port}"
    return values

"""LoRA by peft (arXiv 2106.09685): the model is frozen, and small matrices beside its layers are trained.

Their names, files and settings are peft's own, so plain peft loads what was trained here, and the other way round.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor

from rocstack_trainer.config import Config, Lora
from rocstack_trainer.errors import CheckpointError, ConfigError, MissingError
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks.peers import Peers

CONFIG, WEIGHTS, OURS = "adapter_config.json", "adapter_model.safetensors", "rocstack-train.json"
# What of peft's settings is kept. A value in another one asks for a kind of adapter that isn't trained here.
KEPT = {"r", "lora_alpha", "lora_dropout", "target_modules", "rank_pattern", "alpha_pattern", "use_rslora"}
KEPT |= {"fan_in_fan_out"}
OTHER = {"peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path", "revision"}
OTHER |= {"inference_mode", "init_lora_weights", "megatron_core"}
# peft reads these as regular expressions, and a stranger's may take for ever. The tensors say which modules are meant.
PATTERNS = {"exclude_modules", "layers_to_transform", "layers_pattern"}
MOST_CONFIG = 1 << 20  # bytes
MOST_RANK, MOST_ALPHA, MOST_PATTERNS, MOST_TENSORS = 1024, 1_000_000, 1000, 200_000
_TENSOR = re.compile(r"base_model\.model\.(?P<module>[A-Za-z0-9_.]{1,300})\.lora_(embedding_)?[AB](\.weight)?")
_LAYER = re.compile(r"\^?[A-Za-z0-9_.]{1,300}")  # a key of rank_pattern and alpha_pattern
Notes = dict[str, Any]  # for JSON: peft's settings as `lora`, and the `base` that they are for; empty without LoRA


def apply(net: Any, config: Config, rank: Rank, bf16: bool) -> tuple[Any, Notes]:
    """The model with adapters to train, the same on all ranks; as it is if the settings have none.

    Raises:
        ConfigError: on all ranks: peft finds no such modules, or the adapter in lora.adapter is of another model.
        MissingError: peft isn't installed.
    """
    if not config.lora.on:
        return net, {}
    about = asked(config.lora, rank)
    net = Peers(rank).each(lambda: inject(net, about, bf16))
    return net, begin(net, config, rank)


def asked(settings: Lora, rank: Rank) -> Notes:
    """What peft's LoraConfig is made of, on all ranks. Only rank 0 needs to see lora.adapter. Raises ConfigError."""
    return Peers(rank).first(lambda: _settings(settings))


def inject(net: Any, about: Notes, bf16: bool = False) -> Any:
    """The model with adapters that have no values yet that count; its weights may be without memory, too. A frozen one
    needs no float32: with `bf16` it is kept in what it is multiplied in. Raises ConfigError or MissingError."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise MissingError(f"lora.rank needs peft, which can't be imported: {error}") from None
    _check(about, net)
    for parameter in net.parameters() if bf16 else ():
        parameter.data = parameter.data.bfloat16()
    with warnings.catch_warnings(action="ignore"):  # of what later releases of transformers name otherwise
        try:
            kept = {key: value for key, value in about.items() if key in KEPT}
            return get_peft_model(net, LoraConfig(task_type="CAUSAL_LM", **kept))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"lora: {error}") from error


@torch.no_grad()
def begin(net: Any, config: Config, rank: Rank) -> Notes:
    """Gives the adapters their first values, those of lora.adapter or peft's: small random numbers, and zeros. By now
    the base model has its weights; they and the adapters may be in slices (FSDP2).

    Raises:
        ConfigError: on all ranks: lora.adapter is of another model.
    """
    peers, mine = Peers(rank), trained(net)
    base = peers.first(lambda: identity(net))
    reads = config.lora.adapter and rank.rank == 0
    found = peers.each(lambda: _read(Path(config.lora.adapter), mine, base) if reads else {})
    draws = torch.Generator().manual_seed(config.train.seed)
    for name, tensor in mine.items():
        full = torch.zeros(tensor.shape)
        if rank.rank == 0 and found:
            full.copy_(found[_short(name)])
        elif rank.rank == 0 and "lora_B" not in name and "lora_embedding_A" not in name:
            torch.nn.init.kaiming_uniform_(full, math.sqrt(5), generator=draws)
        full = full.to(rank.device)
        if rank.world > 1:
            dist.broadcast(full, 0)
        if hasattr(tensor, "device_mesh"):  # all have the whole: no more is sent
            full = distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None)
        tensor.copy_(full)
    about = _plain(next(iter(net.peft_config.values())).to_dict())  # with the names of the modules that were found
    net.train()
    return {"lora": about | {"base_model_name_or_path": config.model.path or None}, "base": base}


def base_name(name: str) -> str:
    """What a frozen weight is called in the base model's files."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def trained(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """By name. Their memory, not copies."""
    return {name: parameter.detach() for name, parameter in net.named_parameters() if parameter.requires_grad}


def save(folder: Path, tensors: Mapping[str, torch.Tensor], about: Notes) -> None:
    """In peft's format, into a folder that is there; tensors have the names that `trained` gives. Raises OSError."""
    from safetensors.torch import save_file

    plain = {_short(name): tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, folder / WEIGHTS, {"format": "pt"})
    text = json.dumps(about | {"inference_mode": True}, indent=2, sort_keys=True)
    (folder / CONFIG).write_text(f"{text}\n", encoding="utf-8")


def merged(net: Any, tensors: Mapping[str, torch.Tensor], notes: Notes) -> Any:
    """The base model with these adapters in its weights, in float32. Raises ConfigError if it is another base."""
    _same_base(notes["base"], identity(net), "model.path is not the model that the adapter was trained for")
    net = inject(net, notes["lora"] | {"target_modules": _modules(map(_short, tensors), "checkpoint")})
    for name, tensor in trained(net).items():
        tensor.copy_(tensors[name])
    return net.merge_and_unload()


def check(before: Notes, notes: Notes) -> None:
    """Raises CheckpointError if a checkpoint with these notes is of an adapter for another model."""
    if before.get("base", notes.get("base")) != notes.get("base"):
        raise CheckpointError(
            "the checkpoint is of an adapter for another model than model.path has: take another checkpoint.dir"
        )


@torch.no_grad()
def identity(net: torch.nn.Module) -> str:
    """Tells base models apart: sha256 over the names and shapes of all weights that aren't an adapter's, and over the
    first values of each. Of a model in slices, rank 0 has those."""
    found = hashlib.sha256()
    for name, parameter in net.named_parameters():
        if "lora_" not in name:
            mine = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            some = mine.detach()[:1].reshape(-1)[:64].bfloat16().float().cpu()
            found.update(f"{base_name(name)} {list(parameter.shape)}".encode() + some.numpy().tobytes())
    return found.hexdigest()[:32]


def _settings(settings: Lora) -> Notes:
    if not settings.adapter:
        modules = settings.modules if settings.modules == "all-linear" else settings.modules.split(",")
        sizes = {"r": settings.rank, "lora_alpha": settings.alpha, "lora_dropout": settings.dropout}
        return sizes | {"target_modules": (settings.modules and modules) or None}
    folder = Path(settings.adapter)
    try:
        about = _mapping(folder / CONFIG)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"lora.adapter: {folder}: no adapter of peft: {error}") from None
    empty = (None, False, "none", [], {})
    known = KEPT | OTHER | PATTERNS | {"qalora_group_size"}
    other = sorted(key for key, value in about.items() if key not in known and value not in empty)
    if about.get("peft_type") != "LORA" or other:
        what = ", ".join(f"{key}={about[key]}" for key in other) or f"peft_type={about.get('peft_type')}"
        raise ConfigError(f"lora.adapter: {folder} is another kind than plain LoRA: {what:.200}")
    if settings.rank not in (0, about.get("r")):
        rank = _shown(about.get("r"))
        raise ConfigError(f"lora.adapter: {folder} has rank {rank}, not {settings.rank}: leave lora.rank out")
    plain = {key: value for key, value in about.items() if key not in PATTERNS}
    return plain | {"target_modules": _named(folder)}


def _mapping(file: Path) -> dict[str, Any]:
    """Raises OSError, ValueError, TypeError or RecursionError."""
    with file.open("rb") as opened:
        text = opened.read(MOST_CONFIG + 1)
    if len(text) > MOST_CONFIG:
        raise ValueError(f"{file.name} has more than {MOST_CONFIG >> 20} MB")
    return dict(json.loads(text))


def _named(folder: Path) -> list[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            return _modules(file.keys(), f"lora.adapter: {folder}")
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"lora.adapter: {folder} can't be read: {error}") from None


def _modules(names: Iterable[str], where: str) -> list[str]:
    """The modules that have tensors of these names in an adapter's file. Raises ConfigError if one is no such name."""
    every = list(names)
    if len(every) > MOST_TENSORS:
        raise ConfigError(f"{where}: it has {len(every):,} tensors; at most {MOST_TENSORS:,} are taken")
    found = {name: _TENSOR.fullmatch(name) for name in every}
    if wrong := next((name for name, match in found.items() if not match), None):
        raise ConfigError(f"{where}: the tensor {_shown(wrong)} is of another kind than plain LoRA")
    return sorted({match["module"] for match in found.values() if match})


def _check(about: Notes, net: torch.nn.Module) -> None:
    """Settings that may be a stranger's, before peft makes regular expressions and matrices of them. Raises
    ConfigError."""

    def bounded(name: str, value: Any, kinds: type | tuple[type, ...], least: float, most: float) -> None:
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
            raise ConfigError(f"lora: {name} is {_shown(value)}; it can be {least:,} to {most:,}")

    number = (int, float)
    bounded("r", about.get("r"), int, 1, MOST_RANK)
    bounded("lora_alpha", about.get("lora_alpha", 8), number, -MOST_ALPHA, MOST_ALPHA)
    bounded("lora_dropout", about.get("lora_dropout", 0), number, 0, 1)
    for name, kinds, least, most in (
        ("rank_pattern", int, 1, MOST_RANK),
        ("alpha_pattern", number, -MOST_ALPHA, MOST_ALPHA),
    ):
        pattern = about.get(name) or {}
        if not isinstance(pattern, dict) or len(pattern) > MOST_PATTERNS:
            raise ConfigError(f"lora: {name} is no mapping of at most {MOST_PATTERNS:,} layers")
        for key, value in pattern.items():
            if not _LAYER.fullmatch(key):
                raise ConfigError(f"lora: {name} has {_shown(key)}, which is no layer's name")
            bounded(f"{name} of {key}", value, kinds, least, most)
    modules = about.get("target_modules")
    if modules in (None, "all-linear"):
        return
    if not isinstance(modules, list):
        raise ConfigError(f"lora: target_modules is {_shown(modules)}, and no list of names")
    ends: set[str] = set()
    for name, _ in net.named_modules():
        parts = name.split(".")
        ends.update(".".join(parts[at:]) for at in range(len(parts)))
    if unknown := next((each for each in modules if not isinstance(each, str) or each not in ends), None):
        raise ConfigError(f"lora: the model has no module {_shown(unknown)}")


def _read(folder: Path, mine: Mapping[str, torch.Tensor], base: str) -> dict[str, torch.Tensor]:
    """The tensors of peft's file. Raises ConfigError if they aren't those of the adapters `mine`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        ours = _mapping(folder / OURS) if (folder / OURS).is_file() else {}
        found = load_file(folder / WEIGHTS)
    except (OSError, ValueError, TypeError, RecursionError, SafetensorError) as error:
        raise ConfigError(f"lora.adapter: {folder} can't be read: {error}") from None
    _same_base(ours.get("base", base), base, f"lora.adapter: {folder} was trained for another model")
    here = {_short(name): tensor for name, tensor in mine.items()}
    sizes, wanted = ({name: list(t.shape) for name, t in tensors.items()} for tensors in (found, here))
    if wrong := sorted(n for n in sizes.keys() | wanted.keys() if sizes.get(n) != wanted.get(n)):
        example = f"{wrong[0]} is {sizes.get(wrong[0], 'not there')}, here {wanted.get(wrong[0], 'not there')}"
        raise ConfigError(f"lora.adapter: {folder} is of another model: {len(wrong)} tensors differ: {example}")
    return found


def _same_base(one: str, other: str, message: str) -> None:
    if one != other:
        raise ConfigError(message)


def _short(name: str) -> str:
    """peft's files leave out the adapter's name."""
    return name.replace(".default", "")


def _shown(value: Any) -> str:
    """A stranger's word, short and on one line."""
    return ascii(value)[:80]


def _plain(about: dict[str, Any]) -> Notes:
    return {
        key: sorted(value) if isinstance(value, set) else getattr(value, "value", value) for key, value in about.items()
    }

"""What was trained as a Hugging Face folder, which plain transformers loads, or peft if it is an adapter."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rocstack_trainer import lent
from rocstack_trainer.config import Config
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.models import lora, pretrained
from rocstack_trainer.models.fingerprint import sha256
from rocstack_trainer.saving import dcp, folder

OURS = lora.OURS  # says that the folder is an export, and of what
Tensors = Mapping[str, torch.Tensor]


def check(config: Config) -> None:
    """Raises ConfigError or OSError if `write` would fail, or would replace what isn't an export."""
    path = Path(config.checkpoint.export)
    if path.exists() and any(path.iterdir()) and not (path / OURS).exists():
        raise ConfigError(f"{path} has other things in it: name a new folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    _tokenizer(config)
    _fresh(path).rmdir()


def _fresh(path: Path) -> Path:
    """A new folder beside it, which nobody else can put anything into. Raises OSError if somebody made one first."""
    tmp = path.with_name(f"{path.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(mode=folder.OWN_MODE)
    return tmp


def write(config: Config, about: Any, tensors: Tensors, step: int, notes: Mapping[str, Any]) -> None:
    """The folder is there whole or not at all. `about` is transformers' config of the model, `tensors` have the names
    that `fingerprint.weights` gives, `notes` are those of the checkpoint.

    Raises:
        OSError: the disk refused.
        ConfigError: adapters are to be merged, and model.path has another model.
    """
    settings, path = config.checkpoint, Path(config.checkpoint.export)
    dtype = torch.bfloat16 if settings.export_dtype == "bf16" else torch.float32
    tmp = _fresh(path)
    said = {
        "step": step,
        "weights_sha256": sha256(tensors),
        "from": config.model.path or config.model.config or config.model.type,
    }
    try:
        if "lora" in notes and not settings.export_merged:
            lora.save(tmp, {name: tensor.to(dtype) for name, tensor in tensors.items()}, notes["lora"])
            said["base"] = notes["base"]
        else:
            _model(config, about, tensors, notes).to(dtype).save_pretrained(tmp)
        copy_tokenizer(config, tmp)
        (tmp / OURS).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
        mode = stat.S_IMODE((tmp / OURS).stat().st_mode)
        for entry in tmp.iterdir():
            entry.chmod(mode)  # safetensors' are their owner's alone, whatever the umask and ACLs say
        for entry in (*tmp.iterdir(), tmp):
            folder.fsync(entry)
        folder.replace(tmp, path)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise


def from_checkpoint(config: Config, checkpoint: Path) -> str:
    """Writes checkpoint.export from one of the folders in checkpoint.dir; says what it was.

    Raises:
        ConfigError: it isn't a whole checkpoint; or as `write`.
    """
    try:
        if fault := folder.damage(checkpoint):
            raise ConfigError(f"{checkpoint} is no whole checkpoint: {fault}")
        check(config)
        saved = folder.about(checkpoint)
        notes, names = saved["notes"], dcp.contents(checkpoint)
        mine = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in names.items() if name[:6] == "model."}
        dcp.read(mine, checkpoint)
        if not config.model.path:
            config = replace(config, model=replace(config.model, path=notes.get("model", "")))
        if not config.data.tokenizer:
            config = replace(config, data=replace(config.data, tokenizer=notes.get("tokenizer", "")))
        tensors = {name[6:]: tensor for name, tensor in mine.items()}
        write(config, pretrained.rebuilt(saved["model"]), tensors, saved["step"], notes)
    except OSError as error:
        raise ConfigError(f"checkpoint.export: {error.filename or checkpoint}: {error.strerror or error}") from None
    return f"{told(config, notes)}, of step {saved['step']}"


def told(config: Config, notes: Mapping[str, Any]) -> str:
    kind = "an adapter of peft" if "lora" in notes and not config.checkpoint.export_merged else "a Hugging Face model"
    return f"export: {config.checkpoint.export} is {kind}"


def _model(config: Config, about: Any, tensors: Tensors, notes: Mapping[str, Any]) -> Any:
    """On the CPU, its weights not those that are trained."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    if "lora" in notes:
        if not config.model.path:
            raise ConfigError("checkpoint.export_merged: name the model that the adapter is for: --model.path=FOLDER")
        base = pretrained.read(config.model.path, pretrained.shape(config.model.path), print)
        net = lora.merged(base, tensors, notes)
    else:
        with torch.device("meta"):
            net = pretrained.new(about)
        whole = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
        net.load_state_dict(whole, strict=False, assign=True)  # tied ones are there once
        net.tie_weights()
    net.config.use_cache = True  # which training has no use for
    return net


def _tokenizer(config: Config) -> list[Path]:
    """Its files. Raises ConfigError if one is somebody's link to a file of ours."""
    source = config.data.tokenizer or config.model.path
    return [*map(lent.not_lent, pretrained.tokenizer(source))] if source else []


def copy_tokenizer(config: Config, to: Path) -> None:
    for file in _tokenizer(config):
        with lent.opened(file) as source:
            shutil.copyfile(source, to / file.name)
    if config.data.chat_template:
        shutil.copyfile(config.data.chat_template, to / "chat_template.jinja")

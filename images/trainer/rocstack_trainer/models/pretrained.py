"""A Hugging Face model folder: everything that can be wrong with it is said before its weights are read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rocstack_trainer.errors import ConfigError
from rocstack_trainer.lent import not_lent

INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"  # of peft: with one, transformers would load the adapter, too, and run its patterns
CONVERT = (
    "convert it once: python3 -c 'from transformers import AutoModelForCausalLM as A;"
    ' A.from_pretrained("{0}").save_pretrained("{0}")\''
)
TOKENIZER = re.compile(
    r"tokenizer.*|vocab.*|merges.*|special_tokens_map\.json|added_tokens\.json|chat_template.*|.*\.(model|tiktoken)"
)
LOCAL = {"local_files_only": True, "trust_remote_code": False}


def shape(path: str, setting: str = "model.path") -> Any:
    """The transformers config of a folder, or of a config.json.

    Raises:
        ConfigError: it isn't a model folder, or not of a model that can be trained here.
    """
    import transformers
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    folder = Path(path)
    file = folder if folder.is_file() else folder / "config.json"
    if not file.is_file():
        what = "not a model folder: there is no config.json in it" if folder.is_dir() else "no such folder"
        hint = "\n  models are never downloaded: get it first with `hf download`" if path.count("/") == 1 else ""
        if (folder / ".metadata").is_file():
            hint = "\n  it is a checkpoint: the run that made it writes a model with --checkpoint.export=FOLDER"
        raise ConfigError(f"{setting}: {path}: {what}{hint}")
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        kind = raw["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{setting}: {file}: no model's config: {error!r}") from None
    if "/" in str(raw.get("attn_implementation", "")) or "/" in str(raw.get("_attn_implementation", "")):
        raise ConfigError(f"{setting}: {file}: its attention is code of a hub, which is not run")
    if kind not in KNOWN:
        own = "; the code that comes with it is not run" if "auto_map" in raw else ""
        known = f"no causal language model that transformers {transformers.__version__} has{own}"
        raise ConfigError(f"{setting}: {path}: {kind} is {known}")
    try:
        about = AutoConfig.from_pretrained(path, **LOCAL)
    except Exception as error:  # each model type checks its sizes in its own way
        raise ConfigError(f"{setting}: {file}: {error}") from error
    if getattr(about, "quantization_config", None):
        raise ConfigError(f"{setting}: {path} is quantised: training needs its float weights")
    about.use_cache = False
    return about


def new(about: Any) -> Any:
    """A model in float32 with the values that its type begins with, of a transformers config."""
    from transformers import AutoModelForCausalLM  # imports the type that is asked for, which is slow

    return AutoModelForCausalLM.from_config(about, dtype=torch.float32)


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules made here have parameters without memory. Their buffers are real: rotary frequencies are in no file."""
    register = torch.nn.Module.register_parameter

    def without_memory(module: Any, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None:
            parameter = torch.nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = without_memory
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def rebuilt(about: dict[str, Any]) -> Any:
    """The transformers config that has this JSON: one of transformers' own, whoever sent it."""
    from transformers import AutoConfig

    return AutoConfig.for_model(**about)


def read(path: str, about: Any, say: Callable[[str], None]) -> Any:
    """The model in float32 on the CPU.

    Raises:
        ConfigError: a weights file is missing, broken or of another model.
    """
    from transformers import AutoModelForCausalLM

    folder = Path(path)
    for file in files(folder):
        with opened(file):
            pass
    try:
        net, found = AutoModelForCausalLM.from_pretrained(
            path,
            config=about,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # said below, with what is wrong
            output_loading_info=True,
            **LOCAL,
        )
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"model.path: {path}: {error}") from error
    # transformers would train these from random numbers.
    if other := sorted(found["mismatched_keys"]):
        name, has, wants = other[0]
        example = f"{name} is {tuple(has)}, config.json makes it {tuple(wants)}"
        raise ConfigError(f"model.path: {path}: {len(other)} tensors have other sizes than the model: {example}")
    if missing := sorted(found["missing_keys"]):
        few = ", ".join(missing[:3])
        raise ConfigError(f"model.path: {path}: {len(missing)} tensors of the model are not in its files: {few}")
    if extra := sorted(found["unexpected_keys"]):
        say(f"model: {len(extra)} tensors of {path} are not used, such as {extra[0]}")
    return net


def files(folder: Path) -> list[Path]:
    """The weights: model.safetensors, or the shards that the index names.

    Raises:
        ConfigError: one is missing, or there are only other formats, or an adapter beside them.
    """
    if (folder / ADAPTER).exists():
        hint = "name a copy without it; to begin with an adapter, name its own folder as lora.adapter"
        raise ConfigError(f"model.path: {folder} has an adapter beside the model ({ADAPTER})\n  {hint}")
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConfigError(f"model.path: {index}: not an index of weights: {error!r}") from None
        if other := [name for name in names if name != Path(str(name)).name]:
            raise ConfigError(f"model.path: {index} names {other[0]!r:.80}, which is no file of the folder")
        if missing := [name for name in names if not (folder / name).is_file()]:
            what = f"{', '.join(missing[:3])} missing ({len(missing)} of the {len(names)} files that {INDEX} names)"
            raise ConfigError(f"model.path: {folder}: {what}\n  download or copy the folder again")
        return [not_lent(folder / name) for name in names]
    if (folder / "model.safetensors").is_file():
        return [not_lent(folder / "model.safetensors")]
    if others := sorted(file.name for kind in ("*.bin", "*.pt", "*.pth") for file in folder.glob(kind)):
        raise ConfigError(
            f"model.path: {folder} has no safetensors, only {', '.join(others[:3])}\n  {CONVERT.format(folder)}"
        )
    raise ConfigError(f"model.path: {folder} has a config.json but no weights (model.safetensors)")


def opened(file: Path) -> Any:
    """For `with`. Opening reads the header and compares the size. Raises ConfigError."""
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"model.path: {file} is broken: {error}\n  download or copy it again") from None


def tokenizer(folder: str) -> list[Path]:
    """The files of the tokenizer in a folder."""
    return sorted(file for file in Path(folder).glob("*") if TOKENIZER.fullmatch(file.name) and file.is_file())

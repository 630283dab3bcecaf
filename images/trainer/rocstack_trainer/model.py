"""A Hugging Face causal language model: a local folder, or new weights from a config."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from rocstack_trainer.config import Model
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.launch import Rank


def build(config: Model, rank: Rank, seed: int) -> Any:
    """The model in float32 on the rank's device, in training mode.

    Only rank 0 has the right weights: broadcast them. With `config.path` it alone reads the safetensors; the
    others make the same shapes.

    Raises:
        ConfigError: the folder is no model, or transformers refuses the config.
    """
    # The auto classes import the one model type that is asked for; they are slow enough to wait until here.
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    try:
        if config.path:
            shape = AutoConfig.from_pretrained(config.path, local_files_only=True)
        else:
            sizes = {key: value for key, value in asdict(config).items() if key not in ("path", "type")}
            shape = AutoConfig.for_model(config.type, **sizes)
        shape.use_cache = False
        if config.path and rank.rank == 0:
            model = AutoModelForCausalLM.from_pretrained(
                config.path, config=shape, dtype=torch.float32, local_files_only=True
            )
        else:
            model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {config.path or config.type}: {error}") from error
    return model.to(rank.device).train()


def n_params(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())

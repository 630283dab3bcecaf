"""What a run is at a step boundary, apart from what follows from its settings and the step."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rocstack_trainer.models.fingerprint import weights
from rocstack_trainer.saving import dcp

SLOTS = ("step", "exp_avg", "exp_avg_sq")  # AdamW's state of one parameter
# What may differ between a model's configs then and now.
FREE = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")


@dataclass
class State:
    """Resuming writes into these tensors in place.

    `shared` is what only rank 0 has. `per_rank` differs from rank to rank: what error
    feedback owes, which only the same ranks with the same buckets can go on with. `notes` is for JSON.
    """

    net: Any
    optimizer: torch.optim.Optimizer
    shared: dict[str, torch.Tensor] = field(default_factory=dict)
    per_rank: dict[str, torch.Tensor] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)

    def common(self) -> dict[str, torch.Tensor]:
        """Weights and optimizer, which all ranks have."""
        found = {f"model.{name}": tensor for name, tensor in weights(self.net).items()}
        trained = {parameter for group in self.optimizer.param_groups for parameter in group["params"]}
        for name, parameter in self.net.named_parameters():
            if parameter not in trained:
                continue
            state = self.optimizer.state[parameter]
            if not state:  # before the first step; these are the zeros that AdamW would make
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            found |= {f"optimizer.{name}.{slot}": state[slot] for slot in SLOTS}
        return found

    def leaders(self) -> dict[str, torch.Tensor]:
        """What only rank 0 has."""
        return {f"shared.{name}": tensor for name, tensor in self.shared.items()}

    def model(self) -> dict[str, Any]:
        """The model's config, as JSON gives it back."""
        whole = json.loads(self.net.config.to_json_string(use_diff=False))
        return {key: value for key, value in whole.items() if key not in FREE and "dropout" not in key}

    def difference(self, path: Path, model: dict[str, Any]) -> str:
        """What the checkpoint `path`, of a model with this config, has otherwise; empty if it can be loaded here."""
        now = self.model()
        fields = [key for key in sorted(now.keys() & model.keys()) if now[key] != model[key]]
        if fields:
            return "it has " + ", ".join(f"{key}={model[key]}" for key in fields)
        saved = {name: shape for name, shape in dcp.contents(path).items() if not name.startswith("rank")}
        here = dcp.shapes(self.common() | self.leaders())
        outer = [any(name.startswith("shared.outer.") for name in names) for names in (saved, here)]
        if outer[0] != outer[1]:
            return f"it was saved {'with' if outer[0] else 'without'} DiLoCo (diloco.groups, diloco.always)"
        names = sorted(name for name in saved.keys() | here.keys() if saved.get(name) != here.get(name))
        few = ", ".join(f"{name} ({_words(saved.get(name))}, here {_words(here.get(name))})" for name in names[:3])
        return f"{len(names)} of its tensors are others: {few}" if names else ""


def _words(shape: dcp.Shape | None) -> str:
    return f"{shape[0]} {list(shape[1])}".removeprefix("torch.") if shape else "none"

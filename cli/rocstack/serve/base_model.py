"""The model that adapters are for: its names, and the shapes of its layers, read from its own safetensors files."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rocstack.base.document import read_text
from rocstack.base.errors import BadInput
from rocstack.serve.safetensors_header import read_header

Shape = tuple[int, int]  # of a layer's weight: outputs, inputs


@dataclass(frozen=True)
class BaseModel:
    folder: Path
    names: frozenset[str]  # that an adapter may call it by, beside the folder
    shapes: Mapping[str, Shape]  # model.layers.0.self_attn.q_proj -> outputs, inputs

    def is_called(self, name: str) -> bool:
        """Whether an adapter with this name of its base is for this model: one of its names, its folder, or a folder of
        the same name, since the nodes that trained it may have had the model elsewhere."""
        return name in self.names or name == str(self.folder) or Path(name).name in (self.folder.name, *self.names)

    def shape(self, module: str) -> Shape | None:
        """A layer's, also where the adapter's training had the model inside another one."""
        if module in self.shapes:
            return self.shapes[module]
        found = self._below_layers.get(module.partition("layers.")[2], ())
        return next(iter(found)) if len(found) == 1 else None

    @cached_property
    def _below_layers(self) -> Mapping[str, set[Shape]]:
        """Shapes by what stands behind a `layers.` of the name. A stranger's adapter asks a hundred thousand times."""
        found: dict[str, set[Shape]] = {}
        for name, shape in self.shapes.items():
            for mark in re.finditer(r"\.layers\.", name):
                found.setdefault(name[mark.end() :], set()).add(shape)
        return found


def read_base(folder: Path, names: tuple[str, ...] = ()) -> BaseModel:
    """
    Raises:
        BadInput: it is no model's folder, or its weights are no safetensors.
    """
    try:
        config: Any = json.loads(read_text(folder / "config.json", code="no-base-model"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput.of("bad-base-model", folder / "config.json", why="it is no JSON") from None
    if not isinstance(config, dict):
        raise BadInput.of("bad-base-model", folder / "config.json", why="it is no mapping")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise BadInput.of("base-without-safetensors", folder)
    shapes: dict[str, Shape] = {}
    for path in files:
        try:
            with path.open("rb") as file:
                tensors = read_header(file.read, path.stat().st_size)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise BadInput.of("bad-base-model", path, why=why) from None
        for name, tensor in tensors.items():
            if name.endswith(".weight") and len(tensor.shape) == 2:
                shapes[name.removesuffix(".weight")] = (tensor.shape[0], tensor.shape[1])
    if config.get("tie_word_embeddings") and "lm_head" not in shapes and "model.embed_tokens" in shapes:
        shapes["lm_head"] = shapes["model.embed_tokens"]
    own = config.get("_name_or_path")
    return BaseModel(folder, frozenset({*names, *([own] if isinstance(own, str) and own else [])}), shapes)

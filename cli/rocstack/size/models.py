"""Models by name, from images/models/*.yml, or from a Hugging Face config.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rocstack.base import document, paths
from rocstack.base.errors import BadInput, Where, did_you_mean
from rocstack.base.text import from_json, visible
from rocstack.base.words import Line, Value
from rocstack.size.shape import Shape

MOST, LAYERS = 1 << 24, 1 << 12  # of any number in a config, and of layers: beyond every model's
Reader = Callable[["Config"], Shape]
_READERS: dict[str, Reader] = {}


Positive = Annotated[int, Field(gt=0)]


class Model(Value):
    """A file of images/models. `parameters`: those of the published weights, which the formula must give."""

    about: Line
    source: Line
    note: Line = ""
    parameters: Positive | None = None
    sequence: Positive | None = None  # tokens that it is trained with, where the config doesn't say
    config: dict[str, Any]  # keys as in Hugging Face's config.json


class Config:
    """A config.json, whose numbers are checked when they are read."""

    def __init__(self, raw: Mapping[str, Any], where: Where) -> None:
        self.raw, self.where = raw, where
        self.type = raw.get("model_type")

    def number(self, *names: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        """The first of these keys that is there."""
        name = next((each for each in names if self.raw.get(each) is not None), None)
        if name is None:
            if default is None:
                raise BadInput.of("config-without-key", self.where, key=names[0], type=self.type)
            return default
        value = self.raw[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            shown = visible(str(value)[:40])
            raise BadInput.of("config-bad-number", self.where, key=name, value=shown, least=least, most=most)
        return value

    def switch(self, name: str, default: bool) -> bool:
        value = self.raw.get(name)
        if not isinstance(value, bool | None):
            raise BadInput.of("config-bad-switch", self.where, key=name, value=visible(str(value)[:40]))
        return default if value is None else value

    def refuse_other(self, name: str, counted: object) -> None:
        """Of a key with which models are made that the formula doesn't count."""
        value = self.raw.get(name)
        if value not in (None, counted):
            raise BadInput.of("config-not-counted", self.where, key=name, value=visible(str(value)[:40]))


def names() -> list[str]:
    return sorted(path.stem for path in (paths.images() / "models").glob("*.yml"))


def types() -> list[str]:
    """The model types that can be read."""
    return sorted(_READERS)


@cache
def load(name: str) -> Model:
    """
    Raises:
        BadInput: no such model.
    """
    known = names()
    if name not in known:
        raise BadInput.of("no-such-model", name=visible(name), hint=_meant(name, known), known=", ".join(known))
    return document.read(paths.images() / "models" / f"{name}.yml").validate(Model)


@cache
def maxtext_names() -> dict[str, str]:
    """MaxText's own names, where they differ -> those of images/models."""
    found = document.read(paths.images() / "maxtext-models.yml").data
    return {str(name): str(own) for name, own in found.items()}


def _meant(name: str, known: list[str]) -> str:
    """The nearest name only: the error lists all of them anyway."""
    hint = did_you_mean(name, known) or ""
    return f": {hint}" if hint.startswith("did you mean") else ""


def find(text: str) -> tuple[Shape, Model]:
    """The model of that name, which may be MaxText's, or of a config.json or the folder that holds one.

    Raises:
        BadInput: no such model or file, or a config that can't be read.
    """
    path = Path(text)
    if path.suffix == ".json" or "/" in text or path.is_dir():
        path = path / "config.json" if path.is_dir() else path
        return of_config(document.read_text(path), path, text)
    return named(text)


def named(text: str) -> tuple[Shape, Model]:
    """The model of that name, which may be MaxText's.

    Raises:
        BadInput: no such model.
    """
    name = text.lower()
    name = name if name in names() else maxtext_names().get(name, name)
    model = load(name)
    return shape_of(model.config, Where(str(paths.images() / "models" / f"{name}.yml"))), model


def of_config(text: str, path: Path, name: str) -> tuple[Shape, Model]:
    """The model of a config.json.

    Raises:
        BadInput: it can't be read.
    """
    raw = _parsed(text, path)
    return shape_of(raw, Where(str(path))), Model(about=visible(name), source=visible(str(path)), config=raw)


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        raw = from_json(text)
    except ValueError as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise BadInput.of("config-not-json", Where(str(path), line), why=error) from None
    if not isinstance(raw, dict):
        raise BadInput.of("config-not-json", path, why="it holds no object")
    return raw


def shape_of(raw: Mapping[str, Any], where: Where) -> Shape:
    """
    Raises:
        BadInput: the type is unknown, or a number is missing or can't be.
    """
    inner = raw.get("text_config")
    config = Config(inner if isinstance(inner, dict) and "model_type" in inner else raw, where)
    reader = _READERS.get(config.type) if isinstance(config.type, str) else None
    if reader is None:
        name = visible(str(config.type)[:60])
        raise BadInput.of("unknown-model-type", where, type=name, hint=_meant(name, types()), known=", ".join(types()))
    shape = reader(config)
    if shape.keys > shape.heads or shape.heads % shape.keys or shape.head < 1:
        raise BadInput.of("config-bad-heads", where, heads=shape.heads, keys=shape.keys)
    if shape.active > shape.experts:
        raise BadInput.of("config-bad-experts", where, active=shape.active, experts=shape.experts)
    return shape


def _reads(*kinds: str) -> Callable[[Reader], Reader]:
    def register(reader: Reader) -> Reader:
        _READERS.update(dict.fromkeys(kinds, reader))
        return reader

    return register


def _common(c: Config, head: int | None = None, **otherwise: int) -> dict[str, Any]:
    """What most of Hugging Face's models have in common. `otherwise`: what holds where a config has no such key."""
    hidden, layers = c.number("hidden_size"), c.number("num_hidden_layers", most=LAYERS)
    heads = c.number("num_attention_heads", default=otherwise.get("heads"))
    width = c.number("head_dim", default=head or hidden // heads)
    return {
        "type": c.type, "layers": layers, "hidden": hidden, "heads": heads, "head": width, "value": width,
        "keys": c.number("num_key_value_heads", default=otherwise.get("keys", heads)),
        "vocabulary": c.number("vocab_size", default=otherwise.get("vocabulary")),
        "context": c.number("max_position_embeddings", default=0), "mlp": c.number("intermediate_size"),
        "dense_layers": layers, "tied": c.switch("tie_word_embeddings", False),
    }  # fmt: skip


@_reads("llama", "mistral")
def _llama(c: Config) -> Shape:
    bias = c.switch("attention_bias", False)
    return Shape(**_common(c), key_bias=bias, out_bias=bias, mlp_bias=c.switch("mlp_bias", False))


@_reads("qwen2")
def _qwen2(c: Config) -> Shape:
    return Shape(**_common(c), key_bias=True)


@_reads("qwen3")
def _qwen3(c: Config) -> Shape:
    return Shape(**_common(c, 128), key_norm=True)


@_reads("qwen3_moe")
def _qwen3_moe(c: Config) -> Shape:
    c.refuse_other("decoder_sparse_step", 1)
    c.refuse_other("mlp_only_layers", [])
    experts: dict[str, Any] = {
        "experts": c.number("num_experts"),
        "active": c.number("num_experts_per_tok"),
        "expert_mlp": c.number("moe_intermediate_size"),
    }
    return Shape(**{**_common(c), "dense_layers": 0, "key_norm": True, **experts})


@_reads("mixtral")
def _mixtral(c: Config) -> Shape:
    experts: dict[str, Any] = {"experts": c.number("num_local_experts"), "active": c.number("num_experts_per_tok")}
    return Shape(**{**_common(c), "dense_layers": 0, "expert_mlp": c.number("intermediate_size"), **experts})


@_reads("deepseek_v3")
def _deepseek(c: Config) -> Shape:
    c.refuse_other("moe_layer_freq", 1)
    rope, expert = c.number("qk_rope_head_dim"), c.number("moe_intermediate_size")
    found = _common(c)
    return Shape(**{
        **found, "head": c.number("qk_nope_head_dim") + rope, "value": c.number("v_head_dim"), "rope": rope,
        "keys": found["heads"], "query_rank": c.number("q_lora_rank", default=0), "key_rank": c.number("kv_lora_rank"),
        "dense_layers": min(c.number("first_k_dense_replace", default=0, least=0), found["layers"]),
        "experts": c.number("n_routed_experts"), "active": c.number("num_experts_per_tok"), "expert_mlp": expert,
        "shared_mlp": expert * c.number("n_shared_experts", default=0, least=0), "router_bias": True,
    })  # fmt: skip


@_reads("gemma", "gemma2", "gemma3_text")
def _gemma(c: Config) -> Shape:
    otherwise: dict[str, int] = {"heads": 8, "keys": 4, "vocabulary": 262208} if c.type == "gemma3_text" else {}
    found = {**_common(c, 256, **otherwise), "tied": c.switch("tie_word_embeddings", True)}
    if c.type == "gemma":
        return Shape(**found)
    layers, every = found["layers"], 2 if c.type == "gemma2" else 6  # one in so many looks at everything
    window = c.number("sliding_window", default=4096)
    return Shape(**found, norms=4, key_norm=c.type == "gemma3_text", window=window, windowed=layers - layers // every)


@_reads("gpt2")
def _gpt2(c: Config) -> Shape:
    hidden, heads, layers = c.number("n_embd"), c.number("n_head"), c.number("n_layer", most=LAYERS)
    positions = c.number("n_positions", default=0, least=0)
    return Shape(
        type="gpt2", layers=layers, hidden=hidden, heads=heads, keys=heads, head=hidden // heads, value=hidden // heads,
        vocabulary=c.number("vocab_size"), context=positions, positions=positions,
        mlp=c.number("n_inner", default=4 * hidden),
        gated=False, dense_layers=layers, tied=c.switch("tie_word_embeddings", True),
        norm_bias=True, key_bias=True, out_bias=True, mlp_bias=True,
    )  # fmt: skip


@_reads("mpt")
def _mpt(c: Config) -> Shape:
    hidden, heads, layers = c.number("d_model"), c.number("n_heads"), c.number("n_layers", most=LAYERS)
    return Shape(
        type="mpt", layers=layers, hidden=hidden, heads=heads, keys=heads, head=hidden // heads, value=hidden // heads,
        vocabulary=c.number("vocab_size"), context=c.number("max_seq_len", default=0),
        mlp=hidden * c.number("expansion_ratio", default=4), gated=False, dense_layers=layers, tied=True,
    )  # fmt: skip

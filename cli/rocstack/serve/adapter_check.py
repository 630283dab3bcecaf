"""Whether an adapter can be served on a base model: judged by its settings and the header of its weights, before an
engine sees it. Its owner is not trusted: what isn't known to be harmless doesn't get through."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocstack.base.errors import BadInput
from rocstack.base.text import from_json
from rocstack.serve.base_model import BaseModel
from rocstack.serve.safetensors_header import Tensor

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLED = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
MOST_CONFIG = 1 << 20  # bytes
MOST_ALPHA = 1_000_000  # usual are 1 to 1024
MOST_PATTERNS = 10_000
FLOATS = ("F32", "F16", "BF16")
# peft's settings of adapters that vLLM doesn't compute as peft does.
OTHER_KINDS = (
    *("use_dora", "lora_bias", "use_qalora", "use_bdlora", "layer_replication", "alora_invocation_tokens"),
    *("modules_to_save", "target_parameters", "trainable_token_indices", "megatron_config", "arrow_config"),
)
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")  # of init_lora_weights: the base stays as it is
_NAME = re.compile(r"base_model\.model\.(?P<module>[A-Za-z0-9_.]{1,300})\.lora_(?P<side>[AB])\.weight")
_KEY = re.compile(r"[A-Za-z0-9_.]{1,200}")  # of rank_pattern: vLLM reads it as a regular expression


@dataclass(frozen=True)
class Limits:
    rank: int  # an adapter's rank at most


@dataclass(frozen=True)
class Checked:
    """An adapter that can be served, and its settings as the engine gets them."""

    config: Mapping[str, Any]
    rank: int
    modules: int


def parse_config(raw: bytes) -> dict[str, Any]:
    """
    Raises:
        BadInput: it is no mapping in JSON, or has a number that no setting has.
    """
    try:
        found = from_json(raw)
    except ValueError as error:
        raise _refused(f"it is no JSON: {str(error)[:100]}", CONFIG) from None
    if not isinstance(found, dict):
        raise _refused("it is no mapping", CONFIG)
    return found


def check(config: Mapping[str, Any], tensors: Mapping[str, Tensor], base: BaseModel, limits: Limits) -> Checked:
    """
    Raises:
        BadInput: it is of another kind, another base model, too high a rank, or other shapes than the base has.
    """
    if config.get("peft_type") != "LORA":
        raise BadInput.of("adapter-kind", why=f"peft_type is {_shown(config.get('peft_type'))}, not LORA")
    for name in OTHER_KINDS:
        if config.get(name):
            raise BadInput.of("adapter-kind", why=f"{name} is {_shown(config[name])}")
    if config.get("bias", "none") != "none":
        raise BadInput.of("adapter-kind", why=f"bias is {_shown(config['bias'])}")
    start = config.get("init_lora_weights", True)
    if not isinstance(start, bool | str | None) or start not in PLAIN_STARTS:
        raise BadInput.of("adapter-kind", why=f"init_lora_weights is {_shown(start)}, which changes the base model")
    named = config.get("base_model_name_or_path")
    if not isinstance(named, str) or not base.is_called(named):
        raise BadInput.of("adapter-base", named=_shown(named), base=base.folder.name)
    rank, alpha = _rank(config.get("r"), "r", limits), _number(config.get("lora_alpha"), "lora_alpha")
    ranks = {key: _rank(value, f"rank_pattern of {key}", limits) for key, value in _patterns(config, "rank_pattern")}
    ordered = {key: (at, each) for at, (key, each) in enumerate(ranks.items())}
    alphas = {key: _number(value, f"alpha_pattern of {key}") for key, value in _patterns(config, "alpha_pattern")}
    modules = _pairs(tensors)
    for module, pair in modules.items():
        _fits(module, pair, base, _of(ordered, module, rank))
    kept = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base.folder),
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "use_rslora": bool(config.get("use_rslora")),
        "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        "bias": "none",
    }
    return Checked(kept, max([rank, *ranks.values()]), len(modules))


def _pairs(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        found = _NAME.fullmatch(name)
        if not found:
            raise BadInput.of("adapter-kind", why=f"the tensor {_shown(name)} is neither A nor B of a linear layer")
        if tensor.dtype not in FLOATS:
            raise BadInput.of(
                "adapter-kind", why=f"the tensor {_shown(name)} is {tensor.dtype}, not {', '.join(FLOATS)}"
            )
        modules.setdefault(found["module"], {})[found["side"]] = tensor
    if not modules:
        raise _refused("it has no tensors", WEIGHTS)
    for module, pair in modules.items():
        if len(pair) != 2:
            raise BadInput.of("adapter-shape", why=f"{module} has A or B alone")
    return modules


def _fits(module: str, pair: Mapping[str, Tensor], base: BaseModel, rank: int) -> None:
    """peft's: A is rank x inputs, B is outputs x rank."""
    shape = base.shape(module)
    if shape is None:
        raise BadInput.of("adapter-shape", why=f"the base model has no layer {module}")
    for side, wanted in (("A", (rank, shape[1])), ("B", (shape[0], rank))):
        if pair[side].shape != wanted:
            has, needs = ("x".join(map(str, each)) for each in (pair[side].shape, wanted))
            raise BadInput.of(
                "adapter-shape", why=f"{side} of {module} is {has}; the base model and the rank need {needs}"
            )


def _rank(value: Any, name: str, limits: Limits) -> int:
    if type(value) is not int or value < 1:
        raise BadInput.of("adapter-rank", why=f"{name} is {_shown(value)}, no rank")
    if value > limits.rank:
        raise BadInput.of("adapter-rank", why=f"{name} is {_shown(value)}; this server takes ranks up to {limits.rank}")
    return value


def _number(value: Any, name: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(f"{name} is {_shown(value)}, no number", CONFIG)
    if not -MOST_ALPHA <= value <= MOST_ALPHA:  # nan isn't, either
        raise _refused(f"{name} is {_shown(value)}; at most {MOST_ALPHA:,} is taken", CONFIG)
    return value


def _patterns(config: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    found = config.get(name) or {}
    if not isinstance(found, dict) or len(found) > MOST_PATTERNS:
        raise _refused(f"{name} is no mapping of at most {MOST_PATTERNS:,} layers", CONFIG)
    for key in found:
        if not _KEY.fullmatch(key):
            raise BadInput.of("adapter-kind", why=f"{name} has {_shown(key)}, which is no layer's name")
    return list(found.items())


def _of(ranks: Mapping[str, tuple[int, int]], module: str, default: int) -> int:
    """As peft and vLLM find it: a key is the end of the layer's name; the first one counts. Not key by key: a stranger
    may have thousands of both."""
    parts = module.split(".")
    ends = (".".join(parts[at:]) for at in range(len(parts)))
    return min((ranks[end] for end in ends if end in ranks), default=(0, default))[1]


def _refused(why: str, file: str) -> BadInput:
    return BadInput.of("adapter-unread", file=file, why=why)


def _shown(value: Any) -> str:
    """A stranger's word in a message: short, and on one line."""
    return ascii(value)[:80]

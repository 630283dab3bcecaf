"""A Hugging Face causal language model, from a local folder or new, the same on every rank.

Only rank 0 needs the folder. It reads the weights, or draws new ones; the others allocate the shapes and get
everything by broadcast, buffers too: rotary frequencies are in no file.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from rocstack_trainer.config import Model
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.gradients.flat import broadcast
from rocstack_trainer.models import fingerprint, pretrained
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks.peers import Peers

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: models come from disks, never from a network

Say = Callable[[str], None]


def shape(config: Model, rank: Rank, say: Say = print) -> Any:
    """The transformers config of the model, without reading weights: its vocab_size tells the data what fits. Says
    which sizes the type doesn't have.

    Raises:
        ConfigError: on all ranks: the folder is no model that can be trained, or transformers refuses the sizes.
    """
    made: list[Any] = []

    def first() -> Any:
        if config.config:
            made.append(pretrained.shape(config.config, "model.config"))
        else:
            made.append(pretrained.shape(config.path) if config.path else _new(config, say))
        return json.loads(made[0].to_json_string(use_diff=False))

    about = Peers(rank).first(first)
    return made[0] if made else pretrained.rebuilt(about)


def build(config: Model, rank: Rank, seed: int, say: Say = print) -> Any:
    """The model in float32 on the rank's device, in training mode, its weights bitwise equal on all ranks.

    Raises:
        ConfigError: on all ranks: as `shape`, or a weights file is missing, broken or of another model.
        TrainerError: the ranks' models differ.
    """
    about, peers = shape(config, rank, lambda _: None), Peers(rank)

    def start() -> Any:
        torch.manual_seed(seed)
        if rank.rank == 0:
            draw = partial(pretrained.new, about)
            return pretrained.read(config.path, about, say) if config.path else _checked(config, draw)
        with torch.device("meta"):  # no memory, no random numbers
            net = pretrained.new(about)
        net.to_empty(device=rank.device)
        net.tie_weights()  # to_empty makes two tensors of a tied one
        return net

    net = peers.each(start).to(rank.device)
    tensors = dict(net.named_parameters()) | dict(net.named_buffers())
    if rank.world > 1:
        # Tensors that don't match would hang the broadcast: another release of transformers on some node.
        kinds = repr([(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()])
        shapes = f"{len(tensors)} of sha256 {hashlib.sha256(kinds.encode()).hexdigest()[:16]}"
        peers.same(shapes, "the model's tensors", hint="is transformers the same on all nodes?")
        broadcast(tensors.values())
        peers.same(f"checksum {fingerprint.checksum(tensors.values()):x}", "the model's weights after the broadcast")
    return net.train()


@torch.no_grad()
def keeps_documents_apart(net: Any) -> None:
    """Raises ConfigError if two documents in one sample get other logits than each alone: transformers tells them apart
    by their positions, for models whose attention asks it for a mask. All ranks call it."""
    training, device = net.training, next(net.parameters()).device
    positions = torch.tensor([[*range(3), *range(5)]], device=device)
    ids = positions % net.config.get_text_config().vocab_size
    net.eval()
    together = net(input_ids=ids, position_ids=positions).logits[0, 3:]
    alone = net(input_ids=ids[:, 3:]).logits[0]
    net.train(training)
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-3 * float(alone.abs().max())):
        kind = net.config.model_type
        raise ConfigError(f"data.layout=packed: {kind} lets a document see the one before it: use padded")


def n_params(net: torch.nn.Module, trained: bool = False) -> int:
    """Of all, or those that are trained. Tied ones count once."""
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad or not trained)


def flops_per_token(net: Any, seq_len: int) -> float:
    """Floating-point operations of forward and backward for one token: 6 N + 12 L H S. A frozen
    parameter has no gradient, and counts 4 instead of 6.

    N are the parameters that multiply: all but tables that are only looked up (token and position embeddings;
    a tied one is the output matrix as well and counts). L H S are layers, attention width (heads x head size) and
    seq_len: full attention, as PaLM counts it for MFU (arXiv 2204.02311, appendix B; nanoGPT's estimate_mfu keeps
    the token embedding because GPT-2's is tied). All experts of a mixture count: its MFU comes out too high.
    """
    tables = {id(module.weight) for module in net.modules() if isinstance(module, torch.nn.Embedding)}
    output = net.get_output_embeddings()
    tables -= {id(output.weight)} if output is not None else set()
    n = sum((6 if p.requires_grad else 4) * p.numel() for p in net.parameters() if id(p) not in tables)
    about = net.config.get_text_config()
    heads, layers = getattr(about, "num_attention_heads", 0), getattr(about, "num_hidden_layers", 0)
    width = heads * (getattr(about, "head_dim", 0) or about.hidden_size // heads) if heads else 0
    return n + 12 * layers * width * seq_len


def _new(config: Model, say: Say) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    if config.type not in KNOWN:
        close = difflib.get_close_matches(config.type, list(KNOWN), 1)
        hint = f": did you mean {close[0]}?" if close else ", such as llama, gpt2 or qwen2"
        raise ConfigError(f"model.type={config.type} is no causal language model that transformers knows{hint}")
    sizes = {key: value for key, value in asdict(config).items() if key not in ("path", "config", "type")}
    special = dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id")
    )  # the type's own may not fit the vocabulary
    about = _checked(config, lambda: AutoConfig.for_model(config.type, **sizes, **special))
    about.use_cache = False
    default, blank = asdict(Model()), type(about)()
    if unused := [key for key, value in sizes.items() if value != default[key] and not hasattr(blank, key)]:
        say(f"model: {config.type} has no {', '.join(unused)}: ignored")
    return about


def _checked(config: Model, make: Callable[[], Any]) -> Any:
    """Whatever a model type finds wrong with the sizes, in its own words."""
    try:
        return make()
    except Exception as error:
        raise ConfigError(f"{config.config or f'model.type={config.type}'}: {error}") from error

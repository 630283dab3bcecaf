"""The loss, without ever holding the logits of a whole batch: of a vocabulary of 128 thousand they would be larger than
all else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

PIECE_BYTES = 256 << 20  # of logits in float32 at a time
# Model types whose logits are the output matrix times the last hidden state. Others scale or cap them: theirs come
# from the model itself, all at once.
PLAIN = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "olmo", "olmo2", "olmo3", "phi",
         "phi3", "gpt2", "gpt_neox", "starcoder2", "smollm3", "stablelm"}  # fmt: skip


def total(net: Any, inputs: dict[str, Any], targets: Tensor) -> Tensor:
    """The sum of the cross entropy over all targets that are not -100."""
    inner = net.get_base_model() if hasattr(net, "get_base_model") else net  # peft wraps the model
    pieces = pieces_of(targets.numel(), inner.config.get_text_config().vocab_size)
    if pieces == 1 or inner.config.model_type not in PLAIN:
        logits = net(**inputs).logits
        return _of_logits(logits.flatten(0, 1), targets.flatten())
    # The forward pass as it is, but for the output matrix, which comes below: so whoever wraps the model sees it.
    head, held = inner.get_output_embeddings(), []
    hook = head.register_forward_pre_hook(lambda _, arguments: held.append(arguments[0]) or (arguments[0][:, :1],))
    try:
        net(**inputs)
    finally:
        hook.remove()
    hidden = held[0].flatten(0, 1)
    parts = zip(hidden.tensor_split(pieces), targets.flatten().tensor_split(pieces), strict=True)
    # Each piece's logits are made again in backward: one matrix product more, and none of them is kept.
    return torch.stack([checkpoint(_of_hidden, head, *part, use_reentrant=False) for part in parts]).sum()


def pieces_of(targets: int, vocabulary: int) -> int:
    return max(1, -(-targets * vocabulary * 4 // PIECE_BYTES))


def _of_hidden(head: torch.nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    return _of_logits(head(hidden), targets)


def _of_logits(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.float(), targets, reduction="sum")

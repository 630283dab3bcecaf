"""The loss, without ever holding the logits of a whole batch: of a vocabulary of 128 thousand they would be larger than
all else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid
from torch.utils.checkpoint import checkpoint

from rocstack_trainer.config import Config
from rocstack_trainer.data.samples import Batch

PIECE_BYTES = 256 << 20  # of logits in float32 at a time
# Model types whose logits are the output matrix times the last hidden state. Others scale or cap them: theirs come
# from the model itself, all at once.
PLAIN = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "olmo", "olmo2", "olmo3", "phi",
         "phi3", "gpt2", "gpt_neox", "starcoder2", "smollm3", "stablelm"}  # fmt: skip


def of(config: Config, net: Any, batch: Batch) -> Tensor:
    """The sum over all that is learned from."""
    if config.data.layout == "pairs":
        return preferred(net, batch.inputs, batch.targets, config.train.dpo_beta)
    return total(net, batch.inputs, batch.targets)


def preferred(net: Any, inputs: dict[str, Any], targets: Tensor, beta: float) -> Tensor:
    """DPO's loss (arXiv 2305.18290), summed over pairs of a chosen and a rejected row. What the model would say
    without its adapters is the reference."""
    from peft.helpers import rescale_adapter_scale

    training = net.training
    with torch.no_grad(), rescale_adapter_scale(net.eval(), 0.0):
        before = total(net, inputs, targets, "none")
    net.train(training)
    torch.clear_autocast_cache()  # PyTorch 2.6 would take what was cast here without a gradient
    chosen, rejected = (before - total(net, inputs, targets, "none")).view(-1, 2, targets.shape[1]).sum(2).T
    return -logsigmoid(beta * (chosen - rejected)).sum()


def total(net: Any, inputs: dict[str, Any], targets: Tensor, reduction: str = "sum") -> Tensor:
    """The sum of the cross entropy over all targets that are not -100; or with "none" that of each target."""
    inner = net.get_base_model() if hasattr(net, "get_base_model") else net  # peft wraps the model
    pieces = pieces_of(targets.numel(), inner.config.get_text_config().vocab_size)
    if pieces == 1 or inner.config.model_type not in PLAIN:
        logits = net(**inputs).logits
        return _of_logits(logits.flatten(0, 1), targets.flatten(), reduction)
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
    losses = [checkpoint(_of_hidden, head, *part, reduction, use_reentrant=False) for part in parts]
    return torch.stack(losses).sum() if reduction == "sum" else torch.cat(losses)


def pieces_of(targets: int, vocabulary: int) -> int:
    return max(1, -(-targets * vocabulary * 4 // PIECE_BYTES))


def _of_hidden(head: torch.nn.Module, hidden: Tensor, targets: Tensor, reduction: str) -> Tensor:
    return _of_logits(head(hidden), targets, reduction)


def _of_logits(logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
    return cross_entropy(logits.float(), targets, reduction=reduction)

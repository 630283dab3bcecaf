"""In which numbers the model computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist

from rocstack_trainer.errors import MissingError


def bf16(precision: str, device: str) -> bool:
    return precision == "bf16" or (precision == "auto" and not device.startswith("cpu"))


def autocast(precision: str, device: str) -> AbstractContextManager:
    kind = device.partition(":")[0]
    return torch.autocast(kind, torch.bfloat16) if bf16(precision, device) else nullcontext()


def require_bf16_between_ranks(backend: str, setting: str) -> None:
    """Raises MissingError where gloo can't send bfloat16: a distribution may have built PyTorch with an older one."""
    if backend != "gloo":
        return
    alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=30))
    try:
        alone.allreduce([torch.zeros(1, dtype=torch.bfloat16)]).wait()
    except RuntimeError as error:
        if "scalar type" not in str(error):
            raise
        why = f"gloo of this PyTorch {torch.__version__} can't send bfloat16 between ranks, which {setting} needs"
        raise MissingError(f"{why}\n  choose another value, or train on GPUs") from None

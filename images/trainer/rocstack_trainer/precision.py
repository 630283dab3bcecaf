"""In which numbers the model computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def bf16(precision: str, device: str) -> bool:
    return precision == "bf16" or (precision == "auto" and not device.startswith("cpu"))


def autocast(precision: str, device: str) -> AbstractContextManager:
    kind = device.partition(":")[0]
    return torch.autocast(kind, torch.bfloat16) if bf16(precision, device) else nullcontext()

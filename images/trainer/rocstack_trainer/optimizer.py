"""AdamW and its learning rate."""

from __future__ import annotations

import math

import torch

from rocstack_trainer.config import Train


def make(net: torch.nn.Module, settings: Train) -> torch.optim.AdamW:
    """Weight decay is for matrices only: norms and biases have a scale of their own."""
    matrices = [p for p in net.parameters() if p.requires_grad and p.dim() >= 2]
    others = [p for p in net.parameters() if p.requires_grad and p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95), fused=True)


def set_rate(optimizer: torch.optim.Optimizer, settings: Train, step: int) -> float:
    """Sets and returns the rate of the step after `step` steps: linear warm-up, then a cosine down to min_lr x lr."""
    if step < settings.warmup:
        rate = settings.lr * (step + 1) / settings.warmup
    else:
        done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
        low = settings.min_lr
        rate = settings.lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * min(done, 1))))
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate

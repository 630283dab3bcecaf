"""In which numbers the model computes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist

from rocstack_trainer.errors import ConfigError, MissingError

FP8_AMD, FP8_CUDA = ("gfx942", "gfx950"), (8, 9)  # MI300 and MI350; compute capability


def bf16(precision: str, device: str) -> bool:
    return precision in ("bf16", "fp8") or (precision == "auto" and not device.startswith("cpu"))


def autocast(precision: str, device: str) -> AbstractContextManager:
    kind = device.partition(":")[0]
    return torch.autocast(kind, torch.bfloat16) if bf16(precision, device) else nullcontext()


def require_fp8(device: str) -> str:
    """How this device multiplies in fp8, in words. Raises MissingError if it can't, or without torchao."""
    try:
        import torchao
    except ImportError as error:
        raise MissingError(
            f"train.precision=fp8 needs torchao, which can't be imported: {error}\n"
            "  add torchao to your image, or set --train.precision=bf16"
        ) from None
    by = f"fp8: layers multiply by torchao {torchao.__version__}"
    if device == "cpu":
        return f"{by}, emulated in fp32 on a CPU: it learns as with fp8, and is slower"
    about, amd = torch.cuda.get_device_properties(device), torch.version.hip
    if about.gcnArchName.partition(":")[0] not in FP8_AMD if amd else (about.major, about.minor) < FP8_CUDA:
        which = "MI300 and MI350 have" if amd else "compute capability 8.9 and later have"
        raise MissingError(f"train.precision=fp8: {about.name} has no fp8, {which}\n  set --train.precision=bf16")
    return by


def fp8(blocks: Iterable[torch.nn.Module], device: str) -> None:
    """Their linear layers multiply in fp8 from now on; weights and gradients stay as they are. Each row has a scale of
    its own: so no sample's result depends on its neighbours'.

    Raises:
        ConfigError: there are no such layers.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    fits: list[str] = []

    def chosen(module: torch.nn.Module, name: str) -> bool:
        right = isinstance(module, torch.nn.Linear) and not (module.in_features % 16 or module.out_features % 16)
        fits.extend([name] * right)
        return right

    # The number of tokens needn't be a multiple of 16: it is padded.
    rows = replace(Float8LinearConfig.from_recipe_name("rowwise"), pad_inner_dim=True, emulate=device == "cpu")
    for block in blocks:
        convert_to_float8_training(block, module_filter_fn=chosen, config=rows)
    if not fits:
        raise ConfigError(
            "train.precision=fp8: no linear layer's sizes are multiples of 16\n  set --train.precision=bf16"
        )


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

"""A model that is bigger than a GPU: each group of `shard` ranks holds it once, in slices (PyTorch's FSDP2).

FSDP2 gathers the weights of a block when it is computed, and adds up and slices its gradients inside the group. The sum
between the groups is ours, as its all-reduce hook: so it takes the way and the codec that the plan says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rocstack_trainer.config import Config
from rocstack_trainer.errors import ConfigError, MissingError
from rocstack_trainer.gradients.buckets import Gradients
from rocstack_trainer.gradients.collectives import Maker
from rocstack_trainer.gradients.topology import Plan
from rocstack_trainer.models import fingerprint, lora, model, pretrained
from rocstack_trainer.precision import fp8, require_bf16_between_ranks
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks.peers import Peers
from rocstack_trainer.slices import local, of


def build(config: Config, rank: Rank, shard: int, bf16: bool) -> Any:
    """The model, of which each rank has 1/`shard` in float32, in training mode; with LoRA, frozen weights in what they
    are multiplied in, and adapters that `lora.begin` has to give values. No rank but 0, and that one only where the
    model is new, ever has all of it in memory.

    Raises:
        ConfigError: on all ranks: as models.model.build; or a rank doesn't see the folder.
        MissingError: this PyTorch is too old.
    """
    about, peers = model.shape(config.model, rank, lambda _: None), Peers(rank)
    adapters = lora.asked(config.lora, rank) if config.lora.on else None

    def empty() -> Any:
        supported()
        if config.model.path:
            pretrained.files(Path(config.model.path))
        with pretrained.parameters_on_meta():
            net = pretrained.new(about)
        net.tie_weights()
        if config.train.precision == "fp8":
            fp8(blocks(net), rank.device)
        if adapters is None:
            return net
        with pretrained.parameters_on_meta():
            return lora.inject(net, adapters, bf16)

    net = peers.each(empty)
    slice_up(net, rank, shard, bf16, config.parallel.timeout_s)
    net._apply(lambda tensor: torch.empty_like(tensor, device=rank.device) if tensor.is_meta else tensor)
    if config.model.path:
        peers.each(lambda: _read(net, Path(config.model.path)))
    else:
        torch.manual_seed(config.train.seed)
        _hand_out(net, pretrained.new(about) if rank.rank == 0 else None, rank.device)
    return net.train()


def recompute(net: Any) -> None:
    """Backward computes each layer again, of which only the input is kept."""
    # The second is its name in earlier releases of transformers.
    enable = getattr(net, "activation_checkpointing_enable", None) or net.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def supported() -> None:
    """Raises MissingError where this PyTorch has no FSDP2 with a hook of ours."""
    from torch.distributed import fsdp

    if not hasattr(getattr(fsdp, "FSDPModule", None), "set_force_sum_reduction_for_comms"):
        raise MissingError(
            f"parallel.shard needs PyTorch 2.8 or later (FSDP2's all-reduce hook), this is {torch.__version__}\n"
            "  with --parallel.shard=1 every rank has the whole model"
        )


def slice_up(net: torch.nn.Module, rank: Rank, shard: int, bf16: bool, timeout_s: float) -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    timeout = timedelta(seconds=timeout_s)
    sides = [range(start, start + shard) for start in range(0, rank.world, shard)]
    groups = [dist.new_group(side, timeout=timeout) for side in sides]
    mesh = DeviceMesh.from_group(groups[rank.rank // shard], rank.device.partition(":")[0])
    if bf16:
        require_bf16_between_ranks(dist.get_backend(), "train.precision=bf16 with parallel.shard")
    precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
    for block in blocks(net):  # the blocks first: what is left, the root has
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(net, mesh=mesh, mp_policy=precision)


def blocks(net: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers: the list of modules with the most parameters."""
    lists = [module for module in net.modules() if isinstance(module, torch.nn.ModuleList)]
    return list(max(lists, key=lambda each: sum(p.numel() for p in each.parameters()), default=[]))


def whole(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights on the CPU of rank 0; the others get nothing, and call it all the same."""
    found = {}
    for name, tensor in fingerprint.weights(net).items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if dist.get_rank() == 0:
            found[name] = full.cpu()
    return found


class Sharded(Gradients):
    """The gradients of a model that `build` gave."""

    def __init__(self, net: torch.nn.Module, plan: Plan, rank: Rank, shard: int, timeout_s: float) -> None:
        from torch.distributed.fsdp import FSDPModule

        super().__init__(net.parameters())
        self.maker = Maker(plan, rank, timeout_s, shard) if rank.world > shard else None
        self.last, self.earlier, self.collectives = True, {}, {}
        seen: set[torch.nn.Parameter] = set()
        units = [module for module in net.modules() if isinstance(module, FSDPModule)]
        for number, unit in enumerate(reversed(units)):  # the root is the first
            own = [p for p in unit.parameters() if p.requires_grad and p not in seen]
            seen.update(own)
            unit.set_gradient_divide_factor(1.0)  # the loss is divided already
            unit.set_force_sum_reduction_for_comms(True)
            if self.maker and own:
                numel = sum(math.ceil(p.shape[0] / shard) * math.prod(p.shape[1:]) for p in own)
                self.collectives[number] = self.maker(numel)
                unit.set_all_reduce_hook(self._hook(number))
        mesh = next(iter(self.parameters)).device_mesh
        self.group = mesh.get_group()

    @property
    def sent(self) -> int:
        """Bytes that this rank gave to other groups so far; FSDP2's, inside the group, it doesn't tell."""
        return self.maker.sent if self.maker else 0

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        self.last = last
        loss.backward()

    def clip(self, limit: float) -> torch.Tensor:
        grads = [local(p.grad) for p in self.parameters if p.grad is not None]
        square = torch.stack(torch._foreach_norm(grads)).square().sum()
        dist.all_reduce(square, group=self.group)
        norm = square.sqrt()
        if limit:
            torch._foreach_mul_(grads, (limit / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def residuals(self) -> dict[str, torch.Tensor]:
        found = ((f"unit{number}", each.residuals()) for number, each in self.collectives.items())
        return {f"{unit}.{name}": tensor for unit, tensors in found for name, tensor in tensors.items()}

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        """FSDP2 calls it for each micro-batch, but only the last one's goes to the other groups, with the others in it.
        The first one's buffer is the parameters' .grad from then on, to which FSDP2 adds."""

        def hook(summed: torch.Tensor) -> None:
            if not self.last:
                self.earlier.setdefault(number, summed)
                return
            if (earlier := self.earlier.pop(number, None)) is not None:
                summed += earlier
                earlier.zero_()
            self.collectives[number](summed)

        return hook


@torch.no_grad()
def _read(net: torch.nn.Module, folder: Path) -> None:
    """Each rank reads its own slices of the safetensors files, and nothing else. Raises ConfigError."""
    where: dict[str, Path] = {}
    with ExitStack() as stack:
        files = {file: stack.enter_context(pretrained.opened(file)) for file in pretrained.files(folder)}
        for file, opened in files.items():
            where |= dict.fromkeys(opened.keys(), file)
        for name, parameter in _of_the_model(net):
            if name not in where:
                raise ConfigError(
                    f"model.path: {folder} has no tensor {name}, by which a sharded model is read\n"
                    "  save the model again with transformers, or take --parallel.shard=1"
                )
            saved, (mine, at, *_) = files[where[name]].get_slice(name), of(parameter)
            if list(saved.get_shape()) != list(parameter.shape):
                sizes = f"{tuple(saved.get_shape())}, config.json makes it {tuple(parameter.shape)}"
                raise ConfigError(f"model.path: {folder}: {name} is {sizes}")
            if mine.numel():
                mine.copy_(saved[at[0] : at[0] + mine.shape[0]])


def _of_the_model(net: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """By the names in its files, without adapters."""
    for name, parameter in net.named_parameters():
        if "lora_" not in name:
            yield lora.base_name(name), parameter


@torch.no_grad()
def _hand_out(net: torch.nn.Module, full: torch.nn.Module | None, device: str) -> None:
    """Rank 0's weights, one tensor at a time."""
    source = dict(full.named_parameters()) if full is not None else {}
    for name, parameter in _of_the_model(net):
        tensor = source[name].detach().to(device) if source else torch.empty(parameter.shape, device=device)
        dist.broadcast(tensor, 0)
        mine, at, *_ = of(parameter)
        mine.copy_(tensor[at[0] : at[0] + mine.shape[0]] if mine.numel() else mine)

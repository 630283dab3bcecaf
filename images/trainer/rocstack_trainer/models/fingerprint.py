"""What tells whether weights are the same: a sha256 over all bytes, and a checksum where that would take too long."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch

from rocstack_trainer.errors import CheckpointError
from rocstack_trainer.ranks.peers import Peers
from rocstack_trainer.slices import Slice, local, of

CHUNK = {"cpu": 1 << 16, "cuda": 1 << 24}  # elements widened at a time: they stay in a CPU's cache; few launches
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes per element


def weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name, tied ones once: what a checkpoint of the model holds. If some are
    frozen, only what is trained: the others are those of the model that it began with."""
    trained = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
    if len(trained) < len([*net.parameters()]):
        return trained
    saved = net.state_dict(keep_vars=True)
    found = dict(net.named_parameters()) | dict(net.named_buffers())
    return {name: tensor.detach() for name, tensor in found.items() if name in saved}


def sha256(named: Mapping[str, torch.Tensor]) -> str:
    """In hex, over names and bytes: equal means bitwise equal."""
    return combined(each(named))


def each(named: Mapping[str, torch.Tensor]) -> dict[str, str]:
    return of_slices({name: of(tensor) for name, tensor in named.items()})


def of_slices(named: Mapping[str, Slice]) -> dict[str, str]:
    """Where a tensor is sliced, the place where this rank's slice begins is in the name."""
    found = {f"{name} from {s.start[0]}" if s.sliced else name: s for name, s in named.items()}
    return {name: tensor_sha256(s.mine) for name, s in found.items() if s.mine.numel() or not s.sliced}


def combined(digests: Mapping[str, str]) -> str:
    """The same from the tensors' own sha256, which several ranks can have computed."""
    lines = (f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def tensor_sha256(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()


def compare(net: torch.nn.Module, peers: Peers, when: str, shard: int = 1) -> None:
    """Raises CheckpointError on all ranks, naming those whose weights are not the others'. With several ranks to a
    copy, each is compared with those that have the same slices."""
    hint = "memory, network or collectives of a node are at fault; the last checkpoint was still the same on all"
    peers.same(
        f"checksum {checksum(weights(net).values()):x}",
        f"the weights {when}",
        CheckpointError,
        hint,
        peers.rank.rank % shard,
    )


@torch.no_grad()
def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """64 bits that a changed bit changes; the tensors don't leave their device.

    Sums of whole numbers that wrap around are exact in any order. The odd factors tell positions apart.
    """
    total = torch.zeros((), dtype=torch.int64)
    for tensor in tensors:
        flat = local(tensor).detach().contiguous().reshape(-1).view(INTEGERS[tensor.element_size()])
        chunk = CHUNK[tensor.device.type]
        factor = torch.arange(min(chunk, flat.numel()), device=tensor.device) * 2 + 1
        for part in flat.split(chunk):
            total = total.to(tensor.device) * 1_000_003 + (part * factor[: part.numel()]).sum()
    return int(total.item())

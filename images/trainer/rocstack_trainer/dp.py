"""Data parallelism: every rank has the whole model, and gradients are summed over the ranks.

The loss is divided by ranks x micro-batches before backward, so that a plain sum is the mean and no pass over
the gradients is spent on a division.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist

from rocstack_trainer.config import Parallel


class NaiveGradients:
    """One blocking all-reduce per parameter after backward: slow, plain, and the oracle for the other."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self.parameters = list(parameters)

    def zero(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Adds to the gradients; `last` says that no micro-batch of this step follows."""
        loss.backward()

    def finish(self) -> None:
        """After it, every rank has the sum."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)


class Bucket:
    """The gradients of some parameters as one flat buffer, which their `.grad` are views of."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        first = parameters[0]
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        self.views = [v.view_as(p) for v, p in zip(_split(self.flat, parameters), parameters, strict=True)]
        self.missing = 0
        self.work: dist.Work | None = None
        for parameter, view in zip(parameters, self.views, strict=True):
            parameter.grad = view


class BucketedGradients:
    """All-reduce of each bucket starts as soon as backward has filled it, while backward goes on.

    Buckets hold the parameters in reverse order, since backward reaches the last layers first. They are sent
    strictly in that order: every rank must issue the same collectives in the same order.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], bucket_bytes: int) -> None:
        self.buckets = [Bucket(group) for group in pack(reversed(list(parameters)), bucket_bytes)]
        self.sent = 0
        self.armed = False
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._filled(bucket))

    def zero(self) -> None:
        for bucket in self.buckets:
            bucket.flat.zero_()

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Adds to the gradients; only the last micro-batch of a step communicates."""
        self.armed, self.sent = last, 0
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)
        loss.backward()

    def finish(self) -> None:
        """After it, every rank has the sum."""
        while self.sent < len(self.buckets):  # parameters that took no part in this loss have no hook call
            self._send()
        for bucket in self.buckets:
            assert bucket.work is not None
            bucket.work.wait()
            bucket.work = None
            if any(p.grad is not v for p, v in zip(bucket.parameters, bucket.views, strict=True)):
                raise RuntimeError("a .grad was replaced: use zero() here, not optimizer.zero_grad()")

    def _filled(self, bucket: Bucket) -> None:
        bucket.missing -= 1
        while self.armed and self.sent < len(self.buckets) and not self.buckets[self.sent].missing:
            self._send()

    def _send(self) -> None:
        bucket = self.buckets[self.sent]
        bucket.work = dist.all_reduce(bucket.flat, async_op=True)
        self.sent += 1


Gradients = NaiveGradients | BucketedGradients


def gradients(config: Parallel, parameters: Iterable[torch.nn.Parameter]) -> Gradients:
    """As `parallel.gradients` says."""
    if config.algorithm == "naive":
        return NaiveGradients(parameters)
    return BucketedGradients(parameters, int(config.bucket_mb * 2**20))


@torch.no_grad()
def broadcast(tensors: Iterable[torch.Tensor], chunk_bytes: int = 64 << 20) -> None:
    """Rank 0's values, in chunks, into the tensors of every rank."""
    for group in pack(tensors, chunk_bytes):
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.broadcast(flat, src=0)
        for tensor, part in zip(group, _split(flat, group), strict=True):
            tensor.copy_(part.view_as(tensor))


def pack(tensors: Iterable[torch.Tensor], limit: int) -> Iterator[list]:
    """Groups neighbours of one dtype and device, up to `limit` bytes (or one tensor, if that is larger)."""
    group: list = []
    size = 0
    for tensor in tensors:
        same = not group or (tensor.dtype, tensor.device) == (group[0].dtype, group[0].device)
        if group and (not same or size + tensor.nbytes > limit):
            yield group
            group, size = [], 0
        group.append(tensor)
        size += tensor.nbytes
    if group:
        yield group


def _split(flat: torch.Tensor, like: list) -> tuple[torch.Tensor, ...]:
    return flat.split([tensor.numel() for tensor in like])

"""Data parallelism: every rank has the whole model, and gradients are summed over the ranks.

The loss is divided by ranks x micro-batches before backward, so that a plain sum is the mean and no pass over
the gradients is spent on a division.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

from rocstack_trainer.config import Parallel
from rocstack_trainer.gradients.collectives import Collective, Flat, Maker
from rocstack_trainer.gradients.flat import pack, views
from rocstack_trainer.gradients.topology import Plan
from rocstack_trainer.rank import Rank


class Gradients:
    """Of one step, over its micro-batches. As it is here: of one rank that has nobody to share them with."""

    sent = 0  # bytes that this rank gave to others so far

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]

    def zero(self) -> None:
        """Without a .grad to add to, backward hands over its own tensor: no pass to clear, none to add."""
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

    def clip(self, limit: float) -> torch.Tensor:
        """Scales them down to a norm of at most `limit`, unless that is 0. Returns the norm before, on the device."""
        return torch.nn.utils.clip_grad_norm_(self.parameters, limit or math.inf)

    def residuals(self) -> dict[str, torch.Tensor]:
        """What this rank's lossy codec still owes, by name: live tensors."""
        return {}

    def close(self) -> None:
        """At the end of a run that went well."""


class Bucket:
    """The gradients of some parameters as one flat buffer, which their `.grad` become views of."""

    def __init__(self, parameters: list[torch.nn.Parameter], maker: Maker) -> None:
        first = parameters[0]
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        self.places = list(zip(parameters, views(self.flat, parameters), strict=True))
        self.collective = maker(len(self.flat))
        self.missing = 0  # gradients of the current micro-batch
        self.wait: Callable[[], object] = bool

    def complete(self) -> None:
        """Parameters that took no part in this step have no gradient, and a stale one in the buffer."""
        for parameter, view in self.places:
            if parameter.grad is None:
                parameter.grad = view.zero_()


class Line:
    """A thread that runs collectives one after the other, beside backward; on a GPU also in a stream of its own. On a
    CPU, another one prepares the next meanwhile."""

    def __init__(self, device: torch.device) -> None:
        self.pool, self.before = ThreadPoolExecutor(1, "collectives"), ThreadPoolExecutor(1, "encoders")
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, collective: Collective, flat: torch.Tensor) -> Callable[[], object]:
        """Returns what to call to wait for it (on a GPU: to let the current stream wait)."""
        if self.stream is None:
            ready = self.before.submit(collective.prepare, flat)
            return self.pool.submit(lambda: (ready.result(), collective(flat))).result
        filled = torch.cuda.current_stream().record_event()

        def run() -> torch.cuda.Event:
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(filled)
                collective(flat)
                return self.stream.record_event()

        summed = self.pool.submit(run)
        return lambda: torch.cuda.current_stream().wait_event(summed.result())


class Buckets(Gradients):
    """The sum of each bucket starts as soon as backward has filled it, while backward goes on.

    Buckets hold the parameters in reverse order, since backward reaches the last layers first. They are started
    strictly in that order: every rank must issue the same collectives in the same order.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], bucket_bytes: int, maker: Maker) -> None:
        super().__init__(parameters)
        self.maker = maker
        self.buckets = [Bucket(group, maker) for group in pack(reversed(self.parameters), bucket_bytes)]
        self.started = 0  # buckets of this step
        self.armed = False
        self.line = Line(self.parameters[0].device)
        for bucket in self.buckets:
            for parameter, view in bucket.places:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket, view))

    @property
    def sent(self) -> int:
        """Bytes that this rank gave to others so far."""
        return self.maker.sent

    def backward(self, loss: torch.Tensor, last: bool) -> None:
        """Only the last micro-batch of a step communicates."""
        self.armed, self.started = last, 0
        for bucket in self.buckets:
            bucket.missing = len(bucket.places)
        loss.backward()

    def finish(self) -> None:
        for bucket in self.buckets[self.started :]:
            bucket.complete()
            self._start(bucket)
        for bucket in self.buckets:
            bucket.wait()

    def residuals(self) -> dict[str, torch.Tensor]:
        found = enumerate(bucket.collective.residuals() for bucket in self.buckets)
        return {f"bucket{i}.{name}": tensor for i, of_bucket in found for name, tensor in of_bucket.items()}

    def close(self) -> None:
        self.line.before.shutdown()
        self.line.pool.shutdown()

    def _hook(self, bucket: Bucket, view: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def filled(parameter: torch.Tensor) -> None:
            if parameter.grad is not view:  # the first micro-batch
                parameter.grad = view.copy_(parameter.grad)
            bucket.missing -= 1
            while self.armed and self.started < len(self.buckets) and not self.buckets[self.started].missing:
                self._start(self.buckets[self.started])

        return filled

    def _start(self, bucket: Bucket) -> None:
        if isinstance(bucket.collective, Flat):
            bucket.wait = bucket.collective.start(bucket.flat).wait
        else:
            bucket.wait = self.line.start(bucket.collective, bucket.flat)
        self.started += 1


def make(config: Parallel, plan: Plan, rank: Rank, parameters: Iterable[torch.nn.Parameter]) -> Gradients:
    """As the plan says."""
    if rank.device == "cpu":
        _keep_freed_memory()
    if rank.world == 1:
        return Gradients(parameters)
    size_mb = config.bucket_mb or (25 if plan.codec in ("none", "bf16") else 4)
    return Buckets(parameters, int(size_mb * 2**20), Maker(plan, rank, config.timeout_s))


def _keep_freed_memory() -> None:
    """glibc gives what a backward pass frees back to Linux, which then has to zero it for the next one: 18,000 page
    faults a step of a 4 million parameter model, a sixth of its processor time."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):  # musl has none
        for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            mallopt(option, 1 << 30)

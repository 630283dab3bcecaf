"""Gradient codecs: fp32 vectors to fewer bytes and back, and the error feedback that makes up for what they lose.

A message is one uint8 vector that needs only the number of values beside it. Integers are never summed: receivers
decode and add in fp32. Nothing raises for NaN or infinity, since an error on one rank alone would leave the others
waiting: they reach the receiver as NaN or infinity, and the check after the sum stops all ranks together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

import torch
import zstandard
from torch import Tensor

RUN = 1 << 18  # values worked on at a time, whole blocks: they and a temporary stay in a CPU's cache
# Scales between these have a finite reciprocal, and 127 of them are finite: zeros, denormals and the largest values
# need no case of their own.
SMALLEST, LARGEST = 2.0**-126, torch.finfo(torch.float32).max / 127 * (1 - 2**-22)


class Codec(Protocol):
    """All vectors are 1-D and contiguous."""

    def size(self, numel: int) -> int | None:
        """Bytes of a message of `numel` values; None if that depends on them."""

    def encode(self, flat: Tensor, residual: Tensor | None = None) -> Tensor:
        """fp32 (numel,) to a new uint8 vector on the same device.

        With a residual, fp32 (numel,), flat + residual is encoded, and what got lost is left there: 0 where the
        message has no finite value. So over the steps nothing is lost (error feedback, arXiv 1901.09847): the mean
        of T messages is off by 1/T of one message's error.
        """

    def decode(self, data: Tensor, out: Tensor) -> None:
        """A message to fp32 (numel,). Raises ValueError if it isn't one of so many values."""

    def add_to(self, data: Tensor, out: Tensor) -> None:
        """The same, added to what is in `out`, without a pass over memory for the decoded values."""


class Cast:
    """Each value in another floating-point type; fp32 itself is the codec that does nothing."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def size(self, numel: int) -> int:
        return numel * self.dtype.itemsize

    def encode(self, flat: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is None:
            return flat.to(self.dtype, copy=True).view(torch.uint8)
        values = residual.add_(flat).to(self.dtype, copy=True)
        residual.sub_(values).nan_to_num_(0, 0, 0)
        return values.view(torch.uint8)

    def decode(self, data: Tensor, out: Tensor) -> None:
        out.copy_(self._values(data, out.numel()))

    def add_to(self, data: Tensor, out: Tensor) -> None:
        out.add_(self._values(data, out.numel()))

    def _values(self, data: Tensor, numel: int) -> Tensor:
        return _aligned(data, self.size(numel)).view(self.dtype)


class Int8:
    """Each block's values as multiples, -`levels` to `levels`, of absmax / levels: no error is larger than half of that
    scale. With fewer levels than 127, bytes are as many, but pack better.

    A message is the fp32 scales of all blocks, then the multiples. The scale of a block that isn't finite is NaN.
    """

    def __init__(self, block: int = 1024, levels: int = 127) -> None:
        self.block, self.levels = block, levels

    def size(self, numel: int) -> int:
        return 4 * math.ceil(numel / self.block) + numel

    def encode(self, flat: Tensor, residual: Tensor | None = None) -> Tensor:
        data = torch.empty(self.size(flat.numel()), dtype=torch.uint8, device=flat.device)
        for scale, multiples, values, lost in self._rows(data, flat, flat if residual is None else residual):
            if residual is not None:
                values = lost.add_(values)
            torch.maximum(values.amax(1, keepdim=True), values.amin(1, keepdim=True).neg_(), out=scale)
            scale.div_(self.levels).masked_fill_(scale.isinf(), math.nan).clamp_(SMALLEST, LARGEST)
            rounded = values.mul(scale.reciprocal()).round_()
            multiples.copy_(rounded)
            if residual is not None:
                lost.addcmul_(rounded, scale, value=-1).nan_to_num_(0, 0, 0)
        return data

    def decode(self, data: Tensor, out: Tensor) -> None:
        for scale, multiples, values in self._rows(data, out):
            values.copy_(multiples).mul_(scale)

    def add_to(self, data: Tensor, out: Tensor) -> None:
        for scale, multiples, values in self._rows(data, out):
            values.addcmul_(multiples.float(), scale)

    def _rows(self, data: Tensor, *flats: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Views, a row per block: scales (rows, 1), multiples and each of `flats` (rows, block), run by run. The last
        block may be shorter, and is then a run of its own."""
        numel = flats[0].numel()
        split = self.size(numel) - numel
        data = _aligned(data, self.size(numel))
        scales, multiples = data[:split].view(torch.float32), data[split:].view(torch.int8)
        whole = numel - numel % self.block
        run = RUN if data.device.type == "cpu" else max(whole, 1)
        for start, stop in pairwise([*range(0, whole, run), whole, numel]):
            if start < stop:
                shape = (-1, min(self.block, stop - start))
                rows = scales[start // self.block : math.ceil(stop / self.block), None]
                yield rows, *(flat[start:stop].view(shape) for flat in (multiples, *flats))


class Zstd:
    """Int8's messages, entropy coded on the CPU by zstandard's fastest level that has a Huffman stage.

    Gradients don't repeat: the Huffman stage alone finds something, and settings for the match search change nothing.
    """

    def __init__(self, inner: Int8) -> None:
        self.inner = inner

    def size(self, numel: int) -> None:
        return None

    def encode(self, flat: Tensor, residual: Tensor | None = None) -> Tensor:
        raw = self.inner.encode(flat, residual).cpu().numpy()
        data = bytearray(zstandard.ZstdCompressor(level=1).compress(raw))
        return torch.frombuffer(data, dtype=torch.uint8).to(flat.device)

    def decode(self, data: Tensor, out: Tensor) -> None:
        self.inner.decode(self._inflate(data, out.numel()), out)

    def add_to(self, data: Tensor, out: Tensor) -> None:
        self.inner.add_to(self._inflate(data, out.numel()), out)

    def _inflate(self, data: Tensor, numel: int) -> Tensor:
        raw = torch.empty(self.inner.size(numel) + 1, dtype=torch.uint8)  # one more shows a message that is too long
        try:
            with zstandard.ZstdDecompressor().stream_reader(data.cpu().numpy()) as stream:
                size = stream.readinto(raw.numpy())
        except zstandard.ZstdError as error:
            raise ValueError(f"a message of {len(data)} bytes is damaged: {error}") from error
        return raw[:size].to(data.device)


CODECS: dict[str, Codec] = {
    "none": Cast(torch.float32),
    "bf16": Cast(torch.bfloat16),
    "int8": Int8(),
    "int8+zstd": Zstd(Int8(block=4096)),
    "int5+zstd": Zstd(Int8(levels=15)),  # 31 different numbers, nearly 5 bits
    "int4+zstd": Zstd(Int8(levels=7)),
    "int3+zstd": Zstd(Int8(levels=3)),
}


def _aligned(data: Tensor, size: int) -> Tensor:
    """A message of `size` bytes as one that values can be viewed in: it may be a piece of a longer one."""
    if len(data) != size:
        raise ValueError(f"a message has {len(data)} bytes, not {size}")
    return data.clone() if data.storage_offset() % 4 else data

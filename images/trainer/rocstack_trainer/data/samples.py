"""Which tokens each rank sees at each step: a pure function, so there is nothing to save but the step.

The samples of an epoch are shuffled by a keyed permutation that needs no memory. Position p of the endless
stream is sample `permute(p mod n)` of epoch `p div n`; step s takes positions s*batch up to (s+1)*batch, and
rank r of N those with p mod N == r. So every sample comes once per epoch, on any number of ranks, and also
when that number changes between two runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from rocstack_trainer.config import Data
from rocstack_trainer.data import shards
from rocstack_trainer.errors import ConfigError

SYNTHETIC_TOKENS = 1 << 20
OPEN_FILES = 256  # mapped at once; each takes a file descriptor


class Samples:
    """`n` samples of seq_len tokens, each with the token that follows; none crosses from one file to the next.

    `batch` is the samples of a step over all who train. DiLoCo's groups take disjoint samples of one stream: with
    G groups of N ranks, make it with `batch * G` and call `ids(step, group * N + rank, G * N)`. A group that is
    away leaves its samples of these steps unseen.

    Raises:
        ConfigError: a file is missing, cut in the middle of a token, empty, or all are shorter than one sample.
    """

    def __init__(self, config: Data, batch: int, seed: int, vocab_size: int) -> None:
        self.seq_len, self.batch, self.seed, self.vocab_size = config.seq_len, batch, seed, vocab_size
        self.name, self.offset = config.path or f"synthetic bytes (made-up words, seed {seed})", 0
        sizes, self._shard = _files(config) if config.path else _memory(synthetic(seed))
        self.first = np.cumsum([0] + [(size - 1) // self.seq_len for size in sizes])  # sample of each file
        self.n = int(self.first[-1])
        if self.n < 1:
            raise ConfigError(f"{self.name}: {sum(sizes)} tokens, too few for data.seq_len={self.seq_len}")

    def position(self, step: int) -> int:
        """How many samples of the stream were taken before this step."""
        return self.offset + step * self.batch

    def go_on(self, step: int, position: int) -> None:
        """Steps from `step` on follow `position`, which an earlier run reached with another batch or other groups."""
        self.offset = position - step * self.batch

    def ids(self, step: int, rank: int, world: int) -> np.ndarray:
        """The sample numbers (int64, batch/world of them) of this rank at this step."""
        position = np.arange(self.position(step), self.position(step + 1))
        position = position[position % world == rank]
        epoch = position // self.n
        out = np.empty_like(position)
        for number in np.unique(epoch):  # a batch may reach over the end of an epoch
            here = epoch == number
            out[here] = permute(position[here] % self.n, self.n, self.seed, int(number))
        return out

    def load(self, ids: np.ndarray, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, int64, each (len(ids), seq_len).

        Raises:
            ConfigError: a token is not in the model's vocabulary.
        """
        rows = np.stack([self._row(int(i)) for i in ids]).astype(np.int64)
        if rows.max() >= self.vocab_size:
            sample = ids[rows.max(axis=1).argmax()]
            raise ConfigError(
                f"{self.name}: sample {sample} has token {rows.max()}, the model knows {self.vocab_size}\n"
                "  wrong tokenizer for this model, or data.dtype is not the file's"
            )
        both = torch.from_numpy(rows).to(device)
        return both[:, :-1], both[:, 1:]

    def _row(self, sample: int) -> np.ndarray:
        shard = int(np.searchsorted(self.first, sample, side="right")) - 1
        start = (sample - int(self.first[shard])) * self.seq_len
        return self._shard(shard)[start : start + self.seq_len + 1]


def permute(index: np.ndarray, n: int, seed: int, epoch: int) -> np.ndarray:
    """A pseudo-random permutation of range(n), at `index`: four Feistel rounds, cycle-walked into n."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(4, np.uint64)
    out = index.astype(np.uint64)
    walking = np.ones(len(out), dtype=bool)
    while walking.any():  # the domain is at most 4n, so this takes a few turns
        left, right = out[walking] >> np.uint64(half), out[walking] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        out[walking] = (left << np.uint64(half)) | right
        walking = out >= n
    return out.astype(np.int64)


def synthetic(seed: int) -> np.ndarray:
    """A million bytes of made-up words, some more often: a tiny model gets better at them at once."""
    random = np.random.default_rng(seed)
    words = [random.integers(97, 123, length, dtype=np.uint8) for length in random.integers(2, 9, 256)]
    spaced = [np.append(word, np.uint8(32)) for word in words]
    share = 1 / np.arange(1, 257)
    chosen = random.choice(256, SYNTHETIC_TOKENS // 5, p=share / share.sum())
    return np.concatenate([spaced[i] for i in chosen])[:SYNTHETIC_TOKENS]


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (wraps on purpose)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


Sizes = list[int]  # in tokens, of each file
Opener = Callable[[int], np.ndarray]  # the tokens of a file by its number


def _memory(tokens: np.ndarray) -> tuple[Sizes, Opener]:
    return [len(tokens)], lambda _: tokens


def _files(config: Data) -> tuple[Sizes, Opener]:
    files, kind = shards.find(config.path), np.dtype(config.dtype).newbyteorder("<")
    if files[0].suffix != ".bin":
        raise ValueError(f"{files[0]}: tokens.prepare() comes first")
    sizes = [_tokens(file, kind) for file in files]
    return sizes, lru_cache(OPEN_FILES)(lambda i: np.memmap(files[i], dtype=kind, mode="r"))


def _tokens(file: Path, kind: np.dtype) -> int:
    try:
        size = file.stat().st_size
        file.open("rb").close()
    except OSError as error:
        raise ConfigError(f"data.path: {file}: {error.strerror}") from None
    if size % kind.itemsize:
        raise ConfigError(f"{file}: {size} bytes are no whole number of {kind.name} tokens")
    if not size:
        raise ConfigError(f"{file}: the token file is empty")
    return size // kind.itemsize

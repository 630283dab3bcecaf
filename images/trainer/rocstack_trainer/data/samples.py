"""Which tokens each rank sees at each step: a pure function, so there is nothing to save but the step.

The samples of an epoch are shuffled by a keyed permutation that needs no memory. Position p of the endless
stream is sample `permute(p mod n)` of epoch `p div n`; step s takes positions s*batch up to (s+1)*batch. DiLoCo's
groups take a contiguous part of these each, and rank r of a group of N those with p mod N == r. So every sample comes
once per epoch, on any number of ranks in each group, and also when that number changes between two runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rocstack_trainer.config import Data
from rocstack_trainer.data import shards
from rocstack_trainer.errors import ConfigError

SYNTHETIC_TOKENS = 1 << 20
IGNORED = -100  # a target that nothing is learned from, as cross_entropy has it
OPEN_FILES = 256  # mapped at once; each takes a file descriptor


class Batch(NamedTuple):
    """Each int64, (samples, tokens). A target that is IGNORED isn't trained on. `positions` are those of packed
    documents, which begin at 0 each: by that, transformers keeps their attention apart."""

    ids: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor | None = None

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments of the model."""
        return {"input_ids": self.ids} | ({} if self.positions is None else {"position_ids": self.positions})


class Samples:
    """`n` samples of seq_len tokens, each with the token that follows; none crosses from one file to the next.

    `batch` is the samples of a step over all who train: with DiLoCo, those of all groups. A group that is away leaves
    its samples of these steps unseen.

    Raises:
        ConfigError: a file is missing, cut in the middle of a token, empty, or all are shorter than one sample.
    """

    def __init__(self, config: Data, batch: int, seed: int, vocab_size: int) -> None:
        self.seq_len, self.batch, self.seed, self.vocab_size = config.seq_len, batch, seed, vocab_size
        self.name, self.offset = config.path or f"synthetic bytes (made-up words, seed {seed})", 0
        self.notes: list[str] = []  # what a person should know of these samples
        self.paths = shards.find(config.path) if config.path else []
        sizes, self._shard = _files(self.paths, config) if config.path else _memory(synthetic(seed))
        self._samples_of(sizes)

    def _samples_of(self, sizes: list[int]) -> None:
        """Cuts files of so many tokens."""
        each = [(size - 1) // self.seq_len for size in sizes]
        self.first = np.cumsum([0, *each])  # sample of each file
        self.n = int(self.first[-1])
        if self.n < 1:
            raise ConfigError(f"{self.name}: {sum(sizes)} tokens, too few for data.seq_len={self.seq_len}")
        if short := [path for path, samples in zip(self.paths, each, strict=False) if not samples]:
            what = f"shorter than a sample of {self.seq_len + 1} tokens: left out, such as {short[0]}"
            self.notes.append(f"data: {len(short):,} of {len(sizes):,} files are {what}")

    def position(self, step: int) -> int:
        """How many samples of the stream were taken before this step."""
        return self.offset + step * self.batch

    def go_on(self, step: int, position: int) -> None:
        """Steps from `step` on follow `position`, which an earlier run reached with another batch or other groups."""
        self.offset = position - step * self.batch

    def ids(self, step: int, rank: int, world: int, group: int = 0, groups: int = 1) -> np.ndarray:
        """The sample numbers (int64) at this step of rank `rank` of the `world` ranks of this group."""
        share = self.batch // groups
        position = self.position(step) + group * share + np.arange(share)
        position = position[position % world == rank]
        epoch = position // self.n
        out = np.empty_like(position)
        for number in np.unique(epoch):  # a batch may reach over the end of an epoch
            here = epoch == number
            out[here] = permute(position[here] % self.n, self.n, self.seed, int(number))
        return out

    def identity(self) -> str:
        """The same for all who have the same samples in the same order, wherever their files are."""
        some = np.linspace(0, self.n - 1, min(self.n, 16)).astype(int)
        read = b"".join(self._row(int(i)).astype("<u4").tobytes() for i in some)
        return f"{self.n} samples of {self.seq_len} tokens {hashlib.sha256(read).hexdigest()[:12]}, seed {self.seed}"

    def counts(self, ids: np.ndarray) -> tuple[int, int]:
        """How many tokens these samples have to read, and how many to be trained on."""
        return len(ids) * self.seq_len, len(ids) * self.seq_len

    def load(self, ids: np.ndarray, device: str) -> Batch:
        """These samples.

        Raises:
            ConfigError: a token is not in the model's vocabulary.
        """
        rows = np.stack([self._row(int(i)) for i in ids]).astype(np.int64)
        self._check(rows, ids)
        both = torch.from_numpy(rows).to(device)
        return Batch(both[:, :-1], both[:, 1:])

    def _check(self, rows: np.ndarray, ids: np.ndarray) -> None:
        if rows.max() >= self.vocab_size:
            sample = ids[rows.max(axis=1).argmax()]
            raise ConfigError(
                f"{self.name}: sample {sample} has token {rows.max()}, the model knows {self.vocab_size}\n"
                "  wrong tokenizer for this model, or data.dtype is not the file's"
            )

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


def _files(files: list[Path], config: Data) -> tuple[Sizes, Opener]:
    kind = np.dtype(config.dtype).newbyteorder("<")
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

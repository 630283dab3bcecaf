"""Samples that are whole documents: one each (`padded`), or several that don't see each other (`packed`).

A document's last token is no input, and its first no target: packed or alone, it has the same targets.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import torch

from rocstack_trainer.config import Data
from rocstack_trainer.data.samples import IGNORED, Batch, Samples
from rocstack_trainer.data.tokens import TRAINED
from rocstack_trainer.errors import ConfigError

WIDTH = 64  # a batch is as wide as its longest sample, in these steps: few shapes


def samples(config: Data, batch: int, seed: int, vocab_size: int) -> Samples:
    """Of what `tokens.prepare` gave, in the layout that it says."""
    kinds = {"padded": Documents, "packed": Documents, "pairs": Pairs}
    return kinds.get(config.layout, Samples)(config, batch, seed, vocab_size)


class Documents(Samples):
    """`n` samples of at most seq_len tokens, of files that `tokens.prepare` made. A document that is longer, and all
    of which is trained on, becomes several; a longer conversation is cut.

    Raises:
        ConfigError: no document has a target within seq_len.
    """

    def __init__(self, config: Data, batch: int, seed: int, vocab_size: int) -> None:
        super().__init__(config, batch, seed, vocab_size)
        kept, cut, lost = self._pieces()
        if not len(kept):
            raise ConfigError(f"{self.name}: no answer begins within data.seq_len={self.seq_len} tokens: set it higher")
        if cut:
            less = f"; {lost:,} of them have no answer before that and are left out" if lost else ""
            self.notes.append(f"data: {cut:,} conversations are longer than data.seq_len={self.seq_len}: cut{less}")
        self.packed = config.layout == "packed"
        inputs = kept[:, 2] - 1
        rows = pack(inputs, self.seq_len) if self.packed else [[i] for i in range(len(kept))]
        self.n = len(rows)
        self.row_starts = np.cumsum([0] + [len(row) for row in rows])
        self.pieces = kept[np.concatenate(rows)]  # file, place in it, tokens, targets: in the order of the rows
        self.sizes = np.add.reduceat(self.pieces[:, 2:] - [1, 0], self.row_starts[:-1])  # of each row: inputs, targets
        if self.packed:
            self.notes.append(
                f"data: {len(kept):,} documents in {self.n:,} samples, {inputs.sum() / self.n / self.seq_len:.0%} full"
            )

    def _samples_of(self, sizes: list[int]) -> None:
        self.files = len(sizes)

    def _pieces(self) -> tuple[np.ndarray, int, int]:
        """What samples are made of; how many conversations were cut, and how many of these have no answer left."""
        found, cut, lost, most = [], 0, 0, self.seq_len + 1
        for file in range(self.files):
            table = self._table(file)
            _, _, length, trained = table.T
            long = length > most
            found.append(table[~long & (trained > 0)])
            for _, start, size, targets in table[long]:
                if targets == size - 1:
                    places = np.arange(0, size - 1, self.seq_len)
                    ends = np.minimum(places + most, size)
                    split = [np.full(len(places), file), start + places, ends - places, ends - places - 1]
                    found.append(np.stack(split, axis=1))
                    continue
                left = int((self._shard(file)[start + 1 : start + most] >= TRAINED).sum())
                cut, lost = cut + 1, lost + (not left)
                found.append(np.array([[file, start, most, left]] if left else np.empty((0, 4)), np.int64))
        pieces = np.concatenate(found)
        return pieces[np.lexsort((pieces[:, 1], pieces[:, 0]))], cut, lost  # in the order of the files

    def _table(self, file: int) -> np.ndarray:
        """Of each document: file, place in it, tokens, targets."""
        length, trained = np.fromfile(self.paths[file].with_suffix(".docs"), "<u4").reshape(-1, 2).astype(np.int64).T
        return np.stack([np.full(len(length), file), np.cumsum(length) - length, length, trained], axis=1)

    def counts(self, ids: np.ndarray) -> tuple[int, int]:
        inputs, targets = self.sizes[ids].sum(axis=0).tolist()
        return inputs, targets

    def load(self, ids: np.ndarray, device: str) -> Batch:
        width = min(self.seq_len, -(-int(self.sizes[ids, 0].max()) // WIDTH) * WIDTH)
        inputs, positions = np.zeros((2, len(ids), width), np.int64)
        targets = np.full((len(ids), width), IGNORED, np.int64)
        for row, sample in enumerate(ids):
            at = 0
            for tokens in self._documents(int(sample)):
                plain, size = (tokens & (TRAINED - 1)).astype(np.int64), len(tokens) - 1
                inputs[row, at : at + size], positions[row, at : at + size] = plain[:-1], np.arange(size)
                targets[row, at : at + size] = np.where(tokens[1:] >= TRAINED, plain[1:], IGNORED)
                at += size
            positions[row, at:] = np.arange(width - at)  # as a document that nobody learns from
        self._check(inputs, ids)
        made = [torch.from_numpy(array).to(device) for array in (inputs, targets, positions)]
        return Batch(*made) if self.packed else Batch(*made[:2])

    def _documents(self, sample: int) -> list[np.ndarray]:
        here = self.pieces[self.row_starts[sample] : self.row_starts[sample + 1]]
        return [self._shard(int(file))[start : start + size] for file, start, size, _ in here]

    def _row(self, sample: int) -> np.ndarray:
        return np.concatenate(self._documents(sample))


class Pairs(Documents):
    """`n` pairs of conversations, of which the first was chosen and the second rejected: rows 2 i and 2 i + 1 of a
    batch. A pair is one target."""

    def __init__(self, config: Data, batch: int, seed: int, vocab_size: int) -> None:
        super().__init__(config, batch, seed, vocab_size)
        self.n //= 2

    def _pieces(self) -> tuple[np.ndarray, int, int]:
        table = np.concatenate([self._table(file) for file in range(self.files)])
        fits = (table[:, 2] <= self.seq_len + 1).reshape(-1, 2).all(axis=1)
        if long := int((~fits).sum()):
            self.notes.append(
                f"data: {long:,} of {len(fits):,} pairs are longer than data.seq_len={self.seq_len}: left out"
            )
        return table[fits.repeat(2)], 0, 0

    def counts(self, ids: np.ndarray) -> tuple[int, int]:
        return super().counts(_both(ids))[0], len(ids)

    def load(self, ids: np.ndarray, device: str) -> Batch:
        return super().load(_both(ids), device)


def _both(ids: np.ndarray) -> np.ndarray:
    return np.stack([2 * ids, 2 * ids + 1], axis=1).reshape(-1)


def pack(sizes: np.ndarray, most: int) -> list[list[int]]:
    """Which of these go together, at most `most` in sum: the longest first, each where it leaves the least room."""
    rows: list[list[int]] = []
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # those there are, ascending
    for index in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[index])
        if (at := bisect_left(rooms, size)) < len(rooms):
            room = rooms[at]
            row = by_room[room].pop()
            if not by_room[room]:
                del rooms[at], by_room[room]
        else:
            row, room = len(rows), most
            rows.append([])
        rows[row].append(index)
        if left := room - size:
            if left not in by_room:
                insort(rooms, left)
            by_room.setdefault(left, []).append(row)
    return rows

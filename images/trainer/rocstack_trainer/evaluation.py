"""How well the model predicts what it isn't trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rocstack_trainer import loss
from rocstack_trainer.config import Config
from rocstack_trainer.data import documents, tokens
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.precision import autocast
from rocstack_trainer.rank import Rank

BATCH = 8  # samples, where train.micro_batch doesn't say


class Evaluation:
    """`evaluation(net)`: the mean loss over all targets of data.eval, whose files are prepared as data.path's are.

    Batches are the same on any number of ranks, which take turns, and each batch's sum comes from one rank: so the
    result is the same to the bit where a rank computes the same. All ranks of the group call it.

    Raises:
        ConfigError: as `tokens.prepare` and `documents.samples`.
    """

    def __init__(self, config: Config, rank: Rank, vocab_size: int, say: Callable[[str], None]) -> None:
        files = replace(config, data=replace(config.data, path=config.data.eval))
        try:
            self.data = documents.samples(tokens.prepare(files, rank, vocab_size, say), 1, 0, vocab_size)
        except ConfigError as error:
            error.args = (str(error).replace("data.path", "data.eval"),)
            raise
        self.rank, self.config = rank, config
        size = config.train.micro_batch or BATCH
        self.batches = np.split(np.arange(self.data.n), range(size, self.data.n, size))
        self.tokens = self.data.counts(np.arange(self.data.n))[1]
        for note in self.data.notes:
            say(f"eval: {note.removeprefix('data: ')}")
        what = "pairs to tell apart" if config.data.layout == "pairs" else "tokens to predict"
        say(f"eval: {self.data.name}, {self.data.n:,} samples, {self.tokens:,} {what}")

    @torch.no_grad()
    def __call__(self, net: Any) -> float:
        mine = torch.zeros(len(self.batches), dtype=torch.float64, device=self.rank.device)
        net.eval()
        for first in range(0, len(self.batches), self.rank.world):
            number = first + self.rank.rank
            # Where the last round has too few, the others repeat one: a sharded model is computed by all or none.
            batch = self.data.load(self.batches[min(number, len(self.batches) - 1)], self.rank.device)
            with autocast(self.config.train.precision, self.rank.device):
                summed = loss.of(self.config, net, batch)
            if number < len(self.batches):
                mine[number] = summed
        net.train()
        dist.all_reduce(mine)
        return float(mine.cpu().sum()) / self.tokens

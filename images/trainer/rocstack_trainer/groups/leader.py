"""Rank 0 of a group deals with the other groups, which may take hours; its own group waits, and can be stopped."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from rocstack_trainer.errors import PeerLostError, TrainerError
from rocstack_trainer.rank import Rank
from rocstack_trainer.stop import StopSignals

WAITING, FAILED, NOTHING = -1, -2, -9  # NOTHING: what the others say, for the largest counts
TELL_S = 1.0  # how often: a collective that waits for hours would time out, and any rank may be asked to stop


class Stopped(Exception):
    """It was to wait for other groups, but is to stop."""


class Leader:
    def __init__(self, rank: Rank, stop: StopSignals) -> None:
        self.rank, self.stop, self.told, self.wish = rank, stop, 0.0, 0

    def does(self, work: Callable[[], int]) -> int:
        """What `work` gave on rank 0, the only one that does it: not WAITING, FAILED or NOTHING. For all ranks.

        Raises:
            TrainerError: what `work` raised; on the others a PeerLostError.
        """
        word = WAITING
        if self.rank.rank == 0:
            try:
                word = work()
            except TrainerError:
                self._tell(FAILED)
                raise
            self._tell(word)
        while word == WAITING:
            word = self._tell(NOTHING)
        if word == FAILED:
            raise PeerLostError("rank 0 of this group could not go on: it says why")
        self.stop.grant(self.wish)
        return word

    def tick(self) -> None:
        """To be called again and again by `work`. Raises Stopped when any of the ranks got a stop signal."""
        if time.monotonic() > self.told + TELL_S:
            self._tell(WAITING)
        if self.stop.asked or self.stop.agreed or self.wish:
            raise Stopped("it is to stop")

    def _tell(self, word: int) -> int:
        """Rank 0's word, on all ranks; and what they want who got a signal."""
        both = torch.tensor([word, self.stop.wish], device=self.rank.device)
        if self.rank.world > 1:
            dist.all_reduce(both, dist.ReduceOp.MAX)
        word, self.wish = both.tolist()
        self.told = time.monotonic()
        return word

"""From the plan to collectives."""

from __future__ import annotations

from rocstack_trainer.gradients import mpi, team
from rocstack_trainer.gradients.collectives import Bf16, Collective, Compressed, Flat, Hierarchical, Mpi4py, Ring
from rocstack_trainer.gradients.compress import codec
from rocstack_trainer.gradients.topology import Plan
from rocstack_trainer.ranks.launch import Rank

BF16_RANKS = 8  # a bfloat16 sum rounds once per rank; with more of them, float32 sums are worth their time


class Maker:
    """Makes the plan's collective for each bucket; all of them share the process groups."""

    def __init__(self, plan: Plan, rank: Rank, timeout_s: float) -> None:
        self.plan, self.device = plan, rank.device
        self.inside, self.outer = None, team.everybody()
        self.order = [r for node in plan.order for r in plan.nodes[node]]
        if plan.algorithm == "hierarchical":
            self.inside = team.divide(plan.nodes, timeout_s)
            self.outer = team.divide(list(zip(*plan.nodes, strict=True)), timeout_s)
            self.order = [r for r in self.order if r in self.outer.ranks]
        self.mpi = mpi.communicator(rank) if plan.algorithm == "mpi4py" else None

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent to others so far."""
        return self.outer.sent + (self.inside.sent if self.inside else 0)

    def close(self) -> None:
        if self.mpi and self.outer.backend != "mpi":  # which ends it by itself
            mpi.finalize()

    def __call__(self, numel: int) -> Collective:
        if self.inside is None:
            return self._between(numel)
        return Hierarchical(self.inside, self._between(-(-numel // len(self.inside))))

    def _between(self, numel: int) -> Collective:
        if self.mpi:
            return Mpi4py(self.mpi, self.outer)
        exact = Ring(self.outer, self.order) if self.order else Flat(self.outer)
        if self.plan.codec == "none" or len(self.outer) == 1:
            return exact
        # MPI has no bfloat16 sum. Over many ranks, float32 sums of encoded numbers are worth their time.
        if self.plan.codec == "bf16" and (self.order or self.outer.backend != "mpi") and len(self.outer) <= BF16_RANKS:
            return Bf16(exact)
        return Compressed(self.outer, codec(self.plan.codec), numel, self.device)

"""Stop signals: the run ends at the next step boundary, on all ranks, as soon as one of them was asked to. A Slurm job
may then ask for a place at the end of the queue."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping
from types import FrameType

import torch
import torch.distributed as dist

from rocstack_trainer.ranks.spawn import STOP_SIGNALS

STOPPED = 128 + signal.SIGTERM


class StopSignals:
    """Takes SIGINT, SIGTERM (Slurm's preemption) and SIGUSR1 (its --signal) while it is entered."""

    def __init__(self) -> None:
        self.asked = self.agreed = self.requeue = False
        self.name = "a signal to another rank"

    def __enter__(self) -> StopSignals:
        self.before = {number: signal.signal(number, self._ask) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def tell(self, share: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss summed over the ranks, in float64, and the wishes to stop, which travel in the same all-reduce: for
        `heard`. Doesn't wait for the device."""
        both = torch.zeros(3, dtype=torch.float64, device=share.device)
        both[0] = share
        if self.asked:
            both[1:] = both.new_tensor([1, self.name == "SIGUSR1"])
        dist.all_reduce(both)
        return both[0], both[1:]

    def heard(self, wishes: list[float]) -> None:
        """All ranks hear the same. `requeue` is whether it came as SIGUSR1 to any rank: Slurm's word that time is
        nearly up."""
        asked, requeue = wishes
        self.agreed, self.requeue = asked > 0, requeue > 0

    @property
    def wish(self) -> int:
        """0: go on; 1: stop; 2: stop, and Slurm's time is nearly up. Of several ranks, the largest counts."""
        return 1 + (self.name == "SIGUSR1") if self.asked else 0

    def grant(self, wish: int) -> None:
        """All ranks know of the wish of one."""
        self.agreed, self.requeue = self.agreed or wish > 0, self.requeue or wish > 1

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.asked, self.name = True, signal.Signals(number).name
        self._restore()  # a second signal doesn't wait for the step

    def _restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def requeue(env: Mapping[str, str], say: Callable[[str], None]) -> bool:
    """`scontrol requeue` for this job, which Slurm then ends and starts again later. Called by one rank.

    Returns:
        Will it run again? Why not is said: the checkpoint is there either way.
    """
    job = env.get("SLURM_JOB_ID")
    if not job:
        say("requeue: this is no Slurm job (SLURM_JOB_ID is not set): start it again by hand")
        return False
    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        why = "there is no scontrol here; a container needs the host's, with its slurm.conf and munge socket"
    except subprocess.TimeoutExpired:
        why = "slurmctld gave no answer in 60 s"
    except (OSError, subprocess.CalledProcessError) as error:
        why = (getattr(error, "stderr", "") or str(error)).strip()
    else:
        say(f"requeue: job {job} is in the queue again")
        return True
    say(f"requeue: job {job} is not in the queue again: {why}\n  submit it again by hand; it goes on from here")
    return False

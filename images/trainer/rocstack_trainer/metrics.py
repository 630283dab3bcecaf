"""What a run tells: lines for a person, JSON lines for a program. Only rank 0 says anything."""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import torch

from rocstack_trainer.config import Output
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.launch import Rank

COLUMNS = (
    ("step", "step", "d"),
    ("loss", "loss", ".4f"),
    ("grad_norm", "norm", ".3f"),
    ("lr", "lr", ".2e"),
    ("tokens_per_s", "tokens/s", ".0f"),
    ("step_ms", "step ms", ".1f"),
    ("comm_ms", "comm ms", ".1f"),
    ("memory_mb", "MB", ".0f"),
)


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    `loss` is the mean over all ranks, `loss_hex` the same to the last bit. `tokens_per_s` counts all ranks.
    `comm_ms` is how long rank 0 waited for gradients after its backward. `memory_mb` is rank 0's peak: of its
    GPU, or of the process on a CPU.
    """

    step: int
    loss: float
    loss_hex: str
    grad_norm: float
    lr: float
    tokens_per_s: float
    step_ms: float
    comm_ms: float
    memory_mb: float


class Report:
    """Raises ConfigError if the metrics file can't be opened."""

    def __init__(self, config: Output, rank: Rank) -> None:
        self.config, self.speaks, self.out = config, rank.rank == 0, sys.stdout
        self.steps: list[Step] = []
        self.file: TextIO | None = None
        if config.metrics and self.speaks:
            try:
                Path(config.metrics).parent.mkdir(parents=True, exist_ok=True)
                self.file = open(config.metrics, "a", encoding="utf-8")  # noqa: SIM115 - open for the whole run
            except OSError as error:
                raise ConfigError(f"output.metrics: {config.metrics}: {error.strerror}") from None

    def say(self, text: str) -> None:
        if self.speaks:
            print(text, file=self.out, flush=True)

    def step(self, step: Step) -> None:
        self.steps.append(step)
        if self.file:
            print(json.dumps(asdict(step)), file=self.file, flush=True)
        if step.step % self.config.every:
            return
        if not self.out.isatty():
            self.say(" ".join(f"{key}={getattr(step, key):{form}}" for key, _, form in COLUMNS))
            return
        if len(self.steps) == 1:
            self.say(" ".join(f"{title:>9}" for _, title, _ in COLUMNS))
        self.say(" ".join(f"{getattr(step, key):>9{form}}" for key, _, form in COLUMNS))

    def summary(self, weights: str) -> None:
        if self.steps:
            steady = self.steps[1:] or self.steps  # the first step allocates
            first, last = self.steps[0], self.steps[-1]
            self.say(
                f"done: step {last.step}, loss {first.loss:.4f} -> {last.loss:.4f} ({last.loss_hex}),"
                f" median step {median(s.step_ms for s in steady):.1f} ms,"
                f" {median(s.tokens_per_s for s in steady):.0f} tokens/s"
            )
        self.say(f"weights sha256 {weights}")


def mark(device: torch.device) -> Any:
    """A point in time: of the host, or in the GPU's stream (reading it there would stop the stream)."""
    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def ms(start: Any, end: Any) -> float:
    """Milliseconds between two marks; GPU marks must have passed (the step's loss was read)."""
    return float((end - start) * 1e3 if isinstance(start, float) else start.elapsed_time(end))


def memory_mb(device: torch.device) -> float:
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return torch.cuda.max_memory_allocated(device) / 2**20

"""What a run tells: lines for a person, JSON lines for a program. Only rank 0 of each group says anything."""

from __future__ import annotations

import json
import math
import resource
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import torch

from rocstack_trainer.config import Output
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.rank import Rank
from rocstack_trainer.report import curves, gpus, trackers, wire

# The most important first: a narrow terminal shows only those.
COLUMNS = (
    ("step", "step", "d"),
    ("loss", "loss", ".4f"),
    ("tokens_per_s", "tokens/s", ".0f"),
    ("step_ms", "step ms", ".1f"),
    ("comm_ms", "comm ms", ".1f"),
    ("mfu", "MFU", ".1%"),
    ("wire_mb", "wire MB", ".2f"),
    ("grad_norm", "norm", ".3f"),
    ("lr", "lr", ".2e"),
    ("memory_mb", "mem MB", ".0f"),
    ("sent_mb", "sent MB", ".2f"),
    ("outer", "outer", "d"),
)
WIDTH, HEADER_EVERY = 10, 30
BUSY_S = 1.0  # for which a GPU isn't asked again


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    `loss` is the mean over all ranks of the group, `loss_hex` the same to the last bit. `tokens_per_s` counts all
    ranks of the group. `comm_ms` is how long rank 0 waited for gradients after its backward. `memory_mb` is rank 0's
    peak: of its GPU, or of the process on a CPU. `sent_mb` is what rank 0 handed to its collectives in this step, and
    `outer` the number of outer (DiLoCo) steps so far. `eval_loss` is that over data.eval, where it was measured after
    this step.

    The report adds: `mfu`, the part of the devices' peak that the model used (None where that is unknown, and on
    CPUs); `gpu_busy`, how busy the GPUs are that rank 0 may use on its host, in percent (None without an amdgpu);
    `perplexity`, e to the eval_loss; `wire_mb`, what rank 0's host sent since the step before, by whatever
    process; `group`.
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
    sent_mb: float = 0.0
    outer: int = 0
    eval_loss: float | None = None
    perplexity: float | None = None
    mfu: float | None = None
    gpu_busy: float | None = None
    wire_mb: float = 0.0
    group: int = 0


class Report:
    """Raises ConfigError if the metrics or curves file can't be opened, MissingError if a tracker isn't installed."""

    def __init__(self, config: Output, rank: Rank) -> None:
        self.config, self.rank, self.speaks = config, rank, rank.rank == 0
        self.out: TextIO | None = sys.stdout  # None when it is closed, or nobody reads it any more
        self.steps: list[Step] = []
        self.shown = 0  # lines of the table
        self.predicts = True  # tokens, by whose loss there is a perplexity
        self.wire, self.flops, self.peak, self.title, self.end = wire.sent_bytes(), 0.0, 0.0, "", 0
        self.first, self.began = 1, time.time()
        self.gpus: list[Path] = []
        self.busy: tuple[float, float | None] = 0.0, None  # until when it counts, and what was read
        self.file: FileIO | None = None
        self.asked = trackers.names(config.trackers)
        self.trackers: trackers.Trackers | None = None
        self.curves = config.curves if rank.group == 0 else ""  # it has the other groups of its metrics file too
        if self.speaks and self.curves:
            _open("output.curves", self.curves).close()
        if self.speaks and config.metrics:
            self.file = _open("output.metrics", config.metrics)

    def start(self, title: str, flops_per_token: float, device: torch.device, first: int = 1, steps: int = 0) -> None:
        """To be called before step number `first` of `steps`: from here on, bytes are counted. `title` is for the
        curves."""
        peak = gpus.peak_of(device)
        self.peak = peak or 0.0
        self.gpus = gpus.usable() if self.speaks and device.type != "cpu" else []
        self.flops = flops_per_token / (peak * self.rank.world) if peak else 0.0
        self.title, self.wire, self.end, self.first, self.began = title, wire.sent_bytes(), steps, first, time.time()

    def track(self, settings: Mapping[str, Any]) -> None:
        """Opens the trackers that the settings ask for; they get these, by section."""
        if self.speaks and self.asked:
            folder = Path(self.config.tracking) / (f"group-{self.rank.group}" if self.rank.groups > 1 else "")
            self.trackers = trackers.Trackers(self.asked, folder, settings, self.say)

    def say(self, text: str) -> None:
        if self.speaks and self.out:
            who = f"group {self.rank.group}: " if self.rank.groups > 1 else ""
            try:
                print(f"{who}{text}", file=self.out, flush=True)
            except OSError:  # such as `| head`: training goes on
                self.out = None

    def step(self, step: Step, every: int = 1) -> None:
        """It is shown if its number is a multiple of `every`."""
        sent = wire.sent_bytes() if self.speaks else 0
        step = replace(
            step,
            group=self.rank.group,
            mfu=step.tokens_per_s * self.flops or None,
            gpu_busy=self.gpu_busy(),
            wire_mb=(sent - self.wire) / 1e6,
            perplexity=perplexity(step.eval_loss) if self.predicts else None,
        )
        self.wire = sent
        self.steps.append(step)
        if self.file:
            try:
                self.file.write(f"{json.dumps(asdict(step))}\n".encode())
            except OSError as error:
                self.say(
                    f"metrics: {self.config.metrics}: {error.strerror}: no more steps are written, training goes on"
                )
                self.file = None
        if self.trackers:
            numbers = {key: value for key, value in asdict(step).items() if isinstance(value, float | int)}
            self.trackers.log(step.step, {key: numbers[key] for key in numbers.keys() - {"step", "group"}})
        if step.step % every == 0:
            self.show(step)
        if step.eval_loss is not None:
            self.say(f"eval: step {step.step}, {self._evaluated(step.eval_loss)}")

    def gpu_busy(self) -> float | None:
        """Several steps may be told at once, and the GPU's firmware needs some milliseconds for an answer."""
        if self.busy[0] < time.monotonic():
            self.busy = time.monotonic() + BUSY_S, gpus.busy(self.gpus)
        return self.busy[1]

    def show(self, step: Step) -> None:
        columns = [(key, title, form) for key, title, form in COLUMNS if getattr(step, key) is not None]
        if not (self.out and self.out.isatty()):
            self.say(" ".join(f"{key}={getattr(step, key):{form}}" for key, _, form in columns))
            return
        width = shutil.get_terminal_size().columns
        line, head = [f"{getattr(step, key):>{WIDTH}{form}}" for key, _, form in columns], []
        if self.end:
            part = (step.step - self.first + 1) / (self.end - self.first + 1)
            line[1:1] = [f"{part:>{WIDTH}.0%}", f"{duration((1 - part) / part * (time.time() - self.began)):>{WIDTH}}"]
            head = ["done", "to go"]
        titles = [columns[0][1], *head, *(title for _, title, _ in columns[1:])]
        shown = max(2, width // WIDTH)
        if self.shown % HEADER_EVERY == 0:
            self.say("".join(f"{title:>{WIDTH}}" for title in titles[:shown]))
        self.shown += 1
        self.say("".join(line[:shown]))

    def summary(self, weights: str) -> None:
        if self.steps:
            steady = self.steps[1:] or self.steps  # the first step allocates
            first, last = self.steps[0], self.steps[-1]
            mfu = median(s.mfu for s in steady if s.mfu) if last.mfu else 0.0
            used = f", {mfu:.1%} MFU, {mfu * self.peak / 1e12:.1f} TFLOPS a GPU" if mfu else ""
            self.say(
                f"done: step {last.step}, loss {first.loss:.4f} -> {last.loss:.4f} ({last.loss_hex}),"
                f" median step {median(s.step_ms for s in steady):.1f} ms,"
                f" {median(s.tokens_per_s for s in steady):.0f} tokens/s{used}"
            )
            if losses := [s.eval_loss for s in self.steps if s.eval_loss is not None]:
                self.say(f"eval: {self._evaluated(losses[0])} -> {self._evaluated(losses[-1])}")
        if weights:
            self.say(f"weights sha256 {weights}")
        if self.trackers:
            self.trackers.close()
        if self.speaks and self.curves:
            self.draw()

    def _evaluated(self, loss: float) -> str:
        more = f", perplexity {perplexity(loss) or math.inf:.6g}" if self.predicts else ""
        return f"loss {loss:.4f}{more}"

    def draw(self) -> None:
        """With a metrics file, its steps of earlier starts and of other groups are drawn too."""
        try:
            runs = (
                curves.read([Path(self.config.metrics)])
                if self.config.metrics
                else {"": [asdict(step) for step in self.steps]}
            )
            Path(self.curves).write_text(curves.svg(runs, self.title), encoding="utf-8")
        except OSError as error:  # the training is done: nothing of it is lost
            self.say(f"curves: {self.curves}: {error.strerror}")
        else:
            self.say(f"curves: {self.curves}")


def perplexity(loss: float | None) -> float | None:
    """None where it isn't finite, which JSON hasn't."""
    return math.exp(loss) if loss is not None and loss < 700 else None


def duration(seconds: float) -> str:
    """As a person says it: 40 s, 12 min, 3 h 20."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02}" if hours else f"{minutes} min"


class _NoProfiler:
    def step(self) -> None:
        pass


def profiler(folder: str, rank: Rank) -> Any:
    """A context with `step()`. Of rank 0, it writes a trace of steps 4 to 6 for Perfetto or chrome://tracing."""
    if not folder or rank.rank or rank.group:
        return nullcontext(_NoProfiler())
    from torch.profiler import profile, schedule, tensorboard_trace_handler

    Path(folder).mkdir(parents=True, exist_ok=True)
    steps = schedule(wait=2, warmup=1, active=3, repeat=1)
    return profile(schedule=steps, on_trace_ready=tensorboard_trace_handler(folder), profile_memory=True)


def _open(setting: str, name: str) -> FileIO:
    """To append to, without a buffer: on a full disk it would be tried again and again."""
    try:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        return open(name, "ab", buffering=0)
    except OSError as error:
        raise ConfigError(f"{setting}: {name}: {error.strerror}") from None


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

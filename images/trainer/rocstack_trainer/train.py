"""The training loop, from top to bottom."""

from __future__ import annotations

import math
import signal
import time
from contextlib import AbstractContextManager, nullcontext
from types import FrameType

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from rocstack_trainer import dp, launch, metrics, model
from rocstack_trainer.checkpoint import Checkpoints
from rocstack_trainer.config import Config, Train, micro_batches
from rocstack_trainer.data import Samples
from rocstack_trainer.errors import NonFiniteError
from rocstack_trainer.launch import Rank
from rocstack_trainer.spawn import STOP_SIGNALS
from rocstack_trainer.state import State

STOPPED = 128 + signal.SIGTERM


def train(config: Config, rank: Rank, started: float) -> int:
    """Trains until train.steps or a stop signal. `started` is the time.time() at which the person started it.

    Returns:
        The exit code: 0, also when a stop signal came and a checkpoint was saved; 143 if none was.

    Raises:
        NonFiniteError: loss or gradient is NaN or infinite; raised on all ranks before the optimizer step.
    """
    settings, report, device = config.train, metrics.Report(config.output, rank), torch.device(rank.device)
    micro, micros = micro_batches(settings, rank.world)
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=device.type != "cpu")
    with launch.process_group(rank, config.parallel.timeout_s), StopSignals() as stop:
        net = model.build(config.model, rank, settings.seed)
        optimizer = make_optimizer(net, settings)
        checkpoints = Checkpoints(config, rank, report.say)
        state = State(net, optimizer)
        step = checkpoints.resume(state)
        data = Samples(config.data, settings.batch, settings.seed, net.config.vocab_size)
        gradients = dp.gradients(config.parallel, net.parameters())
        report.say(f"model: {model.n_params(net):,} parameters; data: {data.name}, {data.n:,} samples")
        report.say(f"start-up: {time.time() - started:.1f} s; a step is {micros} x {micro} samples per rank")

        while step < settings.steps and not stop.agreed:
            began = time.perf_counter()
            torch.manual_seed(step_seed(settings.seed, step, rank.rank))
            ids = data.ids(step, rank.rank, rank.world)
            share = forward_backward(net, gradients, data, ids, micro, config, rank)
            computed = metrics.mark(device)
            gradients.finish()
            received = metrics.mark(device)
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), settings.clip or math.inf).item()
            loss = stop.agree(share)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise NonFiniteError(
                    f"step {step + 1}: loss {loss}, gradient norm {norm}: stopped before the optimizer\n"
                    "  usually the learning rate is too high: try a lower train.lr or a longer train.warmup"
                )
            lr = learning_rate(settings, step)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            step += 1
            took, waited = time.perf_counter() - began, metrics.ms(computed, received)
            speed = settings.batch * data.seq_len / took
            memory = metrics.memory_mb(device)
            report.step(metrics.Step(step, loss, loss.hex(), norm, lr, speed, took * 1e3, waited, memory))
            if config.checkpoint.every and step % config.checkpoint.every == 0:
                checkpoints.save(step, state)

        report.summary(checkpoints.finish(step, state))
    if step >= settings.steps:
        return 0
    saved = "run it again to go on" if checkpoints.enabled else "nothing was saved: checkpoint.dir is not set"
    report.say(f"stopped by {stop.name} at step {step}: {saved}")
    return 0 if checkpoints.enabled else STOPPED


def forward_backward(
    net: torch.nn.Module,
    gradients: dp.Gradients,
    data: Samples,
    ids: np.ndarray,
    micro: int,
    config: Config,
    rank: Rank,
) -> torch.Tensor:
    """This rank's share of the mean loss; summed over the ranks, it is the mean. So are its gradients."""
    gradients.zero()
    total = torch.zeros((), device=rank.device)
    for start in range(0, len(ids), micro):
        inputs, targets = data.load(ids[start : start + micro], rank.device)
        with autocast(config.train.precision, rank.device):
            logits = net(input_ids=inputs).logits
        loss = cross_entropy(logits.float().flatten(0, 1), targets.flatten()) * (micro / config.train.batch)
        gradients.backward(loss, last=start + micro >= len(ids))
        total += loss.detach()
    return total


def autocast(precision: str, device: str) -> AbstractContextManager:
    kind = device.partition(":")[0]
    bf16 = precision == "bf16" or (precision == "auto" and kind != "cpu")
    return torch.autocast(kind, torch.bfloat16) if bf16 else nullcontext()


def make_optimizer(net: torch.nn.Module, settings: Train) -> torch.optim.AdamW:
    """Weight decay is for matrices only: norms and biases have a scale of their own."""
    matrices = [p for p in net.parameters() if p.dim() >= 2]
    others = [p for p in net.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95), fused=True)


def learning_rate(settings: Train, step: int) -> float:
    """Linear warm-up, then a cosine down to min_lr x lr at the last step."""
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.lr * (settings.min_lr + (1 - settings.min_lr) * 0.5 * (1 + math.cos(math.pi * min(done, 1))))


def step_seed(seed: int, step: int, rank: int) -> int:
    """Random numbers (dropout) restart at each step: a resumed run draws the same, with nothing saved."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint32)[0])


class StopSignals:
    """A stop signal ends the run at the next step boundary: of all ranks, as soon as one of them got it."""

    def __init__(self) -> None:
        self.asked = self.agreed = False
        self.name = "a signal to another rank"

    def __enter__(self) -> StopSignals:
        self.before = {number: signal.signal(number, self._ask) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def agree(self, share: torch.Tensor) -> float:
        """The loss summed over the ranks; the wish to stop travels in the same all-reduce."""
        both = torch.stack([share.double(), share.new_tensor(self.asked).double()])
        dist.all_reduce(both)
        loss, asked = both.tolist()
        self.agreed = asked > 0
        return loss

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.asked, self.name = True, signal.Signals(number).name
        self._restore()  # a second signal doesn't wait for the step

    def _restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

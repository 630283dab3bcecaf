"""The training loop, from top to bottom."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from rocstack_trainer import optimizer
from rocstack_trainer.config import Config, micro_batches
from rocstack_trainer.data import tokens
from rocstack_trainer.data.samples import Samples
from rocstack_trainer.errors import CheckpointError, NonFiniteError
from rocstack_trainer.gradients import buckets, topology
from rocstack_trainer.groups.diloco import Outer
from rocstack_trainer.models import fingerprint, model
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import launch
from rocstack_trainer.ranks.beat import Watchdog
from rocstack_trainer.ranks.peers import Peers
from rocstack_trainer.report import metrics
from rocstack_trainer.saving.checkpoint import Checkpoints
from rocstack_trainer.saving.requeue import requeue
from rocstack_trainer.saving.state import State
from rocstack_trainer.stop import STOPPED, StopSignals


def train(config: Config, rank: Rank, started: float) -> int:
    """Trains until train.steps or a stop signal. `started` is the time.time() at which the person started it.

    Returns:
        The exit code: 0, also when a stop signal came and a checkpoint was saved; 143 if none was.

    Raises:
        NonFiniteError: loss or gradient is NaN or infinite; raised on all ranks before the optimizer step.
    """
    settings, links, device = config.train, config.parallel, torch.device(rank.device)
    report, step = metrics.Report(config.output, rank), 0
    micro, micros = micro_batches(settings, rank.world)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads what it hasn't written
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=device.type != "cpu")
    meeting = launch.process_group(rank, links.timeout_s, links.store, links.lost_after_s)
    with meeting as store, Watchdog(store, rank, links, lambda: step), ExitStack() as stack:
        checkpoints = Checkpoints(config, rank, report.say)
        vocabulary = model.shape(config.model, rank, report.say).get_text_config().vocab_size
        files = tokens.prepare(config, rank, vocabulary, report.say)
        stop = stack.enter_context(StopSignals())
        net = model.build(config.model, rank, settings.seed, report.say)
        data = Samples(files, settings.batch * rank.groups, settings.seed, vocabulary)
        plan = topology.plan(links, rank, 4 * model.n_params(net), checkpoints.notes().get("plan"))
        gradients = buckets.make(links, plan, rank, net.parameters())
        outer = Outer(config, rank, store, net, report.say, stop) if config.outer else None
        state = State(net, optimizer.make(net, settings), outer.tensors() if outer else {}, gradients.residuals())
        step = checkpoints.resume(state)
        data.go_on(step, checkpoints.notes().get("position", data.position(step)))
        if outer:
            stack.callback(outer.close)  # the other groups wait for this one no longer
            step = outer.join(step)

        if rank.world > 1:
            report.say(plan.table())
        title = f"{config.model.path or config.model.type}, {model.n_params(net):,} parameters"
        report.say(f"model: {title}; data: {data.name}, {data.n:,} samples")
        report.say(f"start-up: {time.time() - started:.1f} s; a step is {micros} x {micro} samples per rank")
        title += f", {rank.groups * rank.world} rank(s), {plan.algorithm} {plan.codec}"
        report.start(title, model.flops_per_token(net, data.seq_len), device)

        def save(write: Callable[[int, State], str | None]) -> str | None:
            state.notes = {"plan": asdict(plan), "position": data.position(step)} | (outer.notes() if outer else {})
            return write(step, state)

        while step < settings.steps and not stop.agreed:
            began, sent = time.perf_counter(), gradients.sent + (outer.sent if outer else 0)
            try:
                loss, norm, lr, waited = one_step(net, state.optimizer, gradients, data, step, config, rank, stop)
            except NonFiniteError:
                checkpoints.wait()
                raise
            step += 1
            step = outer.sync(step) if outer else step
            if links.compare_every and step % links.compare_every == 0:
                fingerprint.compare(net, Peers(rank), f"at step {step}")
            took = time.perf_counter() - began
            speed, memory = settings.batch * data.seq_len / took, metrics.memory_mb(device)
            sent = (gradients.sent + (outer.sent if outer else 0) - sent) / 1e6
            outers = step // config.diloco.inner_steps if outer else 0
            done = metrics.Step(step, loss, loss.hex(), norm, lr, speed, took * 1e3, waited, memory, sent, outers)
            report.step(done)
            if config.checkpoint.every and step % config.checkpoint.every == 0:
                save(checkpoints.save)

        try:
            report.summary(save(checkpoints.finish) or "")
        except CheckpointError:
            report.summary("")  # what was learned is told all the same
            raise
        gradients.close()
    if step >= settings.steps and not (outer and outer.owes):
        return 0
    saved = "run it again to go on" if checkpoints.enabled else "nothing was saved: checkpoint.dir is not set"
    report.say(f"stopped by {stop.name} at step {step}: {saved}")
    first = rank.rank == 0 and (rank.group == 0 or config.diloco.group >= 0)  # of this launch
    if config.checkpoint.requeue and stop.requeue and first:
        requeue(os.environ, report.say)
    return 0 if checkpoints.enabled else STOPPED


def one_step(
    net: torch.nn.Module,
    adam: torch.optim.Optimizer,
    gradients: buckets.Gradients,
    data: Samples,
    step: int,
    config: Config,
    rank: Rank,
    stop: StopSignals,
) -> tuple[float, float, float, float]:
    """Step number `step`, from 0, on all ranks of the group.

    Returns:
        Loss, gradient norm, learning rate, and the ms that this rank waited for gradients after its backward.

    Raises:
        NonFiniteError: on all ranks: the weights are as they were.
    """
    settings = config.train
    place, places = rank.group * rank.world + rank.rank, rank.groups * rank.world
    torch.manual_seed(step_seed(settings.seed, step, place))
    share = forward_backward(net, gradients, data, data.ids(step, place, places), config, rank)
    computed = metrics.mark(share.device)
    gradients.finish()
    received = metrics.mark(share.device)
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), settings.clip or math.inf).item()
    loss = stop.agree(share)
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise NonFiniteError(
            f"step {step + 1}: loss {loss}, gradient norm {norm}: stopped before the optimizer\n"
            "  usually the learning rate is too high: try a lower train.lr or a longer train.warmup"
        )
    lr = optimizer.set_rate(adam, settings, step)
    adam.step()
    return loss, norm, lr, metrics.ms(computed, received)


def forward_backward(
    net: torch.nn.Module,
    gradients: buckets.Gradients,
    data: Samples,
    ids: np.ndarray,
    config: Config,
    rank: Rank,
) -> torch.Tensor:
    """This rank's share of the mean loss; summed over the ranks, it is the mean. So are its gradients."""
    gradients.zero()
    micro, _ = micro_batches(config.train, rank.world)
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


def step_seed(seed: int, step: int, rank: int) -> int:
    """Random numbers (dropout) restart at each step: a resumed run draws the same, with nothing saved."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint32)[0])

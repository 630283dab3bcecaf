"""The training loop, from top to bottom."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from rocstack_trainer import loss, memory, optimizer, precision, sharding
from rocstack_trainer.config import Config, micro_batches
from rocstack_trainer.data import documents, tokens
from rocstack_trainer.data.samples import Batch, Samples
from rocstack_trainer.errors import CheckpointError, NonFiniteError
from rocstack_trainer.evaluation import Evaluation
from rocstack_trainer.gradients import buckets, topology
from rocstack_trainer.gradients.buckets import Gradients
from rocstack_trainer.groups.diloco import Outer
from rocstack_trainer.models import fingerprint, lora, model
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import launch
from rocstack_trainer.ranks.beat import Watchdog
from rocstack_trainer.ranks.peers import Peers
from rocstack_trainer.report import metrics
from rocstack_trainer.saving.checkpoint import Checkpoints
from rocstack_trainer.saving.state import State
from rocstack_trainer.stop import STOPPED, StopSignals, requeue

GPU_EVERY = 10  # steps after which the host looks at what a GPU has made, unless the settings say more


def train(config: Config, rank: Rank, started: float) -> int:
    """Trains until train.steps or a stop signal. `started` is the time.time() at which the person started it.

    Returns:
        The exit code: 0, also when a stop signal came and a checkpoint was saved; 143 if none was.

    Raises:
        NonFiniteError: loss or gradient is NaN or infinite; raised on all ranks, with the weights of before.
    """
    settings, links, device = config.train, config.parallel, torch.device(rank.device)
    report, step = metrics.Report(config.output, rank), 0
    report.predicts = config.data.layout != "pairs"
    micro, micros = micro_batches(settings, rank.world)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads what it hasn't written
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=device.type != "cpu")
    meeting = launch.process_group(rank, links.timeout_s, links.store, links.start_s)
    with meeting as store, Watchdog(store, rank, links, lambda: step), ExitStack() as stack:
        # What there is, and how it is laid out.
        about, bf16 = model.shape(config.model, rank, report.say), precision.bf16(settings.precision, rank.device)
        if settings.precision == "fp8":
            report.say(Peers(rank).each(lambda: precision.require_fp8(rank.device)))
        layout, why = memory.choose(config, rank, about, bf16)
        checkpoints = Checkpoints(config, rank, report.say, layout.shard)
        vocabulary = about.get_text_config().vocab_size
        files = tokens.prepare(config, rank, vocabulary, report.say)
        evaluation = Evaluation(config, rank, vocabulary, report.say) if config.data.eval else None
        stop = stack.enter_context(StopSignals())

        # The model, its data, its gradients and its optimizer.
        if layout.shard > 1:
            net = sharding.build(config, rank, layout.shard, bf16)
            tuned = lora.begin(net, config, rank) if config.lora.on else {}
        else:
            net = model.build(config.model, rank, settings.seed, report.say)
            net, tuned = lora.apply(net, config, rank, bf16)
        data = documents.samples(files, settings.batch * rank.groups, settings.seed, vocabulary)
        if files.layout == "packed":
            model.keeps_documents_apart(net)
        if settings.precision == "fp8" and layout.shard == 1:
            Peers(rank).each(lambda: precision.fp8(sharding.blocks(net), rank.device))
        if layout.recompute:
            sharding.recompute(net)
        if settings.compile:
            for block in sharding.blocks(net):
                block.compile()
        plan = topology.plan(links, rank, 4 * model.n_params(net, trained=True), checkpoints.notes().get("plan"))
        gradients = make_gradients(net, plan, config, rank, layout.shard)
        outer = Outer(config, rank, store, net, report.say, stop, data) if config.outer else None
        begun_from = tuned | {"model": config.model.path, "tokenizer": config.data.tokenizer or config.model.path}
        state = State(net, optimizer.make(net, settings), outer.tensors() if outer else {}, gradients.residuals())

        # Where an earlier run ended.
        lora.check(checkpoints.notes(), tuned)
        step = checkpoints.resume(state)
        data.go_on(step, checkpoints.notes().get("position", data.position(step)))
        if outer:
            stack.callback(outer.close)  # the other groups wait for this one no longer
            step = outer.join(step)

        if rank.world > 1:
            report.say(plan.table())
        report.say(why)
        title = f"{config.model.path or config.model.config or config.model.type}, {model.n_params(net):,} parameters"
        title += f", {model.n_params(net, trained=True):,} trained by LoRA" if tuned else ""
        report.say(f"model: {title}; data: {data.name}, {data.n:,} samples")
        for note in data.notes:
            report.say(note)
        report.say(f"start-up: {time.time() - started:.1f} s; a step is {micros} x {micro} samples per rank")
        title += f", {rank.groups * rank.world} rank(s), {plan.algorithm} {plan.codec}"
        report.start(title, model.flops_per_token(net, data.seq_len), device, step + 1, settings.steps)
        report.track(asdict(config))
        profiler = stack.enter_context(metrics.profiler(config.output.profile, rank))

        def save(write: Callable[[int, State], str | None]) -> str | None:
            state.notes = {"plan": asdict(plan), "position": data.position(step)} | begun_from
            state.notes |= outer.notes() if outer else {}
            return write(step, state)

        def due(interval: int) -> bool:
            return bool(interval) and step % interval == 0

        ahead = Ahead(data, config, rank)
        look = look_every(config, rank)
        every = config.output.every or look
        waiting: list[Made] = []  # steps at whose numbers the host hasn't looked
        began, sent = time.perf_counter(), gradients.sent + (outer.sent if outer else 0)
        while step < settings.steps and not stop.agreed:
            made = one_step(net, state.optimizer, gradients, data, step, config, rank, stop, ahead)
            waiting.append(made)
            step += 1
            profiler.step()
            saves, compares = due(config.checkpoint.every), due(links.compare_every)
            evaluates = due(settings.eval_every) or step == settings.steps
            if not (due(look) or saves or compares or evaluates or (outer and outer.due(step))):
                continue
            try:
                numbers = looked_at(waiting, step, stop)
            except NonFiniteError:
                checkpoints.wait()
                raise
            step = outer.sync(step) if outer else step
            if compares:
                fingerprint.compare(net, Peers(rank), f"at step {step}", layout.shard)
            took = (time.perf_counter() - began) / len(waiting)
            now = gradients.sent + (outer.sent if outer else 0)
            of_each = {"step_ms": took * 1e3, "memory_mb": metrics.memory_mb(device)}
            of_each |= {"sent_mb": (now - sent) / 1e6 / len(waiting)}
            of_each |= {"outer": step // config.diloco.inner_steps if outer else 0}
            first = step - len(waiting) + 1
            for number, ((value, norm), each) in enumerate(zip(numbers, waiting, strict=True), first):
                of_this = {"tokens_per_s": each.tokens / took, "comm_ms": metrics.ms(each.computed, each.received)}
                of_this["eval_loss"] = evaluation(net) if evaluation and evaluates and number == step else None
                done = metrics.Step(number, value, value.hex(), norm, each.rate, **of_this, **of_each)
                report.step(done, every)
            waiting.clear()
            if saves:
                save(checkpoints.save)
            began, sent = time.perf_counter(), now

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


def look_every(config: Config, rank: Rank) -> int:
    """Steps after which the host waits for the device."""
    return 1 if rank.device == "cpu" else config.output.every or GPU_EVERY


class Made(NamedTuple):
    """A step. What is on the device is there when the device has made it: only `looked_at` waits for that."""

    loss: torch.Tensor  # mean over all ranks, float64
    norm: torch.Tensor  # of the gradient, before clipping
    rate: float
    computed: Any  # when this rank's backward ended, and when it had all ranks' gradients: for metrics.ms
    received: Any
    tokens: int  # that all ranks read
    wishes: torch.Tensor


def make_gradients(net: torch.nn.Module, plan: topology.Plan, config: Config, rank: Rank, shard: int) -> Gradients:
    if shard > 1:
        return sharding.Sharded(net, plan, rank, shard, config.parallel.timeout_s)
    return buckets.make(config.parallel, plan, rank, net.parameters())


def one_step(
    net: torch.nn.Module,
    adam: torch.optim.Optimizer,
    gradients: Gradients,
    data: Samples,
    step: int,
    config: Config,
    rank: Rank,
    stop: StopSignals,
    ahead: Ahead | None = None,
) -> Made:
    """Step number `step`, from 0, on all ranks of the group.

    If loss or gradient of this step or an earlier one isn't finite, it changes nothing: AdamW's kernels look at
    `found_inf` on the device, so the host needn't wait for it.
    """
    settings = config.train
    torch.manual_seed(step_seed(settings.seed, step, rank.rank, rank.group))
    read, learned = data.counts(data.ids(step, 0, 1, rank.group, rank.groups))  # by all ranks of the group
    batches = (ahead or Ahead(data, config, rank))(step)
    share = forward_backward(net, gradients, batches, learned, config, rank)
    computed = metrics.mark(share.device)
    gradients.finish()
    received = metrics.mark(share.device)
    norm = gradients.clip(settings.clip)
    value, wishes = stop.tell(share)
    finite = (value.isfinite() & norm.isfinite()).float()
    before = getattr(adam, "found_inf", None)
    adam.found_inf = 1 - finite if before is None else torch.maximum(before, 1 - finite)
    rate = optimizer.set_rate(adam, settings, step)
    adam.step()
    return Made(value, norm, rate, computed, received, read, wishes)


def forward_backward(
    net: torch.nn.Module,
    gradients: Gradients,
    batches: Iterator[Batch],
    learned: int,
    config: Config,
    rank: Rank,
) -> torch.Tensor:
    """This rank's share of the mean loss over `learned` targets; summed over the ranks, it is the mean. So are its
    gradients."""
    gradients.zero()
    _, micros = micro_batches(config.train, rank.world)
    total = torch.zeros((), device=rank.device)
    for number, batch in enumerate(batches, 1):
        # FSDP2 casts by itself.
        sharded = isinstance(gradients, sharding.Sharded)
        with nullcontext() if sharded else precision.autocast(config.train.precision, rank.device):
            share = loss.of(config, net, batch) / learned
        gradients.backward(share, last=number == micros)
        total += share.detach()
    return total


def looked_at(waiting: list[Made], step: int, stop: StopSignals) -> list[tuple[float, float]]:
    """Loss and gradient norm of these steps, of which the last was number `step`: here the host waits for the device.

    Raises:
        NonFiniteError: on all ranks: the weights are those before the first step that isn't finite.
    """
    rows = torch.stack([torch.stack([made.loss, made.norm.double(), *made.wishes]) for made in waiting]).tolist()
    for number, (value, norm, *_) in enumerate(rows, step - len(rows) + 1):
        if not (math.isfinite(value) and math.isfinite(norm)):
            raise NonFiniteError(
                f"step {number}: loss {value}, gradient norm {norm}: stopped before the optimizer\n"
                "  usually the learning rate is too high: try a lower train.lr or a longer train.warmup"
            )
    stop.heard(rows[-1][2:])
    return [(value, norm) for value, norm, *_ in rows]


class Ahead:
    """The micro-batches of a step. For a GPU, a thread reads those of the next step meanwhile, into pinned memory."""

    def __init__(self, data: Samples, config: Config, rank: Rank) -> None:
        self.data, self.rank, self.micro = data, rank, micro_batches(config.train, rank.world)[0]
        self.pool = ThreadPoolExecutor(1, "data") if rank.device != "cpu" else None
        self.read: tuple[tuple[int, int], Future[list[Batch]]] | None = None

    def __call__(self, step: int) -> Iterator[Batch]:
        if not self.pool:
            yield from self._load(step)
            return
        place, read = (step, self.data.position(step)), self.read  # DiLoCo may move the position
        batches = read[1].result() if read and read[0] == place else self._pinned(step)
        self.read = (step + 1, self.data.position(step + 1)), self.pool.submit(self._pinned, step + 1)
        for batch in batches:
            yield _each(batch, lambda tensor: tensor.to(self.rank.device, non_blocking=True))

    def _load(self, step: int) -> Iterator[Batch]:
        rank = self.rank
        ids = self.data.ids(step, rank.rank, rank.world, rank.group, rank.groups)
        for start in range(0, len(ids), self.micro):
            yield self.data.load(ids[start : start + self.micro], "cpu")

    def _pinned(self, step: int) -> list[Batch]:
        return [_each(batch, torch.Tensor.pin_memory) for batch in self._load(step)]


def _each(batch: Batch, do: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    return Batch(*(tensor if tensor is None else do(tensor) for tensor in batch))


def step_seed(seed: int, step: int, rank: int, group: int = 0) -> int:
    """Random numbers (dropout) restart at each step: a resumed run draws the same, with nothing saved."""
    return int(np.random.SeedSequence([seed, step, rank, group]).generate_state(1, np.uint32)[0])

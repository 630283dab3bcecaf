"""One training step of the same model on the same data: by rocstack's trainer, by torch's DDP and FSDP2, by the Hugging
Face Trainer. `alone` is DDP's with each rank for itself, which shows what communication costs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from workload import config

from rocstack_trainer import optimizer, precision, sharding
from rocstack_trainer import train as loop
from rocstack_trainer.config import Config, Output
from rocstack_trainer.data.samples import Samples
from rocstack_trainer.gradients import topology
from rocstack_trainer.models import model
from rocstack_trainer.precision import autocast
from rocstack_trainer.rank import Rank
from rocstack_trainer.report import metrics
from rocstack_trainer.stop import StopSignals
from rocstack_trainer.train import looked_at, one_step


class Side:
    """A model, its optimizer and its data; `step` gives the mean loss over the ranks it knows of."""

    def __init__(self, config: Config, rank: Rank) -> None:
        self.config, self.rank = config, rank
        self.net = model.build(config.model, rank, config.train.seed)
        self.optimizer = optimizer.make(self.net, config.train)
        self.data = Samples(config.data, config.train.batch, config.train.seed, self.net.config.vocab_size)

    def samples(self, step: int) -> Any:
        return self.data.ids(step, self.rank.rank, self.rank.world)

    def clip(self, net: torch.nn.Module) -> float:
        return float(torch.nn.utils.clip_grad_norm_(net.parameters(), self.config.train.clip).item())


class Ours(Side):
    """A step of rocstack_trainer.train as it is, its metrics too, but for what it prints."""

    def __init__(self, config: Config, rank: Rank) -> None:
        super().__init__(config, rank)
        shard = config.parallel.shard or 1
        if shard > 1:
            self.net = sharding.build(config, rank, shard, precision.bf16(config.train.precision, rank.device))
            self.optimizer = optimizer.make(self.net, config.train)
        size = sum(parameter.nbytes for parameter in self.net.parameters())
        plan = topology.plan(config.parallel, rank, size)
        self.gradients = loop.make_gradients(self.net, plan, config, rank, shard)
        self.stop, self.report = StopSignals(), metrics.Report(Output(metrics=os.devnull, every=1 << 30), rank)

    def step(self, step: int) -> float:
        data, rank, began = self.data, self.rank, time.perf_counter()
        made = one_step(self.net, self.optimizer, self.gradients, data, step, self.config, rank, self.stop)
        ((loss, norm),) = looked_at([made], step + 1, self.stop)
        took, memory = time.perf_counter() - began, metrics.memory_mb(torch.device(rank.device))
        waited = metrics.ms(made.computed, made.received)
        speed = self.config.train.batch * data.seq_len / took
        done = metrics.Step(step + 1, loss, loss.hex(), norm, made.rate, speed, took * 1e3, waited, memory)
        self.report.step(done, every=1 << 30)
        return loss


class Ddp(Side):
    """As PyTorch's documentation writes it. `hook` is one of its own compressions: `16bit`, which is bf16 where the
    backend can sum that and fp16 on gloo, or `powersgd` of the rank `size`."""

    def __init__(self, config: Config, rank: Rank, wrap: bool = True, hook: str = "", size: str = "") -> None:
        super().__init__(config, rank)
        # PowerSGD sums twice a bucket, the second time when the first is done: with several, ranks mix them up.
        whole = {"bucket_cap_mb": 1 << 14} if hook == "powersgd" else {}
        self.model = DistributedDataParallel(self.net, **whole) if wrap else self.net
        if hook == "16bit":
            gloo = rank.backend == "gloo"
            self.model.register_comm_hook(
                None, default_hooks.fp16_compress_hook if gloo else default_hooks.bf16_compress_hook
            )
        elif hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(size), start_powerSGD_iter=2)
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook:
            raise ValueError(f"ddp:{hook}: 16bit or powersgd:RANK")

    def step(self, step: int) -> torch.Tensor:
        inputs, targets, _ = self.data.load(self.samples(step), self.rank.device)
        self.optimizer.zero_grad()
        with autocast(self.config.train.precision, self.rank.device):
            logits = self.model(input_ids=inputs).logits
        loss = cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        self.clip(self.model)
        self.optimizer.step()
        return loss.detach()


class Fsdp(Ddp):
    """FSDP2 as PyTorch's documentation writes it: each layer, then the rest."""

    def __init__(self, config: Config, rank: Rank) -> None:
        from torch.distributed.fsdp import fully_shard

        super().__init__(config, rank, wrap=False)
        for block in sharding.blocks(self.net):
            fully_shard(block)
        fully_shard(self.net)
        self.optimizer = optimizer.make(self.net, config.train)

    def clip(self, net: torch.nn.Module) -> float:
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), self.config.train.clip)
        return float(norm.full_tensor().item())


class Loop:
    """The trainer as people run it: its own loop in a thread, which waits before each step until it is asked for one.
    So its watchdog, its reports and its stop signals are measured too."""

    def __init__(self, config: Config, rank: Rank) -> None:
        self.go, self.made, self.failed = threading.Semaphore(0), threading.Semaphore(0), None
        loop.one_step, step = self._step, loop.one_step
        self.real, self.value = step, None
        loop.StopSignals = Unsignalled
        loop.launch = SimpleNamespace(process_group=lambda *_: nullcontext(dist.distributed_c10d._get_default_store()))
        config = replace(config, train=replace(config.train, steps=1 << 30))
        config = replace(config, output=Output(metrics=os.devnull, every=1 << 30))
        threading.Thread(target=self._run, args=(config, rank), daemon=True).start()
        self._wait()

    def step(self, step: int) -> float:
        self.go.release()
        self._wait()
        return float(self.value)

    def _step(self, *about: Any) -> Any:
        self.made.release()  # the step before, and all that the loop does after it
        self.go.acquire()
        made = self.real(*about)
        self.value = made.loss
        return made

    def _run(self, config: Config, rank: Rank) -> None:
        try:
            loop.train(config, rank, time.time())
        except BaseException as error:
            self.failed = error
        self.made.release()

    def _wait(self) -> None:
        self.made.acquire()
        if self.failed:
            raise self.failed


class Unsignalled(StopSignals):
    """Signals reach the main thread only, and the loop isn't there."""

    def __enter__(self) -> StopSignals:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def make(name: str, shape: str, text: Path, rank: Rank, seed: int = 1) -> Side | Loop:
    """`name` is ddp, ddp:16bit, ddp:powersgd:RANK, fsdp2, alone, or ours: `loop`, all of it; `sharded`, over all
    ranks; or a step alone, as ALGORITHM[:CODEC[:BUCKET_MB]]: flat, flat:int8+zstd:4. #2 makes a second one."""
    kind, codec, bucket_mb, *_ = [*name.partition("#")[0].split(":"), "", ""]
    seeded = f"--train.seed={seed}"
    if kind in ("ddp", "alone"):
        return Ddp(config(shape, rank.world, text, seeded), rank, kind == "ddp", codec, bucket_mb)
    if kind == "fsdp2":
        return Fsdp(config(shape, rank.world, text, seeded), rank)
    if kind in ("loop", "sharded"):
        exact = ["--parallel.compress=none", f"--parallel.shard={rank.world if kind == 'sharded' else 1}"]
        return (Loop if kind == "loop" else Ours)(config(shape, rank.world, text, seeded, *exact), rank)
    more = {"algorithm": kind, "compress": codec or "none"} | ({"bucket_mb": bucket_mb} if bucket_mb else {})
    return Ours(config(shape, rank.world, text, seeded, *(f"--parallel.{k}={v}" for k, v in more.items())), rank)


def mean(loss: float | torch.Tensor, rank: Rank) -> float:
    """Over the ranks; ours is that already."""
    if isinstance(loss, float):
        return loss
    total = loss.double() / rank.world
    dist.all_reduce(total)
    return float(total.item())


@torch.no_grad()
def held_out(net: torch.nn.Module, shape: str, text: Path) -> float:
    """Mean loss over the first samples of a text, 64 of them."""
    settings = config(shape, 1, text)
    data = Samples(settings.data, 1, 0, settings.model.vocab_size)
    inputs, targets, _ = data.load(np.arange(min(64, data.n)), "cpu")
    logits = net.eval()(input_ids=inputs).logits
    return float(cross_entropy(logits.float().flatten(0, 1), targets.flatten()))


def hugging_face(
    shape: str, text: Path, rank: Rank, steps: int, folder: Path, after: Callable[[int, torch.Tensor], None]
) -> None:
    """The Hugging Face Trainer's own loop; `after(step, this rank's loss)` is called at the end of every step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    side = Side(config(shape, rank.world, text), rank)
    share, world = side.config.train.batch // rank.world, rank.world

    class Ordered(torch.utils.data.Dataset):
        """Our samples, as a sequential sampler and accelerate's sharding reach them: whole batches in turns."""

        def __len__(self) -> int:
            return steps * share * world

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            batch, place = divmod(index, share)
            inputs, targets, _ = side.data.load(side.data.ids(batch // world, batch % world, world)[place:][:1], "cpu")
            # `labels` are shifted by the model, `shift_labels` are not: ours has a target for every position.
            return {"input_ids": inputs[0], "labels": inputs[0], "shift_labels": targets[0]}

    class Losses(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(*args, **kwargs)
            self.last = loss.detach()
            return loss

    class After(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            after(state.global_step - 1, trainer.last)

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=share,
        train_sampling_strategy="sequential",
        learning_rate=side.config.train.lr,
        lr_scheduler_type="constant",
        max_grad_norm=side.config.train.clip,
        use_cpu=rank.device == "cpu",
        bf16=rank.device != "cpu",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,  # its default looks through the graph at each step
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Losses(
        side.net, arguments, train_dataset=Ordered(), callbacks=[After()], optimizers=(side.optimizer, None)
    )
    trainer.train()

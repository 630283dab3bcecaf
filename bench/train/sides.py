"""One training step of the same model on the same data: by rocstack's trainer, by torch's DDP, by the Hugging Face
Trainer. `alone` is ours with each rank for itself, which shows what communication costs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from workload import config

from rocstack_trainer import optimizer
from rocstack_trainer.config import Config, Output
from rocstack_trainer.data.samples import Samples
from rocstack_trainer.gradients import buckets, topology
from rocstack_trainer.models import model
from rocstack_trainer.rank import Rank
from rocstack_trainer.report import metrics
from rocstack_trainer.stop import StopSignals
from rocstack_trainer.train import autocast, one_step


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
        size = sum(parameter.nbytes for parameter in self.net.parameters())
        plan = topology.plan(config.parallel, rank, size)
        self.gradients = buckets.make(config.parallel, plan, rank, self.net.parameters())
        self.stop, self.report = StopSignals(), metrics.Report(Output(metrics=os.devnull, every=1 << 30), rank)

    def step(self, step: int) -> float:
        data, rank, began = self.data, self.rank, time.perf_counter()
        loss, norm, rate, waited = one_step(
            self.net, self.optimizer, self.gradients, data, step, self.config, rank, self.stop
        )
        took, memory = time.perf_counter() - began, metrics.memory_mb(torch.device(rank.device))
        speed = self.config.train.batch * data.seq_len / took
        self.report.step(metrics.Step(step + 1, loss, loss.hex(), norm, rate, speed, took * 1e3, waited, memory))
        return loss


class Ddp(Side):
    """As PyTorch's documentation writes it."""

    def __init__(self, config: Config, rank: Rank, wrap: bool = True) -> None:
        super().__init__(config, rank)
        self.model = DistributedDataParallel(self.net) if wrap else self.net

    def step(self, step: int) -> torch.Tensor:
        inputs, targets = self.data.load(self.samples(step), self.rank.device)
        self.optimizer.zero_grad()
        with autocast(self.config.train.precision, self.rank.device):
            logits = self.model(input_ids=inputs).logits
        loss = cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        self.clip(self.model)
        self.optimizer.step()
        return loss.detach()


def make(name: str, shape: str, text: Path, rank: Rank) -> Side:
    """`name` is ddp, alone, or ours as ALGORITHM[:CODEC[:BUCKET_MB]]: flat, flat:int8+zstd:4. #2 makes a second one."""
    kind, codec, bucket_mb, *_ = [*name.partition("#")[0].split(":"), "", ""]
    if kind in ("ddp", "alone"):
        return Ddp(config(shape, rank.world, text), rank, wrap=kind == "ddp")
    more = {"algorithm": kind, "compress": codec or "none"} | ({"bucket_mb": bucket_mb} if bucket_mb else {})
    return Ours(config(shape, rank.world, text, *(f"--parallel.{k}={v}" for k, v in more.items())), rank)


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
    inputs, targets = data.load(np.arange(min(64, data.n)), "cpu")
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
            inputs, targets = side.data.load(side.data.ids(batch // world, batch % world, world)[place:][:1], "cpu")
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

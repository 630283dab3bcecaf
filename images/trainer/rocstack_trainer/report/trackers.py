"""Where else the steps of a run go: TensorBoard, Weights & Biases, MLflow, as far as they are installed. The JSON lines
of output.metrics need none of them. Each start of a run is one to them."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rocstack_trainer.errors import ConfigError, MissingError, alike

Values = Mapping[str, float]
Tracker = tuple[Callable[[int, Values], object], Callable[[], object]]  # of a step, and at the end


def tensorboard(folder: Path, settings: Mapping[str, str]) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))
    writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in settings.items()))
    return lambda step, values: [writer.add_scalar(key, value, step) for key, value in values.items()], writer.close


def wandb(folder: Path, settings: Mapping[str, str]) -> Tracker:
    """On the disk only, unless WANDB_MODE says otherwise; `wandb sync` sends it later."""
    import wandb

    mode, project = os.environ.get("WANDB_MODE", "offline"), os.environ.get("WANDB_PROJECT", "rocstack")
    quiet = wandb.Settings(silent=True)
    run = wandb.init(dir=str(folder), config=dict(settings), mode=mode, project=project, settings=quiet)
    return lambda step, values: run.log(dict(values), step=step), run.finish


def mlflow(folder: Path, settings: Mapping[str, str]) -> Tracker:
    """In a database in the folder, unless MLFLOW_TRACKING_URI names a server."""
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{folder.resolve()}/mlflow.db")
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client, name = MlflowClient(), os.environ.get("MLFLOW_EXPERIMENT_NAME", "rocstack")
    known = client.get_experiment_by_name(name)
    run = client.create_run(known.experiment_id if known else client.create_experiment(name)).info.run_id
    client.log_batch(run, params=[Param(key, value) for key, value in settings.items()])

    def log(step: int, values: Values) -> None:
        now = int(time.time() * 1e3)
        client.log_batch(run, metrics=[Metric(key, value, now, step) for key, value in values.items()])

    return log, lambda: client.set_terminated(run)


KINDS = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}


def names(asked: str) -> list[str]:
    """Those in output.trackers.

    Raises:
        ConfigError: there is no such tracker.
        MissingError: it isn't installed.
    """
    found = [name.strip() for name in asked.split(",") if name.strip()]
    with alike():
        for name in found:
            if name not in KINDS:
                raise ConfigError(f"output.trackers: {name} is none of {', '.join(KINDS)}")
            if not importlib.util.find_spec(name):
                raise MissingError(
                    f"output.trackers: {name} is not installed here\n  add it to the image, or leave it out"
                )
    return found


class Trackers:
    """Whatever goes wrong with one is told, and training goes on without it."""

    def __init__(self, asked: list[str], folder: Path, settings: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self.say, self.open = say, {}
        flat = {f"{section}.{key}": str(value) for section, body in settings.items() for key, value in body.items()}
        for name in asked:
            self._try(name, lambda name=name: self._start(name, folder / name, flat))

    def log(self, step: int, values: Values) -> None:
        for name, (log, _) in [*self.open.items()]:
            self._try(name, lambda log=log: log(step, values))

    def close(self) -> None:
        for name, (_, close) in [*self.open.items()]:
            self._try(name, close)

    def _start(self, name: str, folder: Path, settings: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.open[name] = KINDS[name](folder, settings)

    def _try(self, name: str, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as error:  # each fails in its own way
            self.open.pop(name, None)
            self.say(f"{name}: {error}: nothing more goes there, training goes on")

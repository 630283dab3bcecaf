"""What was written is read back with the tracker's own reader, where it is installed."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import lines, ranks, run, small, trained

from rocstack_trainer.errors import ConfigError, MissingError
from rocstack_trainer.report import trackers


def followed(tmp_path: Path, name: str) -> list[dict[str, Any]]:
    asked = (f"output.trackers={name}", f"output.tracking={tmp_path}", f"output.metrics={tmp_path}/m")
    trained(2, small("train.steps=3", *asked))
    return lines(tmp_path / "m")


def test_tensorboard_has_every_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    steps = followed(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx([step["loss"] for step in steps])
    assert [event.step for event in events.Scalars("tokens_per_s")] == [1, 2, 3]


def test_wandb_writes_on_the_disk(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    followed(tmp_path, "wandb")
    (file,) = tmp_path.glob("wandb/wandb/offline-run-*/run-*.wandb")
    assert b"tokens_per_s" in file.read_bytes()


def test_mlflow_has_every_step(tmp_path: Path) -> None:
    pytest.importorskip("mlflow.store.tracking.sqlalchemy_store")
    steps = followed(tmp_path, "mlflow")
    with sqlite3.connect(tmp_path / "mlflow/mlflow.db") as base:
        rows = base.execute("select value from metrics where key = 'loss' order by step").fetchall()
        params = dict(base.execute("select key, value from params").fetchall())
    assert [value for (value,) in rows] == [step["loss"] for step in steps]
    assert params["train.steps"] == "3"


@pytest.mark.parametrize("name", trackers.KINDS)
def test_what_is_not_installed_is_refused_by_all_ranks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda _: None)
    for error in ranks(2, run, small(f"output.trackers={name}")):
        assert isinstance(error, MissingError)
        assert error.everywhere
        assert f"{name} is not installed here" in str(error)


def test_another_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="comet is none of tensorboard, wandb, mlflow"):
        trackers.names("comet")


def test_a_tracker_that_fails_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    logged: list[tuple[int, float]] = []

    def broken(_folder: Path, settings: Mapping[str, str]) -> trackers.Tracker:
        assert settings == {"train.lr": "0.1"}

        def log(step: int, values: Mapping[str, float]) -> None:
            if step == 2:
                raise OSError("disk full")
            logged.append((step, values["loss"]))

        return log, lambda: said.append("closed")

    monkeypatch.setitem(trackers.KINDS, "wandb", broken)
    tracking = trackers.Trackers(["wandb"], tmp_path, {"train": {"lr": 0.1}}, said.append)
    for step in (1, 2, 3):
        tracking.log(step, {"loss": 1.5})
    tracking.close()
    assert logged == [(1, 1.5)]
    assert said == ["wandb: disk full: nothing more goes there, training goes on"]

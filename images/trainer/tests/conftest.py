"""Ranks are forked from the test process: torch and transformers are imported once for all of them."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch; also: a process with OpenMP threads must not be forked

import json
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import transformers.models.llama.modeling_llama  # noqa: F401 - imported before the forks

from rocstack_trainer import settings
from rocstack_trainer.config import Config
from rocstack_trainer.ranks import launch
from rocstack_trainer.train import train

PACKAGE = Path(launch.__file__).parents[2]
SMALL = (
    "--model.hidden_size=32",
    "--model.intermediate_size=64",
    "--model.num_hidden_layers=2",
    "--model.max_position_embeddings=64",
    "--data.seq_len=16",
    "--train.batch=4",
)


def small(*overrides: str) -> Config:
    """A model of 35 thousand parameters: a step takes a few ms."""
    return settings.load("tiny", [*SMALL, *(f"--{override}" for override in overrides)])


def ranks(world: int, function: Any, *args: Any, timeout_s: float = 60) -> list[Any]:
    """What `function(rank, *args)` returned on each rank, or the exception it raised there."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        children = [_fork(rank, world, listening, function, args) for rank in range(world)]
    deadline = time.monotonic() + timeout_s
    results = []
    try:
        for _, pipe in children:
            if not select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0]:
                pytest.fail(f"ranks hang after {timeout_s} s")
            data = pipe.read()
            results.append(pickle.loads(data) if data else RuntimeError("the rank ended without a word"))
    finally:
        for pid, pipe in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pipe.close()
    return results


def _fork(rank: int, world: int, listening: socket.socket, function: Any, args: Any) -> Any:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, open(reading, "rb")
    code = 1
    try:
        here = str(rank)
        os.environ |= {
            "RANK": here,
            "LOCAL_RANK": here,
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
        }
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listening.getsockname()[1])}
        if rank == 0:
            os.environ["ROCSTACK_TRAINER_STORE_FD"] = str(os.dup(listening.fileno()))
        listening.close()
        me = launch.with_device(launch.from_env(os.environ), "gloo")
        code = 0
        try:
            result = function(me, *args)
        except BaseException as error:
            traceback.print_exc()
            result, code = error, getattr(error, "exit_code", 1)
        with open(writing, "wb") as pipe:
            pipe.write(pickle.dumps(result))
        sys.stdout.flush()
    finally:
        os._exit(code)


def run(rank: launch.Rank, config: Config) -> int:
    return train(config, rank, time.time())


def grouped(rank: launch.Rank, function: Any, *args: Any) -> Any:
    """`function(rank, *args)` inside a process group."""
    with launch.process_group(rank, 60):
        return function(rank, *args)


def trained(world: int, config: Config) -> None:
    assert ranks(world, run, config) == [0] * world


def state(folder: Path, step: int) -> dict[str, Any]:
    return json.loads((folder / f"step-{step:08d}" / "state.json").read_text())


def lines(metrics: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def start(*args: str) -> subprocess.Popen[str]:
    """The real command, as a person starts it."""
    env = os.environ | {"PYTHONPATH": str(PACKAGE), "PYTHONUNBUFFERED": "1"}
    for name in ("ROCSTACK_TRAINER_STARTED", "GLOO_SOCKET_IFNAME"):
        env.pop(name, None)
    command = [sys.executable, "-m", "rocstack_trainer", *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def command(*args: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    process = start(*args)
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return subprocess.CompletedProcess(args, process.returncode, out, err)

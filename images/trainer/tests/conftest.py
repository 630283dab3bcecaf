"""Ranks are forked from the test process: torch and transformers are imported once for all of them."""

from __future__ import annotations

import os
import tempfile

os.environ.pop("GLOO_SOCKET_IFNAME", None)  # the image's entrypoint names the container's network
# Not below images, which goes into the wheel as it is.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", f"{tempfile.gettempdir()}/rocstack-hypothesis")
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp as fsdp
import transformers.models.llama.modeling_llama  # noqa: F401 - imported before the forks

from rocstack_trainer import settings
from rocstack_trainer.config import Config
from rocstack_trainer.gradients.collectives import Maker
from rocstack_trainer.gradients.topology import Plan
from rocstack_trainer.precision import require_bf16_between_ranks
from rocstack_trainer.rank import Rank, from_env
from rocstack_trainer.ranks import launch
from rocstack_trainer.ranks.connect import serve
from rocstack_trainer.train import train

NO_FSDP = not hasattr(fsdp, "FSDPModule") or not hasattr(fsdp.FSDPModule, "set_force_sum_reduction_for_comms")


def _gloo_sends_bf16() -> bool:
    """Asked in a process of its own: gloo starts threads."""
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] == 0
    with suppress(BaseException):
        require_bf16_between_ranks("gloo", "")
        os._exit(0)
    os._exit(1)


needs_bf16 = pytest.mark.skipif(not _gloo_sends_bf16(), reason="gloo of this PyTorch can't send bfloat16")
needs_fsdp = pytest.mark.skipif(NO_FSDP, reason="this PyTorch has no FSDP2 with our hook")
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
    lost = RuntimeError("the rank hangs, or ended without a word")
    return Ranks(world, function, *args).results(timeout_s, lost)


class Ranks:
    """`world` processes that run `function(rank, *args)`."""

    def __init__(self, world: int, function: Any, *args: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.children = [_fork(rank, world, listening, function, args) for rank in range(world)]

    def signal(self, number: signal.Signals) -> None:
        for pid, _ in self.children:
            os.kill(pid, number)

    def results(self, timeout_s: float = 60, lost: Any = None) -> list[Any]:
        """What each returned or raised; `lost` of one that was killed or hangs. None is left."""
        deadline, found = time.monotonic() + timeout_s, []
        for _, pipe in self.children:
            left = max(0, deadline - time.monotonic())
            data = pipe.read() if select.select([pipe], [], [], left)[0] else b""
            found.append(pickle.loads(data) if data else lost)
        for pid, pipe in self.children:
            kill(pid)
            pipe.close()
        return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError, ChildProcessError):  # it ended, and a test waited for it
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork(rank: int, world: int, listening: socket.socket, function: Any, args: Any) -> Any:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, open(reading, "rb")
    code = 1
    try:
        here = str(rank)
        os.environ |= {"RANK": here, "LOCAL_RANK": here, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listening.getsockname()[1])}
        if rank == 0:
            os.environ["ROCSTACK_TRAINER_STORE_FD"] = str(os.dup(listening.fileno()))
        listening.close()
        me = launch.with_device(from_env(os.environ), "gloo")
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


def run(rank: Rank, config: Config) -> int:
    return train(config, rank, time.time())


def grouped(rank: Rank, function: Any, *args: Any) -> Any:
    """`function(rank, *args)` inside a process group."""
    with launch.process_group(rank, 60):
        return function(rank, *args)


def maker(rank: Rank, algorithm: str = "flat", codec: str = "none", nodes: Any = None) -> Maker:
    """The collectives of a plan; nodes of one rank each unless told."""
    nodes = nodes or [[r] for r in range(rank.world)]
    return Maker(Plan(algorithm, codec, nodes, "", ""), rank, 60)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def trained(world: int, config: Config, timeout_s: float = 60) -> None:
    assert ranks(world, run, config, timeout_s=timeout_s) == [0] * world


def state(folder: Path, step: int) -> dict[str, Any]:
    return json.loads((folder / f"step-{step:08d}" / "state.json").read_text())


def lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_for(
    condition: Callable[[], object], process: subprocess.Popen[str] | None = None, within_s: float = 60
) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert not process or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.02)


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


# DiLoCo groups, and the store they meet in


@contextmanager
def store_process(port: int = 0) -> Iterator[tuple[str, int]]:
    """HOST:PORT of a store process, and its pid."""
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        os.dup2(writing, 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - for the life of the process
        os._exit(serve(port))
    os.close(writing)
    with open(reading) as said:
        port = said.readline().rpartition(":")[2].strip()
    try:
        yield f"127.0.0.1:{port}", pid
    finally:
        kill(pid)


@pytest.fixture
def store() -> Iterator[tuple[str, int]]:
    with store_process() as found:
        yield found


class Group(Ranks):
    """`world` ranks that run `body(rank, store, *args)` in the process group of DiLoCo group `number`."""

    def __init__(
        self, address: str, number: int, groups: int, world: int, body: Any, *args: Any, timeout_s: float = 60
    ) -> None:
        super().__init__(world, _inside, address, number, groups, timeout_s, body, args)


def _inside(rank: Rank, address: str, number: int, groups: int, timeout_s: float, body: Any, args: Any) -> Any:
    rank = replace(rank, group=number, groups=groups)
    with launch.process_group(rank, timeout_s, address, 15) as store:
        return body(rank, store, *args)

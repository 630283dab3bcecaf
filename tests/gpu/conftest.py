"""The trainer and its collectives on this machine's GPU: `make test-gpu`. Needs PyTorch and pytest, and no rocstack.

ROCSTACK_TEST_DEVICE=cpu runs the same tests on a CPU, which checks the tests and nothing about GPUs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import launch

TRAINER = Path(launch.__file__).resolve().parents[2]
VARIABLE = "ROCSTACK_TEST_DEVICE"  # cpu, for a look at the tests themselves
ON_CPU = os.environ.get(VARIABLE) == "cpu"
DEVICE = "cpu" if ON_CPU else "cuda"  # PyTorch calls ROCm's devices so, too
BACKEND = "gloo" if ON_CPU else "nccl"  # which is RCCL there
GPUS = torch.cuda.device_count()


def _device() -> str:
    built = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda or 'none'}"
    with_torch = f"PyTorch {torch.__version__}, {built}"
    if ON_CPU:
        return f"CPU, as {VARIABLE} says: this checks the tests themselves, it is NO GPU RUN ({with_torch})"
    if not GPUS:
        return f"no GPU: {with_torch}, sees none"
    about = torch.cuda.get_device_properties(0)
    arch = f", {about.gcnArchName}" if torch.version.hip else ""
    rehearsal = "" if torch.version.hip else "; a stand-in for an AMD GPU: the same code, another library below it"
    return f"{GPUS} x {about.name}{arch} ({with_torch}){rehearsal}"


def pytest_report_header() -> str:
    return f"device: {_device()}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"device: {_device()}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpus(n): needs so many GPUs; on a CPU, so many processes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        mark = item.get_closest_marker("gpus")
        needed = mark.args[0] if mark else 1
        if not ON_CPU and needed > GPUS:
            why = f"{needed} GPUs are needed, PyTorch sees {GPUS}" if GPUS else "no GPU: PyTorch sees none"
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def rank() -> Iterator[Rank]:
    """This process as a group of one rank on the first GPU."""
    one = launch.with_device(Rank(), BACKEND)
    with launch.process_group(one, 120):
        yield one
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(1)

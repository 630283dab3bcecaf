"""Of how many GPUs a tool runs on each."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocstack.verify.suite import checks

sys.path.append(str(checks()))
from experiments.performance import gpus


@pytest.mark.parametrize(("counts", "number"), [((8, 8, 7), 8), ((8, 7), 8), ((4, 4), 4), ((7, 7, 8), 7)])
def test_a_node_that_lost_one_keeps_no_others_gpu_from_being_measured(counts: tuple[int, ...], number: int) -> None:
    """It gets no jobs, as those ask for as many as most have."""
    gpu = SimpleNamespace(kfd_node=2)
    nodes = [SimpleNamespace(profile=SimpleNamespace(gpus=[gpu] * count)) for count in counts]
    assert gpus(cast(Any, nodes)) == number

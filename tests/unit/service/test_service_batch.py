"""A script's head for slurmrestd, which reads none itself: what `sbatch` would read of it."""

import pytest

from rocstack.jobs import recipe as recipes
from rocstack.jobs.recipe import JobRequest
from rocstack.service import batch
from rocstack.service.failures import RequestRefused


def test_what_slurm_alone_knows_is_handed_over_too() -> None:
    found = batch.description(recipes.script(recipes.find("trainer"), JobRequest(nodes=2, time="1h")), {})
    assert (found["requeue"], found["kill_warning_signal"]) == (True, "USR1")
    assert found["kill_warning_delay"] == batch.number(120)
    script = recipes.script(recipes.find("mine"), JobRequest(arguments=("true",)))
    assert "#SLURM --no-requeue\n" in script
    assert batch.description(script, {})["requeue"] is False


@pytest.mark.parametrize("line", ["#SLURM --nice=5", "#SBATCH --nice=5", "#SLURM -J x"])
def test_what_would_be_left_out_is_refused(line: str) -> None:
    with pytest.raises(RequestRefused):
        batch.description(f"#!/bin/sh\n{line}\ntrue\n", {})
    assert batch.description(f"#!/bin/sh\ntrue\n{line}\n", {}) == {}

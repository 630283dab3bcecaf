"""No check without a fault that turns it red: the tables of the other tests, held against the checks that there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import test_image_checks as image
import test_mpi_checks as mpi
import test_node_checks as nodes
import test_performance_checks as performance
import test_rdma_checks as rdma
import test_slurm_checks as slurm
import test_training_checks as training

from rocstack.verify import suite

# Each expects of every row that it turns one check red and no other; the row begins with that check's name.
TESTS = (
    image.test_one_fact_turns_its_check_red,
    mpi.test_its_check_is_red_and_no_other,
    nodes.test_a_fault_turns_its_check_red_and_no_other,
    rdma.test_one_fact_turns_its_check_red,
    slurm.test_one_fact_turns_its_check_red,
)
OF_TRAINING = (  # which leave out "training-"
    training.test_one_wrong_fact_turns_its_check_red_and_no_other,
    training.test_gpus_that_compute_something_else,
)


def first(test: Any) -> Iterator[str]:
    """What the rows of a parametrized test begin with."""
    (mark,) = (mark for mark in test.pytestmark if mark.name == "parametrize")
    return (row[0] for row in mark.args[1])


def test_every_check_has_a_fault_that_turns_it_red() -> None:
    faulty = {name for test in TESTS for name in first(test)} - {"none"}
    faulty |= {f"training-{name}" for test in OF_TRAINING for name in first(test)}
    faulty |= {fault["check"] for fault in performance.FAULTS.values()}
    known = {check.name for check in suite.listed()}
    healthy, unknown = sorted(known - faulty), sorted(faulty - known)
    assert not healthy, (
        f"no test expects {', '.join(healthy)} red: for each, add a row to a table of faults (data/verify/faults.yml, "
        "performance.yml or FAULTS of a test_*_checks.py): what is another in the evidence, and what it then says"
    )
    assert not unknown, f"no check is called {', '.join(unknown)}: its rows are in vain"

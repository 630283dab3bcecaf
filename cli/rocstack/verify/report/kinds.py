"""The kinds of test that a training cluster must pass, and what the run says of each. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rocstack.verify.report.matrix import WORST
from rocstack.verify.result import Run, State

KINDS = (
    "enumerating the GPUs",
    "enumerating the finetuning workers",
    "Slurm GRES",
    "network interfaces",
    "network topology",
    "simple MPI job launch",
    "communication between MPI ranks",
    "latency and bandwidth on MPI links",
    "collectives: functional",
    "collectives: performance",
    "scheduling and prioritization",
    "QoS enforcement",
    "checkpoint and restart",
    "model distribution among ranks",
    "training on one GPU",
    "training on several GPUs of a node",
    "training on several nodes",
    "data partitioning among nodes",
)


@dataclass(frozen=True)
class Kind:
    """`state` is None where no check of the run was of this kind; `skipped` are its checks that were, while others
    weren't: it was tested in part."""

    number: int
    name: str
    state: State | None
    skipped: tuple[str, ...]


def kinds(run: Run) -> tuple[Kind, ...]:
    """The worst of each kind's checks; one that was skipped doesn't hide that another passed."""
    return tuple(_kind(run, number, name) for number, name in enumerate(KINDS, 1))


def _kind(run: Run, number: int, name: str) -> Kind:
    results = [result for result in run.results if result.check.item == number]
    states = {result.state for result in results}
    if len(states) > 1:
        states -= {"skipped"}
    state = next((state for state in WORST if state in states), None)
    gone = () if state == "skipped" else (each.check.name for each in results if each.state == "skipped")
    return Kind(number, name, state, tuple(gone))

"""The workers themselves, without their GPUs."""

from __future__ import annotations

from typing import Any

from rocstack.verify.plugin import check
from rocstack.verify.record import Recorder


@check(
    name="munge",
    title="A credential made on the node is accepted there",
    level=1,
    needs=("jobs",),
    cause="munged does not run in the worker's container, or its socket isn't the job's",
    next_step="`rocstack logs NODE` says why munged stopped; `rocstack deploy` starts the container again",
    source="dun/munge wiki, troubleshooting",
)
def test_munge(record: Recorder, in_jobs: dict[str, Any]) -> None:
    for node in record.nodes:
        said = in_jobs.get(node.name, {}).get("munge") or {"code": None, "out": "", "err": "no answer"}
        record.equal(node.name, said["code"], 0, evidence=said["err"] or said["out"])

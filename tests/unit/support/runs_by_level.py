"""A run of the suite with one check a level, and one in which a check failed on some nodes."""

from __future__ import annotations

from typing import Any

from rocstack.verify.result import Check, CheckResult, Measure, NodeSeen, Run, State

WORKER, CONTROL, OTHER = (f"sha256:{digit * 64}" for digit in "abc")


def run(*states: State, level: int | None = None, **about: Any) -> Run:
    """One check a level, from 0 on."""
    results = tuple(
        CheckResult(check=Check(name=f"c{n}", title="t", level=n, cause="c", next_step="n"), state=state)
        for n, state in enumerate(states)
    )
    known: dict[str, Any] = {
        "rocstack": "1",
        "id": "20261121-000000",
        "cluster": "rocstack",
        "control": "n1",
        "who": "ann",
        "when": "2026-11-21T00:00:00Z",
        "seconds": 1.0,
        "level": len(states) - 1 if level is None else level,
        "image": WORKER,
        "control_image": CONTROL,
        "nodes": (NodeSeen(name="n1", roles=("control", "worker"), image=WORKER),),
    }
    return Run(**{**known, **about}, results=results)


NAMES = ("n1", "n2", "n3", "n4")


def failed(**whys: str) -> Run:
    """Nodes n1 to n4, on which one check passed or failed."""
    check = Check(name="munge", title="t", level=1, cause="c", next_step="n")
    measures = tuple(
        Measure(state="failed" if name in whys else "passed", node=name, why=whys.get(name, "")) for name in NAMES
    )
    nodes = tuple(NodeSeen(name=name, roles=("worker",)) for name in NAMES)
    result = CheckResult(check=check, state="failed" if whys else "passed", measures=measures)
    return run("passed", nodes=nodes).model_copy(update={"results": (result,)})

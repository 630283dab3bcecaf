"""Results of checks and runs of the suite, made from their measures."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from rocstack.verify.evidence import NodeEvidence
from rocstack.verify.result import Check, CheckResult, Measure, NodeSeen, Run, State, skips_in, state_of


def checked(name: str, **more: Any) -> NodeEvidence:
    """A worker that was reached and takes jobs."""
    known = {"roles": ("worker",), "virtual": None, "absent": "", "image": "", "no_jobs": "", "profile": None}
    return NodeEvidence(name=name, **{**known, **more})


def check(name: str = "one", level: int = 1, **more: Any) -> Check:
    return Check(name=name, title="It is so", level=level, cause="c", next_step="n", **more)


def result(*measures: Measure, name: str = "one", level: int = 1, **about: Any) -> CheckResult:
    about = {"state": state_of(measures), **about}
    skips = skips_in(about.get("why", "")) if about["state"] == "skipped" else ()
    return CheckResult(**{"check": check(name, level), "measures": measures, "skips": skips, **about})


def run(*results: CheckResult, nodes: int = 2, seen: tuple[NodeSeen, ...] = (), **about: Any) -> Run:
    """With one more check, of level 0, which passed; not if `alone`."""
    if not about.pop("alone", "only" in about):
        results = (result(name="zero", level=0, state="passed"), *results)
    seen = seen or tuple(NodeSeen(name=f"n{i + 1}", roles=("worker",)) for i in range(nodes))
    given: dict[str, Any] = {"nodes": seen, "results": results, "level": 1}
    fixed = {"rocstack": "0", "id": "1", "cluster": "c", "control": "n1", "who": "w", "when": "t", "seconds": 1.0}
    return Run(**{**fixed, **given, **about})


def on(node: str, state: State = "passed", why: str = "", **more: Any) -> Measure:
    skip = next((skip.kind for skip in skips_in(why)), "") if state == "skipped" else ""
    return Measure(**{"state": state, "node": node, "why": why, "skip": skip, **more})


def pairs(names: list[str], broken: set[str]) -> CheckResult:
    return result(
        *(
            Measure(state="failed" if {a, b} & broken else "passed", node=a, peer=b, why="lost")
            for a, b in combinations(names, 2)
        )
    )

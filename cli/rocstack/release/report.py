"""What a verify run proved, as an attestation of the images that ran. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from rocstack.base.text import count, visible
from rocstack.verify.result import Run

SCHEMA = 1


def predicate(run: Run) -> dict[str, Any]:
    """The predicate of a verify report: the level that is proved, and the state of each check. Names of nodes, users
    and addresses stay at the site: the registry may be read by many."""
    checks = [
        {
            "name": each.check.name,
            "level": each.check.level,
            "state": each.state,
            "measures": dict(Counter(measure.state for measure in each.measures)),
        }
        for each in run.results
    ]
    return {
        "schema": SCHEMA,
        "report": run.id,
        "when": run.when,
        "rocstack": run.rocstack,
        "level": run.proved,  # the highest that is proved; null: none
        "passed": run.passed,
        "virtual": run.virtual,
        "rehearsal": run.rehearsal,
        "workers": sum("worker" in node.roles and not node.absent for node in run.nodes),
        "image": run.image,
        "controlImage": run.control_image,
        "versions": dict(run.versions),
        "checks": checks,
    }


def measured(run: Run) -> str:
    """What a verify run measured, for release notes, in Markdown: of each check and unit the median and the range over
    nodes and pairs. Emulated hardware is said aloud, and what isn't a number stays in the report."""
    level = "no level" if run.proved is None else f"level {run.proved}"
    nodes = count(sum("worker" in node.roles and not node.absent for node in run.nodes), "worker")
    where = f"{nodes}, virtual: what is measured of GPUs and fabric is of emulated ones" if run.virtual else nodes
    lines = ["## Measured", "", f"By `rocstack verify` on {run.when}, {where}; {level} is proved.", ""]
    rows = []
    for each in run.results:
        units: dict[str, list[float]] = {}
        for one in each.measures:
            if one.unit and isinstance(one.value, int | float) and not isinstance(one.value, bool):
                units.setdefault(one.unit, []).append(float(one.value))
        for unit, values in units.items():
            cells = (each.check.name, f"{statistics.median(values):.4g}", f"{min(values):.4g} to {max(values):.4g}")
            rows.append(
                "| " + " | ".join(visible(text).replace("|", "\\|") for text in (*cells, unit, each.state)) + " |"
            )
    if not rows:
        return "\n".join([*lines, "Nothing was measured in numbers.", ""])
    head = ["| check | median | range | unit | state |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*lines, *head, *rows, ""])

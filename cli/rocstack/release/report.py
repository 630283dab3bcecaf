"""What a verify run proved, as an attestation of the images that ran. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

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

"""All that is known to be wrong before a deploy changes anything: every rule, every node, at once. Pure but for the
table of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import cast

from rocstack.base import paths
from rocstack.deploy.plan import checks_cluster, checks_image, checks_node
from rocstack.deploy.plan.scope import CLUSTER_RULES, NODE_RULES, Finding, Scope, Values
from rocstack.doctor import diagnosis, fleet
from rocstack.doctor.diagnosis import LEVELS, Entry, Level, Table, few
from rocstack.probe.recordings import Failure

__all__ = ["Finding", "Scope", "blocked", "precheck"]
UNREACHED = "node-unreached"
RULES = (checks_node, checks_image, checks_cluster)  # importing them fills the tables of scope.py
MIXED = ("nodes-differ", "abi-differs", "gpus-fewer", "rdma-fewer")  # of the doctor


def precheck(scope: Scope, failures: Sequence[Failure] = ()) -> tuple[Finding, ...]:
    """Errors first, then warnings and notes; in each the nodes as they come, what lies between them last.
    `failures` are nodes that could not be read."""
    table, doctor = _tables()
    found = [
        _finding(table[UNREACHED], node.node, {"reason": node.reason, "inventory": scope.inventory.path})
        for node in failures
    ]
    for node in scope.nodes:
        for code, rule in NODE_RULES.items():
            found += [_finding(table[code], node.name, values) for values in rule(node, scope)]
    for code, of_all in CLUSTER_RULES.items():
        found += [_finding(table[code], None, values) for values in of_all(scope)]
    profiles = [node.profile for node in scope.nodes]
    for code in MIXED if len(profiles) > 1 else ():
        for values, names in fleet.RULES[code](profiles):
            seen = _finding(doctor[code], None, {**values, "level": "warning"})  # a mixed fleet may be meant
            found.append(replace(seen, what=f"{few(names)}: {seen.what}") if names else seen)
    return tuple(sorted(found, key=lambda finding: LEVELS.index(finding.level)))


def blocked(findings: Iterable[Finding]) -> frozenset[str]:
    """Nodes on which nothing may be done."""
    return frozenset(each.node for each in findings if each.level == "error" and each.node is not None)


def _finding(entry: Entry, node: str | None, values: Values) -> Finding:
    known = {"node": node or "", **values}
    said, cause = entry.found(known), entry.cause.format_map(known)
    return Finding(
        node, cast(Level, values.get("level", said.level)), said.id, said.means, cause, said.next, said.source
    )


@cache
def _tables() -> tuple[Table, Table]:
    """Ours and the doctor's."""
    return diagnosis.load(paths.images() / "precheck"), diagnosis.load()

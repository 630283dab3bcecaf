"""All that is known to be wrong before a deploy changes anything: every rule, every node, at once."""

from collections.abc import Iterable
from dataclasses import replace

from rocstack.base import finding_texts
from rocstack.base.findings import Finding, in_order
from rocstack.base.text import listed
from rocstack.deploy.plan import checks_cluster, checks_image, checks_node
from rocstack.deploy.plan.scope import CLUSTER_RULES, NODE_RULES, Scope
from rocstack.doctor import fleet

UNREACHED = "node-unreached"
RULES = (checks_node, checks_image, checks_cluster)  # importing them fills the tables of scope.py
MIXED = ("nodes-differ", "abi-differs", "gpus-fewer", "rdma-fewer")  # of the doctor


def precheck(scope: Scope) -> tuple[Finding, ...]:
    """Errors first, then warnings and notes; in each the nodes as they come, what lies between them last."""
    table, inventory = finding_texts.table(), scope.inventory.path
    findings = [
        table[UNREACHED].finding({"reason": each.reason, "inventory": inventory, "node": each.node}, node=each.node)
        for each in scope.gathered.failures
    ]
    for node in scope.nodes:
        for code, rule in NODE_RULES.items():
            findings += [table[code].finding({"node": node.name, **v}, node=node.name) for v in rule(node, scope)]
    for code, of_all in CLUSTER_RULES.items():
        findings += [table[code].finding(values) for values in of_all(scope)]
    profiles = [node.profile for node in scope.nodes]
    for code in MIXED if len(profiles) > 1 else ():
        for values, names in fleet.RULES[code](profiles):
            mixed = table[code].finding({**values, "level": "warning"})  # a mixed fleet may be meant
            findings.append(replace(mixed, what=f"{listed(names)}: {mixed.what}") if names else mixed)
    return in_order(findings)


def blocked(findings: Iterable[Finding]) -> frozenset[str]:
    """Nodes on which nothing may be done."""
    return frozenset(each.node for each in findings if each.level == "error" and each.node is not None)

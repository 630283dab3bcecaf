"""What is known to be wrong with these nodes: every rule over every profile, findings grouped by what they say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rocstack.base.finding_texts import Entry, Table
from rocstack.base.findings import in_order
from rocstack.base.text import listed
from rocstack.doctor import fleet, rdma_states, states
from rocstack.doctor.diagnosis import Diagnosis, Report, diagnosis
from rocstack.doctor.logscan import LogReport
from rocstack.node.parse_network import SOFT_ROCE_MODULE
from rocstack.node.profile import NodeProfile

RULES = {**rdma_states.RULES, **states.RULES}
UNREACHED = "node-unreached"


class NodeReport(Report):
    """What was examined, and what is known of it."""

    nodes: tuple[str, ...]
    virtual: dict[str, str]  # node -> its node model, where the hardware is not real
    software: dict[str, tuple[str, ...]]  # node -> its RDMA devices that are the kernel's own, without a card
    unread: dict[str, tuple[str, ...]]  # node -> what could not be read and why
    logs: dict[str, int] = {}  # of the one node that is examined: name -> lines

    def with_logs(self, node: str, read: LogReport, skipped: Mapping[str, str]) -> "NodeReport":
        """With what stands in the node's own logs."""
        found = [replace(each, node=node, nodes=(node,)) for each in read.findings]
        unread = {node: (*self.unread.get(node, ()), *(f"{name}: {why}" for name, why in skipped.items()))}
        return self.model_copy(
            update={
                "findings": in_order([*self.findings, *found]),
                "logs": read.files,
                "unread": self.unread | (unread if unread[node] else {}),
            }
        )


def examine(nodes: Sequence[NodeProfile], table: Table, failures: Mapping[str, str] | None = None) -> NodeReport:
    """Every state of the table, on each node and between them. `failures`: nodes that could not be read, and why."""
    lost = failures or {}
    findings = _findings(table[UNREACHED], (({"reason": reason}, (name,)) for name, reason in lost.items()))
    for name, rule in RULES.items():
        findings += _findings(table[name], ((values, (node.name,)) for node in nodes for values in rule(node)))
    for name, compare in fleet.RULES.items() if len(nodes) > 1 else ():
        findings += _findings(table[name], compare(nodes))
    return NodeReport(
        nodes=(*(node.name for node in nodes), *lost),
        virtual={node.name: node.virtual for node in nodes if node.virtual},
        software={node.name: soft for node in nodes if (soft := _soft(node))},
        unread={node.name: tuple(f"{item.what}: {item.why}" for item in node.unread) for node in nodes if node.unread},
        findings=in_order(findings),
    )


def _soft(node: NodeProfile) -> tuple[str, ...]:
    return tuple(device.name for device in node.verbs if device.driver == SOFT_ROCE_MODULE)


def _findings(entry: Entry, cases: Iterable[tuple[states.Values, tuple[str, ...]]]) -> list[Diagnosis]:
    """One finding for all nodes that show the state; what most of them show stands on top."""
    by_text: dict[str, tuple[states.Values, dict[str, None]]] = {}
    for values, names in cases:
        by_text.setdefault(entry.filled("what", values), (values, {}))[1].update(dict.fromkeys(names))
    if not by_text:
        return []
    order = sorted(by_text.items(), key=lambda item: -len(item[1][1]))
    nodes = tuple(dict.fromkeys(name for _, (_, names) in order for name in names))
    seen = tuple(f"{listed(names)}: {text}" for text, (_, names) in order)
    return [diagnosis(entry, order[0][1][0], count=len(nodes), nodes=nodes, seen=seen)]

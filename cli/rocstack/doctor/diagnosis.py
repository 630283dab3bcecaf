"""What the doctor says: a finding, and where in a log or on which nodes it was seen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rocstack.base.finding_texts import Entry, Table
from rocstack.base.findings import Finding
from rocstack.base.words import Value
from rocstack.node.gate import UNFIT, UNKNOWN, GateVerdict

GATE_CODES = {UNFIT: "nic-unfit", UNKNOWN: "nic-unknown"}


@dataclass(frozen=True)
class Diagnosis(Finding):
    """A finding with where it was seen. `node` is set where it is one node."""

    count: int = 1  # lines of the log, or nodes
    line: int | None = None  # the first one, from 1
    file: str = ""  # that has it, where several were read
    seen: tuple[str, ...] = ()  # the line itself, or what each node shows
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The shape printed by `--json`; `id` and `means` are the older names of `code` and `what`."""
        return {"id": self.code, "means": self.what, **super().to_dict()}


class Report(Value):
    """What was examined; the doctor's findings in it."""

    findings: tuple[Diagnosis, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        findings = [each.to_dict() for each in self.findings]
        return {"ok": self.ok, **self.model_dump(exclude={"findings"}), "findings": findings}


def diagnosis(
    entry: Entry, values: Mapping[str, object] | None = None, *, nodes: tuple[str, ...] = (), **seen: Any
) -> Diagnosis:
    """The finding that an entry becomes. `seen` are the fields of Diagnosis that tell where."""
    node = nodes[0] if len(nodes) == 1 else None
    return Diagnosis(**entry.fields(values), node=node, nodes=nodes, **seen)


def of_gate(verdict: GateVerdict, table: Table) -> Finding | None:
    """The gate's verdict as a finding; None where the image fits."""
    code = GATE_CODES.get(verdict.result)
    return table[code].finding(gate_values(verdict), node=verdict.node) if code else None


def gate_values(verdict: GateVerdict) -> dict[str, object]:
    """What the sentences of GATE_CODES show."""
    worst = [finding for finding in verdict.findings if finding.result == verdict.result]
    steps = (finding.next for finding in worst if finding.next)
    return {
        "reasons": "; ".join(finding.what for finding in worst),
        "step": next(steps, "`rocstack doctor` says more of the node"),
    }

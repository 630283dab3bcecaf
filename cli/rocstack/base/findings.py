"""The one shape of a finding: doctor, precheck, status, the gate, rules, checks and errors all speak in it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

FindingLevel = Literal["error", "warning", "note"]
LEVELS: tuple[FindingLevel, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """Something that is known to be wrong, or worth knowing: `what` it is, its likely `cause`, the `next` step, and the
    `source` of the knowledge. `node` is None where it is not about a single node."""

    code: str
    level: FindingLevel
    what: str
    cause: str = ""
    next: str = ""
    source: str = ""
    node: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The shape printed by `--json`."""
        return asdict(self)


SomeFinding = TypeVar("SomeFinding", bound=Finding)


def in_order(findings: Iterable[SomeFinding]) -> tuple[SomeFinding, ...]:
    """Errors first; within a level as they came."""
    return tuple(sorted(findings, key=lambda finding: LEVELS.index(finding.level)))

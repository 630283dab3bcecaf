"""What failed, where, and what to do about it: nodes that fail alike stand together. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from rocstack.verify import verdict
from rocstack.verify.result import BAD, CheckResult, Measure, Run

MOST = 12  # reasons of one check
WORDS = 3  # pieces of evidence of one reason
LONGEST = 200  # characters of a list of nodes

Blamed = list[tuple[str, Measure]]  # what failed for one reason, each with the node to blame


class FailureGroup(NamedTuple):
    """Nodes with one reason, of which `first` is the first. `evidence` is (node, what was said there)."""

    where: str
    first: Measure
    evidence: tuple[tuple[str, str], ...] = ()
    unsaid: int = 0  # pieces of evidence that aren't shown


class ReportedFailure(NamedTuple):
    result: CheckResult
    groups: tuple[FailureGroup, ...]
    unsaid: int  # reasons that aren't shown


def failures(run: Run) -> Iterator[ReportedFailure]:
    """Those on the lowest level first: what is above them often fails for the same reason."""
    failed = (result for result in run.results if result.state in BAD)
    for result in sorted(failed, key=lambda each: each.check.level):
        groups = tuple(_groups(result))
        yield ReportedFailure(result, groups[:MOST], max(len(groups) - MOST, 0))


def _groups(result: CheckResult) -> Iterator[FailureGroup]:
    reasons: dict[str, Blamed] = defaultdict(list)
    seen: set[int] = set()
    for node, measures in verdict.by_node(result).items():
        for measure in measures:
            if measure.state in BAD and id(measure) not in seen:  # of a pair, both may be to blame
                seen.add(id(measure))
                reasons[measure.why].append((node, measure))
    for blamed in reasons.values():
        evidence = {measure.evidence: _names(measure) for _, measure in reversed(blamed) if measure.evidence}
        shown = [(names, text) for text, names in reversed(evidence.items())]
        yield FailureGroup(_where(blamed), blamed[0][1], tuple(shown[:WORDS]), max(len(shown) - WORDS, 0))
    if result.state not in {measure.state for measure in result.measures}:  # it broke off
        yield FailureGroup("the check itself", Measure(state=result.state, why=result.why))


def _where(blamed: Blamed) -> str:
    peers: dict[str, set[str]] = defaultdict(set)
    for node, measure in blamed:
        peers[node] |= {measure.peer if measure.node == node else measure.node} if measure.peer else set()
    alone = [node for node, others in peers.items() if not others]
    pairs = [f"{node} with {verdict.folded(others, LONGEST)}" for node, others in peers.items() if others]
    if alone == [""]:
        return "the cluster"
    many = len(pairs) - 4
    words = [verdict.folded(alone, LONGEST)] if alone else []
    return "; ".join([*words, *pairs[:4], *([f"and {many} more nodes"] if many > 0 else [])])


def _names(measure: Measure) -> str:
    return " to ".join(filter(None, (measure.node, measure.peer))) or "the cluster"

"""What failed, where, and what to do about it: nodes that fail alike stand together. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from rocstack.verify import verdict
from rocstack.verify.result import BAD, Check, CheckResult, Measure, Run, State

MOST = 12  # reasons of one check
WORDS = 3  # pieces of evidence of one reason
LONGEST = 200  # characters of a list of nodes


@dataclass(frozen=True)
class FailureGroup:
    """Nodes with one reason. `evidence` is (node, what was said there)."""

    where: str
    why: str
    wanted: str
    source: str
    virtual: bool
    evidence: tuple[tuple[str, str], ...]
    unsaid: int  # pieces of evidence that aren't shown


@dataclass(frozen=True)
class ReportedFailure:
    check: Check
    state: State
    groups: tuple[FailureGroup, ...]
    unsaid: int  # reasons that aren't shown


@dataclass
class _Place:
    """What failed for one reason: nodes, and the peers of those that failed in pairs."""

    nodes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    measures: list[Measure] = field(default_factory=list)


def failures(run: Run) -> tuple[ReportedFailure, ...]:
    """Those on the lowest level first: what is above them often fails for the same reason."""
    failed = [_failure(result) for result in run.results if result.state in BAD]
    return tuple(sorted(failed, key=lambda each: each.check.level))


def _failure(result: CheckResult) -> ReportedFailure:
    groups = list(_groups(result))
    return ReportedFailure(result.check, result.state, tuple(groups[:MOST]), max(len(groups) - MOST, 0))


def _groups(result: CheckResult) -> Iterator[FailureGroup]:
    places: dict[str, _Place] = defaultdict(_Place)
    seen: set[int] = set()
    for node, measures in verdict.by_node(result).items():
        for measure in measures:
            if measure.state not in BAD or id(measure) in seen:  # a pair of which both are to blame
                continue
            seen.add(id(measure))
            place = places[measure.why]
            place.measures.append(measure)
            peer = measure.peer if measure.node == node else measure.node
            place.nodes[node] += [peer] if measure.peer else []
    for why, place in places.items():
        evidence = {measure.evidence: _names(measure) for measure in reversed(place.measures) if measure.evidence}
        shown = list(reversed(evidence.items()))
        first = place.measures[0]
        yield FailureGroup(
            where=_where(place.nodes),
            why=why,
            wanted=first.wanted,
            source=first.source,
            virtual=first.virtual,
            evidence=tuple((name, text) for text, name in shown[:WORDS]),
            unsaid=max(len(shown) - WORDS, 0),
        )
    if result.state not in {measure.state for measure in result.measures}:  # it broke off
        yield FailureGroup("the check itself", result.why, "", "", False, (), 0)


def _where(nodes: dict[str, list[str]]) -> str:
    alone = [node for node, peers in nodes.items() if not peers]
    pairs = [f"{node} with {verdict.folded(set(peers), LONGEST)}" for node, peers in nodes.items() if peers]
    if alone == [""]:
        return "the cluster"
    many = len(pairs) - 4
    words = [verdict.folded(alone, LONGEST)] if alone else []
    return "; ".join([*words, *pairs[:4], *([f"and {many} more nodes"] if many > 0 else [])])


def _names(measure: Measure) -> str:
    return " to ".join(filter(None, (measure.node, measure.peer))) or "the cluster"

"""Which nodes pass, which don't and why, and the run in one sentence. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rocstack.base.text import count, listed
from rocstack.node import hostlist
from rocstack.verify.result import BAD, BUSY, CheckResult, Measure, NodeSeen, Run, State, state_of

NodeState = Literal["passing", "failing", "not judged", "absent"]
LONGEST = 60  # characters of a list of nodes in the sentence
MOST = 3  # names, or checks, in the sentence before "and N more"
REASONS = 2  # for skipping, likewise
NO_CHECK = "no check ran there"
_OTHERS: dict[NodeState, tuple[str, str]] = {  # what is said of one, and of several
    "failing": ("fails", "fail"),
    "absent": ("is absent", "are absent"),
    "not judged": ("could not be judged", "could not be judged"),
}
_LACKING = re.compile(r"\d+ nodes are needed, \d+ can take part \((.+)\)")
_ON = re.compile(r"(?: (?:on|of)(?: node)?)? ([A-Za-z0-9_.-]*[A-Za-z0-9_-])")


@dataclass(frozen=True)
class Reason:
    """Why a node, or the cluster, doesn't pass: by one check."""

    check: str
    why: str


@dataclass(frozen=True)
class NodeVerdict:
    """`reasons`: what fails there; of a node that wasn't judged or is absent, `why` says it."""

    node: NodeSeen
    state: NodeState
    reasons: tuple[Reason, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class RunVerdict:
    """`cluster` is what fails of no single node."""

    run: Run
    nodes: tuple[NodeVerdict, ...]
    cluster: tuple[Reason, ...]

    def names(self, state: NodeState, role: str = "") -> tuple[str, ...]:
        return tuple(
            each.node.name for each in self.nodes if each.state == state and (not role or role in each.node.roles)
        )

    @cached_property
    def skipped(self) -> dict[str, tuple[str, ...]]:
        """Reason -> the checks that it kept from something, the commonest first. Reasons name no nodes."""
        names = {node.name for node in self.run.nodes}
        checks_of: dict[str, dict[str, None]] = defaultdict(dict)
        for result in self.run.results:
            texts = {measure.why for measure in result.measures if measure.state == "skipped"}
            if not texts and result.state == "skipped":  # as a whole, for what each of its nodes lacks
                texts = {result.why} if "(" in result.why else set(result.why.split("; "))
            for text in texts:
                checks_of[nameless(text, names)][result.check.name] = None
        return {
            why: tuple(checks) for why, checks in sorted(checks_of.items(), key=lambda item: (-len(item[1]), item[0]))
        }

    @property
    def sentence(self) -> str:
        """For a person in a hurry."""
        return "; ".join(self.parts)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Those of the sentence, the most important first."""
        run, faults = self.run, bool(self.cluster or self.names("failing"))
        virtual = sum(bool(node.virtual) for node in run.nodes)
        all_virtual = "virtual " if virtual and virtual == len(run.nodes) else ""
        passing = len(self.names("passing"))
        every = f"{len(run.nodes)} {all_virtual}node{'s' * (len(run.nodes) != 1)}"
        parts = [f"{passing} of {every} pass{'es' * (passing == 1)}"]
        unasked = self._unasked
        if unasked and faults:
            parts = [f"none of {every} was judged by itself"]
        elif unasked:
            passed = sum(result.state == "passed" for result in run.results)
            parts = [f"the cluster of {every} passes {count(passed, 'check')} called '{run.only}'"]
        elif not faults and run.only:
            parts[0] += f" {count(len(run.results), 'check')} called '{run.only}'"
        elif not faults and run.proved is not None:
            parts[0] += f" level {run.proved}"
        if virtual and not all_virtual:
            parts[0] += f" ({virtual} are virtual)" if virtual > 1 else " (1 is virtual)"
        for state, (one, many) in _OTHERS.items():
            if names := tuple(name for name in self.names(state) if name not in unasked):
                parts[0] += f", {len(names)} {one if len(names) == 1 else many}: {folded(names)}"
        if self.cluster:
            checks = dict.fromkeys(reason.check for reason in self.cluster)
            parts.insert(0, f"the cluster as a whole fails: {listed(checks, MOST + 1)}")
        parts += _levels(run, faults)
        gone = {result.check.name for result in run.results if result.state == "skipped"}
        if run.rehearsal:
            parts.append(f"rehearsal image: {run.rehearsal}")
        if run.without_floor:
            parts.append(f"measured, no floor known: {listed(run.without_floor, MOST + 1)}")
        if gone:
            # "virtual node" of "virtual node (mi300x-thor2): it computes nothing"
            brief = dict.fromkeys(re.split(r": | \(", why)[0] for why, names in self.skipped.items() if gone & {*names})
            parts.append(f"{count(len(gone), 'check')} skipped: {listed(brief, REASONS + 1)}")
        return tuple(parts)

    @property
    def _unasked(self) -> frozenset[str]:
        """The nodes that no check was about, where those that were asked for judged the cluster and no node."""
        judged = self.cluster or any(result.state == "passed" for result in self.run.results)
        if not (self.run.only and judged) or self.names("passing") or self.names("failing"):
            return frozenset()
        return frozenset(each.node.name for each in self.nodes if each.state == "not judged" and each.why == NO_CHECK)


def judge(run: Run) -> RunVerdict:
    measures_of: dict[str, list[tuple[str, Measure]]] = defaultdict(list)
    cluster: list[Reason] = []
    for result in run.results:
        name, mine = result.check.name, by_node(result)
        for node, measures in mine.items():
            measures_of[node] += [(name, measure) for measure in measures]
        cluster += [Reason(name, measure.why) for measure in mine.get("", ()) if measure.state in BAD]
        for skip in result.skips if result.state == "skipped" and not result.measures else ():
            missing = Measure(state="skipped", why=result.why, skip=skip.kind)
            workers = [node.name for node in run.nodes if "worker" in node.roles]
            for node in {"busy": workers, "no-jobs": skip.nodes}.get(skip.kind, ()):  # as no job starts there
                measures_of[node].append((name, missing))
        if "" not in mine and states(result).get("") in BAD:
            cluster.append(Reason(name, result.why))
    return RunVerdict(run, tuple(_node(node, measures_of[node.name]) for node in run.nodes), tuple(cluster))


def by_node(result: CheckResult) -> dict[str, tuple[Measure, ...]]:
    """Node -> its measures; "" is the cluster as a whole. What was measured between two nodes is of both. A pair that
    fails is only of the one of which more pairs fail, as its peer does well with others; where they have as many, of
    both."""
    failing = Counter(
        name for measure in result.measures if measure.peer and measure.state in BAD for name in _ends(measure)
    )
    measures_of: dict[str, list[Measure]] = defaultdict(list)
    for measure in result.measures:
        ends = _ends(measure)
        most = max(failing[end] for end in ends)
        for end in ends:
            if measure.state not in BAD or failing[end] == most:
                measures_of[end].append(measure)
    return {name: tuple(measures) for name, measures in measures_of.items()}


def states(result: CheckResult) -> dict[str, State]:
    """Of the check on each node; "" is the cluster, or a check that was skipped or broke off as a whole."""
    states_of = {name: state_of(measures) for name, measures in by_node(result).items()}
    if not states_of or (result.state in BAD and result.state not in states_of.values()):
        states_of[""] = result.state
    return states_of


def nameless(why: str, names: set[str]) -> str:
    """The reason, the same for every node: "no GPU" of "no GPU on node n1", whether one or too many lack it."""
    lacking = _LACKING.fullmatch(why)
    why = lacking[1] if lacking else why
    plain = _ON.sub(lambda match: "" if match[1] in names else match[0], why)
    return "; ".join(dict.fromkeys(plain.split("; "))) or "no reason was given"


def _ends(measure: Measure) -> tuple[str, ...]:
    return (measure.node, measure.peer) if measure.peer and measure.peer != measure.node else (measure.node,)


def _node(node: NodeSeen, measures: Iterable[tuple[str, Measure]]) -> NodeVerdict:
    if node.absent:
        return NodeVerdict(node, "absent", why=node.absent)
    known = list(measures)
    bad = {(name, measure.why): Reason(name, measure.why) for name, measure in known if measure.state in BAD}
    if bad:
        return NodeVerdict(node, "failing", tuple(bad.values()))
    missing = next((measure.why for _, measure in known if measure.missed), "")
    if missing:
        return NodeVerdict(node, "not judged", why=missing)
    if any(measure.state == "passed" for _, measure in known):
        return NodeVerdict(node, "passing")
    reasons = Counter(measure.why for _, measure in known if measure.state == "skipped")
    return NodeVerdict(node, "not judged", why=reasons.most_common(1)[0][0] if reasons else NO_CHECK)


def _levels(run: Run, faults: bool) -> list[str]:
    if not run.complete:
        return ["the run was interrupted, so nothing is proved"]
    if run.only:
        return []
    lacking = f" without {', '.join(run.without)}: no tool for that in the image" if run.without else ""
    proved = [f"level {run.proved} is proved{lacking}"] if run.proved is not None and (faults or lacking) else []
    if faults:
        return proved or ["no level is proved"]
    first = 0 if run.proved is None else run.proved + 1
    judged = {result.check.level for result in run.results if result.state == "passed"}
    unshown = (
        []
        if run.busy or any(each.missed for each in run.results if each.check.level == first)
        else _unshown(run, first)
    )
    if first in judged and unshown:
        return [*proved, f"level {first} is not proved: {unshown[0]}"]
    if first in judged:
        why = "not all of it was judged"
        if run.not_summed and run.not_summed.check.level == first:
            why = f"nothing compared RCCL's sums on GPUs: {run.not_summed.why}"
        return [*proved, f"level {first} is not proved: {BUSY if run.busy else why}"]
    rest = [str(level) for level in range(first, run.level + 1) if level not in judged]
    return [*proved, *([f"nothing was judged at level {' and '.join(rest)}"] if rest else [])]


def _unshown(run: Run, level: int) -> list[str]:
    """Of its core checks, which were shown and which not, in a few words."""
    lacking = [each.check.name for each in run.unshown(level)]
    shown = [each.check.name for each in run.core(level) if each.check.name not in lacking]
    if not lacking or run.not_summed in run.unshown(level):
        return []
    few = f"{listed(shown, MOST + 1)} {'was' if len(shown) == 1 else 'were'} shown, " if shown else ""
    return [f"{few}{listed(lacking, MOST + 1)} {'was' if len(lacking) == 1 else 'were'} not{'' if few else ' shown'}"]


def folded(names: Iterable[str], longest: int = LONGEST) -> str:
    """A hostlist, or the beginning of one and how many there are."""
    every = sorted(names, key=hostlist.natural)
    text = hostlist.fold(every)
    if len(text) <= longest:
        return text
    return f"{', '.join(every[:MOST])} and {len(every) - MOST} more"

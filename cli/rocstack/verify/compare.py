"""Two runs side by side: what became worse, what became better, and what is different about them. Pure."""

from collections.abc import Collection, Iterator
from typing import Any

from rocstack.base.words import Value
from rocstack.verify import outliers, verdict
from rocstack.verify.result import BAD, CheckResult, Run, State

SHARE = outliers.SHARE  # a value that changed by less is noise
LOSS = 0.3  # a value that got worse by more is a regression, as is a check that fails
SECOND = 1.0  # what programs take to start varies by less, however short it is


class CheckChange(Value):
    """Of a check on a node; an empty `node` is the cluster as a whole."""

    check: str
    node: str
    before: State
    after: State
    why: str = ""


class ValueChange(Value):
    """`share` is the change relative to `before`; `better` whether that is better, None where it isn't known. Virtual
    nodes share a machine, so no value of theirs is a `regression`. An empty `node` is the cluster as a whole."""

    check: str
    node: str
    unit: str
    before: float
    after: float
    share: float
    better: bool | None
    regression: bool = False
    virtual: bool = False

    @property
    def word(self) -> str:
        word = "regression" if self.regression else {True: "better", False: "worse", None: ""}[self.better]
        return ", ".join(filter(None, (word, "virtual" if self.virtual else "")))


class RunDifference(Value):
    """What is different about the runs themselves, such as the image."""

    what: str
    before: str
    after: str


class Comparison(Value):
    """`before` and `after` are the runs' ids. `unjudged` are checks that passed then and are skipped now; `gone` are
    checks of then that now weren't made."""

    before: str
    after: str
    regressions: tuple[CheckChange, ...] = ()
    fixes: tuple[CheckChange, ...] = ()
    unjudged: tuple[CheckChange, ...] = ()
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    values: tuple[ValueChange, ...] = ()
    differences: tuple[RunDifference, ...] = ()

    @property
    def worse(self) -> int:
        """Regressions, of checks and of values; one where both are of the same check and node."""
        lost = {(value.check, value.node) for value in self.values if value.regression}
        return len(lost | {(change.check, change.node) for change in self.regressions})

    @property
    def same(self) -> bool:
        return not any(value for name, value in self if name not in ("before", "after"))

    def to_dict(self) -> dict[str, Any]:
        return {"regressed": bool(self.worse), **self.model_dump(mode="json")}


def compare(before: Run, after: Run) -> Comparison:
    """Of checks and nodes that both runs have: a regression is what fails now and didn't fail then, or of real nodes a
    value that got worse by more than `LOSS`."""
    old, new = ({result.check.name: result for result in run.results} for run in (before, after))
    pairs = [(old[name], new[name]) for name in new if name in old]
    changes = [change for pair in pairs for change in _changes(*pair)]
    virtual = {name for run in (before, after) for node in run.nodes if node.virtual for name in (node.name, "")}
    values = [value for pair in pairs for value in _values(*pair, virtual)]
    return Comparison(
        before=before.id,
        after=after.id,
        regressions=tuple(each for each in changes if each.after in BAD and each.before not in BAD),
        fixes=tuple(each for each in changes if each.before in BAD and each.after in ("passed", "measured")),
        unjudged=tuple(each for each in changes if each.after == "skipped" and each.before != "skipped"),
        new=tuple(sorted(set(new) - set(old))),
        gone=tuple(sorted(set(old) - set(new))),
        values=tuple(sorted(values, key=lambda v: (not v.regression, v.better is not False, v.check))),
        differences=tuple(_differences(before, after)),
    )


def _changes(before: CheckResult, after: CheckResult) -> Iterator[CheckChange]:
    old, now = verdict.states(before), verdict.states(after)
    measures = verdict.by_node(after)
    for node, state in now.items():
        whole = node == "" or set(old) == {""}  # one of them was skipped, or broke off, as a whole
        then = old.get(node) or (before.state if whole else None)
        if then is not None and then != state:
            why = next((measure.why for measure in measures.get(node, ()) if measure.state == state), "")
            yield CheckChange(check=after.check.name, node=node, before=then, after=state, why=why or after.why)


def _values(before: CheckResult, after: CheckResult, virtual: Collection[str]) -> Iterator[ValueChange]:
    old = outliers.numbers(before)
    paired = any(measure.peer for result in (before, after) for measure in result.measures)
    for unit, nodes in outliers.numbers(after).items():
        sign = outliers.sign(unit)
        for node, numbers in nodes.items():
            known = old.get(unit, {}).get(node)
            if known is None:
                continue
            then, now = _worst(known, numbers, unit, alike=not paired)
            if abs(now - then) <= SHARE * abs(then) or abs(now - then) < outliers.LEAST.get(unit, 0.0):
                continue
            share = (now - then) / abs(then) if then else 1.0
            better = (now - then) * sign > 0 if sign else None
            felt = abs(share) > LOSS and (unit != "s" or abs(now - then) >= SECOND)
            yield ValueChange(
                check=after.check.name,
                node=node,
                unit=unit,
                before=then,
                after=now,
                share=share,
                better=better,
                regression=better is False and felt and node not in virtual,
                virtual=node in virtual,
            )


def _worst(then: list[float], now: list[float], unit: str, *, alike: bool) -> tuple[float, float]:
    """Then and now: of several quantities, which a check measures in one order, the one that lost most; else the
    medians, as one slow peer is in a pair of each node."""
    sign = outliers.sign(unit)
    if not alike or not sign or len(then) != len(now):
        return outliers.middle(then, unit), outliers.middle(now, unit)
    return min(zip(then, now, strict=True), key=lambda pair: sign * (pair[1] - pair[0]) / (abs(pair[0]) or 1.0))


def _differences(before: Run, after: Run) -> Iterator[RunDifference]:
    texts: dict[str, tuple[str, str]] = {}  # of the one, of the other
    for what in ("cluster", "level", "only", "image", "digest", "control_image", "rocstack", "who", "complete"):
        texts[what.replace("_", " ")] = str(getattr(before, what)), str(getattr(after, what))
    for name in sorted({*before.versions, *after.versions}):
        texts[f"version of {name}"] = before.versions.get(name, ""), after.versions.get(name, "")
    old, new = ({node.name: node for node in run.nodes} for run in (before, after))
    for name in sorted({*old, *new}):
        then, now = old.get(name), new.get(name)
        texts[f"node {name}"] = "there" if then else "", "there" if now else ""
        if then and now:
            fields = ("virtual", "absent") if then.absent or now.absent else ("model", "virtual", "absent")
            texts |= {f"{name} {each}": (getattr(then, each) or "", getattr(now, each) or "") for each in fields}
    return (RunDifference(what=what, before=one, after=two) for what, (one, two) in texts.items() if one != two)

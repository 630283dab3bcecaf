"""Compatibility rules: what fits with what, judged over the facts of a resolved stack. Pure but for `load`."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, model_validator

from rocstack.base import finding_texts, paths
from rocstack.base.errors import BadInput, Where
from rocstack.base.finding_texts import Entry
from rocstack.base.findings import Finding, FindingLevel
from rocstack.base.words import Line, Name, Value

RuleState = Literal["holds", "broken", "unknown", "does not apply"]
Truth = bool | None  # None: not known


def _is_spec(text: str) -> bool:
    return text[:1] in "<>=~" or text.startswith("!=")


def _condition(conditions: str | tuple[str, ...]) -> tuple[str, ...]:
    alternatives = (conditions,) if isinstance(conditions, str) else conditions
    for text in alternatives:
        if _is_spec(text):
            try:
                SpecifierSet(text)
            except InvalidSpecifier:
                raise ValueError(f"{text!r} is not a version specifier such as '>=6.4,<7'") from None
        elif not re.fullmatch(r"!?[a-z0-9][a-z0-9.-]*", text):
            raise ValueError(f"{text!r} is neither a version specifier nor a plain word")
    if not alternatives:
        raise ValueError("the list of what is allowed is empty")
    return alternatives


# Alternatives, of which one must match: a version specifier, a word, or `!word` (anything else). A fact that
# is a list (gfx, wheels) meets a `need` when all of its items do, and a `when` when any of them does.
Condition = Annotated[str | tuple[str, ...], AfterValidator(_condition)]


class Rule(Entry):
    """When all of `when` is so, all of `need` must be, and the facts in `same` agree in major.minor."""

    level: FindingLevel = "error"  # where it is broken
    what: Line = "{text}"  # which facts decided it
    next: Line = "choose other versions or another stack; `rocstack explain` shows every rule"
    when: dict[Name, Condition] = {}
    need: dict[Name, Condition] = {}
    same: tuple[Name, Name] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.need and not self.same:
            raise ValueError("a rule needs 'need' or 'same'")
        return self


class RuleVerdict(Value):
    """What one rule says of one set of facts, and which facts decided it."""

    rule: Rule
    state: RuleState
    text: str
    fact: str = ""  # the first that breaks it

    @property
    def refuses(self) -> bool:
        """Whether nothing is built then; what has another way is only told."""
        return self.state == "broken" and self.rule.level == "error"

    @property
    def finding(self) -> Finding:
        """With the rule's level where it is broken; a rule that holds is a note without a next step."""
        rule = self.rule
        levels: dict[RuleState, FindingLevel] = {"broken": rule.level, "unknown": "warning"}
        level = levels.get(self.state, "note")
        return Finding(rule.code, level, self.text, rule.cause, "" if level == "note" else rule.next, rule.source)

    def to_dict(self) -> dict[str, Any]:
        """The shape printed by `--json`."""
        rule = {"id": self.rule.code, "reason": self.rule.cause, **self.rule.model_dump()}
        return {"rule": rule, "state": self.state, "text": self.text, **self.finding.to_dict()}


def load(path: Path | None = None) -> tuple[Rule, ...]:
    """The rules of `path`, or those that ship with rocstack.

    Raises:
        BadInput: the file can't be read or a rule is malformed (with file:line).
    """
    return finding_texts.read(path or paths.images() / "findings" / finding_texts.RULES, Rule, code="no-rules")


def judge(rules: tuple[Rule, ...], facts: Mapping[str, object]) -> tuple[RuleVerdict, ...]:
    """One verdict per rule. Total: a fact that is missing or makes no sense is unknown, and a rule that turns
    on it is `unknown`, never `holds`."""
    return tuple(_judge(rule, facts) for rule in rules)


def refuse_broken(verdicts: tuple[RuleVerdict, ...], where: Callable[[str], Where | None] = lambda fact: None) -> None:
    """Refuses a combination that breaks a rule. `where` finds the line that says a fact.

    Raises:
        BadInput: a rule is broken; names the first, with its reason and source.
    """
    broken = [verdict for verdict in verdicts if verdict.refuses]
    if broken:
        rule, text = broken[0].rule, broken[0].text
        more = f" ({len(broken) - 1} more)" if len(broken) > 1 else ""
        raise BadInput.of("rule-broken", where(broken[0].fact), rule=rule, text=text, more=more)


def _judge(rule: Rule, facts: Mapping[str, object]) -> RuleVerdict:
    applies, why = _and(_meets(name, facts.get(name), texts, any) for name, texts in rule.when.items())
    if applies is False:
        return RuleVerdict(rule=rule, state="does not apply", text=why)
    if applies is None:
        return RuleVerdict(rule=rule, state="unknown", text=f"whether it applies: {why}")
    needs = [_meets(name, facts.get(name), texts, all) for name, texts in rule.need.items()]
    holds, decided = _and([*needs, *([_same(rule.same, facts)] if rule.same else [])])
    state: RuleState = "unknown" if holds is None else "holds" if holds else "broken"
    said = "; ".join(filter(None, (decided, why and f"as {why}")))
    failed = [name for name, (met, _) in zip([*rule.need, *(rule.same or ())], needs, strict=False) if met is False]
    fact = next(iter(failed), rule.same[0] if rule.same else "") if state == "broken" else ""
    return RuleVerdict(rule=rule, state=state, text=said, fact=fact)


def _and(answers: Iterable[tuple[Truth, str]]) -> tuple[Truth, str]:
    """`and` of three-valued logic: what is false decides, then what is unknown; the text is of those that decided."""
    texts: dict[Truth, list[str]] = {False: [], None: [], True: []}
    for answer, text in answers:
        texts[answer].append(text)
    decided: Truth = False if texts[False] else None if texts[None] else True
    return decided, "; ".join(texts[decided])


def _meets(
    name: str, fact: object, condition: str | tuple[str, ...], items: Callable[[list[bool]], bool]
) -> tuple[Truth, str]:
    alternatives = _condition(condition)
    values = list(fact) if isinstance(fact, list | tuple) else [fact]
    answers: list[bool] = []
    for value in values:
        answer = _matches(value, alternatives)
        if answer is None:
            return None, f"{name} is not known" if fact is None else f"{name} {value!r} can't be compared"
        answers.append(answer)
    shown = ", ".join(str(value) for value in values) or "(none)"
    met = items(answers)
    if any(_is_spec(text) for text in alternatives):
        return met, f"{name} {shown} is {'within' if met else 'outside'} {' or '.join(alternatives)}"
    words = [text for text in alternatives if not text.startswith("!")]
    return met, f"{name} is {shown}" + (f", not {' or '.join(words)}" if words and not met else "")


def _matches(value: object, alternatives: tuple[str, ...]) -> Truth:
    if not isinstance(value, str) or not value:
        return None
    specs = [text for text in alternatives if _is_spec(text)]
    words = [text for text in alternatives if not _is_spec(text)]
    if any(value != word[1:] if word.startswith("!") else value == word for word in words):
        return True
    if not specs:
        return False
    version = upstream(value)
    return None if version is None else any(SpecifierSet(s).contains(version, prereleases=True) for s in specs)


def _same(names: tuple[str, str], facts: Mapping[str, object]) -> tuple[Truth, str]:
    known: list[Version] = []
    for name in names:
        value = facts.get(name)
        version = upstream(value) if isinstance(value, str) else None
        if version is None:
            return None, f"{name} is not known"
        known.append(version)
    same = known[0].release[:2] == known[1].release[:2]
    return same, " and ".join(f"{name} {facts[name]}" for name in names) + f" are {'' if same else 'not '}of one series"


def upstream(text: str) -> Version | None:
    """The upstream part of a version, of a Debian package too: 1:5.0.7+ds-2+b1 -> 5.0.7, 2.8.0+rocm6.4 -> 2.8.0;
    None where it is none."""
    bare = re.sub(r"^[0-9]+:", "", text.strip()).rpartition("-")[0] or re.sub(r"^[0-9]+:", "", text.strip())
    bare = bare.partition("+")[0].replace("~", "")
    try:
        return Version(bare)
    except ValueError:  # also of a number with thousands of digits
        leading = re.match(r"[0-9]{1,9}(\.[0-9]{1,9})*(?![0-9])", bare)
        return Version(leading[0]) if leading else None

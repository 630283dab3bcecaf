"""What a stack's sources have that its lock doesn't, and what the rules say of it. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from rocstack.base.words import Value
from rocstack.stack import coherence, rules
from rocstack.stack.lock import Lock, LockedWheel, wheel_of
from rocstack.stack.resolve import Part, Resolved
from rocstack.stack.rules import Rule

Kind = Literal["component", "wheel", "package", "base", "source", "repository"]
RulesSay = Literal["allowed", "refused", "unknown", "no rule", "not looked up"]
_ORDER: tuple[RulesSay, ...] = ("allowed", "unknown", "refused", "no rule", "not looked up")
_KINDS: tuple[Kind, ...] = ("base", "component", "source", "wheel", "package", "repository")


class NewerPackage(Value):
    """A package of which apt has a newer version than the lock."""

    name: str
    locked: str
    newer: str
    security: bool = False  # the index has it, or a version before it, in a security suite
    in_base: bool = False  # it is the base image's: a new lock keeps it until the base is another


class AptNews(Value):
    """What apt says inside the base image. `sources`: source package -> the newest version in the index."""

    newer: tuple[NewerPackage, ...] = ()
    gone: tuple[str, ...] = ()  # locked, and in no index any more
    sources: dict[str, str] = {}
    knows_security: bool = False  # whether a security suite is among its sources


class Newer(Value):
    """One thing that is not what the lock has, or that could not be looked up (`newer` is None then)."""

    name: str
    kind: Kind
    locked: str
    newer: str | None = None
    security: bool = False
    in_base: bool = False
    packages: tuple[str, ...] = ()
    rules: RulesSay
    why: str = ""
    allowed: str | None = None  # the newest that the rules allow, where they refuse `newer`


class Judgement(NamedTuple):
    says: RulesSay
    why: str = ""


def with_versions(resolved: Resolved, versions: Mapping[str, str]) -> Resolved:
    """The same with other versions of components."""
    old = resolved.stack.components
    new = old | {name: old[name].model_copy(update={"version": version}) for name, version in versions.items()}
    parts = tuple(part.model_copy(update={"choice": new[part.name]}) for part in resolved.parts)
    stack = resolved.stack.model_copy(update={"components": new})
    return resolved.model_copy(update={"stack": stack, "parts": parts})


def judge(resolved: Resolved, versions: Mapping[str, str], known: tuple[Rule, ...]) -> Judgement:
    """What the rules say of these versions, beside the rest of the stack as it is."""
    before, after = resolved.facts(), with_versions(resolved, versions).facts()
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    concerned = [rule for rule in known if changed & {*rule.when, *rule.need, *(rule.same or ())}]
    was = {verdict.rule.code: verdict.state for verdict in rules.judge(tuple(concerned), before)}
    verdicts = rules.judge(tuple(concerned), after)
    said = {state: [v for v in verdicts if v.state == state] for state in ("broken", "unknown", "holds")}
    for verdict in said["broken"]:
        if verdict.refuses:
            return Judgement("refused", f"{verdict.rule.code}: {verdict.text}")
    for verdict in said["unknown"]:
        if was[verdict.rule.code] != "unknown":
            return Judgement("unknown", f"{verdict.rule.code}: {verdict.text}")
    if said["broken"]:
        return Judgement("allowed", f"{said['broken'][0].rule.code}: {said['broken'][0].text}")
    if said["holds"]:
        return Judgement("allowed", ", ".join(verdict.rule.code for verdict in said["holds"]))
    return Judgement("no rule")


def of_packages(resolved: Resolved, lock: Lock, news: AptNews, known: tuple[Rule, ...]) -> list[Newer]:
    """Packages that moved: a row for each component that asks for some by name, and one for others that moved alike."""
    moved = {each.name: each for each in news.newer}
    versions = {each.name: each.version for each in lock.packages}
    out: list[Newer] = []
    for part in resolved.parts:
        if "." not in part.choice.version:  # a release of the distribution: its packages have their own
            continue
        own = [moved.pop(name) for name in _names(part) if name in moved]
        if own:
            out.append(_of_part(resolved, part, own, versions, known))
    alike: dict[tuple[str, str, bool, bool], list[str]] = {}
    for each in moved.values():
        alike.setdefault((each.locked, each.newer, each.security, each.in_base), []).append(each.name)
    for (locked, newer, security, in_base), names in alike.items():
        out.append(
            Newer(name=names[0], kind="package", locked=locked, newer=newer, security=security, in_base=in_base,
                  packages=tuple(names), rules="no rule")
        )  # fmt: skip
    return out


def _names(part: Part) -> tuple[str, ...]:
    return (*part.packages.packages, *part.packages.worker_packages, *part.packages.control_packages)


def _of_part(
    resolved: Resolved, part: Part, own: Sequence[NewerPackage], locked: Mapping[str, str], known: tuple[Rule, ...]
) -> Newer:
    leader = package_of(part, locked)
    shown = next((each for each in own if each.name == leader), own[0])
    version = _upstream(shown.newer) if shown.name == leader else None
    says = Judgement("unknown", "no package has the component's own version: the image alone tells it")
    if version:
        says = judge(resolved, {part.name: version}, known)
        if coherence.same(version, part.choice.version):
            says = Judgement("allowed", "the same upstream release")
    return Newer(
        name=part.name,
        kind="component",
        locked=shown.locked,
        newer=shown.newer,
        security=any(each.security for each in own),
        in_base=all(each.in_base for each in own),
        packages=tuple(each.name for each in own),
        rules=says.says,
        why=says.why,
    )


def package_of(part: Part, locked: Mapping[str, str]) -> str | None:
    """The package whose version is the component's: the first that has it in the lock, else the first of its series."""
    if part.choice.method not in ("apt", *coherence.OF_AMD) or "." not in part.choice.version:
        return None
    own = {name: _upstream(locked[name]) or "0" for name in _names(part) if name in locked}
    series = ".".join(part.choice.version.split(".")[:2])
    exact = (name for name, version in own.items() if coherence.same(version, part.choice.version))
    return next(exact, None) or next((n for n, version in own.items() if coherence.same(version, series)), None)


def _upstream(text: str) -> str | None:
    found = rules.upstream(text)
    return found.base_version if found else None


def moved_components(resolved: Resolved, lock: Lock, news: AptNews) -> dict[str, str]:
    """Component -> the version that it has by apt now, where that is another than the stack's."""
    locked = {each.name: each.version for each in lock.packages}
    now = locked | {each.name: each.newer for each in news.newer}
    out = {}
    for part in resolved.parts:
        version = _upstream(now.get(package_of(part, locked) or "", ""))
        if part.choice.source:
            version = _upstream(news.sources.get(part.choice.source, ""))
        if version and not coherence.same(version, part.choice.version):
            out[part.name] = version
    return out


def of_sources(resolved: Resolved, news: AptNews, known: tuple[Rule, ...]) -> list[Newer]:
    """Components from source. The index names the source packages; nothing here can ask a project for its releases."""
    out = []
    for part in resolved.parts:
        choice = part.choice
        if choice.method != "source":
            continue
        newest = news.sources.get(choice.source or "")
        version = _upstream(newest or "")
        row = Newer(name=part.name, kind="source", locked=choice.version, rules="not looked up", why=choice.url or "")
        if choice.url:
            out.append(row.model_copy(update={"why": f"see {_project(choice.url)}"}))
        elif newest is None or version is None:
            why = f"the index has no source package {choice.source}"
            out.append(row.model_copy(update={"why": why}))
        elif not coherence.same(version, choice.version):
            says = judge(resolved, {part.name: version}, known)
            out.append(row.model_copy(update={"newer": newest, "rules": says.says, "why": says.why}))
    return out


def _project(url: str) -> str:
    """The page where a project lists its releases."""
    github = re.match(r"https://github\.com/[^/]+/[^/]+/", url)
    return f"{github[0]}tags" if github else url.rpartition("/")[0]


def of_repositories(resolved: Resolved) -> list[Newer]:
    """Foreign repositories that hold one release: apt sees no newer one there."""
    return [
        Newer(name=each.name, kind="repository", locked=release, rules="not looked up", why=f"{each.uri} has no other")
        for each in resolved.stack.repositories
        if (release := coherence.amd_release(each.uri))
    ]


def newer_than(version: str, available: Iterable[str]) -> list[str]:
    """Of these, those that are newer, the newest first."""
    found: list[tuple[Version, str]] = []
    for text in available:
        try:
            if Version(text) > Version(version):
                found.append((Version(text), text))
        except ValueError:
            continue
    return [text for _, text in sorted(found, reverse=True)]


def of_wheel(resolved: Resolved, name: str, version: str, available: Iterable[str], known: tuple[Rule, ...]) -> Newer:
    """A wheel that the stack names. `available`: the versions that its index has for the image's Python."""
    component = next((c for c in resolved.stack.components if wheel_of(c) == name), None)
    newer = newer_than(version, available)
    row = Newer(name=component or name, kind="wheel", locked=version, newer=version, rules="no rule")
    if not newer:
        return row
    row = row.model_copy(update={"newer": newer[0]})
    if component is None:
        return row.model_copy(update={"allowed": newer[0]})
    said = [(each, judge(resolved, {component: each}, known)) for each in newer]
    allowed = next((each for each, says in said if says.says != "refused"), None)
    first = said[0][1]
    return row.model_copy(update={"rules": first.says, "why": first.why, "allowed": allowed})


def of_other_wheels(lock: Lock, now: Iterable[LockedWheel], named: Iterable[str]) -> list[Newer]:
    """What the stack's wheels need, as `rocstack lock` would pin it now."""
    locked, own = {each.name: each.version for each in lock.wheels}, {*named}
    return [
        Newer(name=each.name, kind="wheel", locked=locked[each.name], newer=each.version, rules="no rule")
        for each in now
        if each.name not in own and locked.get(each.name, each.version) != each.version
    ]


def held_by(name: str, version: str, reports: Iterable[tuple[str | None, Mapping[str, Any]]], python: str) -> str:
    """Which of the resolved wheels doesn't go with this version of `name`, by what it says that it needs."""
    place = {"extra": "", "python_version": python, "python_full_version": f"{python}.0"}
    for _, report in reports:
        for about in (item["metadata"] for item in report["install"]):
            for text in about.get("requires_dist") or ():
                with suppress(InvalidRequirement):
                    need = Requirement(text)
                    applies = need.marker is None or need.marker.evaluate(place)
                    if applies and canonicalize_name(need.name) == name and version not in need.specifier:
                        return f"{about['name']} {about['version']} needs {need.name} {need.specifier}"
    return "pip found no set of wheels with it"


def ordered(rows: Iterable[Newer]) -> tuple[Newer, ...]:
    """By importance: security fixes, then what the rules speak of, then the rest; what was not looked up is last."""
    return tuple(sorted(rows, key=lambda r: (not r.security, _ORDER.index(r.rules), _KINDS.index(r.kind), r.name)))

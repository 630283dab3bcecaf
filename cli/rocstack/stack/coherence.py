"""Fields of a stack that speak of the same thing: the distribution's release, ROCm's, a source's. Stacks are made by
copying one, and what was forgotten to change is seen here, before anything is built."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from rocstack.base import paths
from rocstack.base.document import Document, Path_
from rocstack.base.errors import BadInput, did_you_mean
from rocstack.stack import rules

# AMD's packages: until ROCm 7.2, and since, such as amdrocm-runtime10.0 in /opt/rocm/core-10.0.
OF_AMD = ("amd", "amdrocm")
_VERSION = re.compile(r"\d+(?:\.\d+)+")
AMD_ORIGIN = "repo.radeon.com"
_AMD = re.compile(r"https?://repo\.radeon\.com/(?:rocm/apt|amdgpu|graphics)/(\d+\.\d+(?:\.\d+)?)(?:/|$)")
_CORE = re.compile(r"/rocm/core/packages/([a-z]+)(\d+?)(04)?(?:/|$)")
_WHEELS = re.compile(r"/whl/(?:\w+/)?rocm(\d+\.\d+)")
_MODULES = re.compile(r"/python(3\.\d+)(?=/|$)")
Problem = tuple[Path_, str]


class Fields(Protocol):
    """Of a stack, what is compared here."""

    @property
    def base(self) -> Any: ...
    @property
    def python(self) -> str: ...
    @property
    def components(self) -> Mapping[str, Any]: ...
    @property
    def alternatives(self) -> Mapping[str, Sequence[Any]]: ...
    @property
    def repositories(self) -> Sequence[Any]: ...
    @property
    def exclude(self) -> Sequence[str]: ...
    @property
    def driver(self) -> str | None: ...


@cache
def distributions() -> Mapping[str, Mapping[str, str]]:
    """Releases by the name that a stack gives in `base.os`: suite, python, packages."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: Mapping[str, Mapping[str, str]] = yaml.load((paths.images() / "distributions.yml").read_text(), loader)
    return found


@cache
def own_trainer() -> str:
    """The version of the trainer that comes with rocstack."""
    lines = (paths.images() / "trainer/rocstack_trainer/__init__.py").read_text().splitlines()
    return next(line.split('"')[1] for line in lines if "__version__ =" in line)


def absent(os: str, packages: Iterable[str]) -> tuple[str, ...]:
    """Of these packages those that the release doesn't have; none where nothing is known of it."""
    release = distributions().get(os, {})
    gone = release.get("absent", "").split()
    old = release.get("time64") == "no"
    return tuple(dict.fromkeys(each for each in packages if each in gone or (old and each.endswith("t64"))))


def check(stack: Fields, doc: Document) -> None:
    """
    Raises:
        BadInput: the first two fields that contradict each other, with the line of the one that was probably forgotten.
    """
    for loc, why in problems(stack):
        raise BadInput.of("stack-contradicts", doc.where(loc), key=".".join(map(str, loc)), why=why)


def problems(stack: Fields) -> Iterator[Problem]:
    if release := distributions().get(stack.base.os):
        yield from _of_release(stack, release)
    else:
        hint = did_you_mean(stack.base.os, distributions())
        makers = {each.partition("-")[0] for each in distributions()}
        newer = stack.base.os.partition("-")[0] in makers and re.search(r"-\d+(\.\d\d)?$", stack.base.os)
        if hint and hint.startswith("did you mean") and not newer:
            yield ("base", "os"), f"there is no release '{stack.base.os}': {hint}"
    yield from _of_rocm(stack)
    yield from _of_driver(stack)
    yield from _of_sources(stack)
    trainer = stack.components.get("trainer")
    if trainer and trainer.method == "own" and trainer.version != own_trainer():
        yield ("components", "trainer", "version"), f"it is {trainer.version}; rocstack's trainer is {own_trainer()}"


def _of_release(stack: Fields, release: Mapping[str, str]) -> Iterator[Problem]:
    os, suite = stack.base.os, release["suite"]
    name, _, number = os.partition("-")
    tag = stack.base.image.rpartition("/")[2]
    for other, each in distributions().items():
        maker, _, version = other.partition("-")
        words = rf"(?<![a-z]){each['suite']}(?![a-z])|{maker}[:_-]?{re.escape(version)}(?![0-9.])"
        if other != os and re.search(words, tag):
            yield ("base", "image"), f"'{stack.base.image}' is {other}, and base.os says {os}"
    suites = {each["suite"]: other for other, each in distributions().items()}
    made = stack.base.bootstrap
    if made and made.suite.partition("/")[0].partition("-")[0] in suites.keys() - {suite}:
        yield ("base", "bootstrap", "suite"), f"'{made.suite}' is {suites[made.suite]}; {os} is '{suite}'"
    if made and made.distribution != name:
        yield ("base", "bootstrap", "distribution"), f"it is '{made.distribution}', and base.os says {os}"
    for index, repository in enumerate(stack.repositories):
        first = repository.suite.partition("/")[0].partition("-")[0]
        amds = _AMD.match(repository.uri) or repository.origin == AMD_ORIGIN  # a mirror keeps the origin
        wanted = release.get("amd", suite) if amds else suite
        if first in suites.keys() - {wanted}:
            yield ("repositories", index, "suite"), f"'{repository.suite}' is of {suites[first]}; {os} is '{wanted}'"
        core = _CORE.search(repository.uri)
        if core and (other := f"{core[1]}-{core[2]}{'.04' if core[3] else ''}") != os:
            yield ("repositories", index, "uri"), f"it is for {other}, and base.os says {os}"
    for index, further in enumerate(stack.base.suites):
        first = further.suite.partition("-")[0]
        if first in suites and not suites[first].startswith(name):
            yield ("base", "suites", index, "suite"), f"'{further.suite}' is of {suites[first]}, not of {os}"
    system = stack.components.get("system")
    if system and system.method != "base" and system.version != number:
        yield ("components", "system", "version"), f"it is {system.version}, and base.os says {os}"
    own = all(each.method != "base" for each in stack.components.values())  # a base image may bring another Python
    if own and stack.python != release["python"]:
        yield ("python",), f"it is {stack.python}; the Python of {os} is {release['python']}"
    for index, glob in enumerate(stack.exclude):
        found = _MODULES.search(glob)
        if found and found[1] != stack.python:
            yield ("exclude", index), f"'{glob}' is of Python {found[1]}, and the stack's is {stack.python}"


def _of_rocm(stack: Fields) -> Iterator[Problem]:
    rocm = stack.components.get("rocm")
    for index, repository in enumerate(stack.repositories):
        found = _AMD.match(repository.uri)
        if found and rocm and rocm.method == "amd" and not same(found[1], rocm.version):
            yield ("repositories", index, "uri"), f"it has ROCm {found[1]}, and components.rocm is {rocm.version}"
    for name, choice in stack.components.items():
        said = re.search(r"\+rocm(\d+\.\d+)", choice.version)
        there = _WHEELS.search(choice.index or "")
        if said and there and said[1] != there[1]:
            yield ("components", name, "index"), f"it has wheels for ROCm {there[1]}, and the version says {said[1]}"
        if said and rocm and rocm.method in OF_AMD and choice.method == "wheel" and not same(said[1], rocm.version):
            yield ("components", name, "version"), f"it is for ROCm {said[1]}, and components.rocm is {rocm.version}"


def _of_driver(stack: Fields) -> Iterator[Problem]:
    """Drivers of which a rule says that this userspace doesn't work with them."""
    rocm = stack.components.get("rocm")
    if rocm and rocm.method in OF_AMD:
        for series in re.findall(r"(?<![\w.])(\d+\.\d+)\.x(?!\w)", stack.driver or ""):
            facts = {"rocm": rocm.version, "rocm.method": rocm.method, "driver": series}
            for verdict in rules.judge(rules.load(), facts):
                if verdict.state == "broken" and "driver" in verdict.rule.need:
                    yield ("driver",), f"{series}.x doesn't go with ROCm {rocm.version}: {verdict.rule.cause}"


def _of_sources(stack: Fields) -> Iterator[Problem]:
    rocm = stack.components.get("rocm")
    choices: list[tuple[Path_, Any]] = [(("components", name), each) for name, each in stack.components.items()]
    for name, others in stack.alternatives.items():
        choices += [(("alternatives", name, index), each) for index, each in enumerate(others)]
    for loc, choice in choices:
        end = (choice.url or "").partition("?")[0].rstrip("/").rpartition("/")[2]
        for key, file in (("url", end), ("archive", choice.archive or "")):
            found = _VERSION.findall(file)
            right = [choice.version]
            if key == "archive":  # its name is the person's own, and may say what the address says
                right += _VERSION.findall(choice.url or "")
            if rocm and file.startswith("rocm-"):  # parts of ROCm have versions of their own, and the release's tag
                right.append(rocm.version)
            if found and not any(same(each, version) for each in found for version in right):
                yield (*loc, key), f"'{file}' is of {found[0]}, and the version says {choice.version}"


def amd_release(uri: str) -> str | None:
    """The one release that a repository of AMD's has, as its address says."""
    found = _AMD.match(uri)
    return found[1] if found else None


def same(one: str, other: str) -> bool:
    """Whether two versions agree as far as both go."""
    left, right = (re.findall(r"\d+", re.split(r"[+~-]", text.partition(":")[2] or text)[0]) for text in (one, other))
    length = min(len(left), len(right))
    return [int(each) for each in left[:length]] == [int(each) for each in right[:length]]

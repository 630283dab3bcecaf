"""Newer versions beside the rules: what is allowed, what is refused and by which rule, what nobody knows."""

from __future__ import annotations

from typing import Any

import pytest
from resolved_stack import join

from rocstack.stack import newer, rules
from rocstack.stack.lock import Lock, LockedPackage, LockedWheel
from rocstack.stack.newer import AptNews, Newer, NewerPackage
from rocstack.stack.resolve import Resolved

RULES = rules.load()
AMD = "rocm-7.2-ubuntu-24.04"


def locked(**versions: str) -> Lock:
    packages = tuple(LockedPackage(name=name.replace("_", "-"), version=text) for name, text in versions.items())
    return Lock(stack="debian-13", definition="0" * 64, packages=packages)


def moved(name: str, before: str, after: str, **more: Any) -> NewerPackage:
    return NewerPackage(name=name, locked=before, newer=after, **more)


@pytest.fixture(scope="module")
def debian() -> Resolved:
    return join().resolved


@pytest.fixture(scope="module")
def amd() -> Resolved:
    return join(AMD, gfx=("gfx942",)).resolved


@pytest.mark.parametrize(
    ("versions", "says", "rule"),
    [
        ({"pytorch": "2.14.1+rocm7.2"}, "allowed", "rocm-7.2-pytorch"),
        ({"pytorch": "2.15.0+rocm7.2"}, "refused", "rocm-7.2-pytorch"),
        ({"pytorch": "2.12.0+rocm7.3"}, "refused", "pytorch-wheel-rocm"),
        ({"rccl": "2.28.0"}, "refused", "rocm-7-rccl"),
        ({"babelstream": "6.0"}, "no rule", ""),
        ({"pytorch": "2.11.0+rocm7.2"}, "no rule", ""),  # nothing changed
    ],
)
def test_judge(amd: Resolved, versions: dict[str, str], says: str, rule: str) -> None:
    found = newer.judge(amd, versions, RULES)
    assert found.says == says
    assert rule in found.why


def test_a_version_that_makes_no_sense_is_unknown(amd: Resolved) -> None:
    found = newer.judge(amd, {"pytorch": "nightly"}, RULES)
    assert found.says == "unknown"


def test_a_component_by_apt_is_one_row(debian: Resolved) -> None:
    own = locked(libucx0="1.18.1+ds-2", ucx_utils="1.18.1+ds-2", libzstd1="1.5.7-1")
    news = AptNews(
        newer=(
            moved("libucx0", "1.18.1+ds-2", "1.19.0-1"),
            moved("ucx-utils", "1.18.1+ds-2", "1.19.0-1", security=True),
            moved("libzstd1", "1.5.7-1", "1.5.7-2"),
            moved("liba", "1.5.7-1", "1.5.7-2"),
        )
    )
    ucx, rest = newer.of_packages(debian, own, news, RULES)
    assert (ucx.name, ucx.kind, ucx.packages, ucx.security) == ("ucx", "component", ("libucx0", "ucx-utils"), True)
    assert (rest.name, rest.packages, rest.rules) == ("libzstd1", ("libzstd1", "liba"), "no rule")
    assert newer.moved_components(debian, own, news) == {"ucx": "1.19.0"}


def test_a_new_revision_of_the_same_release_is_allowed(debian: Resolved) -> None:
    own = locked(libucx0="1.18.1+ds-2")
    news = AptNews(newer=(moved("libucx0", "1.18.1+ds-2", "1.18.1+ds-2+deb13u1"),))
    (row,) = newer.of_packages(debian, own, news, RULES)
    assert (row.rules, row.why) == ("allowed", "the same upstream release")
    assert newer.moved_components(debian, own, news) == {}


def test_rccl_of_debian_has_a_version_that_no_package_has(debian: Resolved) -> None:
    own = locked(librccl1="5.4.3-3+b1")
    (row,) = newer.of_packages(debian, own, AptNews(newer=(moved("librccl1", "5.4.3-3+b1", "7.2.4-1"),)), RULES)
    assert (row.name, row.rules) == ("rccl", "unknown")


def test_a_lock_that_is_ahead_of_its_stack(debian: Resolved) -> None:
    """`rocstack lock` pins what apt has; the stack's file still says the release before."""
    assert newer.moved_components(debian, locked(mariadb_server_core="1:11.8.99-0"), AptNews()) == {
        "mariadb": "11.8.99"
    }


def test_sources(amd: Resolved, debian: Resolved) -> None:
    rows = {row.name: row for row in newer.of_sources(amd, AptNews(), RULES)}
    assert {row.rules for row in rows.values()} == {"not looked up"}
    assert rows["ucx"].why == "see https://github.com/openucx/ucx/tags"
    assert rows["openmpi"].why == "see https://download.open-mpi.org/release/open-mpi/v5.0"
    source = join("rocm-7.2-debian").resolved
    (openmpi,) = (r for r in newer.of_sources(source, AptNews(sources={"openmpi": "5.0.9-1"}), RULES) if r.newer)
    assert (openmpi.name, openmpi.newer, openmpi.rules) == ("openmpi", "5.0.9-1", "allowed")
    (absent,) = (r for r in newer.of_sources(source, AptNews(), RULES) if "index" in r.why)
    assert absent.rules == "not looked up"
    assert next(row.locked for row in newer.of_repositories(amd)).startswith("7.2")
    assert newer.of_repositories(debian) == []


def test_wheels(amd: Resolved) -> None:
    available = ("2.15.0+rocm7.2", "2.14.1+rocm7.2", "2.12.0+rocm7.2", "2.11.0+rocm7.2", "2.10.0", "no version")
    row = newer.of_wheel(amd, "torch", "2.11.0+rocm7.2", available, RULES)
    assert (row.name, row.newer, row.rules, row.allowed) == ("pytorch", "2.15.0+rocm7.2", "refused", "2.14.1+rocm7.2")
    same = newer.of_wheel(amd, "torch", "2.11.0+rocm7.2", available[3:], RULES)
    assert same.newer == same.locked
    other = newer.of_wheel(amd, "peft", "0.21.2", ("0.22",), RULES)
    assert (other.rules, other.allowed) == ("no rule", "0.22")


def test_what_wheels_need() -> None:
    now = [
        LockedWheel(name=name, version=text, sha256=("0" * 64,)) for name, text in (("a", "2"), ("b", "1"), ("c", "9"))
    ]
    before = Lock(stack="s", definition="0" * 64, wheels=tuple(w.model_copy(update={"version": "1"}) for w in now))
    assert [row.name for row in newer.of_other_wheels(before, now, named=("c",))] == ["a"]


def test_held_by() -> None:
    def item(name: str, *needs: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "version": "1.0", "requires_dist": list(needs)}}

    needs = ("nonsense ;;", "a<2; extra == 'x'", "a<2; python_version < '3.9'", "A<3")
    reports = [(None, {"install": [item("b", "c<1"), item("d", *needs), {"metadata": {"name": "e", "version": "1"}}]})]
    assert newer.held_by("a", "3.0", reports, "3.13") == "d 1.0 needs A <3"
    assert newer.held_by("a", "2.5", reports, "3.13") == "pip found no set of wheels with it"


def test_order() -> None:
    def row(name: str, says: newer.RulesSay, **more: Any) -> Newer:
        return Newer(name=name, kind=more.pop("kind", "package"), locked="1", rules=says, **more)

    rows = [
        row("unseen", "not looked up"),
        row("b", "no rule"),
        row("a", "no rule"),
        row("torch", "refused", kind="wheel"),
        row("ucx", "allowed", kind="component"),
        row("libssl", "no rule", security=True),
    ]
    assert [each.name for each in newer.ordered(rows)] == ["libssl", "ucx", "torch", "a", "b", "unseen"]

"""The tests mirror the packages, so that `make test-quick`, which runs each test once, touches all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quick_selection import quick

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Item:
    nodeid: str
    slow: bool = False

    def get_closest_marker(self, name: str) -> object:
        return self.slow if name == "slow" else None


def test_every_package_has_tests_of_its_own() -> None:
    packages = {file.parent.name for file in (ROOT / "cli/rocstack").glob("*/__init__.py")}
    tested = {file.parent.name for file in (ROOT / "tests/unit").glob("*/test_*.py")}
    assert len(packages) > 10
    assert packages - tested <= {"steps"}, "tests of the command line and of the docs' examples run these"
    assert tested <= packages


def test_the_quick_run_has_one_case_of_each_test() -> None:
    items = [Item("a.py::test_a[1]"), Item("a.py::test_a[2]"), Item("a.py::test_b"), Item("b.py::test_a[1-[x]]")]
    assert quick([*items, Item("b.py::test_c", slow=True)]) == [items[0], items[2], items[3]]

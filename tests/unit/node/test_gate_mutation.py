"""Every slip in the gate's code is noticed: mutants of gate.py and image_facts.py against the gate's tests, and
against pairs that chance makes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache, partial
from random import Random
from types import ModuleType
from typing import Any

import gate_cases
import pytest
import random_gate_pairs
import test_gate
import test_image_facts
from mutants import mutants
from provider_loading import provider_loads
from pydantic import ValidationError

from rocstack.node import gate, image_facts

# Mutants that do what the original does, and why.
EQUIVALENT: dict[ModuleType, dict[str, str]] = {
    gate: {
        "judge: prefix = next((finding.place for finding in findings if result == FITS), None) -> without filter 1":
            "only what fits has a place, and it is said last: where anything is wrong, the first finding has none",
        'module: SLINGSHOT_FILES = {"libfabric": "libfabric.so.1", "cxi": "libcxi.so.1", "json-c": "libjson-c.so.3"} '
        "-> 'libjson-c.so.3' to another text": "the gate misses no json-c; test_hostlib reads the name",
    },
    image_facts: {},
}  # fmt: skip
READS = ("MANIFEST", "ImageFacts", "ImageProvider", "from_labels", "from_manifest")


def calls(tabled: bool) -> Iterator[Callable[[], Any]]:
    """The tests of both as calls: each row of their tables, or those without a table."""
    for module in (test_gate, test_image_facts):
        for name, test in inspect.getmembers(module, inspect.isfunction):
            marks = getattr(test, "pytestmark", [])
            if name.startswith("test_") and bool(marks) == tabled:
                rows = marks[0].args[1] if tabled else ()  # a table is of one argument
                yield from (partial(test, row) for row in rows) if tabled else [test]


@cache
def chance() -> list[tuple[Any, Any, Any]]:
    random, found = Random(0), []
    for make in (random_gate_pairs.made, random_gate_pairs.edited):
        for _ in range(300):
            labels, node = make(random)
            try:
                profile = gate_cases.profile(node)
            except ValidationError:
                continue
            found.append((labels, profile, asdict(profile)))
    return found


def no_false_accept() -> None:
    for labels, profile, plain in chance():
        verdict = test_gate.gate.judge(test_gate.image_facts.from_labels("i", labels), profile)
        assert verdict.result != gate.FITS or provider_loads(labels, plain, verdict.place)


TESTS = list(calls(tabled=True))
Random(0).shuffle(TESTS)  # rows that stand together often tell the same
TESTS += [no_false_accept, *calls(tabled=False)]  # the slower ones


def notices(tests: list[Callable[[], Any]]) -> bool:
    """Does a test fail? It goes to the front: the next mutant is often of the same spot."""
    for at, test in enumerate(tests):
        try:
            test()
        except Exception:
            tests.insert(0, tests.pop(at))
            return True
    return False


def test_the_code_as_it_is_passes() -> None:
    assert len(TESTS) > 500
    assert not notices(list(TESTS))


@pytest.mark.parametrize(("original", "least"), [(gate, 480), (image_facts, 100)], ids=["gate", "image_facts"])
def test_no_mutant_survives(original: ModuleType, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tests, count, alive = list(TESTS), 0, set()
    for mutant in mutants(original):
        count += 1
        try:
            module = mutant.load()
        except Exception:
            continue
        with monkeypatch.context() as patch:
            patch.setattr(test_gate, "gate" if original is gate else "image_facts", module)
            for name in READS if original is image_facts else ():
                patch.setattr(test_image_facts, name, getattr(module, name, None))
            if not notices(tests):
                alive.add(mutant.name)
    assert count > least
    assert alive == set(EQUIVALENT[original])

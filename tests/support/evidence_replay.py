"""Judges recorded evidence with the real checks of tests/cluster, without a cluster: for tests that change one fact
and see which checks turn red.

`good()` is a run on two healthy virtual nodes. What a check needs and the recording lacks makes it skipped, so record
again when checks ask for more evidence; in the folder of two deployed virtual nodes:

    rocstack verify .rocstack/local/inventory.yml --level 3 --report REPORT
    python tests/support/evidence_replay.py REPORT/evidence.json
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Collection
from copy import deepcopy
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rocstack.verify import result, suite
from rocstack.verify.result import BAD, CheckResult

GOOD = Path(__file__).parents[1] / "unit/data/verify/evidence.json"
SECONDS = 120
# What pytest and the checks import.
PRELOADED = (
    "pytest",
    "pdb",
    "testinfra.plugin",
    "numpy",
    "rocstack.verify.pytest_plugin",
    "rocstack.image.labels",
    "rocstack.doctor.nodes",
)
_MAC = re.compile(r"(?<![\w:.])[0-9a-f]{2}(?::[0-9a-f]{2}){5}(?![\w:])", re.IGNORECASE)


def good() -> dict[str, Any]:
    """A copy of the recorded evidence, for the caller to change."""
    return deepcopy(_recorded())


def replay(evidence: dict[str, Any], only: str = "*", level: int = 4) -> dict[str, CheckResult]:
    """Check -> what it says of this evidence. A fork of a process that has everything imported runs it, in less than
    a second; nothing of this process is changed."""
    with tempfile.TemporaryDirectory(prefix="rocstack-replay-") as name:
        folder = Path(name)
        (folder / "given.json").write_text(json.dumps(evidence), encoding="utf-8")
        words = [f"--evidence={folder / 'given.json'}", f"--report={folder}", f"--only={only}", f"--level={level}"]
        child = _forks().Process(target=_run, args=(words, str(folder / "log")))
        child.start()
        child.join(SECONDS)
        if child.is_alive():
            child.kill()
        log = folder / "log"
        assert (folder / suite.REPORT).exists(), log.read_text() if log.exists() else f"no answer in {SECONDS} s"
        return {each.check.name: each for each in result.read(folder).results}


def red(results: dict[str, CheckResult]) -> set[str]:
    """The checks that failed, or could not be made."""
    return {name for name, each in results.items() if each.state in BAD}


def states(results: dict[str, CheckResult], of: Collection[str] = ()) -> dict[str, str]:
    """Check -> its state; those whose state is one of `of`."""
    return {name: each.state for name, each in results.items() if not of or each.state in of}


@cache
def _recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOOD.read_text(encoding="utf-8"))
    return found


@cache
def _forks() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    return context


def _run(words: list[str], log: str) -> None:
    import pytest

    from rocstack.verify import artifacts

    gc.freeze()  # pytest collects garbage at its end
    artifacts.write = lambda run, folder, *_, **__: (folder / suite.REPORT).write_text(run.dumps())  # and no HTML
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # hypothesis takes a second
    checks = suite.checks()
    more = ["-p", "testinfra.plugin", "-p", "rocstack.verify.pytest_plugin", "-p", "no:cacheprovider", "-c", os.devnull]
    more += [f"--rootdir={checks}", "--assert=plain", "-q"]
    with open(log, "w") as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        pytest.main([*more, *words, str(checks)])


def _masked(text: str) -> str:
    """Cards' addresses are those of one machine; the same one becomes the same stand-in."""

    def other(found: re.Match[str]) -> str:
        digest = blake2b(found[0].lower().encode(), digest_size=4).hex()
        return f"02:00:{digest[:2]}:{digest[2:4]}:{digest[4:6]}:{digest[6:]}"

    return _MAC.sub(other, text)


if __name__ == "__main__":
    GOOD.parent.mkdir(parents=True, exist_ok=True)
    GOOD.write_text(_masked(json.dumps(json.loads(Path(sys.argv[1]).read_text()), indent=1)) + "\n", encoding="utf-8")

"""Judges recorded evidence with the real checks of tests/cluster, without a cluster: for tests that change one fact
and see which checks turn red.

`good()` is a run on two healthy virtual nodes. What a check needs and the recording lacks makes it skipped, so record
again when checks ask for more evidence; in the folder of two deployed virtual nodes:

    rocstack verify .rocstack/local/inventory.yml --level 3 --report REPORT
    python tests/support/evidence_replay.py REPORT/evidence.json
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
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
SERVER, TIMEOUT_S = Path(__file__).with_name("replay_server.py"), 120
_MAC = re.compile(r"(?<![\w:.])[0-9a-f]{2}(?::[0-9a-f]{2}){5}(?![\w:])", re.IGNORECASE)


def good() -> dict[str, Any]:
    """A copy of the recorded evidence, for the caller to change."""
    return deepcopy(_recorded())


def replay(evidence: dict[str, Any], only: str = "*", level: int = 4) -> dict[str, CheckResult]:
    """Check -> its result on this evidence. A fork of a process that has collected the checks runs them, in a fraction
    of a second; nothing of this process is changed."""
    with tempfile.TemporaryDirectory(prefix="rocstack-replay-") as name:
        folder, server = Path(name), _server()
        (folder / "given.json").write_text(json.dumps(evidence), encoding="utf-8")
        assert server.stdin
        server.stdin.write(json.dumps({"folder": name, "only": only, "level": level}).encode() + b"\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], TIMEOUT_S)[0] or server.stdout.readline() != b"done\n":
            server.kill()
            _server.cache_clear()
        log = folder / "log"
        assert (folder / suite.REPORT).exists(), log.read_text() if log.exists() else "the replay server ended"
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
def _server() -> subprocess.Popen[bytes]:
    """It ends when this process does."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, str(SERVER), str(GOOD)]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)


def _masked(text: str) -> str:
    """Cards' addresses are those of one machine; the same one becomes the same stand-in."""

    def other(found: re.Match[str]) -> str:
        digest = blake2b(found[0].lower().encode(), digest_size=4).hexdigest()
        return f"02:00:{digest[:2]}:{digest[2:4]}:{digest[4:6]}:{digest[6:]}"

    return _MAC.sub(other, text)


if __name__ == "__main__":
    GOOD.parent.mkdir(parents=True, exist_ok=True)
    GOOD.write_text(_masked(json.dumps(json.loads(Path(sys.argv[1]).read_text()), indent=1)) + "\n", encoding="utf-8")

"""ROCm Validation Suite: what its modules gpup, gm, gst, iet, mem, pebb, peqt and pbqt say (ROCm/ROCmValidationSuite,
docs; "system acceptance" of AMD)."""

import re
from collections import defaultdict
from dataclasses import dataclass

from rocstack.verify.parsers import bad, finds_no_gpu

_ERROR = re.compile(r"\[ERROR\s*\]|RVS-ERROR")
_RESULT = re.compile(r"^\[RESULT\s*\] ?\[[\d. ]*\] ?\[(?P<action>[^\]]+)\] (?P<said>.*)$")
_END = re.compile(r"\[[CG]PU:: ?([^\]]+)\]")
_PEERS = re.compile(r"^p2p .*peers: ?(true|false)")
_NUMBERS = re.compile(r"^p2p(?:-bandwidth)?(?: *\[[ \d/]+\])? (\d+) (\d+) ")  # of GPUs, as older ones print them
_MOVED = re.compile(r"(?:p2p-bandwidth|pcie-bandwidth) ?\[ ?(?P<index>\d+)/(?P<of>\d+)\]")
_GBPS = re.compile(r"[1-9][\d.]* GBps")  # any above 0
# What other results say, and the word that is said where all is as it should be; of a bandwidth, any above 0.
_SAID = (
    (re.compile(r"(?:met|pass): ?(TRUE|FALSE)\b", re.IGNORECASE), "true"),
    (re.compile(r"^mem Test +\d+ ?: .*bandwidth = ([\d.]+) ?GB/s"), None),
    (re.compile(r"^mem Test +\d+ ?: (PASS|FAIL)"), "pass"),
    (re.compile(r"^peqt (true|false)$"), "true"),
    (re.compile(r"^gm \S+ \w+ violations (\d+)"), "0"),
)


@dataclass(frozen=True)
class RvsReport:
    """How many results there are, and the lines of those that aren't as they should be, after RVS' own complaints."""

    results: int
    bad: tuple[str, ...]


def parse(text: str, tool: str = "rvs") -> RvsReport:
    """
    Raises:
        CheckFailed: no result, or no GPU; or the transfers of an action aren't all there.
    """
    errors: list[str] = []
    results: list[tuple[str, bool]] = []
    wanted: dict[str, int] = {}
    got: dict[str, set[int]] = defaultdict(set)
    for line in (raw.strip() for raw in text.splitlines()):
        if _ERROR.search(line):
            errors.append(line)
        elif match := _RESULT.match(line):
            action, said = match["action"].strip(), match["said"].strip()
            if moved := _MOVED.search(said):
                wanted[action] = int(moved["of"])
                got[action].add(int(moved["index"]))
            good = bool(_GBPS.search(said)) if moved else _good(said)
            if good is not None:
                results.append((line, good))
    if not results and (not errors or finds_no_gpu(text)):
        raise bad(tool, text, "no result")
    for action, count in wanted.items():
        if not errors and len(got[action]) < count:
            raise bad(tool, text, f"action {action} ended after {len(got[action])} of {count} transfers")
    return RvsReport(len(results), (*errors, *(line for line, good in results if not good)))


def _good(text: str) -> bool | None:
    """Whether it is as it should be; None where it is no result."""
    if peers := _PEERS.match(text):
        numbers = _NUMBERS.match(text)
        ends = _END.findall(text) or (numbers.groups() if numbers else ())
        return None if len(set(ends)) == 1 else peers[1] == "true"
    for pattern, good in _SAID:
        if match := pattern.search(text):
            return match[1].lower() == good if good else float(match[1]) > 0
    return None

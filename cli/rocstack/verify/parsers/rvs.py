"""ROCm Validation Suite: what its modules gpup, gm, gst, iet, mem, pebb, peqt and pbqt say (ROCm/ROCmValidationSuite,
docs; "system acceptance" of AMD)."""

import re
from dataclasses import dataclass

from rocstack.verify.parsers import bad

_ERROR = re.compile(r"\[ERROR\s*\]|RVS-ERROR")
_RESULT = re.compile(r"^\[RESULT\s*\] ?\[[\d. ]*\] ?\[(?P<action>[^\]]+)\] (?P<said>.*)$")
_GPU = re.compile(r"\[GPU:: ?([^\]]+)\]")
_CPU = re.compile(r"\[CPU:: ?([^\]]+)\]")
_MET = re.compile(r"(?:met|pass): ?(TRUE|FALSE)\b", re.IGNORECASE)
_LOAD = re.compile(r"(?P<unit>GFLOPS|GBps|Power\(W\)) +(?P<value>[\d.]+)")
_MEM = re.compile(r"^mem Test +(\d+) ?: (PASS|FAIL)")
_MEM_SPEED = re.compile(r"^mem Test +(\d+) ?: .*bandwidth = ([\d.]+) ?GB/s")
_PEERS = re.compile(r"^p2p .*peers: ?(true|false)")
_NUMBERS = re.compile(r"^p2p(?:-bandwidth)?(?: *\[[ \d/]+\])? (\d+) (\d+) ")  # of GPUs, as older ones print them
_MOVED = re.compile(r"(?P<kind>p2p-bandwidth|pcie-bandwidth) ?\[ ?(?P<index>\d+)/(?P<of>\d+)\].*?(?P<rest>[^\]]*)$")
_GBPS = re.compile(r"([\d.]+) GBps")
_PEQT = re.compile(r"^peqt (true|false)$")
_GM = re.compile(r"^gm (\S+) (\w+) violations (\d+)")
_UNITS = {"GFLOPS": "GFLOPS", "GBps": "GB/s", "Power(W)": "W"}


@dataclass(frozen=True)
class RvsResult:
    """One result: the `action` of the configuration file, what it is `about` (a GPU, a pair, a test), whether it is as
    it should be, and the number it gives, if any (`unit`: GFLOPS, W, GB/s)."""

    action: str
    about: str
    good: bool
    value: float | None
    unit: str
    line: str


@dataclass(frozen=True)
class RvsReport:
    statements: tuple[RvsResult, ...]
    errors: tuple[str, ...]  # lines of RVS' own complaints

    @property
    def bad(self) -> tuple[str, ...]:
        """The lines that say that something isn't as it should be."""
        return (*self.errors, *(each.line for each in self.statements if not each.good))

    def values(self, unit: str) -> list[float]:
        return [each.value for each in self.statements if each.unit == unit and each.value is not None]


def parse(text: str, tool: str = "rvs") -> RvsReport:
    """
    Raises:
        CheckFailed: no result; or the transfers of an action aren't all there.
    """
    statements, errors = [], []
    wanted: dict[str, int] = {}
    got: dict[str, set[int]] = {}
    for line in (raw.strip() for raw in text.splitlines()):
        if _ERROR.search(line):
            errors.append(line)
            continue
        match = _RESULT.match(line)
        if not match:
            continue
        action, words = match["action"].strip(), match["said"].strip()
        if moved := _MOVED.search(words):
            wanted[action] = int(moved["of"])
            got.setdefault(action, set()).add(int(moved["index"]))
        if each := _statement(action, words, line):
            statements.append(each)
    if not statements and not errors:
        raise bad(tool, text, "no result")
    for action, count in wanted.items():
        if not errors and len(got[action]) < count:
            raise bad(tool, text, f"action {action} ended after {len(got[action])} of {count} transfers")
    return RvsReport(tuple(statements), tuple(errors))


def _statement(action: str, text: str, line: str) -> RvsResult | None:
    ends = [*_CPU.findall(text), *_GPU.findall(text)]
    if not ends and (numbers := _NUMBERS.match(text)):
        ends = [*numbers.groups()]
    about = " -> ".join(ends)
    if moved := _MOVED.search(text):
        speed = _GBPS.search(moved["rest"]) or _GBPS.search(text)
        value = float(speed[1]) if speed else None
        return RvsResult(action, about, bool(value), value, "GB/s", line)
    if peers := _PEERS.match(text):
        return None if len(set(ends)) == 1 else RvsResult(action, about, peers[1] == "true", None, "", line)
    if met := _MET.search(text):
        load = _LOAD.search(text)
        value, unit = (float(load["value"]), _UNITS[load["unit"]]) if load else (None, "")
        return RvsResult(action, about, met[1].upper() == "TRUE", value, unit, line)
    if mem := _MEM_SPEED.match(text):
        return RvsResult(action, f"test {mem[1]}", float(mem[2]) > 0, float(mem[2]), "GB/s", line)
    if mem := _MEM.match(text):
        return RvsResult(action, f"test {mem[1]}", mem[2] == "PASS", None, "", line)
    if peqt := _PEQT.match(text):
        return RvsResult(action, "PCIe", peqt[1] == "true", None, "", line)
    if gm := _GM.match(text):
        return RvsResult(action, f"{gm[1]} {gm[2]}", gm[3] == "0", float(gm[3]), "violations", line)
    return None

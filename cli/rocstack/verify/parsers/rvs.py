"""ROCm Validation Suite: what its modules gpup, gm, gst, iet, mem, pebb, peqt and pbqt say (ROCm/ROCmValidationSuite,
docs and sources; "system acceptance" of AMD). Lines of `# rocstack:` are those of the program that ran it."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rocstack.verify.parsers import bad, finds_no_gpu, lines

_ASKED = re.compile(
    r"^# rocstack: (?:action (?P<action>\S.*)|no targets for (?P<none>.*)|configuration (?P<file>[^,]+), at most .*)$"
)
# Its complaints, an action's row in the summary that 1.3 and later end with, and what ROCm's runtime says as it ends.
_ERROR = re.compile(
    r"\[ERROR\s*\]|RVS-ERROR|^\| \S.* \| [A-Z]+ +\| FAIL +\|$|"
    r"^Memory access fault by GPU|^HW Exception by GPU|HSA_STATUS_ERROR|^terminate called"
)
_FUSED = re.compile(r"(?<=\S)(?=\[RESULT)")  # of GPUs that speak at once, one may end the other's line
_RESULT = re.compile(r"^\[RESULT\s*\] ?\[[\d. ]*\] ?\[(?P<action>[^\]]+)\] (?P<said>.*)$")
_END = re.compile(r"\[[CG]PU:: *([^\[\]]+)\]")
_GPU = re.compile(r"\[GPU:: *(?:\d+ - +)?(\d+)")  # the id is padded to five digits, and may have one
_PEERS = re.compile(r"^p2p .*peers: ?(true|false)")
_NUMBERS = re.compile(r"^p2p(?:-bandwidth)?(?: *\[[ \d/]+\])? (\d+) (\d+) ")  # of GPUs, as older ones print them
_MOVED = re.compile(r"(?P<way>a2a-p2p|p2p|pcie)-bandwidth ?\[ ?(?P<index>\d+)/(?P<of>\d+)\]")
_TOGETHER = "a2a-p2p"  # all GPUs to all at once, from RVS 1.6 on: no link's own speed
_GBPS = re.compile(r"\b(?<!\.)([1-9]\d*(?:\.\d*)?|0\.0*[1-9]\d*) GBps")  # any above 0
_BOTH = re.compile(r"bidirectional: ?true|h2d::true d2h::true")
_NO_LINK = re.compile(r"^p2p .*distance: ?-1\b")  # though the driver lets one GPU read the other's memory
_PCIE_HOP = re.compile(r"^p2p .*distance: ?\d+ (?:.* )?PCIe:")
# What AMD SMI doesn't know is none, or its largest number, which meets any target.
_POWER = re.compile(r"\bPower\(W\) (-?\d+(?:\.\d+)?|-?nan|-?inf)\b")
_MOST_WATTS = 10_000
# Meets a target of zero; or is what C++ makes of an infinite number, which meets any.
_NO_WORK = re.compile(r"\bGFLOPS (?:0(?:\.0+)?|\d{10,}(?:\.\d+)?|-?nan|-?inf) Target GFLOPS:")
_NO_TARGET = re.compile(r"Target GFLOPS: 0(?:\.0+)? met: ?TRUE", re.IGNORECASE)
# RVS has no word for a memory test that failed: each GPU says that a test begins, and PASS where it found no error.
_TEST_BEGINS = re.compile(r"^mem +Test +(\d+)(?: \[|: (?!elapsedtime))")
# Before the first of them, mem lists all that it is to make, and number 10, which it never makes.
_NEVER = "10"
_TEST_LISTED = re.compile(r"^\[RESULT\s*\] ?\[[\d. ]*\] ?=+ ?Test (\d+) ")
_LIST_BEGINS = re.compile(r"^mem +The following memory tests will run")
_TEST_PASSED = re.compile(r"^mem +Test +(\d+) ?: ?PASS\b")
# What other results say, and the word that is said where all is as it should be; of a bandwidth, any above 0.
_SAID = (
    (re.compile(r"(?:met|pass): ?(TRUE|FALSE)\b", re.IGNORECASE), "true"),
    (re.compile(r"^mem +Test +\d+ ?: .*bandwidth = (\d+(?:\.\d+)?) ?GB/s"), None),
    (_TEST_PASSED, None),
    (re.compile(r"^peqt (true|false)$"), "true"),
    (re.compile(r"(?:self|accu)-check error (\S+)"), "0"),  # of gst: said where products differ
    (re.compile(r"^gm \S+ \w+ violations (\d+)"), "0"),
)


@dataclass(frozen=True)
class RvsReport:
    """How many results there are, and the lines of those that aren't as they should be, after RVS' own complaints; what
    is missing is among them. `gpus` that gave results; `slowest` transfer by way ("pcie", "p2p"): GB/s in one
    direction, and the line. `without_target`: actions that any GPU meets. `none`: the model without targets. `own`: the
    configuration is the model's own; RVS' for all models copy in blocks and ways that say nothing of a link's speed.
    `over_pcie`: lines of two GPUs that reach each other over PCIe, which is a fault where each has a link to each.
    `without_power`: actions that are to reach a power which wasn't read on some GPUs, or on any, as on second dies and
    in guests."""

    results: int
    bad: tuple[str, ...]
    gpus: int = 0
    slowest: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    without_target: tuple[str, ...] = ()
    none: str = ""
    own: bool = False
    over_pcie: tuple[str, ...] = ()
    without_power: tuple[str, ...] = ()


@dataclass
class _Action:
    """What one action of the configuration said."""

    results: int = 0
    bad: list[str] = field(default_factory=list)
    gpus: set[str] = field(default_factory=set)
    listed: Counter[str] = field(default_factory=Counter)  # memory tests that it is to make
    begun: Counter[str] = field(default_factory=Counter)  # memory test -> GPUs
    passed: Counter[str] = field(default_factory=Counter)
    transfers: int = 0
    moved: set[int] = field(default_factory=set)
    target: bool = True
    asked: bool = False  # its configuration names it
    power: dict[str, set[float]] = field(default_factory=lambda: defaultdict(set))  # GPU -> its readings
    reached: list[tuple[str, bool, str]] = field(default_factory=list)  # GPU, whether it reached its power, the line
    unread: int = 0  # results that stand for no reading


def parse(text: str, tool: str = "rvs") -> RvsReport:
    """
    Raises:
        CheckFailed: no result, or no GPU; or the transfers of an action aren't all there.
    """
    errors: list[str] = []
    actions: dict[str, _Action] = defaultdict(_Action)
    slowest: dict[str, tuple[float, str]] = {}
    over_pcie: list[str] = []
    own, lists = False, ""  # the action whose list of tests was begun last
    for line in (part.strip() for raw in lines(text) for part in _FUSED.split(raw)):
        if _ERROR.search(line):
            errors.append(line)
        elif asked := _ASKED.match(line):
            if asked["none"] is not None:
                return RvsReport(0, (), none=asked["none"])
            if asked["file"]:
                own = "/" in asked["file"]
            else:
                actions[asked["action"].strip()].asked = True
        elif match := _TEST_LISTED.match(line):
            actions[lists].listed[match[1]] += match[1] != _NEVER
        elif match := _RESULT.match(line):
            said = match["said"].strip()
            if _LIST_BEGINS.match(said):
                lists = match["action"].strip()
            _read(actions[match["action"].strip()], said, line)
            if _PCIE_HOP.search(said):
                over_pcie.append(line)
            if (moved := _MOVED.search(said)) and moved["way"] != _TOGETHER and (speed := _GBPS.search(said)):
                value = float(speed[1]) / (2 if _BOTH.search(said) else 1)
                slowest[moved["way"]] = min(slowest.get(moved["way"], (value, line)), (value, line))
    for action in actions.values():
        _settle(action)
    if not any(action.results or action.unread for action in actions.values()) and (not errors or finds_no_gpu(text)):
        raise bad(tool, text, "no result")
    for name, action in actions.items():
        if not errors and len(action.moved) < action.transfers:
            raise bad(tool, text, f"action {name} ended after {len(action.moved)} of {action.transfers} transfers")
    return RvsReport(
        results=sum(action.results for action in actions.values()),
        bad=(*errors, *(line for action in actions.values() for line in action.bad), *_missing(actions)),
        gpus=_gpus(actions),
        slowest=slowest,
        without_target=tuple(name for name, action in actions.items() if not action.target),
        own=own,
        over_pcie=tuple(over_pcie),
        without_power=tuple(name for name, action in actions.items() if action.unread),
    )


def _read(action: _Action, said: str, line: str) -> None:
    if test := _TEST_BEGINS.match(said):
        action.begun[test[1]] += 1
        return
    if test := _TEST_PASSED.match(said):
        action.passed[test[1]] += 1
    if _NO_TARGET.search(said):
        action.target = False
    gpus, power = _GPU.findall(said), _POWER.search(said)
    if power and gpus:
        action.power[gpus[0]].add(float(power[1]))
    moved = _MOVED.search(said)
    if moved:
        action.transfers = int(moved["of"])
        action.moved.add(int(moved["index"]))
    good = bool(_GBPS.search(said)) if moved else _good(said)
    if good is None:
        return
    action.gpus.update(gpus)
    if gpus and gpus[0] in action.power:
        action.reached.append((gpus[0], good, line))
    else:
        action.results += 1
        action.bad += [] if good else [line]


def _settle(action: _Action) -> None:
    """Power that was read on no GPU is none's fault; RVS itself calls good a second die, which has none."""
    none = {
        gpu for gpu, watts in action.power.items() if max(watts) == 0 or not all(0 <= w < _MOST_WATTS for w in watts)
    }
    for gpu, good, line in action.reached:
        if gpu in none and (good or len(none) == len(action.power)):
            action.unread += 1
        else:
            action.results += 1
            action.bad += [] if good else [line]


def _gpus(actions: Mapping[str, _Action]) -> int:
    """That took part: memory tests count them, the other modules name them."""
    counts = [len(action.gpus) for action in actions.values()]
    counts += [count for action in actions.values() for count in (*action.begun.values(), *action.passed.values())]
    return max(counts, default=0)


def _missing(actions: Mapping[str, _Action]) -> list[str]:
    """What should be there: every action, every GPU in each of them, and each memory test's PASS on each GPU."""
    missing, gpus = [], _gpus(actions)
    for name, action in actions.items():
        for test in sorted({*+action.listed, *action.begun, *action.passed}, key=int):
            if action.passed[test] < gpus:
                missing.append(f"[{name}] mem Test {test}: {action.passed[test]} of {gpus} GPUs say PASS")
        if action.asked and not (action.results or action.unread):
            missing.append(f"[{name}] has no result")
        elif action.gpus and len(action.gpus) < gpus:
            missing.append(f"[{name}] {len(action.gpus)} of {gpus} GPUs have a result")
    return missing


def _good(text: str) -> bool | None:
    """Whether it is as it should be; None where it is no result."""
    if peers := _PEERS.match(text):
        numbers = _NUMBERS.match(text)
        ends = _END.findall(text) or (numbers.groups() if numbers else ())
        return None if len(set(ends)) == 1 else peers[1] == "true" and not _NO_LINK.search(text)
    if _NO_WORK.search(text):
        return False
    for pattern, good in _SAID:
        if match := pattern.search(text):
            if good:
                return match[1].lower() == good
            return pattern is _TEST_PASSED or float(match[1]) > 0
    return None

"""Benchmarks of GPUs: TransferBench's presets a2a and p2p and its configuration files (github.com/ROCm/TransferBench;
all in GB/s), BabelStream's `hip-stream` (github.com/UoB-HPC/BabelStream, src/main.cpp), and `rocblas-bench`, which
prints lines of comma-separated names and values (github.com/ROCm/rocBLAS, clients)."""

import math
import re
from collections.abc import Mapping, Sequence

from rocstack.verify.parsers import bad, lines

_NUMBER = r"\d+(?:\.\d*)?"
_ERROR = re.compile(r"^\[ERROR\]|^Error: No valid transfers")
# Where no two GPUs have a direct link: older ones count their copies, newer ones complain.
_UNLINKED = re.compile(r"^- Copying \d+ bytes between directly .*\(0 Transfers\)|^Error: No valid transfers")
_AVERAGE = re.compile(rf"^(Average|Aggregate) +bandwidth \((GPU|CPU) Timed\): +({_NUMBER}) GB/s")
_PEER = re.compile(r"^Averages \(During +(Uni|Bi)Dir\): +(.*)$")
# From a CPU or GPU to each of them, CPUs first; of both ways at once their sum, which is the last of three rows.
_PEER_ROW = re.compile(rf"^([CG]PU) +(\d+)(?: +<?->)?((?: +(?:{_NUMBER}|N/A))+)$")
_KINDS = ("CPU->CPU", "CPU->GPU", "GPU->CPU", "GPU->GPU")
_GPU_ROW = re.compile(rf"^GPU +(\d+)((?: +(?:{_NUMBER}|N/A|-?nan|-?inf))+)$")
_GPU_HEAD = re.compile(r"^SRC\\DST((?: +GPU +\d+)+)")
_NO_SPEED = re.compile(r"^[CG]PU +\d+.*\b(?:nan|inf)\b")
_TEST = re.compile(r"^Test (\d+):")
_TEST_END = re.compile(r"^Aggregate +\(CPU\)")
_TRANSFER = re.compile(rf"^Transfer +(\d+) +({_NUMBER}|-?nan|-?inf) GB/s +\S.*\S +\S.*$")
_BORDERS = str.maketrans(dict.fromkeys("|│┃║", " "))  # of a table's columns; from 1.67 on around it, too


def all_to_all(text: str, tool: str = "TransferBench a2a") -> tuple[float | None, dict[tuple[int, int], float]]:
    """The average of all pairs, and each: (from, to) -> GB/s. No average where no two GPUs are linked directly.

    Raises:
        CheckFailed: it complains, or its averages or its table are missing, or what it has there is no speed.
    """
    if any(_UNLINKED.match(line.strip()) for line in lines(text)):
        return None, {}
    known = _lines(text, tool)
    speeds = {(match[1], match[2]): float(match[3]) for line in known if (match := _AVERAGE.match(line))}
    if ("Average", "GPU") not in speeds or ("Aggregate", "CPU") not in speeds:
        raise bad(tool, text, "it ended before its averages")
    rows: dict[int, list[str]] = {}
    heads = 0
    for number, line in enumerate(known, 1):
        if match := _GPU_HEAD.match(line):
            heads = match[1].count("GPU")
        if match := _GPU_ROW.match(line):
            if int(match[1]) in rows:
                raise bad(tool, text, "this GPU has a second row, as of another run", number)
            rows[int(match[1])] = match[2].split()
            if len(rows[int(match[1])]) != len(next(iter(rows.values()))):
                raise bad(tool, text, "this row of its table is cut off", number)
            if re.search("nan|inf", match[2]):
                raise bad(tool, text, "a pair's speed is none", number)
    if not rows:
        raise bad(tool, text, "its table of pairs is missing, or in another form")
    if heads > len(rows):
        raise bad(tool, text, f"its table has {len(rows)} rows of {heads} GPUs")
    pairs = {
        (source, target): float(word)
        for source, words in rows.items()
        for target, word in enumerate(words[: len(rows)])
        if re.fullmatch(_NUMBER, word)
    }
    return speeds["Average", "GPU"], pairs


def peer_to_peer(text: str, tool: str = "TransferBench p2p") -> dict[str, dict[str, float]]:
    """Of "Uni" and "Bi", one and both ways: averages by kind, such as "GPU->GPU"; one that the node hasn't is left out.

    Raises:
        CheckFailed: it complains, a row isn't whole, or its averages of both kinds aren't there.
    """
    averages: dict[str, dict[str, float]] = {}
    columns = 0
    for number, line in enumerate(_lines(text, tool), 1):
        if _NO_SPEED.match(line):
            raise bad(tool, text, "a pair's speed is none", number)
        if match := _PEER_ROW.match(line):
            own, columns = len(match[3].split()), columns or len(match[3].split())
            if own != columns:
                raise bad(tool, text, "this row of its table is cut off", number)
        words = match[2].split() if (match := _PEER.match(line)) else []
        if match and len(words) == len(_KINDS):
            try:
                known = {kind: _finite(word) for kind, word in zip(_KINDS, words, strict=True) if word != "N/A"}
            except ValueError:
                raise bad(tool, text, "an average is no speed", number) from None
            averages[match[1]] = known
    if averages.keys() != {"Uni", "Bi"}:
        raise bad(tool, text, "it ended before its averages of one and both directions")
    return averages


def peer_pairs(text: str, tool: str = "TransferBench p2p") -> dict[str, dict[tuple[str, str], float]]:
    """Of "Uni" and "Bi", each pair alone: (from, to), such as ("GPU 0", "CPU 1") -> GB/s; of both ways their sum.

    Raises:
        CheckFailed: as `peer_to_peer`.
    """
    found: dict[str, dict[tuple[str, str], float]] = {}
    rows: dict[str, list[str]] = {}
    for line in _lines(text, tool):
        if match := _PEER.match(line):
            found[match[1]], rows = _pairs(rows), {}
        elif match := _PEER_ROW.match(line):
            rows[f"{match[1]} {int(match[2])}"] = match[3].split()
    return found


def _pairs(rows: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], float]:
    gpus = [name for name in rows if name.startswith("GPU")]
    cpus = max(map(len, rows.values()), default=0) - len(gpus)
    heads = [*(f"CPU {number}" for number in range(cpus)), *gpus]
    return {
        (source, target): float(word)
        for source, words in rows.items()
        for target, word in zip(heads, words, strict=False)
        if source != target and word != "N/A"
    }


def configured(text: str, tool: str = "TransferBench") -> dict[int, list[float]]:
    """Of a configuration file: test -> GB/s of each of its transfers.

    Raises:
        CheckFailed: it complains, a test has no transfer, or one whose speed is none.
    """
    tests: dict[int, list[float]] = {}
    test, ended = 0, set[int]()
    for number, line in enumerate(_lines(text, tool), 1):
        if match := _TEST.match(line):
            test = int(match[1])
            tests[test] = []
        elif test and (match := _TRANSFER.match(line)):
            try:
                tests[test].append(_finite(match[2]))
            except ValueError:
                raise bad(tool, text, "a transfer's speed is none", number) from None
        elif _TEST_END.match(line):
            ended.add(test)
    for test, speeds in tests.items():
        if not speeds:
            raise bad(tool, text, f"test {test} has no result")
        if test not in ended:
            raise bad(tool, text, f"test {test} was cut off before its sum")
    if not tests:
        raise bad(tool, text, "no test was run")
    return tests


def _lines(text: str, tool: str) -> list[str]:
    known = [line.translate(_BORDERS).strip() for line in lines(text)]
    for number, line in enumerate(known, 1):
        if _ERROR.match(line):
            raise bad(tool, text, "it complains", number)
    return known


FUNCTIONS = ("Copy", "Mul", "Add", "Triad", "Dot")
_HEADER = re.compile(r"^Function +(?:([MG]i?)Bytes/sec|([MGT]i?)B/s) ")  # 6.0 has shorter words and more units
# From 10 TB/s on, the speed in MB/s fills its column, and the time begins after its third decimal.
_ROW = re.compile(rf"^({'|'.join(FUNCTIONS)}) +(\d+\.\d{{3}}(?=\d+\.\d{{5}} )|\S+ +)\S+ +\S+ +\S+$")
_WRONG = re.compile(r"^(?:Validation failed|FAILED validation) o[nf] ")
_GB = {"M": 1e-3, "Mi": 2**20 / 1e9, "G": 1.0, "Gi": 2**30 / 1e9, "T": 1e3, "Ti": 2**40 / 1e9}


def parse_babelstream(text: str, tool: str = "hip-stream") -> dict[str, float]:
    """Function -> GB/s (10^9 bytes) of its best run.

    Raises:
        CheckFailed: its sums were wrong, a row isn't understood, or a function is missing.
    """
    speeds: dict[str, float] = {}
    scale = 0.0
    for number, line in enumerate((raw.strip() for raw in lines(text)), 1):
        if _WRONG.match(line):
            raise bad(tool, text, "what it computed is wrong", number)
        if match := _HEADER.match(line):
            scale = _GB[match[1] or match[2]]
        elif scale and (match := _ROW.match(line)):
            try:
                speed = round(_finite(match[2]) * scale, 6)
                speeds[match[1]] = min(speed, speeds.get(match[1], speed))  # of two runs the slower
            except ValueError:
                raise bad(tool, text, "this row isn't understood", number) from None
    missing = [name for name in FUNCTIONS if name not in speeds]
    if missing:
        raise bad(tool, text, f"it has no {missing[0]}")
    return speeds


def _finite(word: str) -> float:
    """A division by nothing is no speed, and would meet any threshold."""
    value = float(word)
    if not math.isfinite(value):
        raise ValueError
    return value


_SPEED, _TIME = "rocblas-Gflops", "us"


def parse_rocblas(text: str, tool: str = "rocblas-bench") -> float:
    """The last result, in TFLOPS (10^12).

    Raises:
        CheckFailed: there is none, or it isn't understood.
    """
    known = lines(text)
    at = max((number for number, line in enumerate(known, 1) if _SPEED in line), default=0)
    if not at:
        raise bad(tool, text, "no result")
    if at >= len(known) or not known[at].strip():
        raise bad(tool, text, "nothing follows the names", at)
    names, words = (known[at - 1 + i].strip().split(",") for i in (0, 1))
    row = {name.strip(): word.strip() for name, word in zip(names, words, strict=False)}
    try:
        if len(words) > len(names):  # as where a comma stands for the point
            raise ValueError
        numbers = [_finite(row[name]) for name in (_SPEED, _TIME, "M", "N", "K")]  # with these the row is whole
        if min(numbers[1:]) <= 0:  # no time, or no work
            raise ValueError
        return numbers[0] / 1e3
    except (KeyError, ValueError):
        raise bad(tool, text, "this row isn't understood", at + 1) from None

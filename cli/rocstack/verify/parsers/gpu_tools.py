"""Benchmarks of GPUs: TransferBench's presets a2a and p2p and its configuration files (github.com/ROCm/TransferBench;
all in GB/s), BabelStream's `hip-stream` (github.com/UoB-HPC/BabelStream, src/main.cpp), and `rocblas-bench`, which
prints lines of comma-separated names and values (github.com/ROCm/rocBLAS, clients)."""

import re

from rocstack.verify.parsers import bad

_ERROR = re.compile(r"^\[ERROR\]")
_AVERAGE = re.compile(r"^(Average|Aggregate) +bandwidth \((GPU|CPU) Timed\): +([\d.]+) GB/s")
_PEER = re.compile(r"^Averages \(During +(Uni|Bi)Dir\): +(.*)$")
_KINDS = ("CPU->CPU", "CPU->GPU", "GPU->CPU", "GPU->GPU")
_GPU_ROW = re.compile(r"^GPU +(\d+) +(.*)$")
_TEST = re.compile(r"^Test (\d+):")
_TRANSFER = re.compile(r"^Transfer +(\d+) +[|│] +([\d.]+) GB/s .*[|│] +(\S.*)$")


def all_to_all(text: str, tool: str = "TransferBench a2a") -> tuple[float, dict[tuple[int, int], float]]:
    """The average of all pairs, and each: (from, to) -> GB/s.

    Raises:
        CheckFailed: it complains, or its averages are missing.
    """
    lines = _lines(text, tool)
    speeds = {(match[1], match[2]): float(match[3]) for line in lines if (match := _AVERAGE.match(line))}
    if ("Average", "GPU") not in speeds or ("Aggregate", "CPU") not in speeds:
        raise bad(tool, text, "it ended before its averages")
    rows = {int(match[1]): match[2].split() for line in lines if (match := _GPU_ROW.match(line))}
    pairs = {
        (source, target): float(word)
        for source, words in rows.items()
        for target, word in enumerate(words[: len(rows)])
        if re.fullmatch(r"[\d.]+", word)
    }
    return speeds["Average", "GPU"], pairs


def peer_to_peer(text: str, tool: str = "TransferBench p2p") -> dict[str, dict[str, float]]:
    """Of "Uni" and "Bi", one and both ways: averages by kind, such as "GPU->GPU"; one that the node hasn't is left out.

    Raises:
        CheckFailed: it complains, or its averages of both kinds aren't there.
    """
    averages = {match[1]: match[2].split() for line in _lines(text, tool) if (match := _PEER.match(line))}
    if averages.keys() != {"Uni", "Bi"} or any(len(words) != len(_KINDS) for words in averages.values()):
        raise bad(tool, text, "it ended before its averages of one and both directions")
    return {
        way: {kind: float(word) for kind, word in zip(_KINDS, words, strict=True) if word != "N/A"}
        for way, words in averages.items()
    }


def configured(text: str, tool: str = "TransferBench") -> dict[int, list[float]]:
    """Of a configuration file: test -> GB/s of each of its transfers.

    Raises:
        CheckFailed: it complains, or a test has no transfer.
    """
    tests: dict[int, list[float]] = {}
    test = 0
    for line in _lines(text, tool):
        if match := _TEST.match(line):
            test = int(match[1])
            tests[test] = []
        elif test and (match := _TRANSFER.match(line)):
            tests[test].append(float(match[2]))
    for test, speeds in tests.items():
        if not speeds:
            raise bad(tool, text, f"test {test} has no result")
    if not tests:
        raise bad(tool, text, "no test was run")
    return tests


def _lines(text: str, tool: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    for number, line in enumerate(lines, 1):
        if _ERROR.match(line):
            raise bad(tool, text, "it complains", number)
    return lines


FUNCTIONS = ("Copy", "Mul", "Add", "Triad", "Dot")
_HEADER = re.compile(r"^Function +(MBytes|MiBytes|GBytes)/sec ")
_ROW = re.compile(rf"^({'|'.join(FUNCTIONS)}) +(\S+) +\S+ +\S+ +\S+$")
_WRONG = re.compile(r"^Validation failed")
_GB = {"MBytes": 1e-3, "MiBytes": 1024 * 1024 / 1e9, "GBytes": 1.0}


def parse_babelstream(text: str, tool: str = "hip-stream") -> dict[str, float]:
    """Function -> GB/s (10^9 bytes) of its best run.

    Raises:
        CheckFailed: its sums were wrong, a row isn't understood, or a function is missing.
    """
    speeds: dict[str, float] = {}
    scale = 0.0
    for number, line in enumerate((raw.strip() for raw in text.splitlines()), 1):
        if _WRONG.match(line):
            raise bad(tool, text, "what it computed is wrong", number)
        if match := _HEADER.match(line):
            scale = _GB[match[1]]
        elif scale and (match := _ROW.match(line)):
            try:
                speeds[match[1]] = round(float(match[2]) * scale, 6)
            except ValueError:
                raise bad(tool, text, "this row isn't understood", number) from None
    missing = [name for name in FUNCTIONS if name not in speeds]
    if missing:
        raise bad(tool, text, f"it has no {missing[0]}")
    return speeds


_SPEED, _TIME = "rocblas-Gflops", "us"


def parse_rocblas(text: str, tool: str = "rocblas-bench") -> float:
    """The last result, in TFLOPS (10^12).

    Raises:
        CheckFailed: there is none, or it isn't understood.
    """
    lines = text.splitlines()
    at = max((number for number, line in enumerate(lines, 1) if _SPEED in line), default=0)
    if not at:
        raise bad(tool, text, "no result")
    if at >= len(lines) or not lines[at].strip():
        raise bad(tool, text, "nothing follows the names", at)
    names, words = (lines[at - 1 + i].strip().split(",") for i in (0, 1))
    row = {name.strip(): word.strip() for name, word in zip(names, words, strict=False)}
    try:
        gflops, *_ = [float(row[name]) for name in (_SPEED, _TIME, "M", "N", "K")]  # with these the row is whole
        return gflops / 1e3
    except (KeyError, ValueError):
        raise bad(tool, text, "this row isn't understood", at + 1) from None

"""TransferBench: presets a2a and p2p, and configuration files (github.com/ROCm/TransferBench). All in GB/s."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rocstack.verify.parsers.bad_output import bad

_ERROR = re.compile(r"^\[ERROR\]")
_AVERAGE = re.compile(r"^(Average|Aggregate) +bandwidth \((GPU|CPU) Timed\): +([\d.]+) GB/s")
_PEER = re.compile(r"^Averages \(During +(Uni|Bi)Dir\): +(.*)$")
_KINDS = ("CPU->CPU", "CPU->GPU", "GPU->CPU", "GPU->GPU")
_GPU_ROW = re.compile(r"^GPU +(\d+) +(.*)$")
_TEST = re.compile(r"^Test (\d+):")
_TRANSFER = re.compile(r"^Transfer +(\d+) +[|│] +([\d.]+) GB/s .*[|│] +(\S.*)$")


@dataclass(frozen=True)
class AllToAll:
    """`average` of all pairs, `aggregate` of all at once, by the CPU's clock; `pairs`: (from, to) -> GB/s."""

    average: float
    aggregate: float
    pairs: Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class PeerToPeer:
    """Averages by kind, such as "GPU->GPU"; a kind that the node hasn't is left out."""

    one_way: Mapping[str, float]
    both_ways: Mapping[str, float]


def all_to_all(text: str, tool: str = "TransferBench a2a") -> AllToAll:
    """
    Raises:
        CheckFailed: it complains, or its averages are missing.
    """
    lines = _lines(text, tool)
    found = {(match[1], match[2]): float(match[3]) for line in lines if (match := _AVERAGE.match(line))}
    if ("Average", "GPU") not in found or ("Aggregate", "CPU") not in found:
        raise bad(tool, text, "it ended before its averages")
    rows = {int(match[1]): match[2].split() for line in lines if (match := _GPU_ROW.match(line))}
    pairs = {
        (source, target): float(word)
        for source, words in rows.items()
        for target, word in enumerate(words[: len(rows)])
        if re.fullmatch(r"[\d.]+", word)
    }
    return AllToAll(found["Average", "GPU"], found["Aggregate", "CPU"], pairs)


def peer_to_peer(text: str, tool: str = "TransferBench p2p") -> PeerToPeer:
    """
    Raises:
        CheckFailed: it complains, or its averages of both kinds aren't there.
    """
    found = {match[1]: match[2].split() for line in _lines(text, tool) if (match := _PEER.match(line))}
    if found.keys() != {"Uni", "Bi"} or any(len(words) != len(_KINDS) for words in found.values()):
        raise bad(tool, text, "it ended before its averages of one and both directions")
    uni, bi = (
        {kind: float(word) for kind, word in zip(_KINDS, found[way], strict=True) if word != "N/A"}
        for way in ("Uni", "Bi")
    )
    return PeerToPeer(uni, bi)


def configured(text: str, tool: str = "TransferBench") -> dict[int, list[float]]:
    """Of a configuration file: test -> GB/s of each of its transfers.

    Raises:
        CheckFailed: it complains, or a test has no transfer.
    """
    found: dict[int, list[float]] = {}
    test = 0
    for line in _lines(text, tool):
        if match := _TEST.match(line):
            test = int(match[1])
            found[test] = []
        elif test and (match := _TRANSFER.match(line)):
            found[test].append(float(match[2]))
    for test, speeds in found.items():
        if not speeds:
            raise bad(tool, text, f"test {test} has no result")
    if not found:
        raise bad(tool, text, "no test was run")
    return found


def _lines(text: str, tool: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    for number, line in enumerate(lines, 1):
        if _ERROR.match(line):
            raise bad(tool, text, "it complains", number)
    return lines

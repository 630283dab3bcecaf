"""BabelStream: `hip-stream` and its like (github.com/UoB-HPC/BabelStream, src/main.cpp)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rocstack.verify.parsers.bad_output import bad

FUNCTIONS = ("Copy", "Mul", "Add", "Triad", "Dot")
_ABOUT = re.compile(r"^(Version|Implementation|Precision): (.+)$|^Using \w+ device (.+)$")
_HEADER = re.compile(r"^Function +(MBytes|MiBytes|GBytes)/sec ")
_ROW = re.compile(rf"^({'|'.join(FUNCTIONS)}) +(\S+) +\S+ +\S+ +\S+$")
_WRONG = re.compile(r"^Validation failed")
_GB = {"MBytes": 1e-3, "MiBytes": 1024 * 1024 / 1e9, "GBytes": 1.0}


@dataclass(frozen=True)
class Stream:
    """`gb` by function, in GB/s (10^9 bytes): the best run of each."""

    version: str
    implementation: str
    precision: str
    device: str
    gb: Mapping[str, float]


def parse(text: str, tool: str = "hip-stream") -> Stream:
    """
    Raises:
        CheckFailed: its sums were wrong, a row isn't understood, or a function is missing.
    """
    about: dict[str, str] = {}
    found: dict[str, float] = {}
    scale = 0.0
    for number, line in enumerate((raw.strip() for raw in text.splitlines()), 1):
        if _WRONG.match(line):
            raise bad(tool, text, "what it computed is wrong", number)
        if match := _ABOUT.match(line):
            about[match[1] or "Device"] = match[2] or match[3]
        elif match := _HEADER.match(line):
            scale = _GB[match[1]]
        elif scale and (match := _ROW.match(line)):
            try:
                found[match[1]] = round(float(match[2]) * scale, 6)
            except ValueError:
                raise bad(tool, text, "this row isn't understood", number) from None
    missing = [name for name in FUNCTIONS if name not in found]
    if missing:
        raise bad(tool, text, f"it has no {missing[0]}")
    return Stream(
        version=about.get("Version", ""),
        implementation=about.get("Implementation", ""),
        precision=about.get("Precision", ""),
        device=about.get("Device", ""),
        gb=found,
    )

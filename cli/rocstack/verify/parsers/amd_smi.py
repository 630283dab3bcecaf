"""`amd-smi ... --json`: list, topology and firmware (github.com/ROCm/amdsmi; ROCm 7 puts the list under "gpu_data",
newer ones print lists of NICs and switches behind that of the GPUs)."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rocstack.base.text import from_json
from rocstack.verify.parsers import bad

T = TypeVar("T")
NONE = "N/A"
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,16}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")
# Its warnings, which go before and behind what it answers, may be in brackets, too.
_BEGINS = re.compile(r"\s*(?:\[\s*(?:[{\]]|$)|\{)")
_ENDS = re.compile(r"\s*(?:[\[{].*)?[\]}]\s*")


@dataclass(frozen=True)
class SmiLink:
    """From one GPU to another: `kind` "XGMI" or "PCIE", `status` "ENABLED" or not."""

    source: int
    target: int
    kind: str
    status: str


def gpus(text: str, tool: str = "amd-smi list") -> tuple[str, ...]:
    """Their PCI addresses.

    Raises:
        CheckFailed: it isn't such a list, or is one of errors.
    """
    found = tuple(address for _, address in _each(text, tool, lambda row: [(int(row["gpu"]), str(row["bdf"]))]))
    if odd := next((each for each in found if not _ADDRESS.fullmatch(each)), None):
        raise bad(tool, text, f"a GPU has no PCI address ({odd[:20]})", 1)
    return found


def links(text: str, tool: str = "amd-smi topology") -> tuple[SmiLink, ...]:
    """Without those of a GPU to itself.

    Raises:
        CheckFailed: as `gpus`.
    """

    def of(row: Mapping[str, Any]) -> list[SmiLink]:
        source = int(row["gpu"])
        return [
            SmiLink(source, int(each["gpu"]), str(each["link_type"]), str(each.get("link_status", "")))
            for each in row["links"]
            if int(each["gpu"]) != source
        ]

    return _each(text, tool, of)


def firmware(text: str, tool: str = "amd-smi firmware") -> dict[int, dict[str, str]]:
    """GPU -> firmware -> version, of what could be read: the tool says "N/A" of the rest.

    Raises:
        CheckFailed: as `gpus`.
    """

    def of(row: Mapping[str, Any]) -> list[tuple[int, dict[str, str]]]:
        rows = [] if row["fw_list"] == NONE else row["fw_list"]
        named = {str(each.get("fw_id") or each["fw_name"]): str(each["fw_version"]) for each in rows}
        return [(int(row["gpu"]), {name: version for name, version in named.items() if version != NONE})]

    return dict(_each(text, tool, of))


def _each(text: str, tool: str, of: Callable[[Mapping[str, Any]], list[T]]) -> tuple[T, ...]:
    known = text.splitlines()
    starts = [number for number, line in enumerate(known) if _BEGINS.match(line)]
    if not starts:
        raise bad(tool, text, "it answered no JSON")
    ends = [number for number, line in enumerate(known) if number >= starts[0] and _ENDS.fullmatch(line)]
    # Within a document a comma is between the two.
    last = next((end for end in ends if end + 1 in starts), max(ends, default=len(known)))
    try:
        rows = from_json("\n".join(known[starts[0] : last + 1]))
    except ValueError as error:
        raise bad(tool, text, "its JSON is cut off or broken", starts[0] + getattr(error, "lineno", 1)) from None
    if isinstance(rows, dict):
        if "error" in rows:
            raise bad(tool, text, "it complains", starts[0] + 1)
        rows = rows.get("gpu_data")
    try:
        return tuple(value for row in rows for value in of(row))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise bad(tool, text, "its JSON is not what it was expected to be", starts[0] + 1) from None

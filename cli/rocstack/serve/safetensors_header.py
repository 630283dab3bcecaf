"""Reads what a safetensors file says of its tensors, and nothing else of it: bounded, and never unpickled.

The format: eight bytes with the length of the header, the header as JSON, the tensors' bytes.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

MOST_HEADER = 32 << 20  # bytes; the library's own limit is 100 MB
MOST_TENSORS = 200_000
MOST_DIMENSIONS = 8
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
BYTES |= {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "U32": 4, "U64": 8}
Read = Callable[[int], bytes]  # the next n bytes, fewer at the end


@dataclass(frozen=True)
class Tensor:
    dtype: str  # F32, BF16, ...
    shape: tuple[int, ...]


def read_header(read: Read, size: int) -> dict[str, Tensor]:
    """The tensors by name, of a file of `size` bytes.

    Raises:
        ValueError: it is no safetensors file, or its header and its length don't agree.
    """
    start = read(8)
    if len(start) < 8:
        raise ValueError("it is shorter than a safetensors file can be")
    (length,) = struct.unpack("<Q", start)
    if length > size - 8:
        raise ValueError("it is no safetensors file: what should be its header's length is more than the file has")
    if length > MOST_HEADER:
        raise ValueError(f"its header has {length:,} bytes; {MOST_HEADER:,} are allowed")
    raw = read(length)
    if len(raw) < length:
        raise ValueError("it ends in its header")
    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise ValueError(f"its header can't be read: {why}") from None
    if not isinstance(found, dict):
        raise ValueError("its header is no mapping")
    found.pop("__metadata__", None)
    if len(found) > MOST_TENSORS:
        raise ValueError(f"it has {len(found):,} tensors; {MOST_TENSORS:,} are allowed")
    spans = sorted(_span(name, each) for name, each in found.items())
    end = 0
    for begin, stop, name in spans:
        if begin != end:
            raise ValueError(f"'{name[:100]}' doesn't begin where the tensor before it ends")
        end = stop
    if end != size - 8 - length:
        raise ValueError("its tensors and its length don't agree: it is cut short, or something was added")
    return {name: Tensor(each["dtype"], tuple(each["shape"])) for name, each in found.items()}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands in it twice")
    return found


def _span(name: str, said: Any) -> tuple[int, int, str]:
    """Where the tensor's bytes begin and end."""
    short = name[:100]
    if not isinstance(said, dict) or said.get("dtype") not in BYTES:
        raise ValueError(f"'{short}' has no data type that is known")
    shape, offsets = _sizes(said.get("shape")), _sizes(said.get("data_offsets"))
    if shape is None or len(shape) > MOST_DIMENSIONS or offsets is None or len(offsets) != 2:
        raise ValueError(f"'{short}' has no shape or no place in the file")
    if offsets[1] - offsets[0] != prod(shape) * BYTES[said["dtype"]]:
        raise ValueError(f"'{short}' doesn't have as many bytes as its shape needs")
    return offsets[0], offsets[1], name


def _sizes(value: Any) -> list[int] | None:
    """The list, if it is one of sizes."""
    right = isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 62 for each in value)
    return value if right else None

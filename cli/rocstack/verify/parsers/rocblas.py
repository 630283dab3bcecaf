"""`rocblas-bench`: its lines of comma-separated names and values (github.com/ROCm/rocBLAS, clients)."""

from __future__ import annotations

from dataclasses import dataclass

from rocstack.verify.parsers.bad_output import bad

_SPEED, _TIME = "rocblas-Gflops", "us"


@dataclass(frozen=True)
class Gemm:
    """`tflops` (10^12) and `us` of a call; its sizes."""

    m: int
    n: int
    k: int
    tflops: float
    us: float


def parse(text: str, tool: str = "rocblas-bench") -> Gemm:
    """The last result.

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
        m, n, k = (int(row[name]) for name in ("M", "N", "K"))
        return Gemm(m, n, k, tflops=float(row[_SPEED]) / 1e3, us=float(row[_TIME]))
    except (KeyError, ValueError):
        raise bad(tool, text, "this row isn't understood", at + 1) from None

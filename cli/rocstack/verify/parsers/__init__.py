"""Parsers of what the field's tools print: text in, values out, no I/O. Output that is incomplete or unknown raises
CheckFailed `bad-output`, which says what is missing, and in which line; or `tool-without-gpu`, where the tool says that
it found none."""

import re

from rocstack.base.errors import CheckFailed, Where

_TROUBLE = re.compile(
    r"permission denied|not permitted|no such (file|device)|not found|did not detect|unable to|couldn't|could not|"
    r"cannot |can't |failed|failure|invalid|error|no .*device|out of memory|killed|segmentation fault|"
    r"aborted|timed? out|mismatch|incompatib|exception|bad_alloc|\bfault\b",
    re.IGNORECASE,
)
_WARNING = re.compile(r"\bwarn(?:ing)?\b", re.IGNORECASE)
# Words of HIP, RVS, TransferBench and rocBLAS.
_NO_GPU = re.compile(
    r"no ROCm-capable device|no supported GPUs|no AMD compatible GPU|detected 0 GPUs|"
    r"cannot get device count",
    re.IGNORECASE,
)
# What rccl-tests prints at the end of every good run.
_FOOTER = re.compile(r"^# (?:Errors with asterisks|Out of bounds values : 0 OK)")
_LENGTH = 300
LONGEST = 1000  # characters of a line: a node may send one of some MB, for which a search takes hours
_COLOURS = re.compile(r"\x1b\[[0-?]{0,20}[ -/]{0,4}[@-~]")


def lines(text: str) -> list[str]:
    """Those of an output, as far as a parser looks at them, without colours: behind one, a row would be no row."""
    return [_COLOURS.sub("", line[:LONGEST]) for line in text.splitlines()]


def finds_no_gpu(text: str) -> bool:
    """Whether a tool of GPUs says that there is none, or none that it may open."""
    return any(_NO_GPU.search(line) for line in lines(text))


def bad(tool: str, text: str, why: str, line: int | None = None) -> CheckFailed:
    """The error for `why`; `line` counts from 1. Where none is to blame, it is the first line that tells of trouble, or
    the last one, where the output was cut off. What a warning says before that may be why, and often is not. Whatever
    is missing, the reason is a GPU where the tool found none."""
    known = lines(text)
    for number, each in enumerate(known, 1):
        if finds_no_gpu(each):
            return CheckFailed.of(
                "tool-without-gpu", Where(f"output of {tool}", number), tool=tool, said=each.strip()[:_LENGTH]
            )
    spoken = [number for number, each in enumerate(known, 1) if each.strip()]
    if not spoken:
        return CheckFailed.of("no-output", tool=tool)
    told = [number for number in spoken if line is None and not _FOOTER.search(known[number - 1].strip())]
    troubles = [number for number in told if _TROUBLE.search(known[number - 1])]
    errors = [number for number in troubles if not _WARNING.search(known[number - 1])]
    trouble = next(iter(errors or troubles), None)
    number = line or trouble or spoken[-1]
    shown = known[number - 1].strip()[:_LENGTH]
    shown = f": {shown}" if line or trouble else f"; its last line is: {shown}"
    if errors and trouble != troubles[0]:
        shown += f"; it had warned: {known[troubles[0] - 1].strip()[:_LENGTH]}"
    cause = "the tool failed" if trouble else "it was stopped, or its version prints something else"
    where = Where(f"output of {tool}", number)
    return CheckFailed.of("bad-output", where, tool=tool, why=why, shown=shown, cause=cause)

"""Parsers of what the field's tools print: text in, values out, no I/O. Output that is incomplete or unknown raises
CheckFailed `bad-output`, which says what is missing, and in which line."""

import re

from rocstack.base.errors import CheckFailed, Where

_TROUBLE = re.compile(
    r"permission denied|not permitted|no such (file|device)|not found|did not detect|unable to|couldn't|could not|"
    r"cannot |can't |failed|failure|invalid|error|no .*device|out of memory|killed|segmentation fault|"
    r"aborted|timed? out",
    re.IGNORECASE,
)
_LENGTH = 300


def bad(tool: str, text: str, why: str, line: int | None = None) -> CheckFailed:
    """The error for `why`; `line` counts from 1. Where none is to blame, it is the first line that tells of trouble, or
    the last one, where the output was cut off."""
    lines = text.splitlines()
    spoken = [number for number, each in enumerate(lines, 1) if each.strip()]
    if not spoken:
        return CheckFailed.of("no-output", tool=tool)
    trouble = next((number for number in spoken if line is None and _TROUBLE.search(lines[number - 1])), None)
    number = line or trouble or spoken[-1]
    shown = lines[number - 1].strip()[:_LENGTH]
    shown = f": {shown}" if line or trouble else f"; its last line is: {shown}"
    cause = "the tool failed" if trouble else "it was stopped, or its version prints something else"
    where = Where(f"output of {tool}", number)
    return CheckFailed.of("bad-output", where, tool=tool, why=why, shown=shown, cause=cause)

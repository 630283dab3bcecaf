"""Why a job failed, as the end of its log says it. Whoever runs the job writes the log: what is taken from it is data.
Pure."""

import re

from rocstack.base.text import visible
from rocstack.jobs.slurm import last_run

MOST = 300  # characters of a reason
_ABSENT = re.compile(r"slurmstepd[\w.-]*: error: execve\(\): (.{1,200}): No such file or directory")
_ERROR = re.compile(r"(?:\d{1,6}: )?error: (.+)")  # of rocstack's own programs; before it the rank, where several write
_RAISED = re.compile(r"[A-Za-z_][\w.]{0,100}(?:Error|Exception|Interrupt): ?.*")  # the last line of a traceback


def reason(log: str) -> str:
    """One line, or nothing where none of its lines is known to be one."""
    lines = last_run(log).splitlines()
    for line in lines:
        if absent := _ABSENT.fullmatch(line):
            return _short(f"the program {absent[1]} isn't on the node")
    for line in reversed(lines):
        if said := _ERROR.fullmatch(line):
            return _short(said[1])
    traced = max((at for at, line in enumerate(lines) if line.startswith("Traceback (most recent")), default=None)
    raised = [line for line in lines[traced:] if _RAISED.fullmatch(line)] if traced is not None else []
    return _short(raised[0]) if raised else ""


def _short(text: str) -> str:
    text = visible(text.strip())
    return text if len(text) <= MOST else f"{text[: MOST - 2]} …"

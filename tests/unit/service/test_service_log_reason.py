"""What of a failed job's log is taken for the reason."""

from __future__ import annotations

import pytest

from rocstack.service.log_reason import MOST, reason

ABSENT = "slurmstepd-n1: error: execve(): nosuch: No such file or directory"
TRACE = "Traceback (most recent call last):\n  File x, line 1, in <module>\nValueError: no data\nsrun: error: n1\n"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", ""),
        ("step=1 loss=2\nsrun: error: n1: task 0: Exited with exit code 2\n", ""),
        (f"{ABSENT}\nsrun: error: n1: task 0: Exited with exit code 2\n", "the program nosuch isn't on the node"),
        ("x\nerror: lora.adapter has rank 16, not 8\nsrun: error: n1: task 0\n", "lora.adapter has rank 16, not 8"),
        ("0: error: one\n1: error: two\n", "two"),
        (f"{TRACE}rocstack: the job begins again\nstep=1 loss=2\n", ""),
        (TRACE, "ValueError: no data"),
        ("ValueError: none was raised\n", ""),
        ("error: \x1b[31mred\u202e\n", "\\x1b[31mred\\u202e"),
        ("slurmstepd-n1: error: Unable to move pid 5 to root cgroup\n", ""),
    ],
)  # fmt: skip
def test_the_reason(log: str, said: str) -> None:
    assert reason(log) == said


def test_a_reason_is_short_however_long_its_line_is() -> None:
    for line in (f"error: {'x' * 9999}", "error: " * 9999, "Error" * 50_000, "slurmstepd" * 50_000):
        assert len(reason(line)) <= MOST

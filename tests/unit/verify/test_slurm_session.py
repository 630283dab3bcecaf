"""What srun brings of several tasks: lines longer than a message come in pieces, with those of others between them."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from testinfra.backend.base import CommandResult

from rocstack.base.errors import CheckFailed
from rocstack.verify.slurm_session import MARK, SlurmSession, StepOutput, _whole


def test_a_long_line_is_whole_again_whatever_comes_between_its_pieces() -> None:
    texts = {task: json.dumps({"task": task, "ids": "x" * (3000 + int(task))}) for task in ("0", "11")}
    pieces = {task: [f"{MARK}{text}"[at : at + 1024] for at in range(0, 4000, 1024)] for task, text in texts.items()}
    mixed = [f"{task:>2}: {piece}" for both in zip(pieces["0"], pieces["11"], strict=True) for task, piece in
             zip(("0", "11"), both, strict=True) if piece]  # fmt: skip
    step = StepOutput(0, _whole("\n".join(["srun: told", *mixed])), "")
    assert step.answers == [json.loads(text) for text in texts.values()]
    assert step.said == "srun: told"


def test_a_line_of_exactly_one_piece_ends_with_an_empty_one() -> None:
    assert _whole(f"0: {'y' * 1024}\n0: \n0: next") == f"{'y' * 1024}\nnext"


def test_an_answer_that_was_cut_off_takes_no_other_with_it() -> None:
    step = StepOutput(137, f'{MARK}{{"node": "n1"}}\n{MARK}{{"node": "n2", "sa\n{MARK}\n', "")
    assert step.answers == [{"node": "n1"}]


def test_null_is_no_answer() -> None:
    assert StepOutput(0, f'{MARK}null\n{MARK}{{"node": "n1"}}\n', "").answers == [{"node": "n1"}]
    with pytest.raises(CheckFailed, match="the look: no answer, it ended with 0"):
        StepOutput(0, f"{MARK}null\n", "").expect("the look")


def test_one_answer_is_enough_to_go_on() -> None:
    one = StepOutput(1, f'{MARK}{{"node": "n1"}}\n', "task 1: Exited with exit code 1")
    assert one.expect("the look") == [{"node": "n1"}]
    with pytest.raises(CheckFailed, match="the look: no answer, it ended with 1: python3: not found"):
        StepOutput(1, "python3: not found", "").expect("the look")


class Control:
    """A control node that notes what it is asked, and says yes."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def run(self, line: str, **_: Any) -> CommandResult:
        self.asked.append(line)
        return CommandResult(cast(Any, None), 0, line, "7", "salloc: Granted job allocation 7")


def test_nothing_is_read_of_a_folder_in_which_everybody_writes() -> None:
    """Python takes modules of the working folder and of home before its own: another user's would run as the suite."""
    control: Any = Control()
    session = SlurmSession(control)
    session.allocate(["n1"])
    session.step("python3", "-c", "import json", nodes=["n1"])
    session.submit("python3 -c 'import json'")
    assert any("srun" in line for line in control.asked)
    assert [line for line in control.asked if "/tmp" in line] == []
    assert all("--workdir=/ --env=HOME=/home/rocstack-verify" in line for line in control.asked)
    assert all("--chdir=/ " in line for line in control.asked if "srun" in line or "sbatch" in line)

"""What srun brings of several tasks: lines longer than a message come in pieces, with those of others between them."""

from __future__ import annotations

import json

import pytest

from rocstack.base.errors import CheckFailed
from rocstack.verify.slurm_session import MARK, StepOutput, _whole


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

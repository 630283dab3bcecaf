"""What srun brings of several tasks: lines longer than a message come in pieces, with those of others between them."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from growth import LINEAR, growth
from testinfra.backend.base import CommandResult

from rocstack.base.errors import CheckFailed
from rocstack.verify.slurm_session import MARK, SlurmSession, StepOutput, _whole


def test_a_long_line_is_whole_again_whatever_comes_between_its_pieces() -> None:
    texts = {task: json.dumps({"node": "n1", "task": task, "ids": "x" * (3000 + int(task))}) for task in ("0", "11")}
    pieces = {task: [f"{MARK}{text}"[at : at + 1024] for at in range(0, 4096, 1024)] for task, text in texts.items()}
    mixed = [f"{task:>2}: {piece}" for both in zip(pieces["0"], pieces["11"], strict=True) for task, piece in
             zip(("0", "11"), both, strict=True) if piece]  # fmt: skip
    step = StepOutput(0, _whole("\n".join(["srun: told", *mixed]), ["n1"] * 12), "")
    assert step.answers == [json.loads(text) for text in texts.values()]
    assert step.said == "srun: told"


def test_what_is_shown_of_a_step_is_short() -> None:
    step = StepOutput(1, "x" * 100_000, "\n".join(["y" * 100_000] * 50))
    assert len(step.said) < 20_000


def test_a_line_of_any_number_of_pieces_costs_as_much_as_it_is_long() -> None:
    """A worker that prints 64 MB without a newline: each piece was copied with all before it."""

    def put_together(text: str) -> None:
        _whole(text, ["n1"])

    assert growth(put_together, f"0: {'y' * 1024}\n", 400_000) < LINEAR


def test_a_line_of_exactly_one_piece_ends_with_an_empty_one() -> None:
    assert _whole(f"0: {'y' * 1024}\n0: \n0: next", ["n1"]) == f"{'y' * 1024}\nnext"


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


def answer(node: str, **more: Any) -> str:
    return MARK + json.dumps({"node": node, **more})


class Srun:
    """A control node whose Slurm has its nodes in an order of its own, and whose tasks print `said`."""

    def __init__(self, said: str) -> None:
        self.said = said

    def run(self, line: str, **_: Any) -> CommandResult:
        out = "NodeName=b1\nNodeName=a10\nNodeName=a9\n" if "scontrol" in line else self.said * (" srun " in line)
        return CommandResult(cast(Any, None), 0, line, out, "")


def heard(said: str, tasks: int = 1) -> StepOutput:
    session = SlurmSession(cast(Any, Srun(said)))
    return session.step("true", nodes=["a9", "a10", "b1"], tasks=tasks)


def test_a_task_answers_for_its_own_node_only() -> None:
    """Tasks are numbered along Slurm's nodes: 0 is b1's here, 1 a10's, 2 a9's."""
    said = [f"0: {answer('b1')}", f"1: {answer('b1', lie=1)}", f"1: {answer('a9', lie=1)}", f"2: {answer('a9')}"]
    step = heard("\n".join(said) + "\n")
    assert step.answers == [{"node": "b1"}, {"node": "a9"}]
    assert "task 1 answered in another node's name" in step.said
    assert [
        each["rank"] for each in heard("\n".join(f"{n}: {answer('a10', rank=n)}" for n in range(6)), 2).answers
    ] == [
        2,
        3,
    ]


@pytest.mark.parametrize(
    "said",
    [
        "1: x\x0c0: {}",  # breaks that only Python takes for some
        "1: x\u20280: {}",
        "1: x\r 0: {}",
        "1: " + answer("a10") + "\x1c{}",
        "{}",  # no label
        "7: {}",  # no such task
        "1: " + MARK + '["b1"]',
        "1: " + MARK + "7",
        "1: {}\n1: ",
    ],
)
def test_however_it_is_written(said: str) -> None:
    lie = answer("b1", lie=1)
    assert heard(said.replace("{}", lie)).answers == []
    long = answer("b1", lie="x" * (1024 - len(answer("b1", lie=""))))
    assert heard(f"1: {long}").answers == []
    assert heard(f"1: {long}\n1: \n").answers == []


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
    assert all(
        "exec --workdir=/ --user=rocstack-verify --env=HOME=/home/rocstack-verify" in line for line in control.asked
    )
    assert all("--chdir=/ " in line for line in control.asked if "srun" in line or "sbatch" in line)

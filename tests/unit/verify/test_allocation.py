"""The suite's allocation: lost and taken again, refused as the cluster is busy, and what a killed run left."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from testinfra.backend.base import CommandResult
from testinfra.host import Host

from rocstack.base.errors import CheckFailed
from rocstack.verify import slurm_session
from rocstack.verify.evidence import CheckSkipped
from rocstack.verify.slurm_session import SlurmSession

GRANTED = "salloc: Granted job allocation {}\nsalloc: Nodes n[1-2] are ready for job"
TIMED_OUT = "salloc: job 9 queued\nsalloc: error: Unable to allocate resources: Connection timed out"


@dataclass
class Controller:
    """A control node whose Slurm has these nodes, node -> sinfo's words, and these jobs: number -> squeue's."""

    nodes: dict[str, str]
    jobs: dict[str, dict[str, str]] = field(default_factory=dict)
    refuses: str = ""
    given: int = 0
    asked: list[list[str]] = field(default_factory=list)

    def run(self, line: str, seconds: float) -> CommandResult:
        words = shlex.split(line)
        assert {"timeout", "--kill-after=5"} <= set(words), "what runs inside would outlive its time"
        words = words[words.index("--kill-after=5") + 2 :]
        self.asked.append(words)
        code, out, err = getattr(self, words[0])({key: value for key, _, value in (w.partition("=") for w in words)})
        return CommandResult(cast(Any, None), code, line, out, err)

    def sinfo(self, options: dict[str, str]) -> tuple[int, str, str]:
        return 0, "\n".join(f"{name} {self.nodes[name]}" for name in options["--nodes"].split(",")), ""

    def salloc(self, options: dict[str, str]) -> tuple[int, str, str]:
        if self.refuses:
            return 1, "", self.refuses
        self.given += 1
        self.jobs[str(self.given)] = {"%N": options["--nodelist"], "%T|%r": "RUNNING|None", "%i|%j": f"{self.given}|x"}
        return 0, "", GRANTED.format(self.given)

    def srun(self, options: dict[str, str]) -> tuple[int, str, str]:
        return 0, "", ""

    def squeue(self, options: dict[str, str]) -> tuple[int, str, str]:
        numbers = options["--jobs"].split(",") if "--jobs" in options else list(self.jobs)
        said = "\n".join(self.jobs[number][options["--format"]] for number in numbers if number in self.jobs)
        for job in self.jobs.values():
            job["%T|%r"] = "RUNNING|None"  # the next time
        return 0, said, ""

    def scancel(self, options: dict[str, str]) -> tuple[int, str, str]:
        for number in [number for number in options if number in self.jobs]:
            assert self.jobs.pop(number)["%T|%r"] == "RUNNING|None", "it had not begun"
        return 0, "", ""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Controller:
    monkeypatch.setattr(slurm_session, "PAUSE", 0)
    return Controller({"n1": "idle 0/8/0/8", "n2": "idle 0/8/0/8"})


def made(node: Controller, **more: Any) -> SlurmSession:
    return SlurmSession(cast(Host, node), **more)


def test_it_is_taken_once(node: Controller) -> None:
    found = made(node)
    assert found.allocate(["n1", "n2"]) == found.allocate(["n1", "n2"]) == ("n1", "n2")
    assert node.given == 1


def test_a_node_that_dies_is_no_part_of_it_any_more(node: Controller) -> None:
    found = made(node)
    found.allocate(["n1", "n2"])
    node.jobs["1"]["%N"] = "n2"
    assert found.allocate(["n1", "n2"]) == ("n2",)
    assert node.given == 1


def test_what_it_has_still_is_asked_without_taking_it_again(node: Controller) -> None:
    found = made(node)
    assert found.kept(["n1", "n2"]) == ()
    found.allocate(["n1", "n2"])
    node.jobs["1"]["%N"] = "n2"
    assert found.kept(["n1", "n2"]) == ("n2",)
    node.jobs.clear()
    assert found.kept(["n1", "n2"]) == ()
    assert node.given == 1


def test_tasks_that_do_not_wait_for_each_other_end_no_other(node: Controller) -> None:
    found = made(node)
    found.allocate(["n1", "n2"])
    for alone, options in ((True, {"--wait=0", "--kill-on-bad-exit=0", "--no-kill"}), (False, {"--wait=10"})):
        found.step("true", independent=alone)
        assert {word for word in node.asked[-1] if "kill" in word or "--wait" in word} >= options
        assert ("--wait=10" in node.asked[-1]) is not alone
    found.step("true", options=["--wait=60"])
    assert node.asked[-1].index("--wait=60") > node.asked[-1].index("--wait=10"), "the last one counts"


def test_a_lost_one_is_taken_again_on_the_nodes_that_are_up(node: Controller) -> None:
    found = made(node)
    found.allocate(["n1", "n2"])
    node.jobs.clear()
    node.nodes["n1"] = "down* 0/0/8/8"
    assert found.allocate(["n1", "n2"]) == ("n2",)


@pytest.mark.parametrize("states", [("alloc 8/0/0/8", "drain 0/0/8/8"), ("mix 7/1/0/8", "comp 0/8/0/8")])
def test_busy_is_said_once_and_not_waited_for_again(states: tuple[str, str], node: Controller) -> None:
    node.nodes, node.refuses = dict(zip(("n1", "n2"), states, strict=True)), TIMED_OUT
    found = made(node)
    for _ in range(2):
        with pytest.raises(CheckSkipped, match=r"all workers are busy with jobs \(waited 5 min\)"):
            found.allocate(["n1", "n2"])
    assert [words[0] for words in node.asked].count("salloc") == 1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("idle 0/8/0/8", TIMED_OUT),  # free, and yet no job starts
        ("alloc 8/0/0/8", "salloc: error: Job submit/allocate failed: Invalid account"),
        ("down 0/0/8/8", TIMED_OUT),
    ],
)
def test_without_an_account_or_nodes_it_is_an_error(state: str, said: str, node: Controller) -> None:
    node.nodes, node.refuses = dict.fromkeys(("n1", "n2"), state), said
    with pytest.raises(CheckFailed) as error:
        made(node).allocate(["n1", "n2"])
    assert error.value.code == "no-allocation"


def test_with_gpus_a_node_of_which_others_have_a_part_is_busy(node: Controller) -> None:
    node.nodes, node.refuses = dict.fromkeys(("n1", "n2"), "mix 1/7/0/8"), TIMED_OUT
    with pytest.raises(CheckSkipped):
        made(node, gpus=8).allocate(["n1", "n2"])


def test_more_nodes_have_it_for_longer(node: Controller) -> None:
    names = [f"n{number}" for number in range(600)]
    made(node).allocate(names)
    assert {"--time=130", "--no-kill"} <= set(node.asked[-1])


def test_what_a_killed_run_left_ends_and_nothing_else(node: Controller) -> None:
    for number, name in (("7", "rocstack-verify-a1"), ("8", "train"), ("9", "rocstack-verify-b2")):
        node.jobs[number] = {"%i|%j": f"{number}|{name}", "%T|%r": "CONFIGURING|None"}
    made(node).heal()
    assert list(node.jobs) == ["8"]
    assert all("--user=rocstack-verify" in words for words in node.asked if "--format=%i|%j" in words)

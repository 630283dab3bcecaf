"""What a check writes down: bounds by hardware, whose answers are virtual, and words that steer nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import checked

from rocstack.base.errors import CheckFailed
from rocstack.verify.evidence import CheckSkipped, NodeEvidence
from rocstack.verify.parsers import rvs
from rocstack.verify.recorder import Recorder, sort_out
from rocstack.verify.result import Skip, plain

NODES = (checked("n1"), checked("n2", virtual="mi300x-thor2"), checked("c1", roles=("control",)))


@pytest.mark.parametrize(("hardware", "virtual"), [(True, {"n2"}), (False, set())])
def test_what_is_not_about_hardware_is_never_virtual(hardware: bool, virtual: set[str]) -> None:
    found = sort_out(NODES, ("real",), {}, hardware=hardware)
    for each in found.nodes:
        found.passed(each.name)
    assert {each.node for each in found.measures if each.virtual} == virtual
    assert [each.state for each in found.measures if each.node == "n2"] == ["skipped"]


def test_a_busy_cluster_is_one_reason_and_a_control_node_is_no_worker() -> None:
    why = "all workers are busy with jobs (waited 5 min)"
    with pytest.raises(CheckSkipped) as skipped:
        sort_out([checked(name, no_jobs=why) for name in ("n1", "n2")], ("jobs",), {})
    assert (str(skipped.value), skipped.value.skips) == (why, (Skip(kind="busy", nodes=("n1", "n2")),))
    found = sort_out(NODES, ("jobs",), {})
    assert [each.why for each in found.measures] == ["c1 is no worker and gets no jobs"]


def test_a_tool_that_finds_no_gpu_has_not_failed_where_no_driver_drives_one() -> None:
    found = Recorder(NODES[:1], NODES)
    for text in ("No supported GPUs available.", "Segmentation fault"):
        with pytest.raises(CheckFailed) as error:
            rvs.parse(text)
        found.unread("n1", error.value, text)
    skipped, failed = found.measures
    assert (skipped.state, skipped.skip, skipped.missed) == ("skipped", "no-gpu", True)
    assert skipped.why == "rvs finds no GPU: No supported GPUs available."
    assert (failed.state, failed.evidence) == ("failed", "Segmentation fault")


@pytest.mark.parametrize(
    ("quantity", "value", "state"),
    [
        ("rvs-p2p", 0.0, "failed"),
        ("rvs-p2p", -1.0, "failed"),
        ("rvs-p2p", float("inf"), "failed"),
        ("rvs-p2p", 48.0, "measured"),
        ("gemm-bf16", float("nan"), "failed"),
        ("hbm-used", 0.0, "measured"),
        ("pcie-corrected-errors", 0.0, "measured"),
    ],
)
def test_a_rate_of_nothing_is_no_value(quantity: str, value: float, state: str) -> None:
    """Also where no floor is known, or where an infinite one would meet it."""
    found = Recorder(NODES[:1], NODES)
    found.judge("n1", value, quantity)
    (measure,) = found.measures
    assert measure.state == state
    assert (measure.value is None) == (state == "failed")


def test_what_a_node_says_steers_no_terminal() -> None:
    found = Recorder(NODES[:1], NODES)
    words = "\x1b]0;title\x07\x1b[2J\x1b[31mall \x9b1mis\r well\u202e\x00"
    found.failed("n1", words, words, evidence=f"{words}\n\tsecond")
    (measure,) = found.measures
    shown = r"\x1b]0;title\x07all \x9b1mis\r well\u202e\x00"
    assert measure.why == measure.value == shown
    assert measure.evidence == f"{shown}\n\tsecond"


@given(st.text())
def test_plain_text_has_nothing_but_lines_and_tabs(text: str) -> None:
    found = plain(text)
    assert not [each for each in found if (ord(each) < 32 and each not in "\t\n") or 127 <= ord(each) < 160]
    assert plain(found) == found or "\x1b" not in found


class Counted(tuple[NodeEvidence, ...]):
    """Nodes, and how often somebody looks through all of them."""

    looks = 0

    def __iter__(self) -> Iterator[NodeEvidence]:
        type(self).looks += 1
        return super().__iter__()


def test_a_thousand_nodes_are_judged_without_looking_through_all_for_each() -> None:
    nodes = Counted(checked(f"n{number}") for number in range(1000))
    found = Recorder(nodes, nodes)
    for number in range(1000):
        found.judge(f"n{number}", 1.0, "clock-skew")
    assert len(found.measures) == 1000
    assert Counted.looks < 10


def test_of_a_node_that_gave_no_answer_no_tool_is_known() -> None:
    nodes = [checked(name) for name in ("n1", "n2", "n3")]
    found = sort_out(nodes, ("jobs", "tool:rvs"), {"n1": ["rvs"], "n2": []})
    assert [each.name for each in found.nodes] == ["n1"]
    why = {measure.node: measure.why for measure in found.measures}
    assert why["n2"] == "no rvs in the image"
    assert why["n3"] == "n3 gave no answer in a job, so whether its image has rvs is unknown"


def judge(found: Recorder, answers: dict[str, str]) -> None:
    for node in found.nodes:
        found.passed(node.name, 1 / int(answers[node.name]))
    found.drawings["curve"] = sorted(node.name for node in found.nodes)


def test_a_node_whose_words_cannot_be_judged_fails_and_the_others_are_judged() -> None:
    found = Recorder(tuple(checked(name) for name in ("n1", "n2", "n3", "n4")), NODES)
    found.failed("n0", "written before")
    found.run(lambda: judge(found, {"n1": "1", "n2": "0", "n3": "nine\x1b[2J", "n4": "4"}))
    assert [(m.node, m.state) for m in found.measures] == [
        ("n0", "failed"),
        ("n1", "passed"),
        ("n4", "passed"),
        ("n2", "failed"),
        ("n3", "failed"),
    ]
    assert "ZeroDivisionError" in found.measures[3].why
    assert "ValueError" in found.measures[4].why
    assert "\x1b" not in found.measures[4].why
    assert found.drawings["curve"] == ["n1", "n4"]
    assert len(found.nodes) == 4


def test_a_check_that_stumbles_over_every_node_is_an_error_of_the_check() -> None:
    found = Recorder(tuple(checked(name) for name in ("n1", "n2")), NODES)
    with pytest.raises(ZeroDivisionError):
        found.run(lambda: judge(found, {"n1": "0", "n2": "0"}))
    assert found.measures == []
    assert found.drawings == {}

"""JUnit, as CI systems read it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from made_runs import on, pairs, result, run
from simulated_run import simulated_run

from rocstack.verify.artifacts import junit_xml
from rocstack.verify.result import Measure, Run


def parsed(found: Run) -> ET.Element:
    return ET.fromstring(junit_xml(found).encode())


def case(root: ET.Element, check: str, node: str) -> ET.Element:
    (found,) = root.findall(f".//testcase[@classname='level1.{check}'][@name='{node}']")
    return found


def test_a_case_for_each_check_on_each_node() -> None:
    root = parsed(
        run(
            result(on("n1", value=3.5, unit="s", wanted="at most 4 s"), on("n2", "failed", "late", evidence="5 s")),
            result(on("n1", "skipped", "no GPU"), on("n2"), name="gpu"),
            result(Measure(state="failed", why="ran"), name="qos"),
            result(state="error", why="broke", name="mpi"),
            alone=True,
        )
    )
    (suite,) = root.findall("testsuite")
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "6",
        "failures": "2",
        "errors": "1",
        "skipped": "1",
    }
    assert case(root, "one", "n1").findtext("system-out") == "3.5 s (at most 4 s)"
    failure = case(root, "one", "n2").find("failure")
    assert failure is not None
    assert failure.get("message") == "late"
    assert (failure.text or "").splitlines() == ["expected: It is so", "cause: c", "next: n", "5 s"]
    assert case(root, "gpu", "n1").find("skipped") is not None
    assert case(root, "qos", "cluster").find("failure") is not None
    assert case(root, "mpi", "cluster").find("error") is not None


def test_a_failing_pair_is_a_failure_of_who_is_to_blame() -> None:
    root = parsed(run(pairs(["n1", "n2", "n3"], {"n2"}), nodes=3))
    assert [each.get("name") for each in root.iter("testcase") if each.find("failure") is not None] == ["n2"]


def test_what_xml_cannot_hold_is_left_out() -> None:
    root = parsed(run(result(on("n<1>\x00", "failed", "\x1b[31mred & \x07<b>")), alone=True))
    (found,) = root.iter("testcase")
    assert found.get("name") == "n<1>"
    assert found.find("failure").get("message") == "red & \\x07<b>"  # type: ignore[union-attr]


def test_a_thousand_nodes() -> None:
    found = simulated_run(1000)
    assert len(list(parsed(found).iter("testcase"))) > 15_000

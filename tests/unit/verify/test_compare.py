"""Two runs side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_run import Cli
from made_runs import on, result, run
from simulated_run import simulated_run

from rocstack.verify import artifacts, history
from rocstack.verify.compare import compare
from rocstack.verify.result import NodeSeen, Run


def test_a_run_is_as_itself() -> None:
    assert compare(simulated_run(16), simulated_run(16)).same


def test_noise_is_no_change() -> None:
    assert not compare(simulated_run(16), simulated_run(16, seed=8)).values


def test_what_fails_now_is_a_regression_and_what_failed_then_a_fix() -> None:
    good, bad = run(result(on("n1"), on("n2"))), run(result(on("n1"), on("n2", "failed", "gone")))
    (worse,) = compare(good, bad).regressions
    assert (worse.check, worse.node, worse.before, worse.after, worse.why) == ("one", "n2", "passed", "failed", "gone")
    (mended,) = compare(bad, good).fixes
    assert (mended.node, mended.before, mended.after) == ("n2", "failed", "passed")
    assert not compare(bad, good).regressions
    assert not compare(bad, bad).regressions


def test_a_check_that_breaks_off_regresses() -> None:
    good, broken = run(result(on("n1"), on("n2"))), run(result(on("n1"), state="error", why="no step started"))
    (worse,) = compare(good, broken).regressions
    assert (worse.node, worse.after, worse.why) == ("", "error", "no step started")


def test_a_check_that_was_skipped_as_a_whole() -> None:
    skipped, bad = run(result(state="skipped", why="no GPU")), run(result(on("n1", "failed", "w"), on("n2")))
    assert [each.node for each in compare(skipped, bad).regressions] == ["n1"]
    (lost,) = compare(run(result(on("n1"), on("n2"))), skipped).unjudged
    assert (lost.node, lost.before, lost.after, lost.why) == ("", "passed", "skipped", "no GPU")


def test_checks_come_and_go() -> None:
    one, two = run(result(on("n1"), name="one")), run(result(on("n1", "failed", "w"), name="two"))
    found = compare(one, two)
    assert (found.new, found.gone, found.regressions) == (("two",), ("one",), ())


def test_values_beyond_noise_with_their_direction() -> None:
    def at(bandwidth: float, latency: float) -> object:
        return run(
            result(on("n1", value=bandwidth, unit="GB/s"), name="width"),
            result(on("n1", value=latency, unit="us"), name="late"),
            result(on("n1", value=latency, unit="W"), name="power"),
        )

    found = compare(at(100, 10), at(70, 5)).values  # type: ignore[arg-type]
    assert [(each.check, round(each.share, 2), each.better) for each in found] == [
        ("width", -0.3, False),
        ("late", -0.5, True),
        ("power", -0.5, None),
    ]
    assert not compare(at(100, 10), at(90, 10.9)).values  # type: ignore[arg-type]


def test_what_is_different_about_the_runs() -> None:
    before = simulated_run(4, bad=(), slow=())
    after = simulated_run(5, bad=(), slow=(), image="sha256:2", level=2, versions={**before.versions, "ucx": "1.20.0"})
    found = {each.what: (each.before, each.after) for each in compare(before, after).differences}
    assert found["image"] == (before.image, "sha256:2")
    assert found["level"] == ("3", "2")
    assert found["version of ucx"] == ("1.19.0", "1.20.0")
    assert found["node n5"] == ("", "there")
    gone = compare(before, simulated_run(4, bad=(), slow=(), absent=("n4",)))
    assert [each.what for each in gone.differences] == ["n4 absent"]


def test_it_is_json() -> None:
    found = compare(simulated_run(8, bad=()), simulated_run(8)).to_dict()
    assert found["regressed"] is True
    assert json.loads(json.dumps(found))["regressions"][0]["node"] == "n7"


def width(value: float, unit: str = "GB/s", virtual: str | None = None, node: str = "n1", more: float = 9.0) -> Run:
    """Nothing is known to judge it by."""
    seen = tuple(NodeSeen(name=name, roles=("worker",), virtual=virtual) for name in ("n1", "n2"))
    measures = (on(node, "measured", value=more, unit=unit), on(node, "measured", value=value, unit=unit))
    return run(result(*measures, name="width"), seen=seen)


@pytest.mark.parametrize("node", ["n1", ""])
def test_a_value_that_halved_is_a_regression_without_any_threshold(node: str) -> None:
    found = compare(width(100, node=node), width(50, node=node))
    (value,) = found.values
    assert (value.node, value.before, value.after, value.regression, found.regressions) == (node, 100, 50, True, ())
    assert (found.worse, found.to_dict()["regressed"]) == (1, True)
    assert not compare(width(50, node=node), width(100, node=node)).worse


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (width(100), width(75)),  # less than the noise of a busy fabric
        (width(200, "W"), width(400, "W")),  # neither direction is known to be worse
        (width(0.3, "s"), width(0.9, "s")),  # the start of a program
    ],
)
def test_what_changed_and_is_no_regression(before: Run, after: Run) -> None:
    found = compare(before, after)
    assert len(found.values) == 1
    assert not found.to_dict()["regressed"]


def test_a_job_that_takes_seconds_longer_is_a_regression() -> None:
    assert compare(width(4, "s"), width(8, "s")).worse == 1


@pytest.mark.parametrize("node", ["n1", ""])
def test_values_of_virtual_nodes_are_shown_and_are_no_regression(node: str) -> None:
    found = compare(width(100, virtual="mi300x-thor2", node=node), width(50, virtual="mi300x-thor2", node=node))
    assert [(value.word, value.share) for value in found.values] == [("worse, virtual", -0.5)]
    assert not found.to_dict()["regressed"]


def test_a_node_whose_check_fails_for_its_value_is_one_regression() -> None:
    good, bad = (result(on("n1", state, value=value, unit="GB/s")) for state, value in (("passed", 9), ("failed", 1)))
    assert compare(run(good), run(bad)).worse == 1


def test_a_slow_node_is_no_regression_of_those_it_is_paired_with() -> None:
    found = compare(simulated_run(8, bad=(), slow=()), simulated_run(8, bad=(), slow=("n5",)))
    assert {(value.check, value.node) for value in found.values if value.regression} == {
        ("hbm", "n5"), ("mpi-pairs", "n5"),
    }  # fmt: skip


def written(folder: Path, found: Run) -> Path:
    folder.mkdir(parents=True)
    artifacts.write(found, folder)
    return folder


def test_the_exit_code_and_what_is_said(cli: Cli, tmp_path: Path) -> None:
    fast, slow = written(tmp_path / "a", width(100)), written(tmp_path / "b", width(50))
    worse = cli("report", "--compare", str(fast), str(slow))
    assert worse.code == 1
    assert "1 regression, 0 repaired, 1 value changed" in worse.out
    assert [line.split()[-1] for line in worse.out.splitlines() if line.startswith("width")] == ["regression"]
    assert cli("report", "--compare", str(slow), str(fast)).code == 0
    virtual = [written(tmp_path / name, width(value, virtual="m")) for name, value in (("c", 100), ("d", 50))]
    noise = cli("report", "--compare", *map(str, virtual))
    assert noise.code == 0
    assert "a value of virtual nodes is no regression" in noise.out


def at(day: int, value: float) -> Run:
    return width(value).model_copy(update={"id": f"run-{day}", "when": f"2026-11-0{day}T00:00:00Z"})


def test_the_last_run_is_the_one_that_ran_last_whatever_its_folder_is_called(cli: Cli, tmp_path: Path) -> None:
    runs = tmp_path / ".rocstack/verify"
    for name, day in (("20261103-000000", 3), ("replay-20261102-000000", 2), ("20261101-000000", 1)):
        written(runs / name, at(day, 100))
    (runs / "torn").mkdir()
    (runs / "torn/report.json").write_text("{")
    assert "20261103-000000" in cli("report", "--json").json()["report"]


def test_a_report_that_is_written_again_keeps_its_comparison(cli: Cli, tmp_path: Path) -> None:
    runs = tmp_path / ".rocstack/verify"
    for day, value in ((1, 100), (2, 50), (3, 70)):
        history.note(at(day, value), runs, written(runs / f"2026110{day}-000000", at(day, value)))
    page = runs / "20261102-000000/report.html"
    assert "Since the last run" not in page.read_text()
    assert cli("report", str(page.parent)).code == 0
    assert "Since the last run, 1 Nov 2026" in page.read_text()
    assert "-50 %, regression" in page.read_text()
    assert cli("report", str(page.parent), "--previous", str(runs / "20261103-000000")).code == 0
    assert "Since the last run, 3 Nov 2026" in page.read_text()

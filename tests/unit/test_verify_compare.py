"""Two runs side by side."""

from __future__ import annotations

import json

from simulated import simulated_run
from test_verify_verdict import on, result, run

from rocstack.verify.compare import compare


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
    found = compare(simulated_run(8, bad=()), simulated_run(8)).as_dict()
    assert found["regressed"] is True
    assert json.loads(json.dumps(found))["regressions"][0]["node"] == "n7"

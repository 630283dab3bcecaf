import itertools
import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from rocstack_trainer.report import curves
from rocstack_trainer.report.curves import Axis, text

SVG = "{http://www.w3.org/2000/svg}"


def steps(count: int, **other: float) -> list[dict[str, float]]:
    about = {"tokens_per_s": 1e6, "step_ms": 200.0, "comm_ms": 20.0, "wire_mb": 21.0, "sent_mb": 20.0}
    return [{"step": n, "loss": 5 - n / count, **about, **other} for n in range(1, count + 1)]


def words(picture: str) -> str:
    return " | ".join(ET.fromstring(picture).itertext())


def lines(picture: str) -> list[str]:
    return [path.attrib["d"] for path in ET.fromstring(picture).iter(f"{SVG}path") if "line" in path.get("class", "")]


def test_a_run_has_its_panels_axes_and_numbers() -> None:
    picture = curves.svg({"run": steps(30)}, "llama <2 ranks> & int8")
    said = words(picture)
    for word in ("llama <2 ranks> & int8", "Loss", "Tokens per second", "Time of a step, ms", "Sent in a step, MB"):
        assert word in said
    assert "MFU" not in said
    assert "median 200 / 20" in said
    assert "| 4 |" in said  # the last loss
    assert "1.0M" in said
    assert "prefers-color-scheme:dark" in picture
    assert len(lines(picture)) == 1 + 1 + 2 + 2
    assert not re.search(r"nan|inf|https?://(?!www.w3.org/2000/svg)", picture)


def test_the_line_is_where_the_values_are() -> None:
    points = [tuple(map(float, p.split())) for p in lines(curves.svg({"": steps(11)}))[0][1:].split("L")]
    assert len(points) == 11
    assert points[0][0] == curves.LEFT
    assert points[-1][0] == curves.WIDTH - curves.RIGHT
    falls = {round(b[1] - a[1], 1) for a, b in itertools.pairwise(points)}
    assert max(falls) - min(falls) < 0.11  # a straight line down
    assert min(falls) > 0


def test_mfu_is_drawn_where_it_is_known() -> None:
    assert "median 41.5" in words(curves.svg({"": steps(9, mfu=0.415)}))


@pytest.mark.parametrize("run", [[], [{"step": 1}], [{"step": 1, "loss": math.nan}]])
def test_without_a_value_there_is_a_picture_all_the_same(run: list[dict[str, float]]) -> None:
    assert words(curves.svg({"": run})).count("nothing to draw") == 4


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-30, 1e300])
def test_one_step_and_equal_steps_are_drawn(value: float) -> None:
    for count in (1, 5):
        run = [{"step": n, "loss": value, "step_ms": abs(value)} for n in range(count)]
        assert not re.search("nan|inf", curves.svg({"": run}))


def test_what_is_not_finite_is_a_gap() -> None:
    run = steps(9)
    run[4]["loss"], run[5]["loss"], run[6]["loss"] = math.nan, math.inf, None  # type: ignore[typeddict-item]
    assert lines(curves.svg({"": run}))[0].count("M") == 2


def test_steps_at_which_a_group_was_away_are_a_gap() -> None:
    run = [step for step in steps(90) if not 20 < step["step"] < 60]
    assert lines(curves.svg({"": run}))[0].count("M") == 2
    assert lines(curves.svg({"": steps(90)[::10]}))[0].count("M") == 1


def test_bytes_of_rare_outer_steps_are_in_the_mean() -> None:
    run = steps(2000, wire_mb=0.0, sent_mb=0.0)
    for step in run[::500]:
        step["wire_mb"] = 10.0
    assert "mean 0.02 / 0" in words(curves.svg({"": run}))


def test_of_a_step_that_is_there_twice_the_last_counts() -> None:
    run = [*steps(9), {"step": 5, "loss": 0.0}, {"step": 4, "loss": 0.0}]
    assert lines(curves.svg({"": run}))[0].count("L") == 8


def test_rare_peaks_of_time_are_cut_and_told_but_bytes_are_not() -> None:
    run = steps(100)
    run[0]["step_ms"] = run[50]["wire_mb"] = 9000.0
    said = words(curves.svg({"": run}))
    assert said.count("peaks up to 9000 are cut") == 1
    assert "| 8000 |" in said


def test_a_hundred_thousand_steps_are_a_small_picture_that_keeps_extremes() -> None:
    run = steps(100_000)
    run[77_777]["loss"] = 50.0
    picture = curves.svg({"": run})
    assert len(picture) < 200_000
    assert "band: lowest to highest" in picture
    assert "| 50 |" in words(picture)
    assert all(path.count("L") < curves.MOST_POINTS for path in lines(picture))
    bands = [p.attrib["d"] for p in ET.fromstring(picture).iter(f"{SVG}path") if p.get("class") == "band"]
    top = min(float(y) for y in re.findall(r" ([\d.]+)", bands[0]))
    assert top < curves.TOP + 20  # the peak is in the band


@pytest.mark.parametrize("low", [-1.0, 0.0, 0.001, 1.0, 97.0, 1e6])
@pytest.mark.parametrize("span", [1e-6, 0.3, 1.0, 7.0, 1e4, 3.7e9])
def test_ticks_are_few_round_and_inside(low: float, span: float) -> None:
    ticks = Axis(low, low + span, 0, 100).ticks(5)
    assert 2 <= len(ticks) <= 8
    assert all(low - span * 1e-6 <= tick <= low + span * (1 + 1e-6) for tick in ticks)
    assert len({text(tick, ticks) for tick in ticks}) == len(ticks)


def test_several_files_are_drawn_over_each_other(tmp_path: Path) -> None:
    for name, count in (("dp", 20), ("diloco", 30)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(step)}\n" for step in steps(count)))
    with (tmp_path / "diloco.jsonl").open("a") as file:
        file.write("".join(f"{json.dumps(step | {'group': 1})}\n" for step in steps(25)) + '{"step": 26, "lo')
    command = [sys.executable, "-m", "rocstack_trainer.report.curves"]
    out = tmp_path / "o.svg"
    done = subprocess.run([*command, tmp_path / "dp.jsonl", tmp_path / "diloco.jsonl", "-o", out], capture_output=True)
    assert done.returncode == 0, done.stderr
    picture = out.read_text()
    assert all(f"| {name} |" in words(picture) for name in ("dp", "diloco, group 0", "diloco, group 1"))
    assert len(lines(picture)) == 3 * (1 + 1 + 2 + 2) + 3  # and the legend
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "dp.jsonl").write_text('{"step": 1}')
    assert len(curves.read([tmp_path / "dp.jsonl", tmp_path / "other" / "dp.jsonl"])) == 2
    done = subprocess.run([*command, "/nowhere/x.jsonl", "-o", out], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: /nowhere/x.jsonl: No such file or directory\n")

import io
import json
import os
from pathlib import Path

import pytest
import torch
from conftest import lines, small, trained

from rocstack_trainer.config import Output
from rocstack_trainer.errors import ConfigError
from rocstack_trainer.rank import Rank
from rocstack_trainer.report import gpus, metrics
from rocstack_trainer.report.metrics import Report, Step

CPU = torch.device("cpu")


# As the data sheets say, in TFLOPS: dense bf16 matrices.
@pytest.mark.parametrize(
    ("name", "arch", "units", "tflops"),
    [
        ("AMD Instinct MI100", "gfx908:sramecc+:xnack-", 120, 92.3),
        ("AMD Instinct MI210", "gfx90a:sramecc+:xnack-", 104, 181.0),
        ("AMD Instinct MI250", "gfx90a:sramecc+:xnack-", 104, 362.1 / 2),
        ("AMD Instinct MI250X", "gfx90a:sramecc+:xnack-", 110, 383.0 / 2),
        ("AMD Instinct MI300A", "gfx942:sramecc+:xnack-", 228, 980.6),
        ("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 304, 1307.4),
        ("AMD Radeon Graphics", "gfx942:sramecc+:xnack-", 304, 1307.4),  # a host without libdrm's list of names
        ("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 38, 1307.4 / 8),  # CPX: eight devices of one
        ("AMD Instinct MI325X", "gfx942:sramecc+:xnack-", 304, 1307.4),
        ("AMD Instinct MI350X", "gfx950:sramecc+:xnack-", 256, 2306.9),
        ("AMD Instinct MI355X", "gfx950:sramecc+:xnack-", 256, 2516.6),
        ("NVIDIA H200", "", 132, 989.4),
        ("NVIDIA H100 80GB HBM3", "", 132, 989.4),
        ("NVIDIA A100-SXM4-80GB", "", 108, 312.0),
    ],
)
def test_the_peak_is_that_of_the_data_sheet(name: str, arch: str, units: int, tflops: float) -> None:
    assert gpus.peak(name, arch, units) == pytest.approx(tflops * 1e12, rel=5e-4)


@pytest.mark.parametrize(("name", "arch"), [("AMD Radeon RX 7900 XTX", "gfx1100"), ("NVIDIA H200 MIG 1g.18gb", "")])
def test_a_peak_that_is_not_known_is_not_invented(name: str, arch: str) -> None:
    assert gpus.peak(name, arch, 96) is None
    assert gpus.peak_of(CPU) is None


def step(number: int = 1, **other: float) -> Step:
    return Step(number, 2.5, (2.5).hex(), 1.0, 1e-3, 4000.0, 200.0, 20.0, 50.0, **other)


HERE, NOTHING = Rank(), Output()


def report(output: Output = NOTHING, rank: Rank = HERE, terminal: bool = False) -> tuple[Report, io.StringIO]:
    made, out = Report(output, rank), io.StringIO()
    out.isatty = lambda: terminal  # type: ignore[method-assign]
    made.out = out
    return made, out


def test_mfu_is_of_all_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpus, "peak_of", lambda _: 191.5e12)
    made, out = report(Output(metrics=str(tmp_path / "m")), Rank(0, 0, 4, 4))
    made.start("", 1e9 * 6, CPU)
    made.step(step(sent_mb=1.5, outer=2))
    made.summary("ab")
    assert lines(tmp_path / "m")[0]["mfu"] == pytest.approx(6e9 * 4000 / (4 * 191.5e12))
    assert "mfu=3.1%" in out.getvalue()
    assert "3.1% MFU, 6.0 TFLOPS a GPU" in out.getvalue()


def test_on_a_cpu_there_is_no_mfu() -> None:
    made, out = report()
    made.start("", 6e9, CPU)
    made.step(step())
    made.summary("ab")
    assert "mfu" not in out.getvalue().lower()
    assert made.steps[0].mfu is None


def sysfs(folder: Path, *said: str | None) -> list[Path]:
    """A card each; one that says nothing is not amdgpu's."""
    (dev := folder / "dev").mkdir()
    for number, text in enumerate(said, 128):
        (device := folder / f"sys/renderD{number}/device").mkdir(parents=True)
        (dev / f"renderD{number}").touch()
        if text is not None:
            (device / "gpu_busy_percent").write_text(text)
    return gpus.usable(folder / "sys", dev)


def test_how_busy_the_gpus_are_that_the_job_may_use(tmp_path: Path) -> None:
    found = sysfs(tmp_path, "98\n", "90\n", None)
    (tmp_path / "dev/renderD129").unlink()  # another job's
    assert gpus.busy(found) == 94
    assert gpus.busy(gpus.usable(tmp_path / "sys", tmp_path / "dev")) == 98
    found[0].write_text("")
    assert gpus.busy(found) is None


def test_without_an_amdgpu_it_is_unknown_and_no_zero(tmp_path: Path) -> None:
    assert gpus.busy(sysfs(tmp_path, None)) is None
    made, _ = report()
    made.start("", 6e9, CPU)
    made.step(step())
    assert made.steps[0].gpu_busy is None


def test_a_gpu_is_asked_once_a_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made, _ = report(Output(metrics=str(tmp_path / "m")))
    made.gpus = sysfs(tmp_path, "40")
    made.step(step(1))
    made.gpus[0].write_text("60")
    made.step(step(2))
    monkeypatch.setattr(metrics, "BUSY_S", 0.0)
    made.busy = 0.0, None
    made.step(step(3))
    assert [row["gpu_busy"] for row in lines(tmp_path / "m")] == [40, 40, 60]


@pytest.mark.parametrize(("columns", "titles"), [("30", "step loss tokens/s"), ("75", None), ("400", None)])
def test_a_narrow_terminal_has_fewer_columns(monkeypatch: pytest.MonkeyPatch, columns: str, titles: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    made, out = report(terminal=True)
    for number in range(1, 65):
        made.step(step(number))
    told = out.getvalue().splitlines()
    assert {len(line) for line in told} == {len(told[0])}
    assert len(told[0]) <= int(columns)
    heads = [line for line in told if "loss" in line]
    assert len(heads) == 3  # again after each screen
    assert titles is None or heads[0].split() == titles.split()
    assert "MFU" not in heads[0]


def test_groups_say_who_they_are_and_share_a_file(tmp_path: Path) -> None:
    output = Output(metrics=str(tmp_path / "m"), curves=str(tmp_path / "c.svg"))
    made = [report(output, Rank(group=group, groups=2)) for group in (0, 1)]
    for number in (1, 2, 3):
        for one, _ in made:
            one.step(step(number))
    for one, _ in reversed(made):
        one.summary("ab")
    assert made[1][1].getvalue().startswith("group 1: step=1 loss=2.5000")
    assert [line["group"] for line in lines(tmp_path / "m")] == [0, 1] * 3
    assert "m, group 1" in (tmp_path / "c.svg").read_text()


def test_only_rank_0_speaks(tmp_path: Path) -> None:
    made, out = report(Output(metrics=str(tmp_path / "m"), curves=str(tmp_path / "c")), Rank(rank=1, world=2))
    made.step(step())
    made.summary("ab")
    assert out.getvalue() == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", ["metrics", "curves"])
def test_a_file_that_can_not_be_written_is_refused_at_once(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match=f"output.{setting}: {tmp_path}: Is a directory"):
        Report(Output(**{setting: str(tmp_path)}), Rank())


def test_curves_that_can_not_be_written_do_not_fail_the_run(tmp_path: Path) -> None:
    made, out = report(Output(curves=str(tmp_path / "a" / "c.svg")))
    made.step(step())
    (tmp_path / "a" / "c.svg").unlink()
    (tmp_path / "a").rmdir()
    made.summary("ab")
    assert "c.svg: No such file or directory" in out.getvalue()


def test_a_resumed_run_is_drawn_whole(tmp_path: Path) -> None:
    output = Output(metrics=str(tmp_path / "m"), curves=str(tmp_path / "c.svg"))
    for numbers in ((1, 2, 3, 4), (3, 4, 5, 6)):
        made, _ = report(output)
        for number in numbers:
            made.step(step(number))
        made.summary("ab")
    path = (tmp_path / "c.svg").read_text().split('class="line"')[1]
    assert path.split("/>")[0].count("L") == 5


def test_bytes_at_the_interface_are_those_of_the_gradients(tmp_path: Path) -> None:
    """Ring all-reduce between 2 ranks sends 2(N-1)/N = 1 times the gradient each; the loopback sees both ranks."""
    out = tmp_path / "m"
    trained(2, small("train.steps=4", f"output.metrics={out}", "parallel.compress=none", "parallel.algorithm=flat"))
    told = [line["wire_mb"] for line in lines(out)]
    gradient_mb = 35_000 * 4 / 1e6
    assert 2 * gradient_mb * 0.9 < sorted(told)[1] < 2 * gradient_mb * 1.6 + 0.1


def test_every_line_is_json(tmp_path: Path) -> None:
    made, _ = report(Output(metrics=str(tmp_path / "m")))
    for number in range(3):
        made.step(step(number))
        assert json.loads((tmp_path / "m").read_text().splitlines()[-1])["step"] == number  # written at once
    assert os.path.getsize(tmp_path / "m") < 3000


def test_memory_of_the_process() -> None:
    assert 50 < metrics.memory_mb(CPU) < 10_000


def test_a_terminal_shows_how_much_is_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    made, out = report(terminal=True)
    made.start("", 1.0, CPU, 11, 50)  # after 10 steps of an earlier start
    made.began -= 100
    made.step(step(20))
    head, line = out.getvalue().splitlines()
    assert head.split()[:4] == ["step", "done", "to", "go"]
    assert line.split()[:4] == ["20", "25%", "5", "min"]


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0 s"), (99, "99 s"), (150, "2 min"), (7300, "2 h 02")])
def test_durations_are_said_as_a_person_does(seconds: float, said: str) -> None:
    assert metrics.duration(seconds) == said

"""The runs so far: what is written down, what changed, and which nodes come and go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_run import Cli
from runs_by_level import failed, run

from rocstack.base.errors import BadInput, CheckFailed, Missing, RocstackError
from rocstack.cli import verify as command
from rocstack.cli.ui import Interrupted
from rocstack.steps import verify as steps
from rocstack.verify import drain, history, proved
from rocstack.verify.proved import StoredProof
from rocstack.verify.result import NodeSeen, Run, SlowNode


def entries(*runs: Run) -> tuple[history.HistoryEntry, ...]:
    return tuple(history.entry(each) for each in runs)


def at(number: int, found: Run) -> Run:
    return found.model_copy(update={"id": f"run-{number}"})


def test_written_down_and_read_back(tmp_path: Path) -> None:
    runs = [at(1, failed()), at(2, failed(n2="no round trip"))]
    made = tuple(history.note(each, tmp_path / "verify") for each in runs)
    assert history.read(tmp_path / "verify") == made
    assert made[1].failing == {"n2": "munge: no round trip"}
    assert [each.passed for each in made] == [True, False]


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    history.note(failed(), tmp_path)
    with (tmp_path / history.FILE).open("a") as file:
        file.write('{"id": "x", "wh\n')
    history.note(failed(), tmp_path)
    assert len(history.read(tmp_path)) == 2


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST", 4000)
    for number in range(40):
        history.note(at(number, failed()), tmp_path)
    assert (tmp_path / history.FILE).stat().st_size < 6000
    assert history.read(tmp_path)[-1].id == "run-39"


def test_none_yet(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        history.read(tmp_path)
    assert refused.value.code == "no-report"


def test_compared_with_the_run_before_that_asked_the_same(tmp_path: Path) -> None:
    first, other = at(1, failed(n1="w")), at(2, failed()).model_copy(update={"level": 3})
    for each in (first, other):
        history.note(each, tmp_path)
    now = history.note(at(3, failed()), tmp_path)
    found = history.before(tmp_path, now)
    assert found is not None
    assert found.id == "run-1"
    assert history.before(tmp_path, history.entry(other)) is None


def test_what_changed() -> None:
    good, bad, worse = entries(failed(), failed(n2="late"), failed(n2="gone", n3="late"))
    assert history.changes(None, bad) == history.changes(good, bad) == ["n2 fails: munge: late"]
    assert history.changes(bad, bad) == []
    assert history.changes(bad, worse) == ["n2 fails: munge: gone", "n3 fails: munge: late"]
    assert history.changes(worse, bad) == ["n2 fails: munge: late", "n3 passes again"]


def test_a_node_that_leaves_and_comes_back() -> None:
    away = failed(n2="late").model_copy(
        update={"nodes": (*failed().nodes[:1], NodeSeen(name="n2", roles=("worker",), absent="no ssh"))}
    )
    before, now = entries(failed(n2="late"), away)
    assert "n2 is absent: no ssh" in history.changes(before, now)
    assert "n2 passes again" not in history.changes(before, now)
    assert "n2 is back" in history.changes(now, history.entry(failed()))


def test_another_image() -> None:
    one, other = entries(failed(), failed().model_copy(update={"image": f"sha256:{'d' * 64}"}))
    assert history.changes(one, other) == [f"the image is {'d' * 12} now, was {'a' * 12}"]


def test_nodes_that_come_and_go() -> None:
    runs = entries(failed(), failed(n2="w"), failed(n3="w"), failed(n2="w", n3="w"), failed(n3="w"))
    assert history.flapping(runs) == {"n2": ".x.x.", "n3": "..xxx"}
    assert list(history.flapping(runs)) == ["n2", "n3"]


def reported(number: int, found: Run, out: Path) -> Path:
    folder = out / f"202611{number:02}-000000"
    folder.mkdir(parents=True)
    for name in (history.REPORT, history.LOG):
        (folder / name).write_text("")
    history.note(at(number, found), out, folder)
    return folder


def test_the_last_reports_stay(tmp_path: Path) -> None:
    for number, found in enumerate([failed(), failed(n1="w"), failed(n1="w"), failed(), failed()], 1):
        reported(number, found, tmp_path)
    for name in ("mine", "20250101-000000", "2025-mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "20250101-000000" / history.LOG).write_text("of a run that ended badly")
    history.prune(tmp_path, keep=1, failures=1)
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_dir()) == [
        "2025-mine", "20261103-000000", "20261105-000000", "mine",
    ]  # fmt: skip


def test_the_report_to_compare_with(tmp_path: Path) -> None:
    first, gone = reported(1, failed(), tmp_path), reported(2, failed(), tmp_path)
    reported(3, failed().model_copy(update={"control": "other"}), tmp_path)
    reported(4, failed().model_copy(update={"complete": False}), tmp_path)
    history.note(at(5, failed()), tmp_path, Path("elsewhere/mine"))
    (gone / history.REPORT).unlink()
    assert history.report(tmp_path, history.entry(failed())) == first
    assert history.report(tmp_path / "none", history.entry(failed())) is None


def test_a_run_is_compared_with_one_before_it(tmp_path: Path) -> None:
    runs = [failed().model_copy(update={"when": f"2026-11-0{day}T00:00:00Z"}) for day in (1, 2, 3)]
    folders = [reported(day, each, tmp_path) for day, each in enumerate(runs, 1)]
    assert history.report(tmp_path, history.entry(at(2, runs[1]))) == folders[0]
    assert history.report(tmp_path, history.entry(at(1, runs[0]))) is None


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a watch says; every pause is over at once."""
    lines: list[str] = []
    monkeypatch.setattr(command, "say", lines.append)
    monkeypatch.setattr(steps.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(proved, "keep", lambda run, inventory, runs: StoredProof("level 1 stays proved", news=False))
    return lines


def watched(runs: Iterator[Any], out: Path, **options: Any) -> None:
    """Until they are all gone, which is when somebody presses Ctrl-C."""

    def once() -> tuple[Run, Path]:
        found = next(runs, Interrupted())
        if isinstance(found, BaseException):
            raise found
        assert isinstance(found, Run)
        return found, out / found.id

    with pytest.raises(typer.Exit) as ended:
        command.show_rounds(steps.rounds(once, Path("i"), out, **options))
    assert ended.value.exit_code == 130


def test_a_watch_says_a_line_a_run_and_what_changed(said: list[str], tmp_path: Path) -> None:
    down = CheckFailed("the control node n1 can't be reached", code="no-control")
    watched(iter([at(1, failed()), at(2, failed(n2="late")), down, at(3, failed())]), tmp_path)
    assert [line[10:].partition(";")[0] for line in said] == [
        "4 of 4 nodes pass",
        "3 of 4 nodes pass, 1 fails: n2",
        "n2 fails: munge: late",
        "not done: the control node n1 can't be reached",
        "4 of 4 nodes pass",
        "n2 passes again",
    ]
    assert len(history.read(tmp_path)) == 3


def test_a_watch_names_the_slow_node(said: list[str], tmp_path: Path) -> None:
    slow = SlowNode(check="hbm", node="n3", value=2050, usual=4100, unit="GB/s", share=0.5, nodes=4)
    watched(iter([at(1, failed()).model_copy(update={"slow_nodes": (slow,)})]), tmp_path)
    assert said[1] == "          slow: hbm: n3: 50 % below the median of 4 nodes (2050 GB/s, not 4100)"


def test_a_watch_that_may_not_drain_goes_on(said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise CheckFailed("n1, n2, n3 would be drained", code="drain-refused")

    monkeypatch.setattr(drain, "drain", refuse)
    watched(iter([at(1, failed(n1="w", n2="w", n3="w")), at(2, failed())]), tmp_path, drain=True)
    assert "          n1, n2, n3 would be drained" in said
    assert len(history.read(tmp_path)) == 2


@pytest.mark.parametrize("kind", [BadInput, Missing])
def test_what_does_not_pass_with_time_ends_a_watch(kind: type[RocstackError], said: list[str], tmp_path: Path) -> None:
    def once() -> tuple[Run, Path]:
        raise kind("not there", code="x")

    with pytest.raises(kind):
        command.show_rounds(steps.rounds(once, Path("i"), tmp_path))
    assert said == []


@pytest.mark.parametrize("every", ["10", "0m", "soon", "infinite"])
def test_a_pause_that_is_none(every: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        next(steps.watch(steps.VerifyOptions(), every=every, on_event=lambda event: None))
    assert refused.value.code == "bad-value"


def test_shown(cli: Cli, tmp_path: Path) -> None:
    runs = tmp_path / ".rocstack/verify"
    for number, found in enumerate([failed(), failed(n2="late"), run("passed", complete=False), failed()]):
        history.note(at(number, found), runs)
    shown = cli("verify", "--history")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert lines[0].split() == ["WHEN", "LEVEL", "RESULT", "FAILING", "SECONDS", "IMAGE"]
    assert [line.split()[2:4] for line in lines[1:5]] == [
        ["passed", "-"], ["failed", "n2"], ["interrupted", "-"], ["passed", "-"],
    ]  # fmt: skip
    assert "n2    .x-." in shown.out
    assert [each["id"] for each in cli("verify", "--history", "--json").json()["runs"]] == [
        f"run-{n}" for n in range(4)
    ]


def test_nothing_to_show(cli: Cli) -> None:
    found = cli("verify", "--history", "--json")
    assert (found.code, json.loads(found.out)["error"]["code"]) == (2, "no-report")

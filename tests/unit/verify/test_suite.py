"""How a run of the suite begins and ends: what is refused, what a crash leaves, Ctrl-C, and one run at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_run import Cli
from evidence_replay import GOOD

from rocstack.base import paths
from rocstack.base.errors import BadInput, CheckFailed, Missing
from rocstack.cli import ui, verify_report
from rocstack.edge import files
from rocstack.verify import evidence, history, suite
from rocstack.verify.result import Measure, read
from rocstack.verify.suite import SuiteOptions

CHECK = """
import os, signal, time
from rocstack.verify.pytest_plugin import check
about = dict(level=0, cannot="x", cause="c", next_step="n", source="s", scope="cluster")
@check(name="one", title="t", **about)
def test_one(record):
    record.passed()
@check(name="two", title="t", **about)
def test_two(record):
    {body}
"""
LATE = """
import os, pathlib, pytest, signal
@pytest.fixture(scope="session", autouse=True)
def late():
    yield
    os.kill(os.getpid(), signal.SIGINT)
    pathlib.Path({path!r}).write_text("cancelled")
"""


LOSES = """
import pathlib, pytest
from rocstack.base.errors import CheckFailed
from rocstack.verify import session
session.WATCH_S = 0.05
class Held:
    def check(self):
        if pathlib.Path({path!r}).exists():
            raise CheckFailed.of("lock-lost", why="asleep", work="verify", resume="`rocstack verify`")
@pytest.fixture(scope="session", autouse=True)
def held(suite):
    suite.watch(Held())
"""


def test_the_reference_says_of_each_check_what_it_cannot_tell() -> None:
    rows = {}
    for line in (paths.data_root() / "docs/reference.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if len(cells) == 7:
            rows[cells[1].strip("`")] = cells
    for check in suite.listed():
        assert check.cannot, check.name
        assert not check.cannot.endswith("."), check.name
        assert rows[check.name][4] == check.cannot.replace("|", "\\|"), check.name
        assert rows[check.name][6].rstrip(" |"), f"{check.name}: where its demand is from"


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two checks, the second of which does `body`; and an older report in the folder of the run."""
    folder = tmp_path / "checks"
    folder.mkdir()
    monkeypatch.setattr(suite, "checks", lambda: folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "run").mkdir()
    for name in ("report.json", "report.html", "failing_nodes.txt"):
        (tmp_path / "run" / name).write_text("an older one's")

    def write(body: str, conftest: str = "") -> SuiteOptions:
        (folder / "test_checks.py").write_text(CHECK.format(body=body))
        (folder / "conftest.py").write_text(conftest)
        return SuiteOptions(tmp_path / "run", evidence=GOOD)

    return write


def nothing(event: Mapping[str, Any]) -> None:
    pass


def test_a_crash_shows_no_older_report(checks: Any) -> None:
    wish = checks("os._exit(1)")
    with pytest.raises(CheckFailed) as failed:
        suite.run(wish, nothing)
    assert failed.value.code == "suite-failed"
    assert [path.name for path in wish.folder.iterdir()] == [history.LOG]


def test_a_report_of_a_suite_that_broke_is_not_taken(checks: Any) -> None:
    wish = checks("record.passed()", "def pytest_sessionfinish(session):\n    session.exitstatus = 3\n")
    with pytest.raises(CheckFailed) as failed:
        suite.run(wish, nothing)
    assert (wish.folder / suite.REPORT).exists()
    assert (failed.value.code, "ended with 3" in failed.value.what) == ("suite-failed", True)


def test_the_time_of_a_check_is_that_of_its_evidence_too(checks: Any) -> None:
    slow = "import pytest, time\n@pytest.fixture(autouse=True)\ndef slow():\n    time.sleep(0.2)\n"
    suite.run(wish := checks("record.passed()", slow), nothing)
    assert all(each.seconds >= 0.2 for each in read(wish.folder).results)


def test_no_conftest_above_the_checks_runs(checks: Any, tmp_path: Path) -> None:
    """rocstack's environment may lie in a working folder, which may have been sent."""
    (tmp_path / "conftest.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    assert suite.run(checks("record.passed()"), nothing).passed
    assert not (tmp_path / "ran").exists()


def test_a_link_in_the_place_of_its_log_leads_to_no_other_file(checks: Any, tmp_path: Path) -> None:
    """A folder that was sent is judged in its place; what its links lead to is the person's."""
    mine = tmp_path / "mine.json"
    mine.write_bytes(GOOD.read_bytes())
    wish = replace(checks("record.passed()"), evidence=tmp_path / "run")
    for name in ("evidence.json", suite.LOG):
        (wish.folder / name).symlink_to(mine)
    assert suite.run(wish, nothing).passed
    assert mine.read_bytes() == GOOD.read_bytes()


def test_a_run_that_loses_its_lock_ends_and_says_so(checks: Any, tmp_path: Path) -> None:
    began = str(tmp_path / "began")
    wish = checks(f"open({began!r}, 'w').close(); time.sleep(600)", LOSES.format(path=began))
    with pytest.raises(CheckFailed, match="lost: asleep") as lost:
        suite.run(wish, nothing)
    assert (lost.value.code, lost.value.exit_code) == ("lock-lost", 1)
    assert lost.value.next_step
    run = read(wish.folder)
    assert (run.complete, [each.check.name for each in run.results]) == (False, ["one"]), "what it found is kept"


def test_ctrl_c_pressed_again_and_again(checks: Any, tmp_path: Path) -> None:
    wish = checks("time.sleep(60)", LATE.format(path=str(tmp_path / "late")))
    seen = []

    def on_event(event: Mapping[str, Any]) -> None:
        seen.append(event["event"])
        if event["event"] == "start" and event["check"] == "two":
            raise ui.Interrupted
        if event["event"] == "stopping":
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ui.Interrupted):
        suite.run(wish, on_event)
    assert seen[-1] == "stopping"
    assert signal.getsignal(signal.SIGINT) == before
    assert (tmp_path / "late").read_text() == "cancelled"
    found = read(wish.folder)
    assert (found.complete, [each.check.name for each in found.results]) == (False, ["one"])


def test_started_in_the_background_of_a_script_it_can_be_stopped(checks: Any) -> None:
    wish = checks("time.sleep(60)")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a child inherits

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "start":
            raise ui.Interrupted

    try:
        with pytest.raises(ui.Interrupted):
            suite.run(wish, on_event)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_user_without_a_name(checks: Any) -> None:
    nobody = "import getpass\ndef nobody():\n    raise KeyError\ngetpass.getuser = nobody\n"
    found = suite.run(checks("record.passed()", nobody), nothing)
    assert found.who.startswith(f"{os.getuid()}@")


def test_a_run_that_nobody_waits_for_ends(checks: Any) -> None:
    wish = checks("time.sleep(60)")
    wish.folder.joinpath(suite.REPORT).unlink()
    reader, writer = os.pipe()
    os.close(reader)
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "rocstack.verify.pytest_plugin",
        "-c",
        os.devnull,
        f"--events={writer}",
    ]
    done = subprocess.run([*line, *wish.arguments(), str(suite.checks())], pass_fds=[writer], timeout=30, check=False)
    os.close(writer)
    assert done.returncode != 0
    assert not (wish.folder / suite.REPORT).exists()


@pytest.mark.parametrize(
    "text",
    [
        *(None, "word", "{}", "[]", '{"cluster": 3}', '{"cluster": "c", "results": []}'),
        pytest.param("[" * 200_000, id="nested"),
    ],
)
def test_evidence_that_is_none(text: str | None, tmp_path: Path, checks: Any) -> None:
    file = tmp_path / "given.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(BadInput) as refused:
        suite.run(SuiteOptions(tmp_path / "run", evidence=file), nothing)
    assert (refused.value.code, str(refused.value.where)) == ("bad-evidence", str(file))
    assert (tmp_path / "run/report.json").read_text() == "an older one's", "refused before anything is changed"


@pytest.mark.parametrize("kind", ["device", "pipe", "large", "values"])
def test_what_is_sent_has_an_end(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device was read until the memory was full, and a pipe waited for."""
    monkeypatch.setattr(files, "MOST_SENT", 1000)
    monkeypatch.setattr(files, "MOST_VALUES", 10)
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("it was read"))
    for name, load in (("report.json", read), ("evidence.json", evidence.load)):
        file = tmp_path / name
        if kind == "device":
            file.symlink_to("/dev/null")
        elif kind == "pipe":
            os.mkfifo(file)
        else:
            file.write_text(" " * 1001 if kind == "large" else "[0" + ",0" * 10 + "]")
        with pytest.raises(BadInput) as refused:
            load(tmp_path)
        assert refused.value.code in ("bad-report", "bad-evidence")


def test_evidence_of_the_same_folder_is_judged_again(checks: Any) -> None:
    wish = checks("record.passed()")
    (wish.folder / "evidence.json").write_text(GOOD.read_text())
    found = suite.run(SuiteOptions(wish.folder, evidence=wish.folder), nothing)
    assert (found.passed, len(found.results)) == (True, 2)


@pytest.mark.parametrize("user", ["root", "0", "0:0", "a:root", "-x"])
def test_jobs_of_root_are_refused(user: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        suite.run(SuiteOptions(tmp_path / "run", evidence=GOOD, user=user), nothing)
    assert (refused.value.code, (tmp_path / "run").exists()) == ("bad-value", False)


@pytest.mark.parametrize(
    "line",
    [
        "--evidence e.json inventory.yml",
        "--evidence e.json --watch",
        "--evidence e.json --drain-failing",
        "--evidence e.json --export-cvs cvs",
        "--force inventory.yml",
        "--watch --report here inventory.yml",
    ],
)
def test_options_that_do_not_go_together(line: str, cli: Cli) -> None:
    found = cli("verify", *line.split())
    assert (found.code, "options that don't go together" in found.err) == (2, True), found.err


def test_a_pattern_that_fits_no_check_of_the_levels(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    one = suite.Check.model_construct(name="soak", level=4)
    monkeypatch.setattr(suite, "listed", lambda: [one])
    monkeypatch.setattr(suite, "_pytest", lambda options, on_event: suite._NO_TESTS)
    assert suite.fitting("soa*") == suite.fitting("") == [one]
    for pattern, says in (
        ("soak,gids", "one pattern can be given"),
        ("soka", "did you mean 'soak'?"),
        ("soak", "a check of level 4, and --level 3 ends below it"),
        ("", "--only is empty"),
    ):
        found = cli("verify", "--evidence", str(GOOD), "--only", pattern)
        assert (found.code, says in found.err) == (2, True), found.err


def test_an_error_of_the_other_process_is_as_it_was() -> None:
    where = "inventory.yml:3"
    said = {"code": "x", "what": "w", "where": where, "cause": "c", "next": "n", "exit_code": 3}
    said |= {"level": "error", "source": "", "node": None}
    found = suite._again(said)
    assert isinstance(found, Missing)
    assert found.to_dict() == said


def test_other_failing_nodes_are_folded() -> None:
    nodes = [Measure(state="failed", node=f"node{number:03}") for number in range(200)]
    assert verify_report._others(nodes) == "node[000-199]"
    pairs = [Measure(state="failed", node="n1", peer=f"n{number}") for number in range(2, 9)]
    assert verify_report._others(pairs) == "7 pairs more, of n[1-8]"
    assert verify_report._others([Measure(state="failed")]) == "the cluster"


def test_what_a_node_says_does_not_rule_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    said = "a\x1b[2J\x1b]0;title\x07b\r\x9b31mc\nd\te"
    assert ui.escape(said) == r"a\x1b[2J\x1b]0;title\x07b\r\x9b31mc\nd\te"
    ui.say(said)
    ui.print_error(CheckFailed(said, code="x", cause=said))
    ui.table(("A",), [(said,)])
    found = capsys.readouterr()
    assert not {*found.out, *found.err} & {"\x1b", "\x07", "\x9b", "\r"}


def test_replays_are_compared_with_nothing(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wishes = []

    def run(wish: SuiteOptions, on_event: Any) -> Any:
        wishes.append(wish)
        raise CheckFailed("enough", code="x")

    monkeypatch.setattr(suite, "run", run)
    cli("verify", "--evidence", str(GOOD))
    assert wishes[0].folder.name.startswith("replay-20")
    assert wishes[0].runs is None


def test_the_interrupted_are_told_where_the_report_is(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(wish: SuiteOptions, on_event: Any) -> Any:
        wish.folder.mkdir(parents=True)
        (wish.folder / "report.html").write_text("")
        raise ui.Interrupted

    monkeypatch.setattr(suite, "run", run)
    found = cli("verify", "--evidence", str(GOOD), "--report", str(tmp_path / "r"))
    assert (found.code, found.err.strip()) == (
        130,
        f"stopped; what was tested until then: {tmp_path / 'r/report.html'}",
    )


def test_what_mostly_waits_is_judged_last_of_its_level_and_begun_before() -> None:
    """Scheduling's jobs wait for Slurm while training, which comes before, computes."""
    order = [row.name for row in suite.listed() if row.level == 1]
    assert order.index("training-one-rank") < order.index("scheduling")
    assert {*order[-4:]} == {"scheduling", "preemption", "qos", "accounting"}

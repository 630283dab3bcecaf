"""Whatever stands in whichever field of a node's answer: it is refused with a reason, or shown as the text that it is.

Nothing runs, nothing steers the terminal, no markup is obeyed, nothing is written outside a report's folder.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import hostile
import junitparser
import pytest
import typer
from pydantic import TypeAdapter
from recorded_nodes import KINDS, recording
from rich.console import Console

from rocstack.base import finding_texts
from rocstack.base.errors import RocstackError
from rocstack.cli import doctor, nodes_display, operate, probe, ui, verify_report
from rocstack.deploy.nodes.answers import TASKS, parse
from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns
from rocstack.deploy.plan.plan import Outcome, Plan
from rocstack.deploy.read import facts, journal
from rocstack.deploy.read.facts import FactsAnswer, Gathered
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.deploy.read.journal import Journal
from rocstack.deploy.state import history, status
from rocstack.deploy.state.cluster_state import ClusterState, SlurmState, read_slurm
from rocstack.doctor import logscan
from rocstack.doctor import nodes as doctor_nodes
from rocstack.edge import ansible, locks, ssh
from rocstack.edge.ansible import HostRun
from rocstack.node import fabric
from rocstack.node.profile import NodeProfile
from rocstack.node.recording import Recording
from rocstack.probe import profiles, recordings
from rocstack.probe.recordings import ProbeFailure
from rocstack.steps import probe as steps
from rocstack.steps.options import DoctorOptions
from rocstack.verify import artifacts, evidence
from rocstack.verify.result import Run

DATA = Path(__file__).parents[1] / "data"
HOST = InventoryHost("n1", "10.0.0.1", "10.0.0.1")
Read = Callable[[Any], Any]


class Screen(io.StringIO):
    """What a person sees, and the texts and values that are tried on it: on a terminal all, in a file, where the same
    code writes without controls, one in `step`."""

    def __init__(self, mark: Path, step: int) -> None:
        super().__init__()
        self.texts, self.values = hostile.texts(mark)[::step], hostile.values()[::step]


@pytest.fixture(params=[1, 5], ids=["terminal", "file"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Screen]:
    """Without our own colours; nothing in it steers the terminal, and nothing that a text asks for is done."""
    file = Screen(tmp_path / "ran", request.param)
    for terminal in (ui.out, ui.err):
        console = Console(
            file=file, force_terminal=request.param == 1, color_system=None, width=100_000, highlight=False,
            emoji=False, soft_wrap=True, legacy_windows=False,
        )  # fmt: skip
        monkeypatch.setitem(vars(terminal), "console", console)
    yield file
    assert hostile.steers(file.getvalue()) == ""
    assert not (tmp_path / "ran").exists()


def spread(program: str, answer: Any, read: Read, screen: Screen, *, every: int = 1) -> Iterator[tuple[str, Any]]:
    """Puts each text and value into each field, and gives for each text what `read` makes of an answer that has it
    wherever `read` takes it. `read` raises ValueError or an error of ours for what it refuses. With `every` a text
    goes into one of so many fields at a time, and all get it in turn: for answers of thousands of fields."""
    tried, places = 0, list(hostile.fields(answer))
    keys = [loc for loc in places if isinstance(loc[-1], str)]
    for number, value in enumerate(screen.values):
        for loc in places[number % every :: every]:
            tried += 1
            taken(read, hostile.changed(answer, loc, value))
    leaves = [loc for loc in places if isinstance(hostile.at(answer, loc), str)]
    for number, text in enumerate(screen.texts):
        for loc in keys[number % every :: every]:
            tried += 1
            taken(read, hostile.renamed(answer, loc, text))
        whole = answer
        for loc in leaves if every == 1 else leaves[number % every :: every]:
            tried += 1
            if taken(read, hostile.changed(answer, loc, text)) is not None:
                whole = hostile.changed(whole, loc, text)
        yield text, taken(read, whole)
    print(f"{program}: {tried} fields x texts")
    assert tried * every > 2 * len(places)


def taken(read: Read, answer: Any) -> Any:
    try:
        return read(answer)
    except (ValueError, RocstackError) as error:
        if isinstance(error, RocstackError):
            ui.print_error(error)
        else:
            ui.say(str(error))
        return None


def shown(screen: io.StringIO, text: str) -> bool:
    """A text in rich's markup, as it is."""
    return text not in hostile.MARKS or text in screen.getvalue()


def of_cluster(row: facts.NodeFacts | None, slurm: SlurmState, log: Journal) -> ClusterState:
    gathered = Gathered((row,) if row else (), () if row else (ProbeFailure("n1", "failed", slurm.why),))
    return ClusterState(Inventory(Path("inventory.yml"), HOST, (HOST,)), gathered, slurm, log)


def known() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DATA / "facts/n1.json").read_text())
    return data


def test_facts(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording in it is tried by itself."""
    data = known()
    node = facts.of_dict("n1", data)
    recorded = json.loads((DATA / "status/recorded.json").read_text())["nodes"]["n1"]
    answer = {**hostile.sample(FactsAnswer), **data["deploy"], **recorded, "schema": facts.SCHEMA}

    def read(changed: Any) -> facts.NodeFacts:
        return node.model_copy(update=dict(parse(FactsAnswer, changed)))

    for text, made in spread("facts", answer, read, screen, every=3):
        if made:
            state = of_cluster(made, SlurmState(), Journal())
            operate._show(status.status(state))
            assert shown(screen, text)


def test_journal(screen: Screen) -> None:
    answer = {**hostile.sample(Journal), "schema": journal.SCHEMA}
    for text, made in spread("journal", answer, lambda data: journal.loads(json.dumps(data)), screen, every=3):
        if made:
            operate._show(status.status(of_cluster(None, SlurmState(why=text), made)))
            assert shown(screen, text)


@pytest.mark.parametrize("task", TASKS)
def test_modules(screen: Screen, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they come back from Ansible, of a node that did it and of one that failed."""
    run = ansible.run

    def read(answer: Any) -> Any:
        for state in ("ok", "failed"):
            host = HostRun("n1", state, ansible.reason(answer) if state == "failed" else "", {task: answer})
            monkeypatch.setattr(ansible, "run", lambda *_, one=host, **__: (one,))
            (node,) = NodeRuns(Path("i.yml"), Path("log"), DeployEvents()).send("x.yml", {"n1": {}}).values()
        return node

    answer = {**hostile.sample(TASKS[task][1]), "msg": "x", "cause": "x", "module_stderr": "", "exception": "x"}
    display = nodes_display.NodesDisplay()
    for text, node in spread(f"rocstack_{task.lower()}", answer, read, screen):
        if node:
            display.end("n1", str(node.answers[task]))
            display.end("n1", node.reason, ok=False)
            plan = Plan((), ())
            nodes_display.show_outcome(Outcome(plan, {}, failed={"n1": node.reason}, notes=(text,)), Path("log"))
            assert shown(screen, text)
    monkeypatch.setattr(ansible, "run", run)


def test_lock(screen: Screen) -> None:
    answer = {"who": "x", "pid": 1, "since": "x", "fence": 1}
    for _, who in spread("lock", answer, lambda data: locks.holder(json.dumps(data)), screen):
        ui.print_error(_held(who))
    for text in screen.texts:
        ui.print_error(_held(locks.holder(text)))
        ui.print_error(ssh.SshHost("n1").error("no lock on", text))


def _held(who: str) -> RocstackError:
    from rocstack.base.errors import CheckFailed

    return CheckFailed.of("deploy-running", holder=who, path="/x", host="n1", silence=30)


def test_history(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = hostile.sample(history.DeployRecord)
    for _, found in spread("history", answer, lambda data: history.parse([json.dumps(data)], "{}"), screen):
        monkeypatch.setattr("rocstack.steps.deploy.history", lambda _, it=found: it)
        with pytest.raises(typer.Exit):
            operate._show_history(None, json=False)  # type: ignore[arg-type]


def test_slurm(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the control node answers `status`; the names in it are hostlists, too."""
    answer = {
        "nodes": {"nodes": [{"name": "n1", "state": ["IDLE"], "reason": "x", "cpus": 8, "alloc_cpus": {"number": 1},
                             "gres": "gpu:8", "gres_used": "gpu:1", "last_busy": 1, "slurmd_start_time": 1}]},
        "queue": "7|RUNNING|n1\n",
    }  # fmt: skip
    node = facts.of_dict("n1", known())

    def read(data: Any) -> SlurmState:
        said = f"rocstack-answer\n{json.dumps(data)}\nrocstack-answer\n"
        said += f"{json.dumps(data.get('nodes'))}\x1e{data.get('queue')}"
        monkeypatch.setattr(ssh, "run", lambda *_: ssh.subprocess.CompletedProcess([], 0, said, ""))
        return read_slurm(ssh.SshHost("n1"))

    for _, made in spread("slurm", answer, read, screen):
        operate._show(status.status(of_cluster(node, made, Journal())))
    for text in screen.texts:
        monkeypatch.setattr(ssh, "run", lambda *_, it=text: ssh.subprocess.CompletedProcess([], 1, it, it))
        operate._show(status.status(of_cluster(node, read_slurm(ssh.SshHost("n1")), Journal())))


def test_logs(screen: Screen, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A container's, as `rocstack logs` shows them: the lines may be any bytes."""
    said = b"\n".join(text.encode(errors="surrogateescape") if text != "\ud800" else b"\xff\xfe\x1b]0;x\x07"
                      for text in screen.texts if "\ud83d" not in text)  # fmt: skip
    (tmp_path / "log").write_bytes(said)
    for stdin in (subprocess.DEVNULL, subprocess.PIPE):
        assert operate._relay(["sh", "-c", "cat $0/log; cat $0/log >&2; exit 3", str(tmp_path)], stdin) == 3
    out, err = capfd.readouterr()
    assert out.count("<script>") == err.count("<script>") == 2
    assert not hostile.steers(out + err).replace("\t", "")


def test_profiles(screen: Screen) -> None:
    """As a file has them; what probe and doctor show of them, and the fabric's environment."""
    shape, table = TypeAdapter(NodeProfile), finding_texts.load()
    for name in ("mi300x-thor2", "mi250x-slingshot"):
        (real,) = recordings.profiles([recording(name)])
        answer = {**hostile.sample(NodeProfile), **{key: each for key, each in asdict(real).items() if each}}
        answer = {**json.loads(json.dumps(answer)), "schema": 1}

        def read(data: Any) -> NodeProfile:
            return shape.validate_json(json.dumps(data))

        for _, node in spread("profile", answer, read, screen, every=23):
            if node:
                probe._show((node,))
                probe._show((node, real))
                doctor._show_nodes(doctor_nodes.examine([node, real], table))
                list(profiles.contradictions(node))
                for kind in KINDS:
                    env = fabric.parse_env(fabric.render_env(fabric.fabric(node, kind)))
                    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", key) for key in env)


def test_recordings(screen: Screen, tmp_path: Path) -> None:
    """As a collector packs them; and as `probe --record` writes them."""
    answer = json.loads((DATA / "facts/n1.json").read_text())["recording"]

    def read(data: Any) -> Recording:
        return Recording.from_dict(data)

    folder = tmp_path / "a/b/c/record"
    for number, (_, made) in enumerate(spread("recording", answer, read, screen, every=397)):
        if made and number % 8 == 0:  # the rest of it takes long
            (node,) = recordings.profiles([made])
            probe._show((node,))
            steps._record(recordings.Recorded((made,)), folder / str(number))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert {path.name for path in (tmp_path / "a/b/c").iterdir()} == {"record"}
    assert all(path.resolve().is_relative_to(folder) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"/sys/../../x": "x"}},
        {"files": {"/sys/a\0b": "x"}},
        {"files": {"sys/a": "x"}},
        {"files": {"/sys/a": "x", "/sys/a/b": "x"}},
        {"files": {"/sys/a/x": "x"}, "links": {"/sys/a": "/sys/b"}},
        {"links": {"/sys/a/../../../x": "/sys/b"}},
        {"folders": ["/sys/../../x"]},
        {"files": {"/sys/" + "a" * 300: "x"}},
    ],
)
def test_a_recording_that_leads_out_of_its_tree(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a recording"):
        Recording.from_dict({**Recording().to_dict(), **change})


def test_log_files(screen: Screen) -> None:
    """Known texts with hostile ones around and in them."""
    table = finding_texts.load()
    examples = [entry.example for entry in table.values() if entry.text]
    for number, text in enumerate(screen.texts):
        lines = []
        for example in examples[number % 24 :: 24]:
            lines += [text + example, example + text, example.replace(" ", f" {text} ", 1)]
        report = logscan.scan(["\n".join(lines).encode(errors="surrogatepass")], table)
        doctor._show_log(report, DoctorOptions(log="x.log"))


def test_reports(screen: Screen, tmp_path: Path) -> None:
    """report.json, what `verify` shows of it, and its exports: no tag, attribute or file that another has not."""
    answer = hostile.sample(Run)
    result = {**answer["results"][0], "state": "failed", "drawings": {}}
    result["measures"] = [{**result["measures"][0], "state": "failed"}]
    answer |= {"schema": 3, "results": [{**result, "check": {**result["check"], "needs": []}}]}
    before = {path.name for path in tmp_path.iterdir()}
    folder = tmp_path / "report"
    folder.mkdir()
    shape = TypeAdapter(Run)
    for _, run in spread("report", answer, lambda data: shape.validate_json(json.dumps(data)), screen, every=3):
        if run:
            verify_report.show(run, folder)
            for result in run.results:
                verify_report._Lines(None)._ended(result)
            artifacts.write(run, folder)
            page = Page((folder / artifacts.HTML).read_text(encoding="utf-8"))
            assert not page.wrong
            assert not set(hostile.steers(page.source)) - set("\t\xa0\ue000")
            junitparser.JUnitXml.fromfile(str(folder / artifacts.JUNIT))
    assert {path.name for path in folder.iterdir()} == set(artifacts.NAMES)
    assert {path.name for path in tmp_path.iterdir()} == {*before, "report"}


class Page(HTMLParser):
    """What a browser would make of a report; `wrong` is what runs or loads something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.wrong: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "iframe", "object", "base", "link", "form"):
            self.wrong.append(tag)
        self.wrong += [name for name, _ in attrs if name.startswith("on") or name == "src"]
        self.wrong += [value for name, value in attrs if name == "href" and value and not value.startswith("#")]


EVIDENCE = {name.lower(): shape for name, shape in vars(evidence).items() if isinstance(shape, TypeAdapter)}


@pytest.mark.parametrize("name", EVIDENCE)
def test_evidence(name: str, screen: Screen) -> None:
    """What the programs of the suite answer on nodes."""
    known = json.loads((DATA / "verify/evidence.json").read_text())[name]
    every = 211 if name == "cluster" else 11  # its profiles are tried by themselves
    for _ in spread(
        f"evidence {name}", known, lambda data: evidence.parse(name, EVIDENCE[name], data), screen, every=every
    ):
        pass


def test_a_hole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other tests look for is seen where a text is shown without care."""
    file = io.StringIO()
    monkeypatch.setitem(vars(ui.out), "console", Console(file=file, force_terminal=True, color_system=None))
    monkeypatch.setattr(nodes_display, "escape", lambda text: text)
    monkeypatch.setattr(ui, "visible_lines", lambda text: text)
    nodes_display.show_outcome(Outcome(Plan((), ()), {}, failed={"n1": hostile.MARKS[0]}), Path("log"))
    assert not shown(file, hostile.MARKS[0])
    ui.out.say("\x1b]0;x\x07\u202e")
    assert set(hostile.steers(file.getvalue())) >= {"\x1b", "\u202e"}
    assert Page("<b onclick=x><script></script>").wrong == ["onclick", "script"]

"""The history of deploys: what a node says is read as far as it can be, and shown so that no terminal obeys it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_run import Cli

from rocstack.base.errors import CheckFailed
from rocstack.base.text import visible
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.runs import DeployEvents
from rocstack.deploy.read.journal import Journal, JournalImages, Release, VerifiedLevel
from rocstack.deploy.state import history
from rocstack.deploy.state.history import AT_WORK, UNENDED, DeployHistory
from rocstack.deploy.work.journal_writer import JournalWriter
from rocstack.edge.ssh import SshHost
from rocstack.steps import deploy as steps
from rocstack.trust.keys import SigningKey

BEGAN = {
    "fence": 7,
    "who": "ann@desk",
    "command": "deploy",
    "began": "2026-11-20T20:00:00Z",
    "image": "sha256:0123456789abcdef",
    "nodes": ["n1", "n2"],
}
ENDED = {**BEGAN, "ended": "2026-11-20T20:05:00Z", "outcome": "failed", "why": "n2: no room", "failed": ["n2"]}


def line(row: dict[str, Any], **changes: Any) -> str:
    return json.dumps(row | changes)


def outcomes(found: DeployHistory) -> list[tuple[int, str]]:
    return [(each.fence, each.outcome) for each in found.deploys]


def test_a_deploy_is_one_entry_whether_it_has_ended_or_not() -> None:
    lines = [line(BEGAN), line(ENDED), line(BEGAN, fence=8), line(BEGAN, fence=9)]
    holder = '{"who": "ann@desk", "since": "x", "pid": 1, "fence": 9}'
    assert outcomes(history.parse(lines, holder)) == [(7, "failed"), (8, UNENDED), (9, AT_WORK)]
    assert outcomes(history.parse(lines)) == [(7, "failed"), (8, UNENDED), (9, UNENDED)]
    assert history.parse(lines).deploys[0].failed == ("n2",)


def test_an_end_whose_beginning_is_cut_off_stands_for_itself() -> None:
    assert outcomes(history.parse([line(ENDED)])) == [(7, "failed")]


OURS, THEIRS = (SigningKey.generate(name) for name in ("ours", "theirs"))


def ended(key: SigningKey = OURS, **own: Any) -> dict[str, Any]:
    known = {name: value for name, value in (ENDED | own).items() if name not in ("began", "ended")}
    return {**ENDED, **known, **history.signing(key)(known)}


def signed(key: SigningKey = OURS, **changes: Any) -> dict[str, Any]:
    """The last line of a deploy, with the node's times beside what its operator signed; and `changes` of somebody."""
    return {**ended(key), **changes}


def marks(*rows: dict[str, Any]) -> list[str]:
    return [each.signed for each in history.parse(map(json.dumps, rows), keys=[OURS.public]).deploys]


def test_a_line_says_who_signed_it() -> None:
    assert marks(BEGAN, signed()) == [OURS.public.fingerprint]
    assert marks(signed(began="2020-01-01T00:00:00Z")) == [OURS.public.fingerprint]  # the node's, which nobody signed
    assert history.parse([line(signed())]).deploys[0].signed == ""  # no key, and nothing was checked
    assert marks(BEGAN, {**ENDED, "signed": OURS.public.fingerprint}) == ["unsigned"]


@pytest.mark.parametrize(
    "row",
    [
        signed(outcome="done"),
        signed(nodes=["n1"]),
        signed(fence=8),
        signed(more=1),
        signed(signature="?"),
        signed(signature=""),
        signed(signature=None),
    ],
    ids=["outcome", "nodes", "another's number", "more", "no base64", "empty", "none"],
)
def test_a_line_that_was_changed_is_seen(row: dict[str, Any]) -> None:
    found = history.parse([json.dumps(row)], keys=[OURS.public])
    assert [each.signed for each in found.deploys] == ["changed"]
    assert not found.ok


def test_a_key_that_is_trusted_no_longer_is_no_change() -> None:
    found = history.parse([line(signed(THEIRS))], keys=[OURS.public])
    assert ([each.signed for each in found.deploys], found.ok) == ([history.UNKNOWN], True)
    mine = {**signed(THEIRS), "key": OURS.public.fingerprint}
    assert [each.signed for each in history.parse([line(mine)], keys=[OURS.public]).deploys] == ["changed"]


def test_nothing_takes_the_place_of_a_signed_line() -> None:
    found = history.parse([line(signed()), line(ENDED, outcome="done", why="")], keys=[OURS.public])
    assert ([each.outcome for each in found.deploys], found.forged, found.ok) == (["failed"], 1, False)


@pytest.mark.parametrize(
    "bad",
    [
        '{"fence": 1, "who',
        "{}",
        "[]",
        "null",
        "x" * 100_000,
        "[" * 100_000,
        line(BEGAN, fence="8"),
        line(BEGAN, who=3),
        line(BEGAN, nodes="n1"),
        line(BEGAN, who=None),
        '{"who": "\\ud800"}',
    ],
)
def test_a_line_that_can_not_be_read_is_left_out_and_counted(bad: str) -> None:
    found = history.parse([line(BEGAN), bad, "", line(ENDED)])
    assert (outcomes(found), found.unread) == ([(7, "failed")], 1)


@pytest.mark.parametrize(
    "holder", ["", "x", "[]", "{}", '{"fence": null}', '{"fence": "x"}', '{"fence": 1e999}', "null"]
)
def test_a_holder_that_can_not_be_read(holder: str) -> None:
    assert outcomes(history.parse([line(BEGAN)], holder)) == [(7, UNENDED)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine as the control node, and the path of its history."""
    spec = history.journal.lock()
    script = history._SCRIPT.replace(spec.history, str(tmp_path / "history"))
    script = script.replace(spec.file, str(tmp_path / "deploy.json"))
    monkeypatch.setattr(history, "_SCRIPT", script.replace(spec.path, str(tmp_path / "lock")))
    return tmp_path / "history"


def test_of_a_long_one_the_newest_are_read(here: Path) -> None:
    assert history.read(SshHost("n1")) == DeployHistory()
    here.write_text("".join(line(ENDED, fence=number) + "\n" for number in range(5000)))
    assert here.stat().st_size > history.MOST
    found = history.read(SshHost("n1"))
    assert (found.deploys[-1].fence, found.unread) == (4999, 0)
    assert [each.fence for each in found.deploys] == list(range(found.deploys[0].fence, 5000))


def release(name: str) -> Release:
    images = JournalImages(worker_id=f"sha256:{name * 64}", control_id=f"sha256:{'c' * 64}")
    return Release(images=images, when="2026-11-20T20:00:00Z", who="ann@desk", healthy=True)


RELEASES = Journal(releases=(release("a"), release("b")))


@pytest.mark.parametrize(
    ("file", "rows", "said"),
    [
        (RELEASES.dumps(), [ended(journal=RELEASES.digest())], OURS.public.fingerprint),
        (RELEASES.verified(VerifiedLevel(level=2, when="now")).dumps(), [ended(journal=RELEASES.digest())],
         OURS.public.fingerprint),
        (Journal(releases=RELEASES.releases[:1]).dumps(), [ended(journal=RELEASES.digest())], "changed"),
        ("{", [ended(journal=RELEASES.digest())], "changed"),
        (None, [ended(journal=RELEASES.digest())], "changed"),
        (None, [ended(journal=RELEASES.digest()), ended(fence=8, command="down --data", journal=Journal().digest())],
         OURS.public.fingerprint),
        (RELEASES.dumps(), [ended(journal=RELEASES.digest()), {**ENDED, "fence": 8}], "unsigned"),
        (RELEASES.dumps(), [ended(journal=RELEASES.digest()), {**ENDED, "fence": 8, "command": "restore"}],
         OURS.public.fingerprint),
        ('{"schema": 99}', [ended(journal=RELEASES.digest())], ""),
    ],
    ids=["as it was", "verified since", "a release gone", "damaged", "gone", "taken down", "written since by somebody",
         "a work that writes none", "of a newer rocstack"],
)  # fmt: skip
def test_the_last_line_of_a_deploy_signs_the_journal(
    file: str | None, rows: list[dict[str, Any]], said: str, here: Path
) -> None:
    here.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if file is not None:
        (here.parent / "deploy.json").write_text(file)
    found = history.read(SshHost("n1"), [OURS.public])
    assert (found.journal, found.ok, found.unread) == (said, said != "changed", 0)
    assert history.read(SshHost("n1")).journal == ""  # without keys nothing is checked


def test_a_journal_that_was_not_written_is_not_signed() -> None:
    """Else the history would say that somebody changed it."""

    def write(text: str, *, wait: bool) -> None:
        if "full" in text:
            raise CheckFailed.of("journal-unwritten", file="deploy.json", why="no space left", resume="rocstack deploy")
        written.append(text)

    written: list[str] = []
    lock: Any = SimpleNamespace(end={}, write=write)
    writer = JournalWriter(Journal(), lock, DeployEvents())
    assert lock.end == {"journal": Journal().digest()}
    image = Image("worker", f"sha256:{'a' * 64}", "worker", {})
    writer.begin({}, {"worker": image, "control": image}, ["n1"])
    assert lock.end == {"journal": history.journal.loads(written[-1]).digest()}
    with pytest.raises(CheckFailed):
        writer.note(["n1"], "failed", "full")
    assert lock.end == {}


def test_one_that_can_not_be_read_is_said(here: Path) -> None:
    here.mkdir()
    with pytest.raises(CheckFailed, match="Is a directory") as failed:
        history.read(SshHost("n1"))
    assert failed.value.code == "history-unread"


HOSTILE = "\x1b[31m{{ 7 * 7 }}\x07\r\u202e[bold]x[/]\n\x9b"


def test_what_a_node_says_rules_no_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    row = line(BEGAN, who=HOSTILE, command=HOSTILE, nodes=[HOSTILE], ended="x", outcome=HOSTILE, why=HOSTILE)
    monkeypatch.setattr(steps, "history", lambda options: history.parse([row, "{"]))
    shown = cli("status", "--history")
    assert not set("\x1b\x07\r\u202e\x9b") & set(shown.out)
    assert "\\x1b[31m{{ 7 * 7 }}\\x07\\r\\u202e[bold]x[/]\\n\\x9b" in shown.out
    assert "1 line of the history can't be read" in shown.out
    assert len(shown.out.splitlines()) == 3
    told = cli("status", "--history", "--json")
    assert not set("\x1b\x07\u202e\x9b") & set(told.out)
    assert told.json()["deploys"][0]["who"] == HOSTILE
    assert visible("ümläut 日本 'x'") == "ümläut 日本 'x'"

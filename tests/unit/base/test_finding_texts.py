"""All findings have one shape, and their texts one home: each code stands once, is complete and is documented."""

from __future__ import annotations

import re
import string
from collections import Counter
from pathlib import Path

from rocstack.base import finding_texts, paths
from rocstack.base.errors import BadInput, Where, error_texts
from rocstack.base.finding_texts import Entry
from rocstack.base.findings import LEVELS, Finding, in_order
from rocstack.deploy.plan.plan import as_rows
from rocstack.doctor.diagnosis import Diagnosis
from rocstack.stack import rules

FOLDER = paths.images() / "findings"
REFERENCE = Path(__file__).resolve().parents[3] / "docs/reference.md"
ENTRIES: list[Entry] = [*finding_texts.load().values(), *rules.load()]
SHAPE = {"code", "level", "what", "cause", "next", "source", "node"}


def test_each_code_stands_once() -> None:
    lines = [line for path in FOLDER.glob("*.yml") for line in path.read_text().splitlines()]
    codes = Counter(line[:-1] for line in lines if re.fullmatch(r"[a-z0-9][a-z0-9.-]*:", line))
    assert {code for code, count in codes.items() if count > 1} == set()
    assert set(codes) == {entry.code for entry in ENTRIES}


def test_each_entry_is_complete() -> None:
    for entry in ENTRIES:
        assert entry.level in LEVELS, entry.code
        for name in ("what", "cause", "next", "source"):
            text = getattr(entry, name)
            assert text.strip() == text != "", (entry.code, name)
            assert not text.endswith("."), f"{entry.code}: findings are shown in rows: no full stop at the end"
            assert text.count("`") % 2 == 0, f"{entry.code}: a command stands between two backquotes"


def test_every_code_is_documented() -> None:
    assert {entry.code for entry in ENTRIES} <= set(re.findall(r"^\| `([^`]+)` \|", REFERENCE.read_text(), re.M))


def test_values_fill_the_sentences() -> None:
    entry = Entry(code="x", level="error", what="{a} on {node}", cause="{b}", next="`ls {inventory}`", source="s")
    finding = entry.finding({"a": 1, "b": 2, "level": "note"}, node="n1")
    assert finding == Finding("x", "note", "1 on NODE", "2", "`ls INVENTORY`", "s", "n1")
    assert entry.finding({"a": 1, "b": 2, "node": "n1"}).what == "1 on n1"


def test_no_command_that_a_finding_or_an_error_names_runs_what_a_log_or_a_node_says() -> None:
    for text in [entry.next for entry in ENTRIES] + [text.get("next", "") for text in error_texts().values()]:
        for command in text.split("`")[1::2]:
            before = ""
            for literal, name, _, _ in string.Formatter().parse(command):
                before += literal
                # Within quotes of the command's own a value would end them; a port is a number.
                assert name in (None, "port") or before.count("'") % 2 == 0, text
    entry = finding_texts.table()["slurm-chdir"]
    found = entry.read("couldn't chdir to `/data; curl x|sh #': No such file or directory: going to /tmp")
    assert "`srun -w NODE ls -ld '/data; curl x|sh #'`" in entry.finding(found).next


def test_every_document_has_the_one_shape() -> None:
    """And the keys that it had before."""
    finding = Finding("x", "error", "what", "cause", "next", "source", "n1")
    assert set(finding.to_dict()) == SHAPE
    assert set(as_rows([finding])[0]) == SHAPE | {"next_step"}
    assert as_rows([finding])[0]["next_step"] == "next"
    seen = Diagnosis(*finding.to_dict().values(), line=3).to_dict()
    assert set(seen) == SHAPE | {"id", "means", "count", "line", "seen", "nodes", "ranks", "file"}
    assert (seen["id"], seen["means"]) == ("x", "what")
    error = BadInput("what", code="x", where=Where("file", 3)).to_dict()
    assert set(error) == SHAPE | {"where", "exit_code"}
    assert (error["level"], error["where"], error["cause"], error["next"]) == ("error", "file:3", None, None)
    verdict = rules.judge(rules.load(), {})[0].to_dict()
    assert set(verdict) == SHAPE | {"rule", "state", "text"}
    assert set(verdict["rule"]) == {
        "id",
        "reason",
        "source",
        "when",
        "need",
        "same",
        "code",
        "level",
        "what",
        "cause",
        "next",
    }


def test_errors_come_first() -> None:
    found = [Finding(str(number), LEVELS[number % 3], "") for number in (2, 1, 0, 4, 3)]
    assert [finding.code for finding in in_order(found)] == ["0", "3", "1", "4", "2"]

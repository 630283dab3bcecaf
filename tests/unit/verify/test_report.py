"""The HTML report: whole, safe and small; and the other files of a run."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from made_runs import on, result, run
from simulated_run import simulated_run

from rocstack.base import paths
from rocstack.base.errors import BadInput
from rocstack.verify import artifacts, outliers
from rocstack.verify.report import drawings, matrix, page
from rocstack.verify.result import ITEMS, Measure, NodeSeen, Run, read

VOID = {"meta", "br"}
EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'>&{{191*49}}"


class Parsed(HTMLParser):
    """What a browser would make of it: tags, attributes, text, and tags that don't close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}>"

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, name: str) -> list[str]:
        return [value or "" for key, value in self.attributes if key == name]


@cache
def sixteen() -> str:
    before = simulated_run(16, bad=(), slow=(), when="2026-11-19T23:15:00Z")
    return page.html(simulated_run(16, absent=("n3",)), before)


def test_it_is_whole_and_every_link_leads_somewhere() -> None:
    found = Parsed(sixteen())
    assert not found.open
    ids = found.all("id")
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in found.all("href")} <= set(ids)
    assert set(found.all("aria-labelledby")) <= set(ids)


def test_it_needs_nothing_else() -> None:
    found = Parsed(sixteen())
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(found.tags)
    assert not {name for name, _ in found.attributes if name.startswith("on") or name in ("src", "style")}
    assert not re.findall(r"https?:|@import|url\(", sixteen())


def test_the_verdict_comes_first_and_each_failure_says_what_to_do() -> None:
    text = Parsed(sixteen()).text
    order = [
        "14 of 16 nodes pass, 1 fails: n7",
        "What failed, and what to do",
        "Skipped checks",
        "Since the last run",
        "GPUs and NICs",
        "All pairs of nodes",
        "Collectives by message size",
        "Checks by node",
        "What was verified",
    ]
    places = [text.rindex(each) for each in order]
    assert places == sorted(places)
    for words in (
        "Failed: Every GPU of the node is there",
        "n7 : 7 GPUs, not 8 GPUs",
        "no 0000:c6:00.0",
        "Likely cause",
        "Next step",
        "n7 with n[1-2,4-6,8-16] : no message arrived",
        "n5: 50 % below the median of 14 nodes",
        "ssh: connection timed out",
        "✗ Regressions: failing now, not then",
        "-50 %, regression",
        "algbw and busbw by size",
        "alltoall at least 45 GB/s: AMD's acceptance guide",
        "no TransferBench",
        "sha256:bb0a1b73",
        "NCCL_IB_HCA=bnxt_re",
    ):
        assert words in text, words


def test_levels_are_folded_but_those_with_failures() -> None:
    closed, opened = (
        re.findall(rf"<details{open}>\n<summary>Level (\d): .*?</summary>", sixteen()) for open in ("", " open")
    )
    assert set(opened) == {"2", "3"}
    assert set(closed) == {"0", "1"}
    good = page.html(simulated_run(16, bad=(), slow=()))
    assert not re.findall(r"<details open>", good)
    assert re.search(r'<summary>Level 1: .*<span class="passed">\d+ passed</span>', good)


def test_odd_nodes_have_the_first_columns() -> None:
    """Of a thousand nodes, those that are like most come last."""
    states = {"n7": "failed", "n8": "skipped", "n9": "error", "n10": "passed"}
    many = [
        result(*(on(f"n{i + 1}", states.get(f"n{i + 1}", "passed"), "so") for i in range(1000))),
        result(*(on(f"n{i + 1}", "failed" if i in (6, 500) else "passed", "so") for i in range(1000)), name="two"),
    ]
    columns = matrix.table(run(*many, nodes=1000)).columns
    assert [column.nodes for column in columns[:-1]] == [["n7"], ["n501"], ["n9"], ["n8"]]
    assert len(columns[-1].nodes) == 996


def test_a_good_run_of_virtual_nodes_says_that_they_are_virtual() -> None:
    text = Parsed(page.html(simulated_run(2, bad=(), slow=(), virtual=True))).text
    assert "2 of 2 virtual nodes pass level 3" in text
    assert "Virtual nodes (mi300x-thor2): the GPUs and NICs that they have are emulated" in text
    assert "What failed" not in text
    assert "Every GPU of the node is there gpu-count virtual" in text
    assert "NUMA balancing is off numa-balancing 0" in text


@pytest.mark.parametrize(
    ("about", "mood"),
    [
        ({"bad": ()}, "good"),
        ({}, "bad"),
        ({"bad": (), "absent": ("n2",)}, "odd"),
        ({"bad": (), "complete": False}, "bad"),
    ],
)
def test_its_mark_is_not_better_than_the_verdict(about: dict[str, Any], mood: str) -> None:
    assert f'<div class="verdict {mood}">' in page.html(simulated_run(8, **about))


def test_what_nodes_say_is_never_markup() -> None:
    bad = on(EVIL, "failed", EVIL, evidence=EVIL, wanted=EVIL, source=EVIL, value=EVIL, unit=EVIL)
    seen = (NodeSeen(name=EVIL, roles=("worker",), virtual=EVIL, model=EVIL, image=EVIL),)
    seen += (NodeSeen(name="n2" + EVIL, roles=("worker",), absent=EVIL),)
    measures = (bad, Measure(state="failed", node=EVIL, peer="n2" + EVIL, why=EVIL), on("n2" + EVIL, "skipped", EVIL))
    drawn = {
        "matrix": {
            "quantities": [
                {"name": EVIL, "unit": EVIL, "better": "low", "nodes": [EVIL, "b"], "values": [[None, 1], [2, None]]}
            ]
        },
        "curves": {
            "unit": EVIL,
            "series": [{"name": EVIL, "points": [[1, 1], [8, 2]]}],
            "threshold": {"value": 1, "text": EVIL},
        },
        "topology": {"nodes": {EVIL: {"gpus": [{"index": 0, "pci": EVIL}], "nics": [{"name": EVIL, "state": EVIL}]}}},
        EVIL: 1,
    }
    about: dict[str, Any] = dict.fromkeys(
        ("cluster", "control", "who", "when", "only", "image", "digest", "id", "rocstack"), EVIL
    )
    about |= {"labels": {EVIL: EVIL}, "versions": {EVIL: EVIL}, "fabric": {EVIL: {EVIL: EVIL}}}
    hostile = run(result(*measures, drawings=drawn), seen=seen, **about)
    found = Parsed(page.html(hostile, run(result(on(EVIL), drawings={}), seen=seen)))
    plain = set(Parsed(sixteen()).tags) | {"details", "summary"}
    assert set(found.tags) <= plain
    assert not {name for name, _ in found.attributes if name.startswith("on")}
    assert "<script>alert(1)</script>" in found.text
    assert "9359" not in found.text


def test_code_in_backticks_is_escaped_first() -> None:
    assert page.words("run `a <b>` & c") == "run <code>a &lt;b&gt;</code> &amp; c"


@pytest.mark.parametrize(("nodes", "limit"), [(2, 1_000_000), (1000, 5_000_000)])
def test_its_size(nodes: int, limit: int) -> None:
    bad = [f"n{i}" for i in range(7, nodes, 9)]
    assert len(page.html(simulated_run(nodes, bad=bad))) < limit


def test_no_two_of_a_thousand_nodes_alike() -> None:
    """The worst for a matrix of groups: it stays readable, and nobody is forgotten."""
    many = [
        result(
            *(on(f"n{i + 1}", "failed" if (i >> bit) & 1 else "passed", f"bit {bit} of n{i + 1}") for i in range(1000)),
            name=f"bit-{bit}",
        )
        for bit in range(10)
    ]
    found = matrix.table(run(*many, nodes=1000))
    assert len(found.columns) == matrix.MOST + 1
    assert sum(len(column.nodes) for column in found.columns) == 1000
    assert len(page.html(run(*many, nodes=1000))) < 1_000_000


def test_a_drawing_that_cannot_be_drawn_is_named() -> None:
    found = drawings.read(run(result(on("n1"), drawings={"curves": {"unit": "s"}, "pie": {}})))
    assert found.unreadable == ["one: the curves can't be drawn: series: Field required", "one: nothing draws 'pie'"]
    assert "can't be drawn" in Parsed(page.html(run(result(on("n1"), drawings={"curves": {"unit": "s"}})))).text


@pytest.mark.parametrize(
    "points",
    [
        [[8, -5.0]], [[8, -5.0], [16, -5.0]], [[8, 5e-324]], [[5e-324, 1.0], [1e18, 1.0]], [[0, 1.0]], [[-1, 1.0]],
        [[8, 1e18, -1.0]], [["8", None]],
    ],
)  # fmt: skip
def test_no_number_of_a_node_takes_the_report_from_the_others(points: list[Any], tmp_path: Path) -> None:
    drawn = {"curves": {"unit": "GB/s", "series": [{"name": "all_reduce", "points": points}]}}
    artifacts.write(run(result(on("n1"), drawings=drawn)), tmp_path)
    assert "It is so" in Parsed((tmp_path / artifacts.HTML).read_text()).text


def test_what_can_not_be_seen_is_shown_as_such() -> None:
    odd = "a\xadb\u202ec\U000e0041d\ue000e\ud800f\x1bg"
    assert "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf\ufffdg" in page.html(run(labels={"a": odd}))


def test_a_page_that_fails_takes_no_result_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> str:
        raise ValueError("no page")

    monkeypatch.setattr(page, "html", fails)
    with pytest.raises(ValueError, match="no page"):
        artifacts.write(run(result(on("n1"))), tmp_path)
    assert read(tmp_path / artifacts.REPORT).results


def test_nothing_at_all_is_reported_too() -> None:
    empty = Parsed(page.html(run(nodes=0)))
    assert not empty.open
    assert "0 of 0 nodes pass" in empty.text


def test_the_kinds_of_test_with_their_states() -> None:
    def of(item: int, state: Any, name: str) -> Any:
        made = result(on("n1", state, "w"), name=name)
        return made.model_copy(update={"check": made.check.model_copy(update={"item": item})})

    checks = of(1, "passed", "a"), of(1, "skipped", "b"), of(2, "failed", "c"), of(2, "passed", "d")
    found = list(matrix.kinds(run(*checks)))
    assert [kind.state for kind in found[:3]] == ["passed", "failed", None]
    assert found[0].skipped == ["b"], "tested in part"
    assert len(found) == ITEMS


def colours(text: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{3,6})\b", text))


def contrast(one: str, two: str) -> float:
    """WCAG 2.2, relative luminance."""

    def light(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(two)))
    return (high + 0.05) / (low + 0.05)


def test_everything_can_be_read_by_day_and_by_night() -> None:
    """WCAG AA: 4.5 for text."""
    style = (paths.templates() / "report/style.css").read_text()
    day, night, paper = (colours(block) for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL))
    assert set(day) == set(night)
    for known in (day, night, day | paper):
        text = ["text", "muted", "good", "bad", "note", "odd", *(f"s{i}" for i in range(6))]
        pairs = [(name, ground) for name in text for ground in ("bg", "soft")]
        pairs += [
            ("good", "good-soft"),
            ("bad", "bad-soft"),
            ("odd", "odd-soft"),
            ("text", "good-soft"),
            ("text", "bad-soft"),
        ]
        assert not {pair for pair in pairs if contrast(known[pair[0]], known[pair[1]]) < 4.5}


def test_all_files_of_a_run(tmp_path: Path) -> None:
    found = simulated_run(8, absent=("n3",))
    artifacts.write(found, tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "failing_nodes.txt",
        "junit.xml",
        "passing_nodes.txt",
        "report.html",
        "report.json",
        "report.schema.json",
        "slow_nodes.txt",
    ]
    assert (tmp_path / "failing_nodes.txt").read_text() == "n7\n"
    assert (tmp_path / "passing_nodes.txt").read_text().split() == ["n1", "n2", "n4", "n5", "n6", "n8"]
    assert read(tmp_path) == found.model_copy(update={"slow_nodes": outliers.find(found)})


def test_a_link_in_the_folder_leads_to_no_other_file(tmp_path: Path) -> None:
    """It may be somebody else's: `rocstack report` writes the files of a folder that was sent again. In the lists each
    line is as the report says."""
    own = tmp_path / ".bashrc"
    own.write_text("# mine\n")
    folder = tmp_path / "sent"
    folder.mkdir()
    for name in artifacts.NAMES:
        (folder / name).symlink_to(own)
    seen = run(result(on("touch /tmp/x"))).model_copy(
        update={"nodes": (NodeSeen(name="touch /tmp/x", roles=("worker",)),)}
    )
    artifacts.write(seen, folder)
    assert own.read_text() == "# mine\n"
    assert (folder / artifacts.PASSING).read_text() == "touch /tmp/x\n"


def test_the_schema_holds_what_is_written_and_nothing_else() -> None:
    schema = artifacts.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    written = json.loads(simulated_run(4).dumps())
    jsonschema.validate(written, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**written, "more": 1}, schema)
    assert schema["properties"]["digest"]["description"] == "the registry's"


def test_a_report_that_is_read_again_makes_the_same_page(tmp_path: Path) -> None:
    found = simulated_run(4)
    (tmp_path / "report.json").write_text(found.dumps())
    again: Run = read(tmp_path)
    assert page.html(again) == page.html(found)


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '{"schema": 1, "results": [1]}', '{"schema": 1, "results": 7}', '{"a": ' + "[" * 100_000],
    ids=range(5),
)
def test_what_is_no_report_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(BadInput, match="not a report of rocstack"):
        read(tmp_path)

"""The columns of a display with several rows stay where they are, on a wide and on a narrow terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from rocstack.cli import build_display, ui
from rocstack.cli.build_display import BuildDisplay
from rocstack.cli.nodes_display import NodesDisplay
from rocstack.image.build_progress import BuildLine, BuildStep
from rocstack.image.build_report import BuildReport, ImageReport

TEXTS = ["x", "Get:12 http://example.com/debian trixie/main amd64 Packages", "y" * 300, "[green]a[/] \\", "é→" * 60]


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Console:
    made = Console(
        file=io.StringIO(), force_terminal=True, width=request.param, color_system=None, legacy_windows=False
    )
    monkeypatch.setitem(vars(ui.err), "console", made)
    return made


def rows(console: Console, names: list[str]) -> list[str]:
    """Every state of the rows of these names, in the order in which they were drawn."""
    assert isinstance(console.file, io.StringIO)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", console.file.getvalue()).replace("\r", "\n")
    return [line for line in text.split("\n") if any(f" {name}" in line for name in names) and ":" in line]


def check(console: Console, names: list[str]) -> None:
    shown = [line for line in rows(console, names) if "0:0" in line]
    assert len(shown) >= 2 * len(TEXTS)
    assert {line.index("0:0") for line in shown} == {2 + max(map(len, names)) + 1}
    assert {line[2 : 2 + max(map(len, names))].strip() for line in shown} == set(names)
    assert max(map(len, shown)) <= console.width


@pytest.mark.parametrize("console", [80, 60], indirect=True)
def test_a_build(console: Console) -> None:
    display = BuildDisplay()
    with display:
        display._open(["worker", "control"])
        for text in TEXTS:
            for role in ("worker", "control"):
                display.step(role, BuildLine(BuildStep("d", "[worker-base 2/7] RUN apt-get"), text))
                display._bars.refresh()
    check(console, ["worker", "control"])


@pytest.mark.parametrize("console", [80, 60], indirect=True)
def test_nodes(console: Console) -> None:
    display = NodesDisplay()
    with display:
        display.begin(["n1", "node-with-a-long-name-17"])
        for text in TEXTS:
            for node in ("n1", "node-with-a-long-name-17"):
                display.step(node, text)
                display._bars.refresh()
    check(console, ["n1", "node-with-a-long-name-17"])


def test_a_rehearsal_image_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    images = tuple(
        ImageReport(role=role, reference=f"rocstack/{role}:x", log="x.log", components={"rocm": 1})
        for role in ("worker", "control")
    )
    facts = {"rocstack": "1", "stack": "debian-13", "nic": "tcp", "way": "inbox", "base": "debian", "base_digest": "d"}
    report = BuildReport(
        **facts, rehearsal="no code for gfx942", lock=None, world="w", context_digest="c", seconds=1, images=images
    )
    build_display.show(report, Path("out"))
    shown = capsys.readouterr().out
    assert [line.split()[1:3] for line in shown.splitlines() if line.startswith("rocstack/worker")] == [
        ["built", "(rehearsal)"]
    ]
    assert "built (rehearsal)" not in next(line for line in shown.splitlines() if line.startswith("rocstack/control"))
    assert "rehearsal image: no code for gfx942" in shown

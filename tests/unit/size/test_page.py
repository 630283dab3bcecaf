"""docs/sizing.md shows what the commands print."""

from __future__ import annotations

import re
import runpy
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from cli_run import Cli

from rocstack.size import compiled, models
from rocstack.size.compiled import Compiled
from rocstack.size.sizing import Sized
from rocstack.steps import size_compile

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/sizing.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```sh\n(rocstack size [^\n]*)\n```\n\n```text\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_output_is_real(command: str, shown: str, cli: Cli) -> None:
    ran = cli(*shlex.split(command)[1:])
    text = (ran.out + ran.err).rstrip("\n")
    if shown.endswith("\n..."):
        assert text.startswith(shown.removesuffix("..."))
    else:
        assert text == shown


def test_the_page_has_some() -> None:
    assert len(SHOWN) >= 4
    assert not set(models.types()) - set(re.findall(r"`([a-z0-9_]+)`", PAGE))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("llama-3.1-70b --nodes 4", 0),
        ("llama-3.1-405b --nodes 1", 1),
        ("llama-3.1-70b --tp 3", 2),
        ("llama-3.1-70b --rank 4", 2),
        ("llama-3.1-70b --method all", 2),
        ("llama-3.1-70b --recompute some", 2),
        ("llama-3.1-70b --nodes 0", 2),
        ("llama-3.1-70b --gpu h100", 2),
    ],
)
def test_exit_codes(words: str, code: int, cli: Cli) -> None:
    plain, as_json = cli("size", *words.split()), cli("size", *words.split(), "--json")
    assert (plain.code, as_json.code) == (code, code)
    assert ("error" in as_json.json()) == (code == 2)


def test_nothing_is_wider_than_a_terminal(cli: Cli) -> None:
    """The tables: sentences wrap there."""
    for name in models.names():
        shown = cli("size", name, "--gpu", "mi250x").out
        rows = [line for line in shown.splitlines() if "  " in line.lstrip() and not line.startswith("  ")]
        assert rows
        assert max(map(len, rows)) <= 80


def test_the_tables_are_those_of_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "bench/sizing/__main__.py"))["main"]([])
    for table in capsys.readouterr().out.rstrip("\n").split("\n\n"):
        assert table in PAGE


def test_lumis_table_by_the_compiler(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last the recorded answer without chunks, which sums up gradients for each micro-batch."""
    asked: list[tuple[int, int]] = []

    def answer(sized: Sized, image: str | None) -> Compiled:
        asked.append((sized.layout.gpus, sized.layout.accumulate))
        if sized.layout.gpus < 6144:
            return compiled.unread("not recorded", sized, "flash")
        raw = (Path(__file__).parents[1] / "data/size/lumi-140b-6144.json").read_bytes()
        return compiled.read(raw, replace(sized, layout=replace(sized.layout, interleave=1)), "flash")

    monkeypatch.setattr(size_compile, "compile", answer)
    runpy.run_path(str(ROOT / "bench/sizing/__main__.py"))["main"](["--compile"])
    rows = capsys.readouterr().out.rstrip("\n").split("\n\n")[2].splitlines()
    assert asked == [(384 * times, count) for times in (1, 2, 4, 8, 16) for count in (128 // times, 8)]
    assert rows[2] == "| 48 | 161.2 | 142 to 174 | refused | 109 to 136 | refused |"
    assert rows[-1].startswith("| 768 | 129 (80 % of it) | 106 to 132 | ")
    slow, fast = (float(each) for each in rows[-1].split("|")[4].split(" to "))
    assert 0 < slow <= fast < 132

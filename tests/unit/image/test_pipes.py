"""A program whose reader ends early is killed by SIGPIPE, now and then: with `pipefail` its line fails then."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
EARLY = re.compile(r"(?<!\|)\|\s*(?:\\\n\s*)?(?:grep -\w*q|awk '[^']*\bexit\b)")
WHOLE = re.compile(r"\btail -n 1(?: \S+)?\s*$")  # writes once
SHELL = re.compile(r"\A(?:#![^\n]*sh\b)")


def scripts() -> list[Path]:
    below = [path for folder in ("templates", "images", "playbooks", "cli") for path in (REPO / folder).rglob("*")]
    return sorted(path for path in below if path.is_file() and (path.suffix == ".j2" or SHELL.match(head(path))))


def head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(100).decode(errors="replace")


@pytest.mark.parametrize("path", scripts(), ids=lambda path: str(path.relative_to(REPO)))
def test_nothing_reads_the_beginning_of_a_pipe_alone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".j2" and "pipefail" not in text and "service" not in path.parts:
        return  # the line's status is that of the reader
    early = [text[: found.start()].rpartition("\n")[2] for found in EARLY.finditer(text)]
    assert [line for line in early if not WHOLE.search(line.rstrip())] == []

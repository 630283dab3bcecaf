"""A program whose reader ends early is killed by SIGPIPE, now and then: with `pipefail` its line fails then."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[3]
EARLY = re.compile(r"(?<!\|)\|\s*(?:\\\n\s*)?(?:grep -\w*q|awk '[^']*\bexit\b)")
WHOLE = re.compile(r"\btail -n 1(?: \S+)?\s*$")  # writes once
SHELL = re.compile(r"\A(?:#![^\n]*sh\b)")


def strict(path: Path) -> bool:
    """Elsewhere a line's status is that of its last program."""
    if path.suffix == ".j2":
        return True
    with path.open("rb") as file:
        if not SHELL.match(file.read(100).decode(errors="replace")):
            return False
    return "service" in path.parts or "pipefail" in path.read_text(encoding="utf-8")


def scripts() -> list[Path]:
    below = [path for folder in ("templates", "images", "playbooks", "cli") for path in (REPO / folder).rglob("*")]
    return sorted(path for path in below if path.is_file() and strict(path))


@pytest.mark.parametrize("path", scripts(), ids=lambda path: str(path.relative_to(REPO)))
def test_nothing_reads_the_beginning_of_a_pipe_alone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    early = [text[: found.start()].rpartition("\n")[2] for found in EARLY.finditer(text)]
    assert [line for line in early if not WHOLE.search(line.rstrip())] == []

"""BuildKit tells the Dockerfile's line to only one of two builds that wait for the same step; the other counts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from rocstack.image.build_failure import explain
from rocstack.image.build_progress import BuildProgress

DATA = Path(__file__).parents[1] / "data/failures"
sys.path.append(str(DATA))
import cases  # noqa: E402

TOLD = re.compile(r"^Dockerfile:\d+$", re.MULTILINE)
RECORDED = [name for name in cases.names() if (DATA / name / "stream.txt").exists()]


@pytest.mark.parametrize("name", RECORDED)
def test_line_is_counted_when_it_is_not_told(name: str) -> None:
    stream = (DATA / name / "stream.txt").read_text()
    found = []
    for text in (stream, TOLD.sub("", stream)):
        progress = BuildProgress()
        list(progress.feed(text))
        list(progress.close())
        found.append((explain(progress, cases.context(name)), progress.failed()))
    (told, step), (counted, _) = found
    if step is None or step.stage == "internal":  # no instruction failed: there is nothing to count
        assert counted.dockerfile_line is None
        return
    assert counted.dockerfile_line == told.dockerfile_line
    assert counted.template == told.template

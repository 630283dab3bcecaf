"""Why a build failed: every folder of data/failures is a build that failed, and what must be said about it."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.base import paths
from rocstack.image.build_failure import BEFORE, BuildFailure, explain
from rocstack.image.build_progress import BuildProgress
from rocstack.image.context import BuildContext

DATA = Path(__file__).parents[1] / "data/failures"
sys.path.append(str(DATA))
import cases  # noqa: E402


def stream_of(folder: Path) -> str:
    """What the builder wrote: recorded, or one failed step made of log.txt and messages.txt."""
    recorded = folder / "stream.txt"
    if recorded.exists():
        return recorded.read_text()
    out = ""
    log = folder / "log.txt"
    if log.exists():
        vertex = {"digest": "sha256:1", "name": "[worker-base 2/3] RUN <<'EOS' (...)", "error": "exit code: 1"}
        data = base64.b64encode(log.read_bytes()).decode()
        out = json.dumps({"vertexes": [vertex], "logs": [{"vertex": "sha256:1", "stream": 2, "data": data}]}) + "\n"
    messages = folder / "messages.txt"
    return out + (messages.read_text() if messages.exists() else "")


def failure_of(case: str) -> BuildFailure:
    progress = BuildProgress()
    list(progress.feed(stream_of(DATA / case)))
    progress.close()
    return explain(progress, cases.context(case))


@pytest.mark.parametrize("case", cases.names())
def test_case(case: str) -> None:
    expected: dict[str, Any] = yaml.safe_load((DATA / case / "expected.yml").read_text())
    line = expected.pop("template_line", None)
    failure = failure_of(case)
    for name in ("cause", "next_step"):
        if name in expected:
            wanted, found = expected.pop(name), getattr(failure, name)
            assert found is wanted or wanted in found
    assert {name: getattr(failure, name) for name in expected} == expected
    assert not any("rocstack-failed-at" in text for text in failure.context)
    if line is not None:
        assert failure.template is not None
        name, _, number = failure.template.rpartition(":")
        assert (DATA / case / name).read_text().splitlines()[int(number) - 1] == line


@pytest.mark.parametrize("case", [name for name in cases.names() if not name.startswith("smoke-")])
def test_the_error_stands_in_its_context(case: str) -> None:
    failure = failure_of(case)
    assert failure.error in [line.strip() for line in failure.context]
    assert len(failure.context) <= BEFORE + 4


def test_every_kind_has_cases() -> None:
    kinds = {yaml.safe_load((DATA / case / "expected.yml").read_text())["kind"] for case in cases.names()}
    assert kinds == {"transient", "stale", "permanent"}


def test_a_package_that_is_gone_points_to_the_line_that_asks_for_it() -> None:
    progress = BuildProgress()
    list(progress.feed(stream_of(DATA / "package-gone")))
    asked = {"libucx-that-is-gone0": "templates/components/ucx.j2:6"}
    plain = cases.context("package-gone")
    failure = explain(progress, BuildContext(plain.files, plain.origins, asked))
    assert failure.template == "templates/components/ucx.j2:6"


def test_what_is_tested_above_the_nics_layer_again_points_to_its_own_line() -> None:
    progress = BuildProgress()
    list(progress.feed(stream_of(DATA / "smoke-fail")))
    plain, wanted = cases.context("smoke-fail"), failure_of("smoke-fail").template
    assert wanted
    assert "components/rccl" in wanted
    files, origins = (
        {path.replace("smoke/worker/", "smoke/worker-below/"): each for path, each in one.items()}
        for one in (plain.files, plain.origins)
    )
    assert explain(progress, BuildContext(files, origins)).template == wanted  # type: ignore[arg-type]


def test_the_templates_say_where_they_failed() -> None:
    """The words that the shell prints on an error are those that the streams were recorded with."""
    words = "trap 'echo \"rocstack-failed-at: $LINENO: $BASH_COMMAND\" >&2' ERR"
    assert words in (paths.templates() / "macros.j2").read_text()
    assert words in (DATA / "package-gone/Dockerfile.j2").read_text()


@pytest.mark.parametrize("stream", ["", "{", '{"vertexes": [', "\x00\xff not JSON", "Dockerfile:99999\n"])
def test_whatever_the_builder_says_there_is_an_answer(stream: str) -> None:
    progress = BuildProgress()
    list(progress.feed(stream))
    progress.close()
    failure = explain(progress, BuildContext({}))
    assert failure.kind == "permanent"
    assert failure.error
    assert failure.template is None

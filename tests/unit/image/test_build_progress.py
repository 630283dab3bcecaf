"""BuildKit's stream, recorded from real builds, as steps and lines; however it is cut into pieces."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocstack.image.build_progress import BuildLine, BuildProgress, BuildStep

FAILURES = Path(__file__).parents[1] / "data/failures"
STREAMS = sorted(FAILURES.glob("*/stream.txt"))
PLAIN = (FAILURES / "plain-command/stream.txt").read_text()


def feed(*pieces: str) -> tuple[BuildProgress, list[BuildStep | BuildLine]]:
    progress = BuildProgress()
    events = [event for piece in pieces for event in progress.feed(piece)]
    return progress, [*events, *progress.close()]


def summary(progress: BuildProgress) -> Any:
    steps = [(s.digest, s.name, s.seconds, s.cached, s.error, s.log) for s in progress.steps.values()]
    return steps, progress.messages


def log(data: bytes, stream: int = 1, vertex: str = "v") -> str:
    return json.dumps({"logs": [{"vertex": vertex, "stream": stream, "data": base64.b64encode(data).decode()}]})


def test_a_recorded_build() -> None:
    progress, events = feed(PLAIN)
    ran = {step.stage: step for step in progress.steps.values() if step.title.startswith("RUN")}
    assert {stage: (step.title, step.log) for stage, step in ran.items()} == {
        "a": ("RUN echo hi; echo err >&2", ["hi", "err"]),
        "b": ("RUN false-command", ["/bin/sh: 1: false-command: not found"]),
    }
    assert ran["a"].seconds == pytest.approx(0.236, abs=0.001)
    assert progress.failed() is ran["b"]
    assert [event.text for event in events if isinstance(event, BuildLine)] == [
        "hi",
        "err",
        "/bin/sh: 1: false-command: not found",
    ]
    assert progress.messages.startswith("Dockerfile:4\n")
    assert progress.messages.endswith("exit code: 127\n")
    cached = [step for step in progress.steps.values() if step.cached]
    assert cached
    assert all(step.seconds < 0.01 for step in cached if step.seconds is not None)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(STREAMS), st.lists(st.integers(1, 4000), min_size=1, max_size=5))
def test_pieces_don_t_matter(path: Path, sizes: list[int]) -> None:
    text = path.read_text()
    pieces, start, turn = [], 0, 0
    while start < len(text):
        size = sizes[turn % len(sizes)]
        pieces.append(text[start : start + size])
        start, turn = start + size, turn + 1
    cut, whole = feed(*pieces), feed(text)
    assert summary(cut[0]) == summary(whole[0])
    assert len(cut[1]) == len(whole[1])


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.parent.name)
def test_every_recorded_build_failed_in_one_step(path: Path) -> None:
    progress, _ = feed(path.read_text())
    failed = progress.failed()
    if failed is None:
        assert "parse error" in progress.messages
    else:
        assert failed.error
        assert "canceled" not in failed.error


def test_a_cancelled_step_is_not_the_one_that_failed() -> None:
    progress, _ = feed((FAILURES / "cancelled/stream.txt").read_text())
    errors = {step.stage: step.error for step in progress.steps.values() if step.error}
    assert set(errors) == {"build-slow", "build-ucx"}
    failed = progress.failed()
    assert failed
    assert failed.stage == "build-ucx"
    progress.steps = dict(sorted(progress.steps.items(), key=lambda item: "canceled" not in (item[1].error or "")))
    assert progress.failed() is failed


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"o", b"ne\ntw", b"o"], ["one", "two"]),
        ([b"10%\r20%\r100%\n"], ["100%"]),
        ([b"windows\r\nlines\r\n"], ["windows", "lines"]),
        (["grün\n".encode()[:3], "grün\n".encode()[3:]], ["grün"]),
        ([b"\xff\n"], ["\ufffd"]),
        ([b"\n\n"], ["", ""]),
        ([], []),
    ],
)
def test_lines(pieces: list[bytes], lines: list[str]) -> None:
    progress, events = feed(*(log(piece) for piece in pieces))
    assert [event.text for event in events if isinstance(event, BuildLine)] == lines
    assert [line for step in progress.steps.values() for line in step.log] == lines


def test_standard_output_and_error_are_not_mixed_within_a_line() -> None:
    """apt leaves `Reading package lists...` unfinished on one while it writes the error on the other."""
    progress, _ = feed(
        log(b"Reading package lists..."), log(b"E: Unable to", 2), log(b" Done\n"), log(b" locate x\n", 2)
    )
    assert progress.steps["v"].log == ["Reading package lists... Done", "E: Unable to locate x"]


def test_closing_twice_adds_nothing() -> None:
    progress, _ = feed(log(b"unfinished"))
    assert progress.close() == []
    assert progress.steps["v"].log == ["unfinished"]


@pytest.mark.parametrize(
    ("name", "stage", "title"),
    [
        ("[internal] load build definition from Dockerfile", "internal", "load build definition from Dockerfile"),
        ("[worker-base 3/12] COPY rootfs/common/ /", "worker-base", "COPY rootfs/common/ /"),
        ("[2/2] RUN true", "image", "RUN true"),
        ("[stage-0 2/2] RUN true", "stage-0", "RUN true"),
        ("exporting to image", "export", "exporting to image"),
        ("[a 1/1] RUN --mount=type=cache,target=/x --network=none python3 -c 'x'", "a", "RUN python3 -c 'x'"),
        ("[a 1/1] RUN " + "x" * 300, "a", ("RUN " + "x" * 300)[:100]),
    ],
)
def test_names(name: str, stage: str, title: str) -> None:
    assert (BuildStep("d", name).stage, BuildStep("d", name).title) == (stage, title)


def test_a_step_of_the_templates_tells_what_it_installs() -> None:
    name = "[worker-base 1/4] RUN --mount=type=bind,from=index,target=/x <<'EOS' (: \"pytorch\"; set -E; trap ...)"
    assert BuildStep("d", name).title == "pytorch"


def vertex(**fields: Any) -> str:
    return json.dumps({"vertexes": [{"digest": "v", "name": "[a 1/1] RUN x", **fields}]})


def test_times() -> None:
    progress, events = feed(
        vertex(),
        vertex(started="2026-11-20T10:00:00.123456789Z"),
        vertex(started="2026-11-20T10:00:00.123456789Z", completed="2026-11-20T10:01:02.5Z"),
        vertex(started="2026-11-20T10:00:00.123456789Z", completed="2026-11-20T10:01:02.5Z"),
    )
    assert progress.steps["v"].seconds == pytest.approx(62.3765, abs=0.0001)
    assert len(events) == 2  # started, ended; what says nothing new is no event


def test_whole_seconds_and_clocks_that_go_back() -> None:
    progress, _ = feed(vertex(started="2026-11-20T10:00:05Z", completed="2026-11-20T10:00:04Z"))
    assert progress.steps["v"].seconds == 0

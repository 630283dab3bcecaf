"""The result of a build for people, programs and CI."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from rocstack.image.build_failure import BuildFailure
from rocstack.image.build_report import BuildReport, ImageReport, StepTime, last_base, over_budget
from rocstack.stack.lock import Drift

FAILURE = BuildFailure(
    stage="worker-base",
    step="RUN pytorch",
    kind="permanent",
    error='E: Unable to locate package "x" & <y>',
    context=("before \x1b[31mred\x1b[0m", "nul \x00 bell \x07 end", 'E: Unable to locate package "x" & <y>'),
    template="templates/components/pytorch.j2:7",
    dockerfile_line=12,
    cause="gone",
    next_step="look",
    reproduce="docker buildx build .",
)


def image(role: str = "worker", status: str = "built", **fields: Any) -> ImageReport:
    return ImageReport(role=role, reference=f"rocstack/{role}:x", status=status, seconds=1.26, log="l", **fields)


def report(*images: ImageReport) -> BuildReport:
    return BuildReport(
        rocstack="0.1.0",
        stack="debian-13",
        nic="tcp",
        way="inbox",
        base="debian:trixie-slim",
        base_digest="sha256:2",
        lock=None,
        world="2026.47",
        context_digest="3",
        seconds=2.5,
        images=images,
    )


BUILT = image(
    size_bytes=1_234_567_890,
    smoke={"ucx": ("tcp transport", "colours \x1b[1m")},
    versions={"ucx": "1.18.1"},
    drift=(Drift(what="a", locked="1", found="2"),),
    steps=(StepTime(stage="s", step="RUN x", seconds=1.5, cached=False),),
)
FAILED = image("control", "failed", failure=FAILURE, attempts=3)
BLOCKED = image("control", "blocked", blocked_by="worker")


@pytest.mark.parametrize(
    ("images", "ok"), [((BUILT,), True), ((BUILT, FAILED), False), ((BUILT, BLOCKED), False), ((FAILED,), False)]
)
def test_ok(images: tuple[ImageReport, ...], ok: bool) -> None:
    shown = report(*images).to_dict()
    assert report(*images).ok is shown["ok"] is ok
    assert BuildReport.model_validate_json(
        json.dumps({k: v for k, v in shown.items() if k not in ("ok", "schema")})
    ) == report(*images)


def test_failure_fields_survive() -> None:
    shown = report(FAILED).to_dict()["images"][0]["failure"]
    assert shown == {
        "stage": "worker-base",
        "step": "RUN pytorch",
        "kind": "permanent",
        "error": FAILURE.error,
        "context": FAILURE.context,
        "template": "templates/components/pytorch.j2:7",
        "dockerfile_line": 12,
        "cause": "gone",
        "next_step": "look",
        "reproduce": "docker buildx build .",
    }


def test_junit() -> None:
    suite = ET.fromstring(report(BUILT, FAILED, BLOCKED.model_copy(update={"role": "other"})).to_junit())
    assert suite.attrib == {
        "name": "rocstack build debian-13 tcp",
        "time": "2.5",
        "tests": "4",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    cases = {(case.get("classname"), case.get("name")): case for case in suite}
    assert set(cases) == {
        ("debian-13.tcp", "worker"),
        ("debian-13.tcp.worker.smoke", "ucx"),
        ("debian-13.tcp", "control"),
        ("debian-13.tcp", "other"),
    }
    failure = cases["debian-13.tcp", "control"].find("failure")
    assert failure is not None
    assert failure.get("message") == (
        'worker-base: E: Unable to locate package "x" & <y> (templates/components/pytorch.j2:7)'
    )
    assert failure.text is not None
    assert failure.text.splitlines() == [
        "before red",
        "nul  bell  end",
        'E: Unable to locate package "x" & <y>',
        "",
        "reproduce: docker buildx build .",
    ]
    skipped = cases["debian-13.tcp", "other"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "blocked by worker"
    said = cases["debian-13.tcp.worker.smoke", "ucx"].find("system-out")
    assert said is not None
    assert said.text == "tcp transport\ncolours "


def test_junit_is_well_formed_whatever_a_log_holds() -> None:
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x10400)]))
    failure = FAILURE.model_copy(update={"error": every, "context": (every,), "reproduce": every})
    suite = ET.fromstring(report(FAILED.model_copy(update={"failure": failure})).to_junit())
    assert suite.get("failures") == "1"


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (None, None),
        (0, None),
        (1_600_000_000, None),
        (1_600_000_001, "1600 MB uncompressed, the stack's budget is 1600"),
    ],
)
def test_budget(size: int | None, says: str | None) -> None:
    told = over_budget(image(size_bytes=size), 1600)
    assert told is says is None or (told and says and says in told)


def test_budget_names_the_largest() -> None:
    told = over_budget(image(size_bytes=2_000_000_000, largest={"libtorch": 700_400_000, "x": 1}), 1600)
    assert told == "2000 MB uncompressed, the stack's budget is 1600 MB; the largest package is libtorch (700 MB)"


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ('{"base": "debian:trixie"}', "debian:trixie"),
        ("{", None),
        ("{}", None),
        ("[]", None),
        (None, None),
    ],
)
def test_last_base(text: str | None, base: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "report.json").write_text(text)
    assert last_base(tmp_path) == base

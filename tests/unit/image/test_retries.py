"""What a build tries again: only what may pass, with growing pauses, and a stale index once."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker import DockerClient
from resolved_stack import Joined

from rocstack.image.base_image import BaseImage
from rocstack.image.build import Build
from rocstack.image.build_progress import BuildProgress
from rocstack.image.buildkit import Buildkit, BuildkitRequest
from rocstack.image.context import BuildContext
from rocstack.settings.settings import Settings
from rocstack.settings.site import Site

SAID = {
    "transient": "E: Failed to fetch http://mirror.example/x  Temporary failure resolving 'mirror.example'",
    "stale": "E: Failed to fetch http://mirror.example/x.deb  404  Not Found [IP: 192.0.2.7 80]",
    "permanent": "E: Unable to locate package x",
}


class Builder(Buildkit):
    """Fails as planned, then works."""

    def __init__(self, plan: list[str]) -> None:
        super().__init__()
        self.plan = plan
        self.pauses: list[float] = []
        self.worlds: list[str] = []

    def run(self, request: BuildkitRequest, on_event: Callable[[Any], None]) -> tuple[int, BuildProgress]:
        progress = BuildProgress()
        self.worlds.append(request.world)
        if not self.plan:
            return 0, progress
        data = base64.b64encode(SAID[self.plan.pop(0)].encode() + b"\n").decode()
        vertex = {"digest": "d", "name": "[worker-base 1/2] RUN x", "error": "exit code: 100"}
        list(progress.feed(json.dumps({"vertexes": [vertex], "logs": [{"vertex": "d", "stream": 2, "data": data}]})))
        return 1, progress

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


@pytest.mark.parametrize(
    ("plan", "attempts", "kind", "pauses"),
    [
        ([], 1, None, []),
        (["transient"], 2, None, [5]),
        (["transient"] * 3, 4, None, [5, 10, 20]),
        (["transient"] * 9, 6, "transient", [5, 10, 20, 40, 60]),
        (["permanent"], 1, "permanent", []),
        (["transient", "permanent"], 2, "permanent", [5]),
        (["stale"], 2, None, []),
        (["stale", "stale"], 2, "stale", []),
        (["stale", "transient"], 3, None, [10]),
    ],
)
def test_tries(
    plan: list[str], attempts: int, kind: str | None, pauses: list[float], default: Joined, tmp_path: Path
) -> None:
    builder = Builder(list(plan))
    build = Build(
        client=cast(DockerClient, SimpleNamespace()),
        resolved=default.resolved,
        lock=None,
        context=BuildContext({}),
        base=BaseImage(reference="a", digest="b", how="given"),
        settings=Settings(),
        site=Site(),
        folder=tmp_path,
        roles=("worker",),
    )
    build._world = "2026.47"
    request = BuildkitRequest(tmp_path, "report-worker", "2026.47", Site())
    last, tried, failure = builder.retried(
        request, BuildContext({}), 6, lambda text: None, newer_index=build._newer_index
    )
    assert (tried, failure.kind if failure else None, builder.pauses) == (attempts, kind, pauses)
    assert (len(set(builder.worlds)) > 1) == ("stale" in plan)
    assert last.world == builder.worlds[-1]

"""BuildKit at the edge: one `docker buildx build`, its progress as it comes."""

from __future__ import annotations

import codecs
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rocstack.progress import Line, Progress, Step
from rocstack.site import Site


@dataclass(frozen=True)
class Request:
    """One target of one context. With `dest` its files come out; with `tags` the image is kept."""

    context: Path
    target: str
    world: str
    site: Site
    dest: Path | None = None
    tags: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    no_cache: bool = False

    def command(self) -> list[str]:
        """What is run. Secrets come from the environment, so none is in the process list."""
        out = [
            "docker",
            "buildx",
            "build",
            "--builder",
            "default",
            "--progress",
            "rawjson",
            "--target",
            self.target,
        ]
        out += ["--build-arg", f"ROCSTACK_WORLD={self.world}"]
        if self.site.env:
            out += ["--secret", "id=site-env,env=ROCSTACK_SITE_ENV"]
        if self.site.ca:
            out += ["--secret", f"id=site-ca,src={self.site.ca}"]
        if self.dest:
            out += ["--output", f"type=local,dest={self.dest}"]
        for tag in self.tags:
            out += ["--tag", tag]
        for key, value in sorted(self.labels.items()):
            out += ["--label", f"{key}={value}"]
        if self.no_cache:
            out.append("--no-cache")
        return [*out, str(self.context)]

    def shown(self) -> list[str]:
        """The command for a person: with the builder's own progress."""
        return ["plain" if word == "rawjson" else word for word in self.command()]


def run(request: Request, on_event: Callable[[Step | Line], None]) -> tuple[int, Progress]:
    """Runs the build to its end and gives its exit status and all its progress.

    Whatever interrupts it (Ctrl-C) ends the build process first; what was finished stays in the cache.
    """
    progress = Progress()
    env = {**os.environ, "ROCSTACK_SITE_ENV": request.site.env_file()}
    # Its own process group: Ctrl-C reaches us alone, and we end it in order.
    process = subprocess.Popen(
        request.command(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    assert process.stderr is not None
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    try:
        while chunk := process.stderr.read1(65536):  # type: ignore[attr-defined]
            for event in progress.feed(decode(chunk)):
                on_event(event)
        process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    progress.close()
    return process.returncode, progress

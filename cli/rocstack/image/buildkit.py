"""BuildKit at the edge: one `docker buildx build`, its progress as it comes."""

import codecs
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rocstack.image.build_progress import BuildLine, BuildProgress, BuildStep
from rocstack.settings.site import Site


class BuildStopped(Exception):
    """The build was ended from outside; the one who did it knows why."""


@dataclass(frozen=True)
class BuildkitRequest:
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
        out = ["docker", "buildx", "build", "--builder", "default", "--progress", "rawjson", "--target", self.target]
        # Provenance holds times: with it the same build would be another image each time.
        out.append("--provenance=false")
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


class Buildkit:
    """Runs builds; `stop` (from another thread) ends them all, and what was finished stays in the cache."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = threading.Event()
        self._guard = threading.Lock()

    def run(
        self, request: BuildkitRequest, on_event: Callable[[BuildStep | BuildLine], None]
    ) -> tuple[int, BuildProgress]:
        """Runs one build to its end and gives its exit status and all its progress.

        Raises:
            Stopped: `stop` was called.
        """
        progress = BuildProgress()
        env = {**os.environ, "ROCSTACK_SITE_ENV": request.site.env_file()}
        with self._guard:
            if self._stopped.is_set():
                raise BuildStopped
            # Its own process group: Ctrl-C reaches us alone, and we end it in order.
            process = subprocess.Popen(
                request.command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
            )
            self._running.add(process)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        try:
            with process:
                assert process.stderr is not None
                while chunk := os.read(process.stderr.fileno(), 65536):
                    for event in progress.feed(decode(chunk)):
                        on_event(event)
        finally:
            self._running.discard(process)
        if self._stopped.is_set():
            raise BuildStopped
        for event in progress.close():
            on_event(event)
        return process.returncode, progress

    def pause(self, seconds: float) -> None:
        """Waits between two attempts.

        Raises:
            Stopped: `stop` was called.
        """
        if self._stopped.wait(seconds):
            raise BuildStopped

    def stop(self) -> None:
        """Ends every build that runs; one that doesn't end by itself in 20 s is killed."""
        with self._guard:
            self._stopped.set()
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()

"""BuildKit at the edge: one `docker buildx build`, its progress as it comes."""

import codecs
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from rocstack.edge.retry import Retry
from rocstack.image.build_failure import BuildFailure, explain
from rocstack.image.build_progress import BuildLine, BuildProgress, BuildStep
from rocstack.image.context import BuildContext
from rocstack.settings.site import Site

OnEvent = Callable[[BuildStep | BuildLine], None]
# buildx asks git about the context. Its folder may have come from somebody, together with a .git, whose settings name
# programs that git starts.
_NO_GIT = {"GIT_DIR": os.devnull}


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
    once: str = ""  # a value of its own: no step that another value made counts, for any target
    sources: Path | None = None  # a folder of archives, in place of the stage `sources`
    packages: Path | None = None  # a folder of kept packages, in place of the stage `packages`

    def command(self) -> list[str]:
        """What is run. Secrets come from the environment, so none is in the process list."""
        out = ["docker", "buildx", "build", "--builder", "default", "--progress", "rawjson", "--target", self.target]
        # Provenance holds times: with it the same build would be another image each time.
        out.append("--provenance=false")
        out += ["--build-arg", f"ROCSTACK_WORLD={self.world}"]
        if self.site.env:
            out += ["--secret", "id=site-env,env=ROCSTACK_SITE_ENV"]
        if self.site.ca:
            out += ["--secret", f"id=site-ca,{_field('src', self.site.ca)}"]
        if self.sources:
            out += ["--build-context", f"sources={self.sources}"]
        if self.packages:
            out += ["--build-context", f"packages={self.packages}"]
        if self.dest:
            out += ["--output", f"type=local,{_field('dest', self.dest)}"]
        for tag in self.tags:
            out += ["--tag", tag]
        for key, value in sorted(self.labels.items()):
            out += ["--label", f"{key}={value}"]
        if self.once:
            # Not --no-cache: after it a second target gets the steps of whichever build was cached first.
            out += ["--build-arg", f"ROCSTACK_ONCE={self.once}"]
        return [*out, str(self.context)]

    def shown(self) -> list[str]:
        """The command for a person: with the builder's own progress."""
        return ["plain" if word == "rawjson" else word for word in self.command()]


def _field(name: str, path: str | Path) -> str:
    """As one value of buildx's lists (CSV): a comma in a copied folder's path could name another file."""
    text = f"{name}={path}"
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if set(text) & set(',"') else text


class Buildkit:
    """Runs builds; `stop` (from another thread) ends them all, and what was finished stays in the cache."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = threading.Event()
        self._guard = threading.Lock()

    def retried(
        self,
        request: BuildkitRequest,
        context: BuildContext,
        attempts: int,
        note: Callable[[str], None],
        on_event: OnEvent = lambda event: None,
        newer_index: Callable[[str], str] | None = None,
    ) -> tuple[BuildkitRequest, int, BuildFailure | None]:
        """Runs until it works, fails for good, or the attempts are spent; gives the request as it ran last, and the
        number of attempts. Backoff: 5, 10, 20 ... 60 s. A stale index is fetched anew, once, where that is possible.

        Raises:
            BuildStopped: `stop` was called.
        """
        retry = Retry(attempts, first_s=5, longest_s=60, sleep=self.pause)
        fresh = False
        while True:
            code, progress = self.run(request, on_event)
            if code == 0:
                return request, retry.attempt, None
            failure = explain(progress, context)
            stale = failure.kind == "stale" and newer_index is not None
            if failure.kind == "permanent" or (stale and fresh) or retry.last:
                return request, retry.attempt, failure
            if stale and newer_index:
                fresh = True  # a file that a fresh index names and the mirror lacks is gone for good
                note("the package index is older than the mirror; fetching it anew")
                request = replace(request, world=newer_index(request.world))
                retry.attempt += 1
            else:
                note(f"{failure.error} (transient); trying again in {retry.pause_s:.0f} s")
                retry.wait()

    def run(self, request: BuildkitRequest, on_event: OnEvent) -> tuple[int, BuildProgress]:
        """Runs one build to its end and gives its exit status and all its progress.

        Raises:
            BuildStopped: `stop` was called.
        """
        progress = BuildProgress()
        env = {**os.environ, **_NO_GIT, "ROCSTACK_SITE_ENV": request.site.env_file()}
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
            BuildStopped: `stop` was called.
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

"""Builds the images of one stack and NIC: context, report stage, labels, image; retries and the report."""

import json
import shlex
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker

from rocstack.base import __version__, image_names
from rocstack.edge import locks
from rocstack.edge.retry import Retry
from rocstack.image.base_image import BaseImage
from rocstack.image.build_failure import BuildFailure, explain
from rocstack.image.build_progress import BuildLine, BuildStep
from rocstack.image.build_report import BuildReport, GateResult, ImageReport, StepTime, failure_report, over_budget
from rocstack.image.buildkit import Buildkit, BuildkitRequest
from rocstack.image.context import BuildContext
from rocstack.image.labels import content_digest, labels
from rocstack.node.gate import FITS, judge
from rocstack.node.image_facts import from_manifest
from rocstack.node.profile import NodeProfile
from rocstack.settings.settings import Settings
from rocstack.settings.site import Site
from rocstack.stack.component import Role
from rocstack.stack.lock import Lock, against_stack, base_drift, drift
from rocstack.stack.resolve import Resolved

OnEvent = Callable[[Role, BuildStep | BuildLine], None]
OnNote = Callable[[str], None]


@dataclass
class Build:
    """One run of `rocstack build`; `folder` holds its context, logs and reports."""

    client: docker.DockerClient
    resolved: Resolved
    lock: Lock | None
    context: BuildContext
    base: BaseImage
    settings: Settings
    site: Site
    folder: Path
    roles: tuple[Role, ...]
    nodes: tuple[NodeProfile, ...] = ()  # what the worker must fit
    frozen: bool = False
    no_cache: bool = False
    refresh: bool = False
    on_event: OnEvent = lambda role, event: None
    on_note: OnNote = lambda text: None
    _builder: Buildkit = field(default_factory=Buildkit)
    _failed: dict[str, Role] = field(default_factory=dict)  # step digest -> the role that reported it
    _world: str = ""
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def reference(self, role: Role) -> str:
        return image_name(self.settings, self.resolved, role)

    def run(self) -> BuildReport:
        """Builds every role.

        Raises:
            Missing: too little disk for a build from nothing.
        """
        waits = f"another build uses {self.folder}; waiting for it"
        with locks.file_lock(self.folder / ".building", lambda: self.on_note(waits)):
            report = self._run(time.monotonic())
            write_report(self.folder, report)
        return report

    def _run(self, started: float) -> BuildReport:
        self.context.write(self.folder / "context")
        self._world = self._index(self.refresh)
        with ThreadPoolExecutor(len(self.roles)) as pool:
            waiting = [pool.submit(self._image, role) for role in self.roles]
            try:
                images = tuple(future.result() for future in waiting)
            except BaseException:
                self._builder.stop()
                raise
        return BuildReport(
            rocstack=__version__,
            stack=self.resolved.stack.name,
            nic=self.resolved.nic.name,
            way=self.resolved.ways,
            base=self.base.reference,
            base_digest=self.base.digest,
            lock=self.lock.digest() if self.lock else None,
            world=self._world,
            context_digest=self.context.digest(),
            seconds=round(time.monotonic() - started, 2),
            images=images,
        )

    def _index(self, refresh: bool) -> str:
        """Which state of the distribution's index is meant: this week's, until a refresh is asked for."""
        file = self.folder / "world"
        now = datetime.now(UTC)
        week = f"{now.isocalendar().year}.{now.isocalendar().week:02d}"
        known = file.read_text().strip() if file.exists() else ""
        if refresh or not known.startswith(week):
            known = f"{week}-{now:%d%H%M%S}" if refresh else week
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(known + "\n")
        return known

    def _newer_index(self, seen: str) -> str:
        """The first image that finds its index too old fetches one for all, so that they still share layers."""
        with self._guard:
            if self._world == seen:
                self._world = self._index(refresh=True)
            return self._world

    def _image(self, role: Role) -> ImageReport:
        started = time.monotonic()
        log = self.folder / "logs" / f"{role}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        dest = self.folder / role
        steps: dict[str, BuildStep] = {}
        with log.open("w", buffering=1) as out:  # by line: somebody may watch it

            def event(item: BuildStep | BuildLine) -> None:
                step = item.step if isinstance(item, BuildLine) else item
                steps[step.digest] = step
                if isinstance(item, BuildLine):
                    out.write(f"[{step.stage}] {item.text}\n")
                self.on_event(role, item)

            request = BuildkitRequest(
                self.folder / "context", f"report-{role}", self._world, self.site, dest=dest, no_cache=self.no_cache
            )
            request, attempts, failure = self._retried(role, request, event)
            report = ImageReport(
                role=role,
                reference=self.reference(role),
                status="built",
                seconds=0,
                log=str(log),
                attempts=attempts,
            )
            if failure:
                return self._broken(report, role, request, failure, started)
            manifest = json.loads((dest / "manifest.json").read_text())
            report = self._described(report, manifest, steps)
            if role == "worker":
                report = report.model_copy(update={"gate": self._gate(report.reference, manifest)})
            refused = self._refusal(report)
            if refused:
                return self._broken(report, role, request, refused, started)
            content = content_digest(self.context.digest(), self.base, manifest)
            final = BuildkitRequest(
                self.folder / "context",
                role,
                request.world,
                self.site,
                tags=(self.reference(role),),
                labels=labels(self.resolved, role, self.base, self.lock, manifest, content, len(report.drift)),
            )
            final, _, failure = self._retried(role, final, event)
            if failure:
                return self._broken(report, role, final, failure, started)
        image = self.client.images.get(self.reference(role))
        return report.model_copy(update={"image_id": image.id, "seconds": round(time.monotonic() - started, 2)})

    def _retried(
        self, role: Role, request: BuildkitRequest, event: Callable[[BuildStep | BuildLine], None]
    ) -> tuple[BuildkitRequest, int, BuildFailure | None]:
        """Runs until it works, fails for good, or the attempts are spent; gives the request as it ran last.
        Backoff: 5, 10, 20 ... 60 s."""
        retry = Retry(self.settings.attempts, first_s=5, longest_s=60, sleep=self._builder.pause)
        fresh = False
        while True:
            code, progress = self._builder.run(request, event)
            if code == 0:
                return request, retry.attempt, None
            failure = explain(progress, self.context)
            again = failure.kind == "transient" or (failure.kind == "stale" and not fresh)
            if not again or retry.last:
                return request, retry.attempt, failure
            if failure.kind == "stale":
                fresh = True  # a file that a fresh index names and the mirror lacks is gone for good
                self.on_note(f"{role}: the package index is older than the mirror; fetching it anew")
                request = replace(request, world=self._newer_index(request.world))
                retry.attempt += 1
            else:
                self.on_note(f"{role}: {failure.first_error} (transient); trying again in {retry.pause_s:.0f} s")
                retry.wait()

    def _broken(
        self, report: ImageReport, role: Role, request: BuildkitRequest, failure: BuildFailure, started: float
    ) -> ImageReport:
        with self._guard:
            first = self._failed.setdefault(failure.digest or f"own-{role}", role)
        seconds = round(time.monotonic() - started, 2)
        if first != role:
            return report.model_copy(update={"status": "blocked", "blocked_by": first, "seconds": seconds})
        shown = failure_report(failure, shlex.join(request.shown()))
        return report.model_copy(update={"status": "failed", "failure": shown, "seconds": seconds})

    def _described(self, report: ImageReport, manifest: dict[str, Any], steps: dict[str, BuildStep]) -> ImageReport:
        shown = [s for s in steps.values() if s.seconds is not None and not s.stage.startswith(("internal", "export"))]
        return report.model_copy(
            update={
                "size_bytes": manifest["size"]["bytes"],
                "versions": manifest["versions"],
                "components": manifest["size"]["components"],
                "largest": manifest["size"]["largest_packages"],
                "smoke": {
                    name: (*seen["ok"], *(f"skipped: {text}" for text in seen["skipped"]))
                    for name, seen in manifest["smoke"].items()
                },
                "drift": (
                    *against_stack(self.resolved.stack, manifest["versions"]),
                    *(base_drift(self.lock, self.base.how, self.base.digest) if self.lock else ()),
                    *(drift(self.lock, manifest["packages"], manifest["wheels"]) if self.lock else ()),
                ),
                "steps": tuple(
                    StepTime(stage=s.stage, step=s.title, seconds=round(s.seconds or 0, 2), cached=s.cached)
                    for s in shown
                ),
            }
        )

    def _gate(self, reference: str, manifest: dict[str, Any]) -> tuple[GateResult, ...]:
        image = from_manifest(reference, manifest)
        verdicts = [judge(image, node) for node in self.nodes]
        return tuple(GateResult(node=each.node, result=each.result, says=each.sentence) for each in verdicts)

    def _refusal(self, report: ImageReport) -> BuildFailure | None:
        """What makes a whole image unwanted: drift under --frozen, a node that it doesn't fit, and its size."""
        if self.frozen and report.drift:
            first = report.drift[0]
            return _refused(
                "lock",
                f"{first.what} is {first.found}, the lock says {first.locked} ({len(report.drift)} differences)",
                "the distribution moved on since the lock was made",
                "`rocstack lock` pins what is there now; without --frozen the difference is only reported",
            )
        unfit = [verdict for verdict in report.gate if verdict.result != FITS]
        if unfit:
            more = f" (and {len(unfit) - 1} more nodes)" if len(unfit) > 1 else ""
            return _refused(
                "gate",
                f"{unfit[0].result}: {unfit[0].says}{more}",
                None,
                "`gate` in report.json has every node",
            )
        if report.role == "worker":
            size = over_budget(report, self.resolved.stack.budget_mb)
            if size:
                return _refused("size", size, None, "drop what grew, or raise budget_mb in the stack")
        return None


def image_name(settings: Settings, resolved: Resolved, role: Role) -> str:
    """What an image is called on this host."""
    return image_names.built_name(settings.image_prefix, role, resolved.stack.name, resolved.nic.name)


def write_report(folder: Path, report: BuildReport) -> None:
    """report.json and report.xml (JUnit) of the last build."""
    (folder / "report.json").write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    (folder / "report.xml").write_text(report.to_junit())


def _refused(stage: str, error: str, cause: str | None, next_step: str) -> BuildFailure:
    return BuildFailure(
        stage=stage,
        step="",
        digest="",
        kind="permanent",
        first_error=error,
        context=(),
        template=None,
        dockerfile_line=None,
        cause=cause,
        next_step=next_step,
    )

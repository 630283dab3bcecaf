"""Builds the images of one stack and NIC: context, report stage, labels, image; and the report."""

import json
import shlex
import shutil
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
from rocstack.image import image_manifest, sources
from rocstack.image.base_image import BaseImage
from rocstack.image.build_failure import BuildFailure
from rocstack.image.build_progress import BuildLine, BuildStep
from rocstack.image.build_report import BuildReport, GateResult, ImageReport, StepTime, over_budget
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
    sources: tuple[Path, ...] = ()  # archives that are not downloaded
    packages: Path | None = None  # kept ones, instead of the mirror
    nodes: tuple[NodeProfile, ...] = ()  # what the worker must fit
    why: str = ""  # this stack, where it was chosen for the nodes
    rehearsal: str = ""  # what the worker lacks for the nodes' GPUs
    frozen: bool = False
    no_cache: bool = False
    refresh: bool = False
    on_event: Callable[[Role, BuildStep | BuildLine], None] = lambda role, event: None
    on_note: Callable[[str], None] = lambda text: None
    _builder: Buildkit = field(default_factory=Buildkit)
    _failed: dict[str, Role] = field(default_factory=dict)  # step digest -> the role that reported it
    _world: str = ""
    _once: str = ""  # of a build without the cache
    _sources: Path | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> BuildReport:
        """Builds every role.

        Raises:
            Missing: too little disk for a build from nothing.
        """
        waits = f"another build uses {self.folder}; waiting for it"
        with locks.file_lock(self.folder / ".building", lambda: self.on_note(waits)):
            started = time.monotonic()
            self.context.write(self.folder / "context")
            self._sources = sources.place(self.sources, self.folder / "sources") if self.sources else None
            self._world = self._index(self.refresh)
            self._once = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}" if self.no_cache else ""
            with ThreadPoolExecutor(len(self.roles)) as pool:
                waiting = [pool.submit(self._image, role) for role in self.roles]
                try:
                    images = tuple(future.result() for future in waiting)
                except BaseException:
                    self._builder.stop()
                    raise
            report = BuildReport(
                rocstack=__version__,
                stack=self.resolved.stack.name,
                why=self.why,
                rehearsal=self.rehearsal,
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
            write_report(self.folder, report)
        return report

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
        dest, context = self.folder / role, self.folder / "context"
        reference = image_name(self.settings, self.resolved, role)
        steps: dict[str, BuildStep] = {}
        with log.open("w", buffering=1) as out:  # by line: somebody may watch it

            def event(item: BuildStep | BuildLine) -> None:
                step = item.step if isinstance(item, BuildLine) else item
                steps[step.digest] = step
                if isinstance(item, BuildLine):
                    out.write(f"[{step.stage}] {item.text}\n")
                self.on_event(role, item)

            def retried(request: BuildkitRequest) -> tuple[BuildkitRequest, int, BuildFailure | None]:
                tries, note = self.settings.attempts, lambda text: self.on_note(f"{role}: {text}")
                return self._builder.retried(request, self.context, tries, note, event, self._newer_index)

            request = BuildkitRequest(
                context,
                f"report-{role}",
                self._world,
                self.site,
                dest=dest,
                once=self._once,
                sources=self._sources,
                packages=self.packages,
            )
            shutil.rmtree(dest, ignore_errors=True)  # of the last build
            request, attempts, failure = retried(request)
            report = ImageReport(role=role, reference=reference, log=str(log), attempts=attempts)
            manifest: dict[str, Any] = {}
            if not failure:
                manifest, failure = _manifest(dest)
            if not failure:
                report = self._described(report, manifest, steps)
                failure = self._refusal(report)
            if not failure:
                mark = self.rehearsal if role == "worker" else ""
                content = content_digest(self.context.digest(), self.base, manifest, mark)
                own = labels(self.resolved, role, self.base, self.lock, manifest, content, len(report.drift), mark)
                request = replace(request, target=role, dest=None, tags=(reference,), labels=own)
                request, _, failure = retried(request)
        if failure:
            with self._guard:
                first = self._failed.setdefault(failure.digest or f"own-{role}", role)
            failure = failure.model_copy(update={"reproduce": shlex.join(request.shown())})
            ends: dict[str, Any] = {"status": "failed", "failure": failure}
            if first != role:
                ends = {"status": "blocked", "blocked_by": first}
        else:
            ends = {"image_id": self.client.images.get(reference).id}
        return report.model_copy(update={**ends, "seconds": round(time.monotonic() - started, 2)})

    def _described(self, report: ImageReport, manifest: dict[str, Any], steps: dict[str, BuildStep]) -> ImageReport:
        own = [s for s in steps.values() if s.seconds is not None and not s.stage.startswith(("internal", "export"))]
        image = from_manifest(report.reference, manifest)
        verdicts = [judge(image, node) for node in self.nodes] if report.role == "worker" else []
        drifted = against_stack(self.resolved.stack, manifest["versions"])
        if self.lock:
            drifted += base_drift(self.lock, self.base.how, self.base.digest)
            drifted += drift(self.lock, manifest["packages"], manifest["wheels"])
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
                "drift": drifted,
                "steps": tuple(
                    StepTime(stage=s.stage, step=s.title, seconds=round(s.seconds or 0, 2), cached=s.cached)
                    for s in own
                ),
                "gate": tuple(GateResult(node=v.node, result=v.result, says=v.sentence) for v in verdicts),
            }
        )

    def _refusal(self, report: ImageReport) -> BuildFailure | None:
        """What makes a whole image unwanted: drift under --frozen, a node that it doesn't fit, and its size."""
        if self.frozen and report.drift:
            first = report.drift[0]
            return BuildFailure(
                stage="lock",
                error=f"{first.what} is {first.found}, the lock says {first.locked} ({len(report.drift)} differences)",
                cause="the distribution moved on since the lock was made",
                next_step="`rocstack lock` pins what is there now; without --frozen the difference is only reported",
            )
        unfit = [verdict for verdict in report.gate if verdict.result != FITS]
        if unfit:
            more = f" (and {len(unfit) - 1} more nodes)" if len(unfit) > 1 else ""
            error = f"{unfit[0].result}: {unfit[0].says}{more}"
            return BuildFailure(stage="gate", error=error, next_step="`gate` in report.json has every node")
        size = over_budget(report, self.resolved.stack.budget_mb) if report.role == "worker" else None
        if size:
            step = "drop what grew, or raise budget_mb in the stack"
            return BuildFailure(stage="size", error=size, next_step=step)
        return None


def _manifest(folder: Path) -> tuple[dict[str, Any], BuildFailure | None]:
    try:
        return image_manifest.read(folder), None
    except ValueError as error:
        return {}, BuildFailure(
            stage="manifest",
            error=f"the image's manifest can't be read: {error}",
            cause="the base image holds something in its place, or its programs say what they never do",
            next_step="build on another base image",
        )


def image_name(settings: Settings, resolved: Resolved, role: Role) -> str:
    """What an image is called on this host."""
    return image_names.built_name(settings.image_prefix, resolved.called(role), resolved.stack.name, resolved.nic.name)


def write_report(folder: Path, report: BuildReport) -> None:
    """report.json and report.xml (JUnit) of the last build."""
    (folder / "report.json").write_text(json.dumps(report.to_dict(), indent=1) + "\n")
    (folder / "report.xml").write_text(report.to_junit())

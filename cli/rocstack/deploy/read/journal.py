"""What was deployed, and what is being: one JSON file on the control node, so that it outlives the operator's machine.

Pure: every change gives a new journal; `ClusterLock.write` brings its text to the control node.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.base.levels import HARDWARE, Level
from rocstack.base.text import from_json
from rocstack.base.words import ImageId, Value
from rocstack.deploy.nodes.image import Image
from rocstack.edge.locks import LockSpec
from rocstack.node.cluster_lock import FENCE
from rocstack.node.image_facts import LABEL_PREFIX

FOLDER = "/var/lib/rocstack"  # on the control node
PATH = f"{FOLDER}/deploy.json"
SCHEMA = 4  # 1 had no `verified` but None, 2 no `signers`, 3 no service
KEPT = 20  # releases
Step = Literal["pending", "shipped", "drained", "started", "done", "failed"]
_TOUCHED: frozenset[Step] = frozenset({"drained", "started", "done", "failed"})


def lock(folder: str = FOLDER, resume: str = "rocstack deploy --resume") -> LockSpec:
    """The lock of whoever changes the cluster; only its holder writes the journal. `resume` is the command that goes on
    where the lock was lost."""
    return LockSpec(
        path=f"{folder}/deploy.lock",
        work="deploy",
        resume=f"`{resume}`",
        file=f"{folder}/deploy.json",
        fence=f"{folder}/{FENCE}",
        history=f"{folder}/history.jsonl",
    )


class JournalImages(Value):
    """A worker and a control image, and the service's where there is one. `id` is the image's, the same at every
    engine; `reference` says where from. On the operator's machine images are looked up and files named by ids, and the
    control node must not name anything else."""

    worker_id: ImageId
    control_id: ImageId
    worker_reference: str = ""
    control_reference: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict)  # the worker's that a person asks for: stack, nic, content
    control_labels: Mapping[str, str] = Field(default_factory=dict)
    signers: tuple[Annotated[str, Field(max_length=100)], ...] = ()  # of all, by the policy of whoever deployed them
    service_id: ImageId | None = None
    service_reference: str = ""
    service_labels: Mapping[str, str] = Field(default_factory=dict)

    @classmethod
    def of(cls, images: Mapping[str, Image]) -> JournalImages:
        """From images by role."""
        worker, control, service = images["worker"], images["control"], images.get("service")
        own: dict[str, Any] = {}
        if service:
            reference, labels = service.reference or "", dict(service.labels)
            own = {"service_id": service.id, "service_reference": reference, "service_labels": labels}
        return cls(
            worker_id=worker.id,
            control_id=control.id,
            worker_reference=worker.reference or "",
            control_reference=control.reference or "",
            labels=dict(worker.labels),
            control_labels=dict(control.labels),
            signers=tuple(name for name in worker.signers if all(name in each.signers for each in images.values())),
            **own,
        )

    def by_role(self) -> dict[str, Image]:
        """What they are called on this machine isn't known."""
        worker, control = self.worker_id, self.control_id
        labels = {f"{LABEL_PREFIX}role": "control", **self.control_labels}
        images = {
            "worker": Image("worker", worker, worker[7:19], self.labels, reference=self.worker_reference or None),
            "control": Image("control", control, control[7:19], labels, reference=self.control_reference or None),
        }
        if service := self.service_id:
            reference = self.service_reference or None
            images["service"] = Image("service", service, service[7:19], self.service_labels, reference=reference)
        return images

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.worker_id, self.control_id, *([self.service_id] if self.service_id else []))

    def same(self, other: JournalImages) -> bool:
        return self.ids == other.ids

    def same_cluster(self, other: JournalImages) -> bool:
        """Whether nodes run the same, whatever the service is: what the acceptance suite proved of one holds."""
        return (self.worker_id, self.control_id) == (other.worker_id, other.control_id)


class VerifiedLevel(Value):
    """What the acceptance suite proved of images. `virtual`: not all of its nodes were real, and what it says of GPUs
    and fabric is then about emulated ones; `report` is the run's id."""

    level: Level
    when: str  # UTC, ISO 8601
    virtual: bool = False
    report: str = ""

    @property
    def text(self) -> str:
        return f"level {self.level}" + (", virtual" if self.virtual and self.level >= HARDWARE else "")

    def holds(self, level: int, virtual: bool) -> bool:
        """Whether it says `level` of the images; `virtual`: of nodes that all are."""
        return self.level >= level and (virtual or not self.virtual or level < HARDWARE)


class Release(Value):
    """Images that were deployed. `verified` is None where no level was proved."""

    images: JournalImages
    when: str  # UTC, ISO 8601
    who: str
    healthy: bool
    verified: VerifiedLevel | None = None

    @property
    def basis(self) -> str:
        """Why one would go back to it."""
        health = "healthy" if self.healthy else "not healthy"
        return f"verified ({self.verified.text})" if self.verified else f"{health}, never verified"


class NodeStep(Value):
    step: Step = "pending"
    reason: str = ""  # why it failed
    seconds: float = 0.0  # not counted; a journal has the field


class Deploy(Value):
    """A deploy that has begun. `options` are those of the command line, as `--resume` needs them."""

    id: str
    who: str
    started: str  # UTC, ISO 8601
    images: JournalImages
    options: Mapping[str, Any] = Field(default_factory=dict)
    nodes: Mapping[str, NodeStep] = Field(default_factory=dict)

    def at(self, *steps: Step) -> tuple[str, ...]:
        """The nodes whose last step is one of these."""
        return tuple(name for name, node in self.nodes.items() if node.step in steps)


class Journal(Value):
    """`releases` from the oldest to the newest; `current` is a deploy that hasn't ended: it runs, was interrupted, or
    stopped by its budget."""

    releases: tuple[Release, ...] = ()
    current: Deploy | None = None

    def begin(self, deploy: Deploy) -> Journal:
        """Another deploy begins. One of other images that never ended, and reached a node, is kept as a release that
        isn't healthy."""
        gone, releases = self.current, self.releases
        if gone and not gone.images.same(deploy.images) and gone.at(*_TOUCHED):
            left = Release(images=gone.images, when=gone.started, who=gone.who, healthy=False)
            releases = _appended(releases, left)
        return Journal(releases=releases, current=deploy)

    def note(self, node: str, step: Step, reason: str = "") -> Journal:
        """A node has come to `step`.

        Raises:
            ValueError: no deploy is under way.
        """
        deploy = self._current()
        nodes = {**deploy.nodes, node: NodeStep(step=step, reason=reason)}
        return self.model_copy(update={"current": deploy.model_copy(update={"nodes": nodes})})

    def finish(self, when: str) -> Journal:
        """The deploy has ended: its images are a release, healthy if every node is done. With nodes that it didn't
        come to (it was stopped), it stays resumable.

        Raises:
            ValueError: no deploy is under way.
        """
        deploy = self._current()
        if deploy.at("pending", "shipped", "drained", "started"):
            return self
        release = Release(images=deploy.images, when=when, who=deploy.who, healthy=not deploy.at("failed"))
        return Journal(releases=_appended(self.releases, release))

    def verified(self, level: VerifiedLevel | None) -> Journal:
        """The acceptance suite proved this of the newest release; None: nothing any more.

        Raises:
            ValueError: there is no release, or another deploy is under way.
        """
        if not self.releases or self.current:
            raise ValueError("nothing to verify")
        newest = self.releases[-1].model_copy(update={"verified": level})
        return self.model_copy(update={"releases": (*self.releases[:-1], newest)})

    def unfinished(self) -> JournalImages | None:
        """What `--resume` goes on with: such a deploy's images, or those of the last one if a node of it failed."""
        if self.current:
            return self.current.images
        last = self.releases[-1:]
        return last[0].images if last and not last[0].healthy else None

    def rollback_target(self, *, service: bool = True) -> Release | None:
        """The last verified release before the present one, else the last healthy one; `basis` says which it is.
        Without `service` a release that has another one, and nothing else, is no other release."""
        present = self.current.images if self.current else self.releases[-1].images if self.releases else None
        same = JournalImages.same if service else JournalImages.same_cluster
        before = [each for each in reversed(self.releases) if present and not same(each.images, present)]
        verified = (each for each in before if each.verified)
        return next(verified, next((each for each in before if each.healthy), None))

    def kept_ids(self, count: int = 1) -> frozenset[str]:
        """Images that no clean-up may remove: the last `count` releases', the running deploy's, the rollback
        target's."""
        target = self.rollback_target()
        kept = [release.images for release in (*self.releases[-count:], *([target] if target else []))]
        kept += [self.current.images] if self.current else []
        return frozenset(name for images in kept for name in images.ids)

    def service_image(self) -> Image | None:
        """The newest that is known."""
        known = [self.current.images] if self.current else []
        known += [release.images for release in reversed(self.releases)]
        return next((images.by_role()["service"] for images in known if images.service_id), None)

    def digest(self) -> str:
        """What the history's signed line says of it. What the acceptance suite proved isn't part of it: that may come
        later, from somebody who signs nothing. A default says nothing, so a newer rocstack comes to the same."""
        data = self.model_dump(mode="json", exclude_defaults=True, exclude={"releases": {"__all__": {"verified"}}})
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def dumps(self) -> str:
        """As the oldest rocstack that knows all of it reads it."""
        own = ("service_id", "service_reference", "service_labels")
        data = self.model_dump(mode="json")
        rows = [release["images"] for release in data["releases"]]
        rows += [data["current"]["images"]] if data["current"] else []
        served = any(row["service_id"] for row in rows)
        for row in rows:
            for key in own if row["service_id"] is None else ():
                del row[key]
        return json.dumps({"schema": SCHEMA if served else SCHEMA - 1, **data}, indent=1) + "\n"

    def _current(self) -> Deploy:
        if self.current is None:
            raise ValueError("no deploy is under way")
        return self.current


def loads(journal: str | Mapping[str, Any] | None) -> Journal:
    """The journal that the control node has, as text or as a probe brought it; an empty one where it has none.

    Raises:
        CheckFailed: a newer rocstack wrote it.
        BadInput: it isn't one.
    """
    text = journal if isinstance(journal, str) else json.dumps(journal) if journal else ""
    if not text.strip():
        return Journal()
    try:
        data = from_json(text)
        schema = data.pop("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            raise CheckFailed.of("journal-newer", version=schema, known=SCHEMA)
        return Journal.model_validate_json(json.dumps(data))
    except (ValueError, KeyError, AttributeError, TypeError):  # ValueError: also pydantic's
        raise BadInput.of("bad-journal", file=PATH) from None


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _appended(releases: tuple[Release, ...], newest: Release) -> tuple[Release, ...]:
    """The same images again are the same release, and what was verified of the nodes' stays so. Old ones go, but for
    the one to go back to."""
    if releases and releases[-1].images.same_cluster(newest.images):
        newest = newest.model_copy(update={"verified": releases[-1].verified})
        if releases[-1].images.same(newest.images):
            releases = releases[:-1]
    releases = (*releases, newest)
    target = Journal(releases=releases).rollback_target()
    kept = releases[-KEPT:]
    return (target, *kept[1:]) if target and target not in kept else kept

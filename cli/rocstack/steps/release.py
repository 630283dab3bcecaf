"""Release: a matrix of images that is built, signed, proved, and then tagged as a whole or not at all."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rocstack.base import __version__, image_names
from rocstack.base.errors import CheckFailed
from rocstack.base.text import listed
from rocstack.edge import engine, files
from rocstack.edge.locks import file_lock
from rocstack.image import image_manifest
from rocstack.image.build_report import BuildReport, ImageReport
from rocstack.registry.layers import sha256
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import media_type, parse_manifest
from rocstack.registry.publish import PackedLayers
from rocstack.registry.push import push
from rocstack.release import catalog, plan, record
from rocstack.release.catalog import Listed
from rocstack.release.plan import ReleaseEntry, ReleaseFile
from rocstack.release.provenance import Builder, measured_in, provenance
from rocstack.release.record import ReleasedImage, ReleaseRecord
from rocstack.release.report import measured
from rocstack.release.sbom import packages_of, sbom
from rocstack.release.site import ReleaseSite
from rocstack.settings.settings import Settings
from rocstack.stack.component import Role
from rocstack.steps.options import BuildOptions, settings
from rocstack.steps.release_access import Password, open_site, signing_keys, trusted_keys
from rocstack.steps.release_check import attest_report
from rocstack.steps.release_options import ReleaseOptions
from rocstack.steps.release_plan import EntryPlan, plan_entry
from rocstack.trust.envelope import PROVENANCE, SBOM
from rocstack.trust.keys import SigningKey
from rocstack.trust.signing import sign_image
from rocstack.trust.verification import SignedEvidence, Untrusted
from rocstack.verify import result

FAR = 300  # seconds that this machine's clock may differ from the registry's


@dataclass(frozen=True)
class ReleaseWork:
    """How a release builds and what it says. `build` is `steps.build.build` with somebody's display."""

    build: Callable[[BuildOptions, str], BuildReport]
    note: Callable[[str], None]
    password: Password


@dataclass(frozen=True)
class ReleaseResult:
    """`changed` is False where nothing was to be done. `stable` is the release that was promoted to that name last."""

    release: ReleaseRecord
    changed: bool
    stable: str | None = None
    folder: Path | None = None
    changes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        changes = {name: list(found) for name, found in self.changes.items()}
        about = {"changed": self.changed, "changes": changes, "stable": self.stable}
        return {**about, **self.release.model_dump(mode="json")}


@dataclass(frozen=True)
class BuiltEntries:
    """What was built and tested, and not published."""

    reports: tuple[BuildReport, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"changed": False, "built": [report.to_dict() for report in self.reports]}


def release(options: ReleaseOptions, work: ReleaseWork) -> ReleaseResult | BuiltEntries:
    """Builds, pushes, signs and attests what release.yml names, then tags all of it. What was done before is kept, so
    that a release that broke off goes on, and an unchanged one ends at once.

    Raises:
        BadInput: something is wrong with release.yml, a key, the report, or an entry's stack, NIC or lock.
        Missing: no engine, no registry, or no login.
        CheckFailed: an image failed; a tag names another image; the registry doesn't have what was sent. Then no tag
            of the release was made.
    """
    file = ReleaseFile.load(options.file)
    chosen = settings(push="")
    tag = options.tag or image_names.week_tag(datetime.now(UTC).date())
    for entry in file.plan.images:
        plan.tags(entry, tag)
    entries = [plan_entry(file, at, chosen, work.note) for at in range(len(file.plan.images))]
    if options.build_only:
        return _built(entries, file, work)
    run = result.read(options.report) if options.report else None
    keys = signing_keys(file, options.key, options.password_file, work.password)
    folder = Path(chosen.out) / "release"
    waits = f"another release runs in {folder}; waiting for it"
    with (
        file_lock(folder / ".running", lambda: work.note(waits)),
        open_site(file, options.registry, settings(), trusted_keys(file, (), keys), work.note) as site,
    ):
        _refuse_clock(site, tag, options.tag)
        if not options.move_tags:
            site.refuse_others(tag)
        latest, stable = _listed(site, plan.LATEST), _listed(site, plan.STABLE)
        promoted = stable.release.tag if stable else None
        for each in entries:
            _find_done(each, site, keys)
        due = [each for each in entries if len(each.done) < len(each.inputs)]
        listed_by_all = latest and {key.public.fingerprint for key in keys} <= {*latest.signers}
        if not due and latest and listed_by_all and not run and _is_as(latest.release, entries, options.tag, site):
            return ReleaseResult(latest.release, changed=False, stable=promoted)
        for role in sorted({role for each in entries for role in each.inputs} | {"release"}):
            site.repository(role).check_access()
        _make_all(due, file, site, keys, chosen, work)
        images = [_with_tags(image, each.entry, tag) for each in entries for image in each.images]
        if run:
            attest_report(run, images, site, keys)
        before = latest.release if latest else None
        made = ReleaseRecord(
            tag=tag, created=_stamp(), rocstack=__version__, registry=str(site.target), images=tuple(images),
            previous=_previous(before, tag),
        )  # fmt: skip
        site.publish(made, keys, move=options.move_tags)
        _write(folder, made, before, keys, measured(run) if run else "")
        return ReleaseResult(made, True, promoted, folder, record.changes(before, made) if before else {})


def _refuse_clock(site: ReleaseSite, tag: str, asked: str | None) -> None:
    """A week's tag and the times in a provenance come from this machine's clock.

    Raises:
        CheckFailed: it differs from the registry's, or a later week was released already.
    """
    theirs = site.catalog.clock()
    if theirs and abs((datetime.now(UTC) - theirs).total_seconds()) > FAR:
        raise CheckFailed.of("clock-off", here=_stamp(), there=f"{theirs:%Y-%m-%dT%H:%M:%SZ}", host=site.target.host)
    last = plan.newest(site.catalog.tags())
    if last and not asked and last > tag:
        raise CheckFailed.of("older-week", tag=tag, last=last)


# What is there already


def _listed(site: ReleaseSite, name: str) -> Listed | None:
    try:
        return catalog.find(site.catalog, name, site.trusted, denied_is_absent=True)
    except Untrusted as error:
        site.note(f"the {name} release counts for nothing: {error.what}")
        return None


def _find_done(each: EntryPlan, site: ReleaseSite, keys: Sequence[SigningKey]) -> None:
    """Which images of an entry are signed already: by the last release, or by one that broke off. What an earlier key
    signed that is trusted still gets the signatures of today's keys."""
    own = {key.public.fingerprint for key in keys}
    for role, inputs in each.inputs.items():
        try:
            data = site.repository(role).manifest(_inputs_tag(inputs), denied_is_absent=True)
            if data is not None:
                found = site.proved(role, sha256(data), inputs)
                if any(not own <= {*signers} for signers in (found.signers, *(a.signers for a in found.attestations))):
                    site.note(f"signing {found.reference} with the keys of today")
                    sign_image(site.repository(role), sha256(data), keys, {}, site.trusted)
                    found = site.proved(role, sha256(data), inputs)
                each.done[role] = _image_of(each, role, site, data, found)
        except CheckFailed as error:
            if not isinstance(error, Untrusted) and error.code not in (
                "digest-differs",
                "foreign-provenance",
                "foreign-sbom",
            ):
                raise
            site.note(f"{each.entry.variant} {role} is made again: {error.what}")


def _image_of(each: EntryPlan, role: Role, site: ReleaseSite, data: bytes, found: SignedEvidence) -> ReleasedImage:
    """What release.json says of an image that is there, from what was signed of it."""
    config, layers = parse_manifest(data)
    value, lock = each.image.resolved, each.image.lock
    assert lock is not None
    measured = measured_in(found.predicates(PROVENANCE)[-1])
    return ReleasedImage(
        stack=value.stack.name, nic=value.nic.name, way=value.ways, role=role, variant=each.entry.variant,
        repository=site.repository(role).reference, digest=sha256(data), id=config, inputs=each.inputs[role],
        lock=lock.digest(), content=measured.content, size=measured.size,
        compressed=sum(layer.size for layer in layers), versions=measured.versions,
        packages=packages_of(found.predicates(SBOM)[-1]), tags=(),
    )  # fmt: skip


def _is_as(latest: ReleaseRecord, entries: Sequence[EntryPlan], asked: str | None, site: ReleaseSite) -> bool:
    """Is the last release what would be released now, under the tags that it has?"""
    now = [_with_tags(image, each.entry, latest.tag) for each in entries for image in each.images]
    names = [(image.called, image.digest, image.tags) for image in now]
    if (asked or latest.tag) != latest.tag or names != [(i.called, i.digest, i.tags) for i in latest.images]:
        return False
    wrong = [text for image in latest.images for text, _ in site.moved(image)]
    for text in wrong:
        site.note(f"{text} names another image")
    return not wrong


# What is made


def _built(entries: Sequence[EntryPlan], file: ReleaseFile, work: ReleaseWork) -> BuiltEntries:
    """
    Raises:
        CheckFailed: an entry's images failed; the first of them.
    """
    reports = []
    for number, each in enumerate(entries, 1):
        report = work.build(each.options, f"{each.entry.variant} ({number} of {len(entries)})")
        if why := _failure(report):
            where = file.where("images", each.at)
            raise CheckFailed.of("entry-failed", where, why=why, log=each.image.folder / "logs")
        reports.append(report)
    return BuiltEntries(tuple(reports))


def _make_all(
    due: Sequence[EntryPlan], file: ReleaseFile, site: ReleaseSite, keys: Sequence[SigningKey], chosen: Settings,
    work: ReleaseWork,
) -> None:  # fmt: skip
    """Every entry is tried, so that the next run has less to do.

    Raises:
        CheckFailed: some failed, or what the registry has can't be trusted.
    """
    failed: list[tuple[EntryPlan, CheckFailed]] = []
    for number, each in enumerate(due, 1):
        try:
            _make(each, site, keys, chosen, work, f"{each.entry.variant} ({number} of {len(due)})")
        except Untrusted:
            raise
        except CheckFailed as error:
            failed.append((each, error))
            work.note(f"{each.entry.variant} failed: {error.what}")
    if failed:
        first, cause = failed[0]
        names = listed(each.entry.variant for each, _ in failed)
        raise CheckFailed.of(
            "release-incomplete", file.where("images", first.at), names=names, done=len(due) - len(failed),
            cause=f"{first.entry.variant}: {cause.what}", step=cause.next_step or "correct it",
        )  # fmt: skip


def _make(
    each: EntryPlan, site: ReleaseSite, keys: Sequence[SigningKey], chosen: Settings, work: ReleaseWork, title: str
) -> None:
    """Builds an entry's images; pushes, signs and proves those that are not there.

    Raises:
        CheckFailed: an image failed, or the registry refused it.
    """
    started = datetime.now(UTC)
    report = work.build(each.options, title)
    if why := _failure(report):
        raise CheckFailed.of("entry-failed", why=why, log=each.image.folder / "logs")
    client = engine.connect()
    packed = PackedLayers(Path(chosen.out) / "push" / "packed")
    siblings: list[str] = []
    for image in report.images:
        role: Role = image.role  # type: ignore[assignment]  # of a report that we made
        repository = site.repository(role)
        if role not in each.done:
            built = image.image_id or image.reference  # by its id: the name may be another image's by now
            content = client.images.get(built).labels["io.rocstack.content"]
            name = image_names.content_tag(content)
            with LocalImage.find(client, built) as source:
                digest = push(source, repository, name, (), work.note, siblings=siblings, packed_layers=packed)
            predicates = _said(each, site, report, image, digest, content, started)
            work.note(f"signing {repository.reference}@{digest}")
            sign_image(repository, digest, keys, predicates)
            found = site.proved(role, digest, each.inputs[role])
            data = repository.manifest(digest) or b""
            repository.put_manifest(_inputs_tag(each.inputs[role]), data, media_type(data))
            each.done[role] = _image_of(each, role, site, data, found)
        siblings.append(repository.name)


def _said(
    each: EntryPlan, site: ReleaseSite, report: BuildReport, image: ImageReport, digest: str, content: str,
    started: datetime,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """The attestations of an image, by predicate type."""
    role: Role = image.role  # type: ignore[assignment]
    value, lock, manifest = each.image.resolved, each.image.lock, image_manifest.read(each.image.folder / role)
    assert lock is not None
    asked = each.entry.model_dump(mode="json", exclude_defaults=True, include={"methods", "gfx", "nic_releases"})
    said = provenance(
        value, lock, manifest, role=role, inputs=each.inputs[role], content=content, size=image.size_bytes or 0,
        base=(report.base, report.base_digest), context=report.context_digest,
        asked={**asked, "variant": each.entry.variant}, builder=Builder.of(os.environ), started=started,
        finished=datetime.now(UTC),
    )  # fmt: skip
    where = site.repository(role).reference
    return {PROVENANCE: said, SBOM: sbom(value, lock, manifest, repository=where, digest=digest, role=role)}


def _failure(report: BuildReport) -> str:
    """Why a build gave no images; empty if it gave all."""
    failures = [f"{image.role}: {image.failure.error}" for image in report.images if image.failure]
    return failures[0] if failures else "" if report.ok else "an image was not built"


def _with_tags(image: ReleasedImage, entry: ReleaseEntry, tag: str) -> ReleasedImage:
    return image.model_copy(update={"tags": plan.tags(entry, tag)})


def _previous(before: ReleaseRecord | None, tag: str) -> str | None:
    if before is None:
        return None
    return before.tag if before.tag != tag else before.previous


def _write(
    folder: Path, made: ReleaseRecord, before: ReleaseRecord | None, keys: Sequence[SigningKey], more: str
) -> None:
    """release.json, a signature of it for each key (as `cosign sign-blob` makes it), and the notes."""
    folder.mkdir(parents=True, exist_ok=True)
    text = made.dumps()
    files.write(folder / "release.json", text)
    for key in keys:
        mark = base64.b64encode(key.sign(text.encode())).decode()
        files.write(folder / f"release.json.{Path(key.name).stem}.sig", f"{mark}\n")
    files.write(folder / "notes.md", record.notes(made, before, [key.public.fingerprint for key in keys], more))


def _inputs_tag(inputs: str) -> str:
    return f"i-{inputs[:32]}"


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

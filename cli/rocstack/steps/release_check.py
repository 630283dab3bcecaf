"""Verify a release in its registry; promote one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocstack.base import image_names
from rocstack.base.errors import BadInput, CheckFailed
from rocstack.edge import files
from rocstack.release import catalog
from rocstack.release.plan import LATEST, WEEK, ReleaseFile
from rocstack.release.record import ReleasedImage, ReleaseRecord
from rocstack.release.report import measured, predicate
from rocstack.release.site import REQUIRED, ReleaseSite, Verified
from rocstack.steps.options import Note, ignore, settings
from rocstack.steps.release_access import Password, open_site, signing_keys, trusted_keys
from rocstack.steps.release_options import PromoteOptions, ReleaseVerifyOptions
from rocstack.trust.envelope import VERIFY_REPORT
from rocstack.trust.keys import SigningKey
from rocstack.trust.signing import sign_image
from rocstack.trust.verification import verify
from rocstack.verify import result
from rocstack.verify.result import Run


@dataclass(frozen=True)
class VerifiedRelease:
    release: ReleaseRecord
    signers: tuple[str, ...]
    images: tuple[Verified, ...]

    @property
    def ok(self) -> bool:
        return all(each.error is None for each in self.images)

    def to_dict(self) -> dict[str, Any]:
        about = {"tag": self.release.tag, "promoted": self.release.promoted, "created": self.release.created}
        return {**about, "ok": self.ok, "signers": self.signers, "images": [_as_dict(each) for each in self.images]}


@dataclass(frozen=True)
class Promotion:
    """`changed` is False where the name had these images already."""

    release: ReleaseRecord
    before: ReleaseRecord | None
    changed: bool

    def to_dict(self) -> dict[str, Any]:
        before = self.before.tag if self.before else None
        return {"changed": self.changed, "before": before, **self.release.model_dump(mode="json")}


def verify_release(options: ReleaseVerifyOptions, note: Note = ignore) -> VerifiedRelease:
    """Checks a release in its registry, by digest: its list, its tags, and each image's signature, attestations and
    layers. Needs no engine and no private key.

    Raises:
        BadInput: something is wrong with release.yml or a key; there is no such release.
        Missing: no registry, or no login.
        Untrusted: the list itself can't be trusted.
    """
    stated = bool(options.registry and options.key)
    file = None if stated and not options.file.exists() else ReleaseFile.load(options.file)
    with open_site(file, options.registry, settings(), trusted_keys(file, options.key), note) as site:
        found = site.listed(options.tag or LATEST)
        images = tuple(site.verified(found.release, whole=options.layers))
        return VerifiedRelease(found.release, found.signers, images)


def promote(options: PromoteOptions, password: Password, note: Note = ignore) -> Promotion:
    """Verifies a release again, then moves `to` and the tags `<variant>-<to>` to its images.

    Raises:
        BadInput: something is wrong with release.yml, a key or the report; there is no such release.
        Missing: no registry, or no login.
        Untrusted, CheckFailed: something of the release is not as it was signed, or the report proves nothing. Nothing
            was moved then.
    """
    file, to = ReleaseFile.load(options.file), options.to
    if WEEK.fullmatch(to) or to in (LATEST, options.tag):
        raise BadInput.of("bad-promotion", tag=to)
    image_names.variant_tags("name", to, bare=True)
    run = result.read(options.report) if options.report else None
    keys = signing_keys(file, options.key, options.password_file, password)
    with open_site(file, options.registry, settings(), trusted_keys(file, (), keys), note) as site:
        release = site.listed(options.tag).release
        for each in site.verified(release, whole=options.layers):
            if each.error:
                raise each.error
        found = catalog.find(site.catalog, to, site.trusted)
        before = found.release if found else None
        if before and before.promoted != to:
            raise BadInput.of("promotion-over-release", tag=to)
        if run:
            attest_report(run, release.images, site, keys)
        images = [image.model_copy(update={"tags": _renamed(image, options.tag, to)}) for image in release.images]
        update = {"images": tuple(images), "promoted": to, "previous": before.tag if before else None}
        made = release.model_copy(update=update)
        moved = any(any(site.moved(image)) for image in made.images)
        if before and before.tag == made.tag and before.images == made.images and not moved:
            return Promotion(before, before, changed=False)
        site.publish(made, keys, move=True)
        if run:
            folder = Path(settings().out) / "release"
            folder.mkdir(parents=True, exist_ok=True)
            files.write(folder / f"measured-{options.tag}.md", measured(run))
        return Promotion(made, before, changed=True)


def attest_report(run: Run, images: Sequence[ReleasedImage], site: ReleaseSite, keys: Sequence[SigningKey]) -> None:
    """Attests a verify run to the images that it was made with.

    Raises:
        BadInput: it was made with none of them.
        CheckFailed: it proves no level.
    """
    ran = [image for image in images if image.id in (run.image, run.control_image)]
    if not ran:
        raise BadInput.of("report-of-another", id=run.id, image=run.image or "no image")
    if run.proved is None or run.failed:
        raise CheckFailed.of("report-unproved", id=run.id)
    said = predicate(run)
    for image in ran:
        repository = site.repository(image.role)
        site.note(f"attesting level {run.proved}{' (virtual nodes)' if run.virtual else ''} to {image.reference}")
        sign_image(repository, image.digest, keys, {VERIFY_REPORT: said}, site.trusted)
        verify(repository, image.digest, site.trusted, (*REQUIRED, VERIFY_REPORT))


def _renamed(image: ReleasedImage, tag: str, to: str) -> tuple[str, ...]:
    """`<variant>-<to>`, and `to` where the image has the bare release's tag."""
    return image_names.variant_tags(image.variant, to, bare=tag in image.tags)


def _as_dict(each: Verified) -> dict[str, Any]:
    about: dict[str, Any] = {
        "image": each.image.called,
        "reference": each.image.reference,
        "tags": each.image.tags,
        "ok": each.error is None,
    }
    if found := each.evidence:
        about |= {"signers": found.signers, "attestations": [own.predicate_type for own in found.attestations]}
    return about | ({"error": each.error.to_dict()} if each.error else {})

"""Rebuild: a released image is built again from its own signed provenance, and both are compared file by file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocstack.base import image_names
from rocstack.base.errors import CheckFailed
from rocstack.base.text import from_json
from rocstack.edge import engine, files
from rocstack.image import image_manifest
from rocstack.image.build_report import BuildReport, ImageReport
from rocstack.registry.docker_save import plain
from rocstack.registry.layers import UnreadableLayer, checked
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import Blob, parse_manifest
from rocstack.registry.registry_http import as_own_engine
from rocstack.registry.repository import Repository
from rocstack.release import difference, layer_files
from rocstack.release.difference import LayerDifference, MergedLayers
from rocstack.release.layer_files import LayerFiles
from rocstack.release.plan import ReleaseFile
from rocstack.release.provenance import RecordedBuild, recorded_in
from rocstack.release.sbom import packages_of
from rocstack.release.site import REQUIRED
from rocstack.settings.settings import Settings, TrustPolicy
from rocstack.steps.build import BuildEvents, build_images
from rocstack.steps.options import BuildOptions, Note, settings
from rocstack.steps.release_access import trusted_keys
from rocstack.steps.release_options import RebuildOptions
from rocstack.trust import contents
from rocstack.trust.envelope import PROVENANCE, SBOM
from rocstack.trust.keys import PublicKey
from rocstack.trust.verification import Untrusted, verify


@dataclass(frozen=True)
class Original:
    """A released image as its signers say, and as its registry has it."""

    repository: Repository = field(repr=False)
    digest: str
    signers: tuple[str, ...]
    recorded: RecordedBuild
    packages: Mapping[str, str]
    layers: tuple[Blob, ...]
    diff_ids: tuple[str, ...]

    @property
    def reference(self) -> str:
        return f"{self.repository.reference}@{self.digest}"


@dataclass(frozen=True)
class Rebuilt:
    """`layers` has those that differ, if only in times."""

    original: Original
    report: BuildReport
    layers: tuple[LayerDifference, ...] = ()

    @property
    def image(self) -> ImageReport:
        return self.report.images[0]

    @property
    def ok(self) -> bool:
        """The same content."""
        return self.report.ok and not any(layer.found for layer in self.layers)

    @property
    def same_inputs(self) -> bool:
        """Whether rocstack, stack and files of the site gave the build context that the release had."""
        return self.original.recorded.context == self.report.context_digest

    @property
    def same_base(self) -> bool:
        return self.original.recorded.base == self.report.base_digest

    def to_dict(self) -> dict[str, Any]:
        recorded = self.original.recorded
        return {
            "ok": self.ok,
            "original": self.original.reference,
            "signers": list(self.original.signers),
            "rebuilt": self.image.image_id,
            "lock": recorded.lock.digest(),
            "rocstack": {"original": recorded.rocstack, "rebuilt": self.report.rocstack},
            "same_inputs": self.same_inputs,
            "same_base": self.same_base,
            "layers": len(self.original.diff_ids),
            "differ": [layer.model_dump(mode="json") for layer in self.layers],
            "failure": self.image.failure.model_dump(mode="json") if self.image.failure else None,
        }


def rebuild(options: RebuildOptions, events: BuildEvents | None = None) -> Rebuilt:
    """Builds a released image again, every step of it, and compares the two. The new one has a name of its own.

    Raises:
        BadInput: the image isn't named by digest; no key; a stack, NIC or file that isn't here; another stack.
        Missing: no engine, no registry, or no login.
        Untrusted: what is in the registry is not what a trusted key signed. Nothing was built then.
        CheckFailed: its provenance is another program's.
    """
    events = events or BuildEvents()
    chosen = settings(options, push="")
    host, path, digest = image_names.parse_by_digest(options.image)
    keys = _keys(options, chosen)
    with _registry(host, path, chosen, events.note) as repository:
        original = _original(repository, digest, keys)
        recorded = original.recorded
        events.note(
            f"{original.reference} was made by rocstack {recorded.rocstack} from lock {recorded.lock.digest()[:12]}"
        )
        folder = Path(chosen.out) / "rebuild" / digest.removeprefix("sha256:")[:12]
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / "rocstack.lock", recorded.lock.to_text())
        given = chosen.model_copy(update={"out": str(folder), "base_image": _base(chosen, recorded, events.note)})
        given = given.model_copy(update={"trust": TrustPolicy()})  # the lock is out of the signed provenance
        wanted = BuildOptions(
            stack=options.stack or recorded.stack, nic=recorded.nic, role=recorded.role, lock=folder / "rocstack.lock",
            way=recorded.way if recorded.way.isidentifier() and not recorded.nic_releases else None,
            methods=recorded.methods, gfx=recorded.gfx, nic_releases=recorded.nic_releases, profiles=options.profiles,
            no_cache=True, packages=options.packages,
        )  # fmt: skip
        given = given.model_copy(update={"stack": wanted.stack, "nic": wanted.nic})
        report = build_images(wanted, events, chosen=given, prefix=f"{chosen.image_prefix}-rebuild")
        if not report.ok:
            return Rebuilt(original, report)
        manifest = image_manifest.read(folder / f"{report.stack}-{report.nic}" / recorded.role)
        wheels = {f"{name} (wheel)": version for name, version in manifest["wheels"].items()}
        changed = difference.changed(original.packages, {**manifest["packages"], **wheels})
        with LocalImage.find(engine.connect(), str(report.images[0].image_id)) as image:
            return Rebuilt(original, report, _compared(original, image, changed, folder, events.note))


def _keys(options: RebuildOptions, chosen: Settings) -> tuple[PublicKey, ...]:
    named = options.key
    file = ReleaseFile.load(options.file) if options.file.exists() and not named else None
    if not (named or file):
        named = tuple(Path(name).expanduser() for name in chosen.trust.keys)
    return trusted_keys(file, named)


@contextmanager
def _registry(host: str, path: str, chosen: Settings, note: Note) -> Iterator[Repository]:
    http = as_own_engine(host)
    try:
        yield Repository(http, path, attempts=chosen.attempts, on_retry=note)
    finally:
        http.close()


def _original(repository: Repository, digest: str, keys: tuple[PublicKey, ...]) -> Original:
    """
    Raises:
        Untrusted: as `verify`; or layer-differs, where its configuration is none.
        CheckFailed: its provenance is another program's.
    """
    found = verify(repository, digest, keys, REQUIRED)
    recorded = recorded_in(found.predicates(PROVENANCE)[-1])
    try:
        config, layers = parse_manifest(repository.manifest(digest) or b"")
        said = from_json(repository.blob(config) or b"")["rootfs"]["diff_ids"]
        diff_ids = tuple(str(each) for each in said)
        if len(diff_ids) != len(layers):
            raise ValueError("its configuration names another number of layers")
    except (ValueError, KeyError, TypeError) as error:
        raise Untrusted.of("layer-differs", reference=found.reference, layer=digest, why=error) from None
    packages = packages_of(found.predicates(SBOM)[-1])
    return Original(repository, digest, found.signers, recorded, packages, layers, diff_ids)


def _base(chosen: Settings, recorded: RecordedBuild, note: Note) -> str | None:
    """The base that the lock names by digest, where its registry has another under that name by now."""
    locked = recorded.lock.base
    if chosen.base_image or locked is None or locked.how != "registry":
        return chosen.base_image
    here = engine.find_image(engine.connect(), locked.image)
    digests = [each.partition("@")[2] for each in here.attrs.get("RepoDigests") or ()] if here else []
    if locked.digest in digests or not locked.digest.startswith("sha256:"):
        return chosen.base_image
    name = locked.image.partition("@")[0]
    name = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
    note(f"base: {name}@{locked.digest}, as the lock says")
    return f"{name}@{locked.digest}"


def _compared(
    original: Original, image: LocalImage, changed: Mapping[str, str], folder: Path, note: Note
) -> tuple[LayerDifference, ...]:
    both: dict[int, tuple[LayerFiles, LayerFiles]] = {}
    owners: dict[str, str] = {}
    for at, (theirs, ours) in enumerate(zip(original.diff_ids, image.diff_ids, strict=False)):
        if theirs == ours:  # the registry's layer may be another than its configuration says
            note(f"reading layer {at + 1}, which should be the same")
            _fetched(original, at, folder, whole=False)
    for at, one, two in difference.pairs(original.diff_ids, image.diff_ids):
        note(f"comparing layer {at}")
        first = _fetched(original, at - 1, folder) if one else difference.NOTHING
        second = _local(image, two) if two else difference.NOTHING
        owners |= {**first.packages, **second.packages}
        both[at] = first, second
    # What only one of them has is judged by what lies below.
    top = max((at for at, (first, second) in both.items() if first.files.keys() != second.files.keys()), default=0)
    found, below = [], (MergedLayers(), MergedLayers())
    for at in range(1, max(top, *both, 0) + 1):
        if at in both:
            found.append(difference.compare(at, *both[at], changed, owners, below))
        if at < top:
            same = None if at in both else _local(image, image.diff_ids[at - 1])
            for tree, layer in zip(below, both[at] if same is None else (same, same), strict=True):
                tree.add(layer)
    return tuple(found)


def _fetched(original: Original, at: int, folder: Path, *, whole: bool = True) -> LayerFiles:
    """A layer from the registry: its bytes are compared with the digest, and unpacked, with the configuration;
    without `whole` that is all."""
    blob = original.layers[at]
    with tempfile.NamedTemporaryFile(dir=folder, prefix="layer-") as file:
        import zstandard

        contents.fetch(original.repository, original.digest, blob, Path(file.name))
        try:
            stream = checked(plain(Path(file.name)), original.diff_ids[at])
            if whole:
                return layer_files.read(stream)
            for _ in stream:
                pass
            return difference.NOTHING
        except (ValueError, OSError, EOFError, UnreadableLayer, zstandard.ZstdError) as error:
            raise Untrusted.of("layer-differs", reference=original.reference, layer=blob.digest, why=error) from None


def _local(image: LocalImage, diff_id: str) -> LayerFiles:
    while True:
        try:
            return layer_files.read(image.open(diff_id))
        except UnreadableLayer:  # the next time it comes from the fallback, which ends with a CheckFailed
            continue
        except ValueError as error:
            raise CheckFailed.of("damaged-layers", reference=image.reference, cause=error) from None

"""Bundle: a release and rocstack itself in one file, for a site without a network; and its install there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput
from rocstack.base.image_names import parse_registry
from rocstack.bundle.assemble import assemble
from rocstack.bundle.check import CheckedBundle, check
from rocstack.bundle.collect import collect
from rocstack.bundle.file import BundleFile, Progress, read_record
from rocstack.bundle.format import BundleRecord
from rocstack.bundle.into_engine import InstalledImage, into_engine
from rocstack.bundle.into_registry import FilledRepository, into_registry
from rocstack.bundle.kit import make_kit
from rocstack.bundle.needed import BundleBlobs
from rocstack.bundle.write import write
from rocstack.deploy.read import trusted
from rocstack.edge import engine
from rocstack.release.plan import LATEST, ReleaseFile
from rocstack.release.record import ReleaseRecord
from rocstack.release.site import REQUIRED
from rocstack.steps.options import Note, ignore, settings
from rocstack.steps.release_access import Password, file_key, open_site, trusted_keys
from rocstack.steps.release_options import BundleInstallOptions, BundleOptions
from rocstack.trust import files as signatures
from rocstack.trust.keys import PublicKey


def quiet(done: int, whole: int) -> None:
    """A Progress that nobody sees."""


@dataclass(frozen=True)
class WrittenBundle:
    """Sizes are bytes. `kit` is what Python and wheels take in it, `layers` what the images' layers do; `left_out`
    belongs to it and is in the earlier bundle."""

    file: Path
    record: BundleRecord
    size: int
    sha256: str
    kit: int
    layers: int
    left_out: int
    signature: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        about = {"file": str(self.file), "release": self.record.release, "since": self.record.since}
        fits = {"architecture": self.record.architecture, "glibc": self.record.glibc, "python": self.record.python}
        sizes = {"size": self.size, "kit": self.kit, "layers": self.layers, "left_out": self.left_out}
        signature = str(self.signature) if self.signature else None
        return {**about, **fits, **sizes, "sha256": self.sha256, "signature": signature}


@dataclass(frozen=True)
class BundleInstallation:
    """`signers` are the trusted keys that signed all of it; None where that was not checked."""

    release: ReleaseRecord
    signers: tuple[str, ...] | None
    images: tuple[InstalledImage, ...] = ()
    repositories: tuple[FilledRepository, ...] = ()

    @property
    def changed(self) -> bool:
        loaded = any(each.loaded or each.before for each in self.images)
        return loaded or any(each.bytes_sent or each.tags for each in self.repositories)

    def to_dict(self) -> dict[str, Any]:
        about = {"release": self.release.named, "created": self.release.created, "changed": self.changed}
        signed = "not checked" if self.signers is None else "checked"
        done = {"images": list(map(asdict, self.images)), "repositories": list(map(asdict, self.repositories))}
        return {**about, "signatures": signed, "signers": self.signers, **done}


def bundle(
    options: BundleOptions, password: Password, note: Note = ignore, progress: Progress = quiet
) -> WrittenBundle:
    """Writes a bundle of a release, after everything of it was proved in its registry.

    Raises:
        BadInput: something is wrong with release.yml, a key or the earlier bundle; there is no such release.
        Missing: no registry or no login; no wheels; no room.
        Untrusted: something of the release isn't as it was signed.
        CheckFailed: as `make_kit`, `write` and `Repository`. No file is left then.
    """
    if options.out.is_dir() or not (folder := options.out.absolute().parent).is_dir():
        why = "it is a folder" if options.out.is_dir() else f"there is no folder {folder}"
        raise BadInput.of("no-access", options.out, why=why)
    stated = bool(options.registry and options.key)
    file = None if stated and not options.file.exists() else ReleaseFile.load(options.file)
    chosen = settings()
    earlier = read_record(options.since) if options.since else None
    key = file_key(options.sign, options.password_file, password)
    with open_site(file, options.registry, chosen, trusted_keys(file, options.key), note) as site:
        note(f"proving release {options.release or LATEST} in {site.target}")
        content = collect(site, options.release or LATEST)
        kit = make_kit(Path(chosen.out).absolute() / "bundle", note)
        made = assemble(content, kit, earlier)
        note(f"writing {options.out}")
        size, sha256 = write(options.out, made.record, made.script, made.parts, progress)
    left_out = sum(each.size for each in made.record.absent)
    signature = signatures.sign(options.out, key, bytes.fromhex(sha256))
    return WrittenBundle(
        options.out, made.record, size, sha256, made.kit, made.layers, left_out, signature
    )  # fmt: skip


def install(options: BundleInstallOptions, note: Note = ignore, progress: Progress = quiet) -> BundleInstallation:
    """Checks a bundle, then loads its images into the engine, or fills a registry. Nothing is changed before all of it
    was checked.

    Raises:
        BadInput: it is no bundle; a key can't be read, or none is given.
        CheckFailed: the bundle is not what was written, is for other machines, is older than what is here, or leaves
            out what is nowhere.
        Untrusted: something in it isn't signed by the keys.
        Missing: no engine, no registry, no room.
    """
    keys = _keys(options)
    target = parse_registry(options.to_registry) if options.to_registry else None
    with ExitStack() as opened:
        file = opened.enter_context(BundleFile.open(options.bundle))
        note(f"checking {options.bundle}: release {file.record.release}")
        checked = check(file, keys, progress)
        if not keys:
            note("unsigned: not checked. Whoever made this file could put anything into it")
        earlier = [opened.enter_context(BundleFile.open(path)) for path in options.with_]
        blobs = BundleBlobs(checked, earlier)
        signers = checked.proved.signers if keys else None
        if target:
            site = opened.enter_context(open_site(None, options.to_registry, settings(), tuple(keys), note))
            filled = into_registry(site, checked, blobs, downgrade=options.downgrade, note=note)
            return BundleInstallation(checked.proved.release, signers, repositories=filled)
        return BundleInstallation(checked.proved.release, signers, images=_loaded(checked, blobs, keys, options, note))


def _loaded(
    checked: CheckedBundle, blobs: BundleBlobs, keys: Sequence[PublicKey], options: BundleInstallOptions, note: Note
) -> tuple[InstalledImage, ...]:
    """Into the engine. What proves the images is kept where `deploy` looks for it at a site without a registry."""
    client, chosen = engine.connect(), settings()
    try:
        loaded = into_engine(client, checked, blobs, chosen.image_prefix, downgrade=options.downgrade, note=note)
    finally:
        client.close()
    for image in checked.proved.release.images if keys else ():
        source = checked.layout.role(image.role)
        trusted.keep(Path(chosen.out) / "trust", source, image.id, image.digest, keys, REQUIRED)
    return loaded


def _keys(options: BundleInstallOptions) -> Sequence[PublicKey]:
    """
    Raises:
        BadInput: none is given, or one can't be read.
    """
    if options.key and options.unsigned:
        raise BadInput.of("bundle-key-and-unsigned")
    if not options.key and not options.unsigned:
        raise BadInput.of("bundle-without-key")
    return tuple(map(PublicKey.load, options.key))

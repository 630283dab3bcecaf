"""The options of releases, bundles and rebuilds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rocstack.steps.options import Flag, Overlay, Packages, Profiles, Sources

ReleaseYml = Annotated[Path, Flag("File that says what to release.", ("--file",), "FILE")]
ReleaseRegistry = Annotated[
    str | None, Flag("Registry instead of the file's: registry.example.com:5000/hpc; default: the setting `push`.")
]
PasswordFile = Annotated[
    Path | None, Flag("File with the password of the private keys; default: the file's, else it is asked for.")
]
SigningKeys = Annotated[
    tuple[Path, ...], Flag("Private key to sign with, instead of the file's; may be repeated.", metavar="FILE")
]
Layers = Annotated[bool, Flag("Also read every layer and compare its sha256.")]


@dataclass(frozen=True, kw_only=True)
class ReleaseOptions:
    file: Annotated[Path, Flag("File that says what to release.", metavar="FILE", argument=True)] = Path("release.yml")
    tag: Annotated[str | None, Flag("Tag of the release; default: ISO year and week, such as 2026.47.")] = None
    registry: ReleaseRegistry = None
    key: SigningKeys = ()
    password_file: PasswordFile = None
    report: Annotated[
        Path | None, Flag("Report of a `rocstack verify` with these images, to attest: its folder or report.json.")
    ] = None
    move_tags: Annotated[bool, Flag("Move tags that exist to the new images.")] = False
    build_only: Annotated[bool, Flag("Build and test all images and stop: needs no key, no login and no registry.")] = (
        False
    )


@dataclass(frozen=True, kw_only=True)
class ReleaseVerifyOptions:
    tag: Annotated[
        str | None, Flag("Release, or a name it was promoted to; default: the last.", metavar="TAG", argument=True)
    ] = None
    file: ReleaseYml = Path("release.yml")
    registry: ReleaseRegistry = None
    key: Annotated[
        tuple[Path, ...], Flag("Public key to trust, instead of the file's; may be repeated.", metavar="FILE")
    ] = ()
    layers: Layers = False


@dataclass(frozen=True, kw_only=True)
class PromoteOptions:
    tag: Annotated[str, Flag("Release to promote: 2026.47.", metavar="TAG", argument=True)]
    to: Annotated[str, Flag("Name to move to it.")] = "stable"
    report: Annotated[
        Path | None, Flag("Report of a `rocstack verify` with its images, to attest first: its folder or report.json.")
    ] = None
    file: ReleaseYml = Path("release.yml")
    registry: ReleaseRegistry = None
    key: SigningKeys = ()
    password_file: PasswordFile = None
    layers: Layers = False


@dataclass(frozen=True, kw_only=True)
class BundleOptions:
    release: Annotated[
        str | None, Flag("Release, or name that one was promoted to; default: the last.", metavar="TAG")
    ] = None
    registry: ReleaseRegistry = None
    key: Annotated[
        tuple[Path, ...], Flag("Public key to trust, instead of the file's; may be repeated.", metavar="FILE")
    ] = ()
    file: ReleaseYml = Path("release.yml")
    since: Annotated[
        Path | None, Flag("Leave out what this earlier bundle has: its file, or its bundle.json.", metavar="FILE")
    ] = None
    out: Annotated[Path, Flag("File to write.", ("--out", "-o"), "FILE")] = Path("rocstack.bundle")
    sign: Annotated[
        Path | None,
        Flag(
            "Private key to sign the file itself with: writes FILE.sig, which openssl and cosign check.", metavar="KEY"
        ),
    ] = None
    password_file: Annotated[Path | None, Flag("File with the password of that key; default: it is asked for.")] = None


@dataclass(frozen=True, kw_only=True)
class BundleInstallOptions:
    bundle: Annotated[Path, Flag("Bundle to install.", metavar="FILE", argument=True)]
    key: Annotated[
        tuple[Path, ...], Flag("Public key that the release must be signed by; may be repeated.", metavar="FILE")
    ] = ()
    unsigned: Annotated[bool, Flag("Check no signature: whoever made the file could put anything into it.")] = False
    to_registry: Annotated[
        str | None, Flag("Fill this registry instead of this machine's engine: registry.example:5000/hpc.")
    ] = None
    with_: Annotated[
        tuple[Path, ...],
        Flag("Earlier bundle that has what this one leaves out; may be repeated.", ("--with",), "FILE"),
    ] = ()
    downgrade: Annotated[bool, Flag("Install it even if what is here is newer.")] = False


@dataclass(frozen=True, kw_only=True)
class RebuildOptions:
    """What a provenance doesn't hold: files of the site."""

    image: Annotated[
        str, Flag("Released image: registry.example.com/hpc/rocstack-worker@sha256:...", argument=True, metavar="IMAGE")
    ]
    key: Annotated[
        tuple[Path, ...],
        Flag("Public key to trust; may be repeated; default: release.yml's, else `trust.keys`.", metavar="FILE"),
    ] = ()
    file: ReleaseYml = Path("release.yml")
    stack: Annotated[
        str | None, Flag("File of the stack, where it is none of `rocstack stacks`; default: the image's stack.")
    ] = None
    overlay: Overlay = None
    profiles: Profiles = None
    sources: Sources = None
    packages: Packages = None
    nic_source: Annotated[str | None, Flag("Vendor bundle or library source that the release had.")] = None
    nic_plugin: Annotated[str | None, Flag("Source of RCCL's network plugin that the release had.")] = None
    base_image: Annotated[str | None, Flag("Base image to use instead of the recorded one.")] = None
    ca_bundle: Annotated[str | None, Flag("CA bundle (PEM) of the company's proxy.")] = None

"""The layers of built images, read file by file."""

from __future__ import annotations

import gzip
import io
import json
import re
import secrets
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from workspace import engine

from rocstack.settings import site
from rocstack.settings.settings import Settings

# Names of files that hold a key or a password, wherever they lie.
SECRET_NAMES = re.compile(
    r"(^|/)(munge\.key|ssh_host_[^/]*|id_(rsa|dsa|ecdsa|ed25519)(\.pub)?|site\.env|slurmdbd\.conf|jwt_hs256\.key|htpasswd|server\.key"
    r"|\.netrc|\.pgpass|\.git-credentials|authorized_keys|pip\.conf|[^/]*\.(p12|pfx|kdbx))$|(^|/)run/rocstack/(?!build/?$)."
)
# Not just the words, which stand in every TLS library: a line of the key itself has to follow.
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+(?:[A-Za-z-]+: .*\s+)*[A-Za-z0-9+/=]{32}")
# A library with a published key for its own self test.
PUBLISHED = re.compile(r"(^|/)libgnutls\.so[^/]*$")


@dataclass
class Layer:
    """What one layer adds."""

    id: str
    size: int = 0
    compressed: int = 0
    names: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # those of the names that are regular files with something in them
    findings: list[str] = field(default_factory=list)


class Counted(io.RawIOBase):
    """Counts what a compressor writes."""

    size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.size += len(memoryview(data))  # type: ignore[arg-type]
        return len(memoryview(data))  # type: ignore[arg-type]


def read_layer(name: str, stream: IO[bytes], size: int, unwanted: dict[str, bytes]) -> Layer:
    """Reads a layer's files; `unwanted` is what to look for in them, by what it is called."""
    layer = Layer(name, size)
    with tarfile.open(fileobj=stream, mode="r|*") as files:
        for member in files:
            layer.names.append(member.name)
            if SECRET_NAMES.search(member.name) and not member.isdir():
                layer.findings.append(f"the name of {member.name}")
            if member.isreg() and (opened := files.extractfile(member)):
                layer.findings += scan(member.name, opened, unwanted)
                layer.files += [member.name] * (member.size > 0)
    return layer


def scan(name: str, stream: IO[bytes], unwanted: dict[str, bytes]) -> Iterator[str]:
    """Looks through a file piece by piece; pieces overlap, so that nothing hides between two."""
    overlap = max([4096, *map(len, unwanted.values())])
    tail = b""
    while piece := stream.read(1 << 22):
        text = tail + piece
        yield from (f"{what} in {name}" for what, value in unwanted.items() if value in text)
        if b"PRIVATE KEY-----" in text and PRIVATE_KEY.search(text) and not PUBLISHED.search(name):
            yield f"a private key in {name}"
        tail = text[-overlap:]


def read_layers(images: list[str], folder: Path, unwanted: dict[str, bytes]) -> dict[str, list[Layer]]:
    """Image -> its layers, lowest first, all read through once."""
    archive = folder / "images.tar"
    try:
        engine("save", "--output", str(archive), *images)
        seen: dict[str, Layer] = {}
        out = {}
        with tarfile.open(archive) as saved:

            def opened(name: str) -> IO[bytes]:
                stream = saved.extractfile(name)
                assert stream is not None
                return stream

            entries = {tag: entry for entry in json.load(opened("manifest.json")) for tag in entry["RepoTags"]}
            for image in images:
                entry = entries[image]
                for path in entry["Layers"]:
                    if path not in seen:
                        seen[path] = read_layer(path, opened(path), saved.getmember(path).size, unwanted)
                out[image] = [seen[path] for path in entry["Layers"]]
                top = out[image][-1]
                counted = Counted()
                with gzip.GzipFile(fileobj=counted, mode="wb") as packed:  # type: ignore[arg-type]
                    packed.write(opened(top.id).read())
                top.compressed = counted.size
        return out
    finally:
        archive.unlink(missing_ok=True)


def ca_line() -> bytes:
    """A line of the site's own CA bundle that no distribution's bundle would hold, or of nothing at all."""
    bundle = site.of(Settings()).ca
    if bundle is None:
        return secrets.token_bytes(32)
    # The last certificate of such a bundle is the one the company added.
    return Path(bundle).read_bytes().split(b"-----BEGIN CERTIFICATE-----")[-1].split(b"\n")[2]

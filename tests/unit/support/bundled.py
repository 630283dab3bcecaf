"""Bundles of a tiny release, with a kit of a few bytes instead of a Python and wheels; and bundles that somebody
changed."""

from __future__ import annotations

import hashlib
import json
import platform
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_registry import Store, serving
from tiny_release import LAYERS, publish

from rocstack.base.image_names import parse_registry
from rocstack.bundle import format as form
from rocstack.bundle.assemble import AssembledBundle, assemble
from rocstack.bundle.collect import collect
from rocstack.bundle.format import BundleRecord
from rocstack.bundle.kit import PYTHON, REQUIREMENTS, RocstackKit
from rocstack.bundle.layout import ARCHITECTURES
from rocstack.bundle.relocatable import RelocatablePython
from rocstack.bundle.write import BundlePart, write
from rocstack.registry.registry_http import RegistryHttp
from rocstack.release.record import ReleaseRecord
from rocstack.release.site import ReleaseSite
from rocstack.trust.keys import SigningKey

KEY = SigningKey.generate("release")
MACHINE = platform.machine()


@dataclass(frozen=True)
class TinySite:
    """A registry in this process, with releases below `prefix`."""

    store: Store
    http: RegistryHttp
    prefix: str = "hpc"

    def publish(
        self, tag: str = "2026.47", layers: Mapping[str, tuple[str, ...]] = LAYERS, **more: Any
    ) -> ReleaseRecord:
        architecture = ARCHITECTURES.get(MACHINE, MACHINE)
        return publish(self.http, self.prefix, [KEY], tag, layers=layers, **{"architecture": architecture, **more})

    def site(self, prefix: str = "", *keys: SigningKey) -> ReleaseSite:
        target = parse_registry(f"{self.store.host}/{prefix or self.prefix}")
        trusted = tuple(key.public for key in keys or (KEY,))
        return ReleaseSite(target, self.http, trusted, 1, lambda text: None)

    def bundle(
        self, path: Path, tag: str = "latest", earlier: BundleRecord | None = None, kit: str = "1"
    ) -> AssembledBundle:
        made = assemble(collect(self.site(), tag), tiny_kit(kit), earlier)
        write(path, made.record, made.script, made.parts)
        return made


@contextmanager
def tiny_site() -> Iterator[TinySite]:
    with serving() as store:
        http = RegistryHttp(store.host, plain=True)
        yield TinySite(store, http)
        http.close()


def tiny_kit(version: str) -> RocstackKit:
    files = {PYTHON: b"python", REQUIREMENTS: b"", f"wheels/rocstack-{version}-py3-none-any.whl": version.encode()}
    python = RelocatablePython(b"", "3.11.7", MACHINE, (2, 31))
    return RocstackKit({path: BundlePart.of(path, data) for path, data in files.items()}, python, (2, 31))


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]


def packed(path: Path, contents: dict[str, bytes], *, listed: bool = True, extra: bytes = b"") -> None:
    """A bundle with these contents, as somebody makes it who knows the form; `listed`: bundle.json says so, too."""
    if listed:
        record: dict[str, Any] = json.loads(contents[form.RECORD])
        record["install"] = hashlib.sha256(contents[form.INSTALL]).hexdigest()
        record["members"] = [
            {"path": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(contents.items())
            if name not in (form.INSTALL, form.RECORD)
        ]
        contents = {**contents, form.RECORD: json.dumps(record).encode()}
    rest = [name for name in sorted(contents) if name not in (form.INSTALL, form.RECORD)]
    with path.open("wb") as file:
        for name in (form.INSTALL, form.RECORD, *rest):
            data = contents[name]
            file.write(form.header(name, len(data)) + data + form.padding(len(data)))
        file.write(extra + form.END)


def edited(path: Path, change: Callable[[dict[str, bytes]], object], *, listed: bool = True) -> None:
    """Packs the bundle again after its contents were changed."""
    contents = members(path)
    change(contents)
    packed(path, contents, listed=listed)

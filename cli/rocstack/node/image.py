"""What an image says of itself, as far as a node must fit it: read from its labels, or from its own manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OWN = "io.rocstack."
MANIFEST = "/etc/rocstack/manifest.json"


@dataclass(frozen=True)
class Provider:
    """One provider library in the image. `place` names its prefix where an image holds several."""

    place: str
    way: str  # inbox, source, package, newer or host
    driver: str  # libibverbs' name of it: bnxt_re
    path: str | None = None
    version: str | None = None
    private_abi: int | None = None
    kernel_abi: tuple[int, int] | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Image:
    """An image as the gate sees it. `private_abi` and `glibc` are those of its own libibverbs and libc."""

    name: str
    nic: str | None = None
    role: str | None = None
    modules: tuple[str, ...] = ()  # kernel modules of the NIC profile
    pci: tuple[str, ...] = ()  # its cards, vendor:device
    private_abi: int | None = None
    glibc: str | None = None
    providers: tuple[Provider, ...] = ()


def from_labels(name: str, labels: Mapping[str, str]) -> Image:
    """What is missing or damaged stays None, which the gate can't accept."""
    own = {key[len(OWN) :]: value for key, value in labels.items() if key.startswith(OWN)}
    return _image(name, own)


def from_manifest(name: str, manifest: Mapping[str, Any]) -> Image:
    """The same from the manifest inside the image, which the entrypoint reads."""
    facts = manifest.get("facts")
    own: dict[str, str] = dict(facts) if isinstance(facts, dict) else {}
    return _image(name, {**own, **{key: str(manifest[key]) for key in ("nic", "role") if key in manifest}})


def _image(name: str, own: Mapping[str, str]) -> Image:
    return Image(
        name=name,
        nic=own.get("nic"),
        role=own.get("role"),
        modules=_words(own.get("nic.modules")),
        pci=_words(own.get("nic.pci")),
        private_abi=_number(own.get("verbs.private-abi")),
        glibc=own.get("glibc"),
        providers=_providers(own.get("nic.providers")),
    )


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(word for word in (text or "").split(",") if word)


def _number(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return None


def _providers(text: str | None) -> tuple[Provider, ...]:
    try:
        rows = json.loads(text or "[]")
    except ValueError:
        return ()
    return tuple(_provider(row) for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()


def _provider(row: Mapping[str, Any]) -> Provider:
    def text(key: str) -> str | None:
        value = row.get(key)
        return value if isinstance(value, str) and value else None

    return Provider(
        place=text("place") or "",
        way=text("way") or "",
        driver=text("driver") or "",
        path=text("path"),
        version=text("version"),
        private_abi=_number(row.get("private_abi")),
        kernel_abi=_range(row.get("kernel_abi")),
        sha256=text("sha256"),
    )


def _range(value: object) -> tuple[int, int] | None:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return None
    low, high = map(_number, value)
    return None if low is None or high is None else (low, high)

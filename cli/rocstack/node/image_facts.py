"""What an image says of itself, as far as a node must fit it: read from its labels, or from its own manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LABEL_PREFIX = "io.rocstack."
MANIFEST = "/etc/rocstack/manifest.json"
_SHOWN = re.compile(r"[ -~]{1,4096}")
_RELEASE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")
_CARD = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
_DIGITS = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class ImageProvider:
    """One provider library in the image. `place` names its prefix where an image holds several."""

    place: str
    way: str  # inbox, source, package, newer or host
    driver: str  # libibverbs' name of it: bnxt_re
    path: str | None
    version: str | None
    private_abi: int | None
    kernel_abi: tuple[int, int] | None
    sha256: str | None


@dataclass(frozen=True)
class ImageFacts:
    """An image as the gate sees it. `private_abi`, `verbs_sha256` and `glibc` are of its own libibverbs and libc."""

    name: str
    nic: str | None = None
    role: str | None = None
    modules: tuple[str, ...] = ()  # kernel modules of the NIC profile
    pci: tuple[str, ...] = ()  # its cards, vendor:device
    private_abi: int | None = None
    verbs_sha256: str | None = None
    glibc: str | None = None
    # (vendor:device, rdma-core): before this release, rdma-core's provider doesn't know the card. None: not said.
    card_needs: tuple[tuple[str, str], ...] | None = None
    providers: tuple[ImageProvider, ...] = ()
    gfx: tuple[str, ...] = ()  # GPU targets that it is built for
    code: tuple[tuple[str, tuple[str, ...]], ...] = ()  # and those that a library in it has code for, as was read there
    framework: str | None = None  # what trains: pytorch, jax or maxtext
    framework_rocm: str | None = None  # the ROCm release that this is built for
    rehearsal: str | None = None  # what it lacks for the GPUs of the nodes that it was built for nevertheless
    fabric: str | None = None  # the newest of libfabric's symbol versions that RCCL's plugin needs: "1.8"


def from_labels(name: str, labels: Mapping[str, str]) -> ImageFacts:
    """What is missing or damaged stays None, which the gate can't accept."""
    own = {key[len(LABEL_PREFIX) :]: value for key, value in labels.items() if key.startswith(LABEL_PREFIX)}
    return _image_facts(name, own)


def from_manifest(name: str, manifest: Mapping[str, Any]) -> ImageFacts:
    """The same from the manifest inside the image, which the entrypoint reads."""
    facts = manifest.get("facts")
    own = dict(facts) if isinstance(facts, dict) else {}
    return _image_facts(name, {**own, **{key: manifest[key] for key in ("nic", "role") if key in manifest}})


def _image_facts(name: str, own: Mapping[str, object]) -> ImageFacts:
    return ImageFacts(
        name=name,
        nic=_text(own.get("nic")),
        role=_text(own.get("role")),
        modules=_words(own.get("nic.modules")),
        pci=_words(own.get("nic.pci")),
        private_abi=_digits(own.get("verbs.private-abi")),
        verbs_sha256=_text(own.get("verbs.sha256")),
        glibc=_text(own.get("glibc")),
        card_needs=_card_needs(own.get("nic.cards")),
        providers=_providers(own.get("nic.providers")),
        gfx=_words(own.get("gfx")),
        code=tuple((key[4:], _targets(own[key])) for key in sorted(own) if key.startswith("gfx.") and _text(key)),
        framework=_text(own.get("framework")),
        framework_rocm=_text(own.get("framework.rocm")),
        rehearsal=_text(own.get("rehearsal")),
        # A damaged one is not the same as no plugin.
        fabric=str(own["nic.plugin-fabric"]) if "nic.plugin-fabric" in own else None,
    )


def _text(value: object) -> str | None:
    """One line that a person can be shown."""
    return value if isinstance(value, str) and _SHOWN.fullmatch(value) else None


def _words(value: object) -> tuple[str, ...]:
    return tuple(word for word in (_text(value) or "").split(",") if word)


def _targets(value: object) -> tuple[str, ...]:
    return tuple(word for word in _words(value) if word != "none")


def _digits(value: object) -> int | None:
    text = _text(value)
    return int(text) if text and _DIGITS.fullmatch(text) else None


def _number(value: object) -> int | None:
    """An ABI as JSON has it: true, 6.5 and -1 are none."""
    return value if type(value) is int and value >= 0 else None


def _json(value: object) -> object:
    try:
        return json.loads(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RecursionError):
        return None


def _card_needs(value: object) -> tuple[tuple[str, str], ...] | None:
    """All or none."""
    rows = _json(value)
    if not isinstance(rows, dict) or not all(map(_CARD.fullmatch, rows)):
        return None
    if not all(_RELEASE.fullmatch(_text(text) or "") for text in rows.values()):
        return None
    return tuple(rows.items())


def _providers(value: object) -> tuple[ImageProvider, ...]:
    """All or none: which one is loaded depends on the others."""
    rows = _json(value)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return ()
    return tuple(map(_provider, rows))


def _provider(row: Mapping[str, object]) -> ImageProvider:
    return ImageProvider(
        place=_text(row.get("place")) or "",
        way=_text(row.get("way")) or "",
        driver=_text(row.get("driver")) or "",
        path=_text(row.get("path")),
        version=_text(row.get("version")),
        private_abi=_number(row.get("private_abi")),
        kernel_abi=_range(row.get("kernel_abi")),
        sha256=_text(row.get("sha256")),
    )


def _range(value: object) -> tuple[int, int] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    low, high = map(_number, value)
    return None if low is None or high is None or low > high else (low, high)

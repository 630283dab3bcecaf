"""Slingshot: libfabric with the cxi provider is the host's, since it goes with the host's driver. Which of its
libraries an image takes, and whether they fit it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .image import Image
from .profile import Library

# Names in the image, under which its loader finds them. json-c is that of SLES 15, which no image has (as OLCF's guide
# to containers on Frontier mounts it).
NAMES = {"libfabric": "libfabric.so.1", "cxi": "libcxi.so.1", "json-c": "libjson-c.so.3"}
_RELEASE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")


def taken(libraries: Sequence[Library]) -> dict[str, Library]:
    """Driver -> the library that is mounted: HPE's newest, since the distribution's libfabric lacks cxi."""
    found = {driver: [library for library in libraries if library.driver == driver] for driver in NAMES}
    return {driver: max(several, key=_rank) for driver, several in found.items() if several}


def against(image: Image, libraries: Sequence[Library]) -> Iterator[tuple[bool, str, str]]:
    """What speaks against mounting them: whether that is certain or just not known, a sentence, the next step."""
    own = taken(libraries)
    for name in (NAMES[driver] for driver in ("libfabric", "cxi") if driver not in own):
        yield True, f"no {name} on the host to mount", "install HPE's Slingshot host software"
    for library in own.values():
        wants, has = numbers(library.glibc), numbers(image.glibc)
        if wants is None or has is None:
            yield False, f"which glibc {library.path} or the image needs could not be read", ""
        elif wants > has:
            says = f"{library.path} needs glibc {library.glibc}, the image has {image.glibc}"
            yield True, says, "build on a newer base"
    if image.fabric is not None and "libfabric" in own:
        library = own["libfabric"]
        wants, has = numbers(image.fabric), numbers(library.fabric)
        if wants is None:
            yield False, "the image does not say which symbol versions RCCL's plugin needs", "build the image again"
        elif has is None:
            yield False, f"which symbol versions {library.path} has could not be read", ""
        elif wants > has:
            says = f"RCCL's plugin needs FABRIC_{image.fabric}, {library.path} has FABRIC_{library.fabric}"
            yield True, says, "build on a stack with an older libfabric (Ubuntu 24.04 has 1.17)"


def _rank(library: Library) -> tuple[bool, list[int], str]:
    """HPE's folders are called by the release: /opt/cray/libfabric/1.22.0."""
    return library.path.startswith("/opt/cray/"), list(map(int, re.findall(r"[0-9]+", library.path))), library.path


def numbers(version: str | None) -> tuple[int, ...] | None:
    """2, 34 of "2.34"."""
    if not version or not _RELEASE.fullmatch(version):
        return None
    return tuple(map(int, version.split(".")))

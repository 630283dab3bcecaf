"""Which file libibverbs loads for the image's NIC: its own folder's, which is a link where rocstack chose one."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rocstack.node.gate import GateFinding, GateVerdict
from rocstack.node.image import ImageProvider

from .gate import FITS, HOST, UNFIT, UNKNOWN
from .image import Image

NEWER = Path("/opt/rdma-core/lib")  # a newer rdma-core, which the loader takes before the distribution's
LIBRARIES = Path("/usr/lib")
BY_NAME = "RDMAV_DRIVERS"  # libibverbs takes those first (libibverbs/dynamic_driver.c); without -rdmavN.so


def choose(image: Image, place: str) -> str:
    """Lets libibverbs' own folder link to the node's provider, where the image holds several. A user who may not do
    that gets the value of RDMAV_DRIVERS that names it."""
    provider = next(each for each in image.providers if each.place == place)
    if len(image.providers) < 2 or not provider.path:
        return ""
    own = _own(Path(provider.path).name)
    if own and own.is_symlink() and os.readlink(str(own)) != provider.path:
        fresh = own.with_name(own.name + ".new")
        try:
            fresh.symlink_to(provider.path)
            fresh.replace(own)
        except OSError:
            return provider.path.rpartition("-rdmav")[0]
    return ""


def checked(image: Image, verdict: GateVerdict, environ: Mapping[str, str]) -> GateVerdict:
    """The verdict on the image as it is, not as its manifest says: the file that libibverbs loads must be the one
    that was judged, by its sha256. The node's own library (way `host`) is in no manifest."""
    judged = _judged(image, verdict)
    if verdict.result == UNFIT or judged is None or judged.way == HOST:
        return verdict
    if not judged.driver or image.private_abi is None:  # unknown already
        return verdict
    finding = _compare(image, judged, environ)
    return replace(verdict, result=finding.result, findings=(finding,)) if finding else verdict


def _judged(image: Image, verdict: GateVerdict) -> ImageProvider | None:
    """The only one, or the one that the node needs."""
    if len(image.providers) == 1:
        return image.providers[0]
    return next((each for each in image.providers if verdict.result == FITS and each.place == verdict.place), None)


def _compare(image: Image, judged: ImageProvider, environ: Mapping[str, str]) -> GateFinding | None:
    name = f"lib{judged.driver}-rdmav{image.private_abi}.so"
    path = _named(name, environ) or _own(name)
    if path is None:
        return GateFinding(UNFIT, f"libibverbs' folder has no {name}", "take the image as it was built")
    real = os.path.realpath(str(path))
    try:
        found = hashlib.sha256(Path(real).read_bytes()).hexdigest()
    except OSError as error:
        return GateFinding(UNFIT, f"libibverbs would load {real}: {error.strerror}", "take the image as it was built")
    if not judged.sha256:
        return GateFinding(UNKNOWN, f"the image does not say which file {judged.driver} is")
    if found == judged.sha256:
        return None
    other = next((each for each in image.providers if each.sha256 == found), None)
    if other:
        says = f"libibverbs would load {real}, the node needs {judged.path}"
        return GateFinding(UNFIT, says, "start the container by its own entrypoint, as root")
    says = f"libibverbs would load {real}, which is not the {judged.driver} that the image was built with"
    return GateFinding(UNFIT, says, "take the image as it was built, with nothing mounted there")


def _named(name: str, environ: Mapping[str, str]) -> Path | None:
    abi = name.rpartition("-rdmav")[2]
    files = (Path(f"{word}-rdmav{abi}") for word in re.split("[:;]", environ.get(BY_NAME, "")) if word.startswith("/"))
    return next((file for file in files if file.name == name), None)


def _own(name: str) -> Path | None:
    """By the libibverbs that the loader takes."""
    roots = [NEWER, *sorted(LIBRARIES.glob("*-linux-gnu"))]
    root = next((root for root in roots if (root / "libibverbs.so.1").exists()), None)
    own = root / "libibverbs" / name if root else None
    return own if own and os.path.lexists(str(own)) else None

"""What the start of the daemons does with the gate's verdict: it links the provider that the node needs, and writes
down what it decided, for Slurm's prolog, whose jobs don't get the container's environment.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .gate import FITS, HOST, REBUILD, UNFIT, UNKNOWN, GateFinding, GateVerdict
from .image_facts import ImageFacts, ImageProvider
from .rdma_check import RdmaCheck, libibverbs_file

DECISION_PATH = "/run/rocstack/gate"
REFUSE, WARN, OFF = "refuse", "warn", "off"  # ROCSTACK_GATE
FIT, PROVED = "fits", "proved"


@dataclass(frozen=True)
class GateDecision:
    """`word`: fits; proved (unknown, but every device worked); refuse, or warn and off, which start all the same."""

    word: str
    sentence: str

    @property
    def starts(self) -> bool:
        return self.word != REFUSE


def decide(gate: str, verdict: GateVerdict, check: RdmaCheck) -> GateDecision:
    """Unknown is not fitting, unless every device was tried and works; what fits must not fail its trial."""
    if verdict.result == FITS and check.works is not False:
        return GateDecision(FIT, verdict.sentence)
    if verdict.result == UNKNOWN and check.works:
        return GateDecision(PROVED, verdict.sentence)
    failed = f"{verdict.node}: {'; '.join(check.lines)}"
    return GateDecision(gate, failed if verdict.result == FITS else verdict.sentence)


def write_decision(decision: GateDecision) -> bool:
    return write_file(DECISION_PATH, f"{decision.word} {decision.sentence}\n")


def write_file(path: str, text: str) -> bool:
    """False where this container's file system does not let it."""
    try:
        Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        Path(path).write_text(text)
    except OSError:
        return False
    return True


def read_decision() -> GateDecision | None:
    try:
        word, _, sentence = Path(DECISION_PATH).read_text().strip().partition(" ")
    except OSError:
        return None
    return GateDecision(word, sentence)


NEWER_RDMA_CORE = Path("/opt/rdma-core/lib")  # a newer rdma-core, which the loader takes before the distribution's
LIBRARIES = Path("/usr/lib")
DRIVERS_VARIABLE = "RDMAV_DRIVERS"  # libibverbs takes those first (libibverbs/dynamic_driver.c); without -rdmavN.so
OLDER_DRIVERS_VARIABLE = "IBV_DRIVERS"  # where the first is not set


def link_provider(image: ImageFacts, prefix: str) -> str:
    """Lets libibverbs' own folder link to the node's provider, where the image holds several. A user who may not do
    that gets the value of RDMAV_DRIVERS that names it."""
    provider = next(each for each in image.providers if each.place == prefix)
    if len(image.providers) < 2 or not provider.path:
        return ""
    own = _linked_file(Path(provider.path).name)
    if own and own.is_symlink() and os.readlink(str(own)) != provider.path:
        fresh = own.with_name(own.name + ".new")
        try:
            fresh.symlink_to(provider.path)
            fresh.replace(own)
        except OSError:
            return provider.path.rpartition("-rdmav")[0]
    return ""


AS_BUILT = "take the image as it was built, with nothing mounted there"


def check_loaded_files(image: ImageFacts, verdict: GateVerdict, environ: Mapping[str, str]) -> GateVerdict:
    """The verdict on the image as it is, not as its manifest says: libibverbs, and the provider that it loads, must be
    the files that were judged, by their sha256. The node's own library (way `host`) is in no manifest."""
    if verdict.result == UNFIT or not image.providers:
        return verdict
    found, judged = [_compare_libibverbs(image)], _judged_provider(image, verdict)
    if judged and judged.way != HOST and judged.driver and image.private_abi is not None:
        found.append(_compare(image, judged, environ))
    findings = sorted((each for each in found if each), key=lambda finding: finding.result != UNFIT)
    if not findings or findings[0].result == verdict.result:  # unknown already
        return verdict
    return replace(verdict, result=findings[0].result, findings=tuple(findings))


def _compare_libibverbs(image: ImageFacts) -> GateFinding | None:
    """One of another release has another private ABI: it loads other files than those that were judged, which may
    still be there."""
    try:
        file = libibverbs_file()
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        return GateFinding(UNFIT, f"libibverbs can't be loaded: {error}", AS_BUILT)
    if not image.verbs_sha256:
        return GateFinding(UNKNOWN, "the image does not say which file its libibverbs is", REBUILD)
    if digest == image.verbs_sha256:
        return None
    what = f"the loader takes {file}, which is not the libibverbs that the image was built with"
    return GateFinding(UNFIT, what, f"{AS_BUILT}; an upgrade of rdma-core needs a new build")


def _judged_provider(image: ImageFacts, verdict: GateVerdict) -> ImageProvider | None:
    """The only one, or the one that the node needs."""
    if len(image.providers) == 1:
        return image.providers[0]
    return next((each for each in image.providers if verdict.result == FITS and each.place == verdict.place), None)


def _compare(image: ImageFacts, judged: ImageProvider, environ: Mapping[str, str]) -> GateFinding | None:
    name = f"lib{judged.driver}-rdmav{image.private_abi}.so"
    path = _named_file(name, environ) or _linked_file(name)
    if path is None:
        return GateFinding(UNFIT, f"libibverbs' folder has no {name}", "take the image as it was built")
    real = os.path.realpath(str(path))
    try:
        digest = hashlib.sha256(Path(real).read_bytes()).hexdigest()
    except OSError as error:
        return GateFinding(UNFIT, f"libibverbs would load {real}: {error.strerror}", "take the image as it was built")
    if not judged.sha256:
        return GateFinding(UNKNOWN, f"the image does not say which file {judged.driver} is")
    if digest == judged.sha256:
        return None
    other = next((each for each in image.providers if each.sha256 == digest), None)
    if other:
        what = f"libibverbs would load {real}, the node needs {judged.path}"
        return GateFinding(UNFIT, what, "start the container by its own entrypoint, as root")
    what = f"libibverbs would load {real}, which is not the {judged.driver} that the image was built with"
    return GateFinding(UNFIT, what, AS_BUILT)


def _named_file(name: str, environ: Mapping[str, str]) -> Path | None:
    abi = name.rpartition("-rdmav")[2]
    words = re.split("[:;]", environ.get(DRIVERS_VARIABLE, environ.get(OLDER_DRIVERS_VARIABLE, "")))
    files = (Path(f"{word}-rdmav{abi}") for word in words if word.startswith("/"))
    return next((file for file in files if file.name == name), None)


def _linked_file(name: str) -> Path | None:
    """By the libibverbs that the loader takes."""
    roots = [NEWER_RDMA_CORE, *sorted(LIBRARIES.glob("*-linux-gnu"))]
    root = next((root for root in roots if (root / "libibverbs.so.1").exists()), None)
    own = root / "libibverbs" / name if root else None
    return own if own and os.path.lexists(str(own)) else None

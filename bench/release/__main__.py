"""Measures a release of the default stack for three NICs, six images, at a registry with TLS and a password on this
machine: how long an unchanged one takes, what signing, attesting and proving an image cost, and what a second NIC adds.

    python bench/release [--runs 3] [--out FILE]

Prints JSON. The builds of the six images come from the engine's cache where it has them, so their time is no result.
The second NIC is measured with an overlay that changes a layer below all others, so that nothing above it is cached.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "cli"), str(ROOT / "tests/integration")]
from released import Releases, entry, releases  # noqa: E402
from workspace import STACK, Built, Workspace  # noqa: E402

from rocstack.image import base_image as bases  # noqa: E402
from rocstack.settings.settings import Settings  # noqa: E402
from rocstack.stack import stack  # noqa: E402
from rocstack.trust.envelope import TYPES  # noqa: E402
from rocstack.trust.keys import SigningKey  # noqa: E402
from rocstack.trust.signing import sign_image  # noqa: E402
from rocstack.trust.verification import verify  # noqa: E402

LIMITS = {"unchanged_s": 20.0, "sign_s": 5.0, "second_nic": 0.2}
PREFIX = "rocstack"  # the images and the base that are here already


def unchanged(place: Releases, runs: int) -> dict[str, Any]:
    """`rocstack release` where nothing is to be done, its start included."""
    seconds = []
    for _ in range(runs):
        done = place.run()
        if done.code or "nothing changed" not in done.out:
            sys.exit(f"it is not unchanged: {done.out}{done.err}")
        seconds.append(done.seconds)
    return judged(seconds, LIMITS["unchanged_s"])


def signing(place: Releases, images: list[dict[str, Any]]) -> dict[str, Any]:
    """Signing an image that is in the registry, with its real attestations, by a new key; and proving that."""
    seconds, sizes = [], []
    for image in images:
        with place.repository(image["role"]) as repository:
            found = verify(repository, image["digest"], [place.public])
            predicates = {each.predicate_type: each.predicate for each in found.attestations}
            sizes.append(sum(len(json.dumps(each)) for each in predicates.values()))
            key = SigningKey.generate()
            started = time.monotonic()
            sign_image(repository, image["digest"], [key], predicates)
            verify(repository, image["digest"], [key.public], predicates)
            seconds.append(time.monotonic() - started)
    return {**judged(seconds, LIMITS["sign_s"]), "attested_bytes": sizes, "types": sorted(TYPES.values())}


def second_nic(place: Releases) -> dict[str, Any]:
    """A release of one NIC from nothing, and the next one, which has another beside it: built to signed."""
    overlay = place.here.folder / "overlay/components"
    overlay.mkdir(parents=True)
    # Another content, too: BuildKit takes steps on a layer from its cache where the layer came out the same.
    text = "{% block runtime %}{{ super() }}echo " + secrets.token_hex(8) + " >/etc/rocstack-bench\n{% endblock %}\n"
    (overlay / "munge.j2").write_text(text)
    place = replace(place, here=place.here.with_env(ROCSTACK_OVERLAY=str(overlay.parent)))
    nics, seconds = [], []
    for nic, tag in (("tcp", "2026.02"), ("slingshot", "2026.03")):
        nics.append(entry(nic, default=nic == "tcp"))
        place.write(*nics)
        started = time.monotonic()
        place.must("--tag", tag)
        seconds.append(round(time.monotonic() - started, 1))
    adds = seconds[1] / seconds[0]
    return {"cold_s": seconds[0], "second_s": seconds[1], "adds": round(adds, 3), "ok": adds <= LIMITS["second_nic"]}


def judged(seconds: list[float], limit: float) -> dict[str, Any]:
    median = statistics.median(seconds)
    return {"median_s": round(median, 2), "runs_s": [round(each, 2) for each in seconds], "ok": median <= limit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rocstack-bench-") as made:
        folder = Path(made)
        (folder / "work").mkdir()
        here = Workspace(folder / "work", PREFIX)
        base = bases.ensure(docker.from_env(), stack.load(STACK), Settings(image_prefix=PREFIX), print).reference
        built = Built(here, here.build())
        with releases(base, built, here, folder) as place:
            place.write(entry(default=True), entry("mellanox"), entry("broadcom"))
            started = time.monotonic()
            done = place.must("--tag", "2026.01")
            first = time.monotonic() - started
            found = {
                "images": len(done["images"]),
                "compressed_bytes": sum(image["compressed"] for image in done["images"]),
                "first_s": round(first, 1),
                "unchanged": unchanged(place, options.runs),
                "sign_attest_prove": signing(place, done["images"]),
                "second_nic": second_nic(place),
            }
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    sys.exit(not all(part["ok"] for part in found.values() if isinstance(part, dict)))


if __name__ == "__main__":
    main()

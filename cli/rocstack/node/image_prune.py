"""Which of our images may go: of those that a deploy brought, the ones that nobody keeps. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from .engine import Row, docker, there
from .engine_facts import OWN

# The name that a deploy gives an image. One that has another name as well is somebody's own, built here perhaps.
BROUGHT = re.compile(r".*/(worker|control):[0-9a-f]{12}")


def prune(keep: Iterable[str]) -> list[str]:
    """Removes what may go, and gives the ids. `keep` are ids, names or digests."""
    idents = docker("image", "ls", "--quiet", "--no-trunc", "--filter", f"label={OWN}role").out.split()
    images = json.loads(there("image", *sorted(set(idents)))) if idents else []
    gone = removable(images, used(), set(keep))
    for ident in gone:
        docker("image", "rm", "--force", ident)  # it has several names
    return gone


def used() -> set[str]:
    """Ids of the images of all containers, also of those that don't run."""
    containers = docker("ps", "--all", "--quiet", "--no-trunc").out.split()
    rows = json.loads(there("container", *containers)) if containers else []
    return {str(row["Image"]) for row in rows}


def removable(images: Iterable[Row], used: set[str], keep: set[str]) -> list[str]:
    """Pure. `images` as `docker image inspect` gives them."""
    gone = []
    for image in images:
        tags = image.get("RepoTags") or []
        digests = {reference.partition("@")[2] for reference in image.get("RepoDigests") or []}
        kept = keep & {image["Id"], *tags, *digests} or image["Id"] in used
        if tags and not kept and all(BROUGHT.fullmatch(tag) for tag in tags):
            gone.append(str(image["Id"]))
    return gone

"""Removes what deploys made of a node: images that nobody keeps, or everything. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable

from . import containers
from .engine import NodeError, Row, docker, inspect_existing
from .engine_facts import OWN, SERVICE
from .fence import Fence
from .files import explained
from .node_lock import STATE, node_lock
from .pull import CERTS

# The name that a deploy gives an image. One that has another name as well is somebody's own, built here perhaps.
BROUGHT = re.compile(r".*/(worker|control|service):[0-9a-f]{12}")


def prune_images(keep: Iterable[str]) -> list[str]:
    """Removes what may go, and gives the ids. `keep` are ids, names or digests."""
    idents = docker("image", "ls", "--quiet", "--no-trunc", "--filter", f"label={OWN}role").out.split()
    images = inspect_existing("image", *sorted(set(idents))) if idents else []
    gone = removable_images(images, used_images(), set(keep))
    for ident in gone:
        docker("image", "rm", "--force", ident)  # it has several names
    return gone


def used_images() -> set[str]:
    """Ids of the images of all containers, also of those that don't run."""
    containers = docker("ps", "--all", "--quiet", "--no-trunc").out.split()
    rows = inspect_existing("container", *containers) if containers else []
    return {str(row["Image"]) for row in rows}


def removable_images(images: Iterable[Row], used: set[str], keep: set[str]) -> list[str]:
    """Pure. `images` as `docker image inspect` gives them."""
    gone = []
    for image in images:
        tags = image.get("RepoTags") or []
        digests = {reference.partition("@")[2] for reference in image.get("RepoDigests") or []}
        kept = keep & {image["Id"], *tags, *digests} or image["Id"] in used
        if tags and not kept and all(BROUGHT.fullmatch(tag) for tag in tags):
            gone.append(str(image["Id"]))
    return gone


REMOVABLE_FOLDERS = ("/etc/rocstack", "/var/lib/rocstack", CERTS)  # nothing is removed elsewhere


def take_down(
    volumes: Iterable[str],
    images: bool,
    files: Iterable[str],
    done: Row,
    label: str = SERVICE,
    fence: Row | None = None,
    folder: str = STATE,
) -> None:
    """
    Args:
        volumes: names of those to remove; what is in them is gone.
        images: whether the images that deploys brought go too.
        files: files and folders to remove.
        done: is filled as it happens: "containers", "volumes", "images", "files", "changed".
        fence: as `Fence` takes it, with the `folder`.

    Raises:
        NodeError: something can't be removed, or is none of ours; another run is at work here; as `Fence.check`.
    """
    done.update(containers=[], volumes=[], images=[], files=[], changed=False)
    for path in files:
        if not any(os.path.normpath(path) == folder or path.startswith(folder + "/") for folder in REMOVABLE_FOLDERS):
            raise NodeError(f"{path} is not rocstack's to remove", kind="file")
        if ".." in path.split("/"):
            raise NodeError(f"{path} leads elsewhere", kind="file")
        if os.path.normpath(path) == CERTS:
            raise NodeError(f"{path} holds more than rocstack's certificates", kind="file")
    fences = Fence(fence, folder)
    with node_lock(folder, fence=fences):
        listed = docker("ps", "--all", "--format", "{{.Names}}", "--filter", f"label={label}").out.split()
        done["containers"] = containers.remove(listed)
        there = set(docker("volume", "ls", "--quiet").out.split())
        for volume in (name for name in volumes if name in there):
            fences.check()
            docker("volume", "rm", volume)
            done["volumes"].append(volume)
        fences.check()
        done["images"] = prune_images([]) if images else []
        for path in files:
            if os.path.lexists(path):
                with explained(path, "removed"):
                    _remove(path)
                done["files"].append(path)
    done["changed"] = any(done[kind] for kind in ("containers", "volumes", "images", "files"))


def _remove(path: str) -> None:
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
    elif os.path.ismount(path):  # a site may have a disk there: it is emptied
        for name in os.listdir(path):
            _remove(os.path.join(path, name))
    else:
        shutil.rmtree(path)

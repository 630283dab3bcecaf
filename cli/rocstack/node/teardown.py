"""Takes away from a node what deploys made of it. Standard library only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from . import containers, image_prune
from .engine import Failed, Row, docker
from .engine_facts import SERVICE
from .pull import CERTS

PLACES = ("/etc/rocstack", "/var/lib/rocstack", CERTS)  # nothing is removed elsewhere


def down(volumes: Iterable[str], images: bool, files: Iterable[str], done: Row, label: str = SERVICE) -> None:
    """
    Args:
        volumes: names of those to remove; what is in them is gone.
        images: whether the images that deploys brought go too.
        files: files and folders to remove.
        done: is filled as it happens: "containers", "volumes", "images", "files", "changed".

    Raises:
        Failed: something can't be removed, or is none of ours.
    """
    done.update(containers=[], volumes=[], images=[], files=[], changed=False)
    for path in files:
        if not any(os.path.normpath(path) == place or path.startswith(place + "/") for place in PLACES):
            raise Failed(f"{path} is not rocstack's to remove", kind="file")
        if ".." in path.split("/"):
            raise Failed(f"{path} leads elsewhere", kind="file")
    listed = docker("ps", "--all", "--format", "{{.Names}}", "--filter", f"label={label}").out.split()
    done["containers"] = containers.remove(listed)
    there = set(docker("volume", "ls", "--quiet").out.split())
    for volume in (name for name in volumes if name in there):
        docker("volume", "rm", volume)
        done["volumes"].append(volume)
    done["images"] = image_prune.prune([]) if images else []
    for path in files:
        if os.path.lexists(path):
            try:
                _remove(path)
            except OSError as error:
                raise Failed(f"{path} can't be removed: {error.strerror or error}", kind="file") from None
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

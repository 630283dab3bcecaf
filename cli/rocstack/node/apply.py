"""Makes a node what its order says: files, containers, images, state, in this order. Standard library only."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

from . import containers, files, prune, pull
from .engine import Failed, Row, docker

STATE = "/var/lib/rocstack"  # node.json: what was made of this node
# There while an order is under way: what has to follow a change follows it in the next run, if this one is cut off.
_UNDER_WAY = "under-way"


def apply(order: Row, done: Row, heal: bool = False, folder: str = STATE) -> None:
    """
    Args:
        done: is filled as it happens: "files" (paths written), "removed" (containers), "containers" (as
            containers.Done), "exec" (commands that ran), "pruned" (image ids), "changed".
        heal: restart containers that are as described but unhealthy.

    Raises:
        Failed: with `done` at what happened until then.
    """
    done.update(files=[], removed=[], containers={}, exec=[], pruned=[], changed=False)
    mark = os.path.join(folder, _UNDER_WAY)
    rest = os.path.exists(mark)
    if not rest and files.differing(order["files"]):
        _touch(mark)
    done["files"] = files.ensure(order["files"])
    done["removed"] = containers.remove(order.get("remove", []))
    _containers(order, done, heal, mark)
    acted = any(one["action"] != "kept" for one in done["containers"].values())
    if rest or acted or done["files"]:
        for command in order.get("exec", []):
            _exec(command)
            done["exec"].append(command)
    if order.get("keep") is not None:
        done["pruned"] = prune.prune(order["keep"])
    write_state(order.get("state"), folder)
    if os.path.exists(mark):
        os.unlink(mark)
    done["changed"] = bool(acted or done["files"] or done["removed"] or done["pruned"])


def write_state(state: Row | None, folder: str = STATE) -> None:
    """node.json, for whoever asks next what was made of this node."""
    if not state:
        return
    content = json.dumps(state, indent=1, sort_keys=True).encode() + b"\n"
    path = os.path.join(folder, "node.json")
    files.ensure([files.entry(path, content, 0o644)])


def _containers(order: Row, done: Row, heal: bool, mark: str) -> None:
    """All at once: each waits by itself for what it needs of another. One that fails doesn't stop the others."""
    wanted = order["containers"]
    with ThreadPoolExecutor(max_workers=max(len(wanted), 1)) as pool:
        jobs = [pool.submit(_container, one, order["images"], done, heal) for one in wanted]
    if any(one["action"] != "kept" for one in done["containers"].values()):
        _touch(mark)
    for job in jobs:
        job.result()


def _container(wanted: Row, images: list[Row], done: Row, heal: bool) -> Row:
    row = next((image for image in images if image["id"] == wanted["image"]), {"id": wanted["image"]})
    image = pull.local_id(row)
    if image is None:
        raise Failed("image {} of {} isn't on this node".format(wanted["image"], wanted["name"]), kind="not-found")
    try:
        one = containers.ensure(wanted, image, heal).as_dict()
    except containers.NotHealthy as failed:
        done["containers"][wanted["name"]] = failed.done.as_dict()
        raise
    done["containers"][wanted["name"]] = one
    return one


def _exec(command: list[str]) -> None:
    said = docker("exec", *command, check=False, seconds=120)
    if said.code:
        raise Failed("{}: `{}` failed: {}".format(command[0], " ".join(command[1:]), said.why), kind="exec")


def _touch(path: str) -> None:
    files.ensure([files.entry(path, b"", 0o644)])

"""Brings a node to its specification: files, containers, images, state, in this order. Standard library only."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor, wait

from . import containers, engine_facts, files, pull, removal
from .engine import NodeError, Row, docker
from .fence import Fence
from .node_lock import STATE, node_lock

# There while an order is under way: what has to follow a change follows it in the next run, if this one is cut off. An
# order without a state is only a part of one.
_UNDER_WAY = "under-way"
_VOLUME = "--volume="
_ROOM = 64 << 20  # bytes


def apply(order: Row, done: Row, heal: bool = False, folder: str = STATE) -> None:
    """
    Args:
        order: with "fence", as `Fence` takes it.
        done: is filled as it happens: "files" (paths written or removed), "removed" (containers), "containers" (as
            containers.Done), "exec" (commands that ran), "pruned" (image ids), "changed".
        heal: restart containers that are as described but unhealthy.

    What fails takes back with it the files that it would be started with the next time: those that were written in
    this run and that it mounts, but for the ones with which another container has come up in this run. After that the
    container before it is started.

    Raises:
        NodeError: with `done` at what happened until then.
    """
    done.update(files=[], removed=[], containers={}, exec=[], pruned=[], changed=False)
    fence = Fence(order.get("fence"), folder)
    with node_lock(folder, fence=fence):
        mark = os.path.join(folder, _UNDER_WAY)
        rest = os.path.exists(mark)
        before = files.read_before(order["files"])
        if before and not rest:
            _touch(mark)
        try:
            done["files"] = files.ensure(order["files"])
        except NodeError:
            files.put_back(before)
            raise
        fence.check()
        done["removed"] = containers.remove(order.get("remove", []))
        _containers(order, done, heal, mark, before, fence)
        acted = bool(_started(done))
        if rest or acted or done["files"]:
            _require_room(order)
            _commands(order, done, before, fence)
        fence.check()
        done["files"] += files.remove(order.get("absent", []))
        if order.get("keep") is not None:
            done["pruned"] = removal.prune_images(order["keep"])
        write_state(order.get("state"), folder)
        if order.get("state") and os.path.exists(mark):
            os.unlink(mark)
        done["changed"] = bool(acted or done["files"] or done["removed"] or done["pruned"])


def write_state(state: Row | None, folder: str = STATE) -> None:
    """node.json, for whoever asks next what was made of this node."""
    if not state:
        return
    content = json.dumps(state, indent=1, sort_keys=True).encode() + b"\n"
    path = os.path.join(folder, "node.json")
    files.ensure([files.entry(path, content, 0o644)])


def _containers(order: Row, done: Row, heal: bool, mark: str, before: list[Row], fence: Fence) -> None:
    """All at once: each waits by itself for what it needs of another. One that fails doesn't stop the others."""
    specs = order["containers"]
    failed: list[containers.NotHealthy] = []
    with ThreadPoolExecutor(max_workers=max(len(specs), 1)) as pool:
        jobs = [pool.submit(_container, one, order["images"], done, heal, before, failed, fence) for one in specs]
        wait(jobs)
        try:
            _put_back(order, done, before, {each.done.name for each in failed})
        finally:
            list(pool.map(containers.undo, failed))
    for each in failed:
        done["containers"][each.done.name] = each.done.to_dict()
    if _started(done):
        _touch(mark)
    for job in jobs:
        job.result()


def _container(
    spec: Row,
    images: list[Row],
    done: Row,
    heal: bool,
    before: list[Row],
    failed: list[containers.NotHealthy],
    fence: Fence,
) -> None:
    """One that fails and has files to be put back waits for that in `failed`: others may have come up with them."""
    row = next((image for image in images if image["id"] == spec["image"]), {"id": spec["image"]})
    image = pull.local_id(row)
    if image is None:
        raise NodeError("image {} of {} isn't on this node".format(spec["image"], spec["name"]), kind="not-found")
    fence.check()
    try:
        one = containers.try_container(spec, image, heal)
    except containers.NotHealthy as error:
        if _mounted_files(spec, before):
            failed.append(error)
        else:
            containers.undo(error)
        done["containers"][spec["name"]] = error.done.to_dict()
        raise
    done["containers"][spec["name"]] = one.to_dict()


def _require_room(order: Row) -> None:
    """Slurm's controller reads back what it has saved when it is told of new files. On a full disk it saves nothing:
    a job that has ended meanwhile would run on for ever in its books."""
    if any("scontrol" in command for command in order.get("exec", [])):
        root, free = engine_facts.room()
        if free is not None and free < _ROOM:
            what = f"{root} has only {free / 1e6:.0f} MB free: Slurm's controller can't save its jobs"
            raise NodeError(what, "free space there", "full")


def _commands(order: Row, done: Row, before: list[Row], fence: Fence) -> None:
    """One that fails ran with the new files; once they are put back all run again, for the daemons to follow."""
    for command in order.get("exec", []):
        fence.check()
        try:
            if why := _why(command):
                raise NodeError(why, kind="exec")
        except NodeError as failed:
            # One that has just been started with the files runs with them, whatever this command says.
            if _put_back(order, done, before, {command[0]} - _started(done)):
                again = [_why(line) for line in [*done["exec"], command]]
                failed.cause = "its files were restored" + "".join(f"; {why}" for why in again if why)
            raise
        done["exec"].append(command)


def _put_back(order: Row, done: Row, before: list[Row], failed: set[str]) -> list[Row]:
    """The files that apply speaks of; gives them."""
    up = _started(done) - failed
    paths: dict[bool, set[str]] = {True: set(), False: set()}
    for one in order["containers"]:
        if one["name"] in failed | up:
            paths[one["name"] in failed].update(file["path"] for file in _mounted_files(one, before))
    back = [file for file in before if file["path"] in paths[True] - paths[False]]
    files.put_back(back)
    gone = {file["path"] for file in back}
    done["files"] = [path for path in done["files"] if path not in gone]
    return back


def _started(done: Row) -> set[str]:
    return {name for name, one in done["containers"].items() if one["action"] != "kept"}


def _mounted_files(spec: Row, written: list[Row]) -> list[Row]:
    """Those files of the node that the container has."""
    sources = [arg[len(_VOLUME) :].partition(":")[0] for arg in spec["args"] if arg.startswith(_VOLUME)]
    return [file for file in written if any(f"{file['path']}/".startswith(f"{source}/") for source in sources)]


def _why(command: list[str]) -> str:
    """Why it failed, if it did."""
    output = docker("exec", *command, check=False, seconds=120)
    return "{}: `{}` failed: {}".format(command[0], " ".join(command[1:]), output.why) if output.code else ""


def _touch(path: str) -> None:
    files.ensure([files.entry(path, b"", 0o644)])

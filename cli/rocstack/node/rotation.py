"""New keys on a node, while its jobs run on. Standard library only.

A job lives in the worker's container, so that one is never restarted: munged alone is, inside of it. The other services
are restarted. Slurm's controller is stopped meanwhile: daemons and jobs take it for one that is away for a moment and
try again, but not a credential that can't be decoded.
"""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

from . import containers, files
from .containers import CONTROLLER, WORKER
from .engine import NodeError, Row, docker
from .node_lock import STATE

SERVICES = ("rocstack-db", "rocstack-registry", CONTROLLER, "rocstack-service", "rocstack-tokens")
DBD = "/etc/rocstack/slurm/slurmdbd.conf"
HEALTHY_S, PROVED_S = 300.0, 60.0  # seconds
# munged starts again by itself, with the key that is there then.
_SWAP = """
set -eu
umask 077
new=/etc/munge/munge.key.new
base64 -d >$new
chown munge:munge $new
chmod 0400 $new
mv $new /etc/munge/munge.key
old=$(cat /run/munge/munged.pid)
kill "$old"
for _ in $(seq 150); do
    now=$(cat /run/munge/munged.pid 2>/dev/null || true)
    if [ -n "$now" ] && [ "$now" != "$old" ] && timeout 2 munge -n 2>/dev/null | timeout 2 unmunge >/dev/null 2>&1; then
        exit 0
    fi
    sleep 0.1
done
echo "munged doesn't start again" >&2
exit 1
"""


def stop() -> None:
    """Slurm's controller, if it runs."""
    if containers.find(CONTROLLER):
        docker("stop", CONTROLLER, seconds=120)


def swap(order: Row, folder: str = STATE) -> None:
    """
    Args:
        order: "munge": the key's path and file; "files": others (entries of `files`), "database": password or "",
            "keys": fingerprints for node.json, or {}.

    Raises:
        NodeError: something can't be done; what was done until then stays, and the next run does the rest.
    """
    munge = order["munge"]
    if _running(WORKER):
        output = docker("exec", "-i", WORKER, "bash", "-c", _SWAP, stdin=munge["content"], check=False)
        if output.code:
            raise NodeError(f"{WORKER}: {output.why}", kind="exec")
    _keep_time(munge)
    files.ensure(order["files"])
    if order["database"]:
        _set_password(order["database"])
    if order["keys"]:
        _note(order["keys"], folder)


def start() -> None:
    """The services that this node has, with the files that are there now.

    Raises:
        NodeError: one isn't healthy afterwards.
    """
    names = [row["Name"] for row in containers.find(*SERVICES)]
    with ThreadPoolExecutor(max_workers=len(SERVICES)) as pool:  # at once: each waits by itself for what it needs
        list(pool.map(_restart, names))


def prove() -> None:
    """The controller takes what this node's munged encodes: the worker's health says so.

    Raises:
        NodeError: it doesn't.
    """
    if _running(WORKER) and (why := containers.wait_healthy(WORKER, PROVED_S)):
        raise NodeError(f"{WORKER} {why}", "its MUNGE key is another one than the controller's", "container")


def _restart(name: str) -> None:
    docker("restart", name, seconds=180)
    if why := containers.wait_healthy(name, HEALTHY_S):
        raise NodeError(f"{name} {why}", kind="container")


def _running(name: str) -> bool:
    return any(row["State"]["Status"] == "running" for row in containers.find(name))


def _keep_time(file: Row) -> None:
    """The worker has the new key already, so it isn't one that started before its key was written."""
    path = file["path"]
    before = os.stat(path).st_mtime if os.path.exists(path) else None
    if files.ensure([file]) and before is not None:
        os.utime(path, (before, before))


def _set_password(password: str) -> None:
    if not os.path.exists(DBD):
        return
    with files.explained(DBD, "changed"):
        with open(DBD, encoding="utf-8") as opened:
            text = opened.read()
        about = os.stat(DBD)
        new = re.sub(r"(?m)^StoragePass=.*$", lambda match: "StoragePass=" + password, text)
        files.write(DBD, new.encode(), about.st_mode & 0o777, about.st_uid, about.st_gid)


def _note(keys: Row, folder: str) -> None:
    path = os.path.join(folder, "node.json")
    if not os.path.exists(path):  # the cluster was taken down meanwhile
        return
    with files.explained(path, "changed"), open(path, encoding="utf-8") as opened:
        state = json.load(opened)
    state["keys"] = keys
    content = json.dumps(state, indent=1, sort_keys=True).encode() + b"\n"
    files.ensure([files.entry(path, content, 0o644)])

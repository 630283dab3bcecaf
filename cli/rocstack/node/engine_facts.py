"""What the container engine of a node says: of itself, of our containers and of our images. Through its command
line, since that is what every engine has (podman-docker too); read-only; standard library only."""

from __future__ import annotations

import calendar
import json
import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import engine_errors
from .engine import NodeError, Row, run_docker
from .limits import hard_limits, raises_limits

TIMEOUT_S = 10.0  # seconds for one answer of the engine
SERVICE, SPEC, READS, OWN = "io.rocstack.service", "io.rocstack.spec", "io.rocstack.reads", "io.rocstack."
ABSENT, DENIED, SILENT, FAILED = "absent", "denied", "silent", "failed"
RUNS = ("running", "restarting", "paused")
_KINDS = {"no-permission": DENIED, "silent": SILENT}  # of engine_errors


def engine_facts() -> Row:
    """{"engine", "containers", "images"}: shapes and meaning in rocstack.deploy.read.facts."""
    with ThreadPoolExecutor(max_workers=3) as pool:
        info = pool.submit(ask, "info", "--format", "{{json .}}")
        containers = pool.submit(_inspect, "container", "ps", "-aq", "--no-trunc", "--filter", "label=" + SERVICE)
        images = pool.submit(_inspect, "image", "image", "ls", "-q", "--no-trunc", "--filter", "label=" + OWN + "role")
        text, problem, error = info.result()
        (container_rows, no_containers), (image_rows, no_images) = containers.result(), images.result()
    # `docker info` may succeed with a client that reached nobody: then it says so in ServerErrors.
    facts = _parsed(text, dict)
    problems = facts.get("ServerErrors") or []
    if not problem and problems:
        error = str(problems[0]).strip()
        problem = _problem(error)
    if not problem and (no_containers or no_images):
        problem, error = FAILED, no_images or no_containers
    return {
        "engine": _engine(facts, problem, error),
        "containers": [_container(row) for row in container_rows] if not problem else [],
        "images": [_image(row) for row in image_rows] if not problem else [],
    }


def stale(row: Row, paths: list[str]) -> bool:
    """A file that it reads was written after its start: it still has the old content."""
    if row["State"].get("Status") not in RUNS:
        return False
    whole, _, part = row["State"]["StartedAt"].rstrip("Z").partition(".")
    started = calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{part or 0}")
    return any(os.path.exists(path) and os.stat(path).st_mtime > started for path in paths)


def ask(*words: str) -> tuple[str, str, str]:
    """The answer, or else a word of ABSENT ... FAILED and the sentence that was said."""
    try:
        output = run_docker(*words, seconds=TIMEOUT_S)
    except NodeError as failed:
        return "", ABSENT, failed.what
    except subprocess.TimeoutExpired:
        return "", SILENT, f"no answer within {TIMEOUT_S:g} s"
    except OSError as error:
        return "", FAILED, f"{error.filename or 'docker'}: {error.strerror or error}"
    if output.code == 0:
        return output.out, "", ""
    complaint = output.err.strip() or f"exit status {output.code}"
    return "", _problem(complaint), complaint.splitlines()[-1]


def _inspect(kind: str, *listing: str) -> tuple[list[Row], str]:
    """All that `docker <listing>` lists, without what is removed in between; and why it can't be had."""
    idents = sorted(set(ask(*listing)[0].split()))
    while idents:
        text, _, why = ask(kind, "inspect", *idents)
        if text:
            return [row for row in _parsed(text, list) if isinstance(row, dict)], ""
        still = [ident for ident in sorted(set(ask(*listing)[0].split())) if ident in idents]
        if still == idents:
            return [], why or "no answer"
        idents = still
    return [], ""


def _problem(complaint: str) -> str:
    return _KINDS.get(engine_errors.kind(complaint, _KINDS), FAILED)


def _parsed(text: str, kind: Any) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, kind) else kind()


def _engine(info: Row, problem: str, error: str) -> Row:
    if isinstance(info.get("host"), dict):  # podman's own words
        host, store = info["host"], info.get("store") or {}
        name, version = "podman", (info.get("version") or {}).get("Version", "")
        root, driver, kind = store.get("graphRoot", ""), store.get("graphDriverName", ""), "graph"
        cgroup = int(str(host.get("cgroupVersion", "v0")).lstrip("v") or 0)
        cgroup_driver = host.get("cgroupManager") or ""
        rootless = bool((host.get("security") or {}).get("rootless"))
    else:
        snapshotter = any("io.containerd.snapshotter" in str(row) for row in info.get("DriverStatus") or [])
        name, version = "docker", info.get("ServerVersion") or ""
        root, driver, kind = info.get("DockerRootDir") or "", info.get("Driver") or "", "graph"
        cgroup = int(info.get("CgroupVersion") or 0)
        cgroup_driver = info.get("CgroupDriver") or ""
        rootless = any("name=rootless" in str(option) for option in info.get("SecurityOptions") or [])
        if snapshotter:
            kind = "containerd"
            address = str((info.get("Containerd") or {}).get("Address", ""))
            if address.startswith("/run/containerd/"):  # not the engine's own: its layers lie elsewhere
                root = "/var/lib/containerd"
    limits, raises = engine_limits()
    return {
        "name": name, "version": version, "root": root, "driver": driver, "store": kind, "cgroup": cgroup,
        "rootless": rootless, "free_bytes": _free_bytes(str(root)), "memlock": limits.get("memlock"),
        "limits": limits, "raises_limits": raises,
        "cgroup_driver": cgroup_driver, "cgroup_writable": cgroup_writable(read_text("/proc/self/mounts")),
        "problem": problem, "error": error,
    }  # fmt: skip


def engine_limits() -> tuple[dict[str, int], bool]:
    """The hard limits of the process that starts containers (dockerd, or else PID 1), of which a container gets no
    more, unless that process may go beyond them."""
    pid = read_text("/run/docker.pid").strip()
    folder = f"/proc/{pid if pid.isdigit() and os.path.isdir('/proc/' + pid) else 1}/"
    raises = raises_limits(read_text(folder + "status"), read_text(folder + "uid_map"))
    return hard_limits(read_text(folder + "limits")), raises


def room() -> tuple[str, int | None]:
    """Where the engine keeps images, containers and volumes, and how many bytes are free there."""
    try:
        root = run_docker("info", "--format", "{{.DockerRootDir}}", seconds=TIMEOUT_S).out.strip()
    except (NodeError, OSError, subprocess.TimeoutExpired):
        root = ""
    root = root or "/var/lib/docker"
    return root, _free_bytes(root)


def _free_bytes(root: str) -> int | None:
    try:
        room = os.statvfs(root)
    except OSError:
        return None
    return room.f_bavail * room.f_frsize


def cgroup_writable(mounts: str) -> bool:
    """Whether the node's cgroups can be written, by its /proc/self/mounts: where not, Slurm has to do without."""
    for line in mounts.splitlines():
        words = line.split()
        if len(words) > 3 and words[1].startswith("/sys/fs/cgroup"):
            options = words[3].split(",")
            if "rw" in options and (words[2] == "cgroup2" or (words[2] == "cgroup" and "devices" in options)):
                return True
    return False


def _container(row: Row) -> Row:
    state, labels = row.get("State") or {}, (row.get("Config") or {}).get("Labels") or {}
    health = state.get("Health") or {}
    reads = [path for path in str(labels.get(READS, "")).split(",") if path]
    spec = "" if reads and state.get("StartedAt") and stale(row, reads) else str(labels.get(SPEC, ""))
    return {
        "name": str(row.get("Name", "")).lstrip("/"), "id": str(row.get("Id", "")),
        "service": str(labels.get(SERVICE, "")), "image": image_id(row.get("Image")), "spec": spec,
        "status": str(state.get("Status", "")), "health": str(health.get("Status") or ""),
        "restarts": int(row.get("RestartCount") or 0), "started": str(state.get("StartedAt", "")),
        "pid": int(state.get("Pid") or 0), "error": str(state.get("Error") or ""),
    }  # fmt: skip


def _image(row: Row) -> Row:
    labels = (row.get("Config") or {}).get("Labels") or {}
    return {
        "id": image_id(row.get("Id")), "names": list(row.get("RepoTags") or []),
        "digests": list(row.get("RepoDigests") or []),
        "layers": list((row.get("RootFS") or {}).get("Layers") or []), "size": int(row.get("Size") or 0),
        "created": str(row.get("Created") or ""),
        "role": str(labels.get(OWN + "role", "")), "content": str(labels.get(OWN + "content", "")),
        "stack": str(labels.get(OWN + "stack", "")), "nic": str(labels.get(OWN + "nic", "")),
    }  # fmt: skip


def image_id(ident: Any) -> str:
    """podman says an id without the name of its hash."""
    text = str(ident or "")
    return "sha256:" + text if re.fullmatch("[0-9a-f]{64}", text) else text


def read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""

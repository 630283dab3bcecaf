"""What the container engine of a node says: of itself, of our containers and of our images. Through its command
line, since that is what every engine has (podman-docker too); read-only; standard library only."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, TypedDict  # noqa: UP035

from . import engine_errors
from .limits import hard_limits, raises_limits

TIMEOUT_S = 10.0  # seconds for one answer of the engine
PROGRAM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/snap/bin"
SERVICE, SPEC, OWN = "io.rocstack.service", "io.rocstack.spec", "io.rocstack."
ABSENT, DENIED, SILENT, FAILED = "absent", "denied", "silent", "failed"
_KINDS = {"no-permission": DENIED, "silent": SILENT}  # of engine_errors
Row = Dict[str, Any]  # noqa: UP006  (evaluated by Python 3.8)


class EngineRow(TypedDict):
    """The engine itself. `problem` is "" or a word of ABSENT ..., `error` what it said."""

    name: str
    version: str
    root: str
    driver: str
    store: str
    cgroup: int
    rootless: bool
    free_bytes: int | None
    memlock: int | None
    limits: dict[str, int]
    raises_limits: bool
    cgroup_writable: bool
    problem: str
    error: str


class ContainerRow(TypedDict):
    """A container of ours."""

    name: str
    id: str
    service: str
    image: str
    spec: str
    status: str
    health: str
    restarts: int
    started: str
    pid: int
    error: str


class ImageRow(TypedDict):
    """An image of ours."""

    id: str
    names: list[str]
    digests: list[str]
    layers: list[str]
    size: int
    created: str
    role: str
    content: str
    stack: str
    nic: str


class EngineFacts(TypedDict):
    engine: EngineRow
    containers: list[ContainerRow]
    images: list[ImageRow]


class EngineCommand:
    """Asks the `docker` command."""

    def __init__(self, program: str | None = None) -> None:
        self.program = program or shutil.which("docker", path=os.environ.get("PATH", "") + ":" + PROGRAM_FOLDERS)

    def ask(self, *words: str) -> tuple[str, str, str]:
        """The answer, or else a word of ABSENT ... FAILED and the sentence that was said."""
        if self.program is None:
            return "", ABSENT, "there is no docker command"
        try:
            done = subprocess.run(
                [self.program, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S,
                env={**os.environ, "LC_ALL": "C"},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "", SILENT, f"no answer within {TIMEOUT_S:g} s"
        except OSError as error:
            return "", FAILED, f"{self.program}: {error.strerror or error}"
        complaint = done.stderr.decode("utf-8", "replace").strip()
        if done.returncode == 0:
            return done.stdout.decode("utf-8", "replace"), "", ""
        complaint = complaint or f"exit status {done.returncode}"
        return "", _problem(complaint), complaint.splitlines()[-1]

    def inspect(self, kind: str, listing: tuple[str, ...]) -> list[Row]:
        """All that `docker <kind> <listing>` lists; what is removed in between is not in it."""
        idents = sorted(set(self.ask(*listing)[0].split()))
        while idents:
            text, _, why = self.ask(kind, "inspect", *idents)
            if text:
                return [row for row in _parsed(text, list) if isinstance(row, dict)]
            still = [ident for ident in sorted(set(self.ask(*listing)[0].split())) if ident in idents]
            if still == idents:
                raise OSError(why)
            idents = still
        return []


def engine_facts(program: str | None = None) -> EngineFacts:
    engine = EngineCommand(program)
    with ThreadPoolExecutor(max_workers=3) as pool:
        info = pool.submit(engine.ask, "info", "--format", "{{json .}}")
        containers = pool.submit(_try, engine, "container", ("ps", "-aq", "--no-trunc", "--filter", "label=" + SERVICE))
        images = pool.submit(
            _try, engine, "image", ("image", "ls", "-q", "--no-trunc", "--filter", "label=" + OWN + "role")
        )
        text, problem, error = info.result()
        rows = {"container": containers.result(), "image": images.result()}
    # `docker info` may succeed with a client that reached nobody: then it says so in ServerErrors.
    facts = _parsed(text, dict)
    problems = facts.get("ServerErrors") or []
    if not problem and problems:
        error = str(problems[0]).strip()
        problem = _problem(error)
    if not problem:
        for rows_or_why in rows.values():
            if isinstance(rows_or_why, str):
                problem, error = FAILED, rows_or_why
    return {
        "engine": _engine(facts, problem, error),
        "containers": [_container(row) for row in rows["container"]] if not problem else [],
        "images": [_image(row) for row in rows["image"]] if not problem else [],
    }


def _try(engine: EngineCommand, kind: str, listing: tuple[str, ...]) -> Any:
    try:
        return engine.inspect(kind, listing)
    except OSError as error:
        return str(error)


def _problem(complaint: str) -> str:
    return _KINDS.get(engine_errors.kind(complaint, _KINDS), FAILED)


def _parsed(text: str, kind: Any) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, kind) else kind()


def _engine(info: Row, problem: str, error: str) -> EngineRow:
    if isinstance(info.get("host"), dict):  # podman's own words
        host, store = info["host"], info.get("store") or {}
        name, version = "podman", (info.get("version") or {}).get("Version", "")
        root, driver, kind = store.get("graphRoot", ""), store.get("graphDriverName", ""), "graph"
        cgroup = int(str(host.get("cgroupVersion", "v0")).lstrip("v") or 0)
        rootless = bool((host.get("security") or {}).get("rootless"))
    else:
        snapshotter = any("io.containerd.snapshotter" in str(row) for row in info.get("DriverStatus") or [])
        name, version = "docker", info.get("ServerVersion") or ""
        root, driver, kind = info.get("DockerRootDir") or "", info.get("Driver") or "", "graph"
        cgroup = int(info.get("CgroupVersion") or 0)
        rootless = any("name=rootless" in str(option) for option in info.get("SecurityOptions") or [])
        if snapshotter:
            kind = "containerd"
            address = str((info.get("Containerd") or {}).get("Address", ""))
            if address.startswith("/run/containerd/"):  # not the engine's own: its layers lie elsewhere
                root = "/var/lib/containerd"
    # A container gets no more than the engine's own process has.
    pid = _read("/run/docker.pid").strip()
    folder = f"/proc/{pid if pid.isdigit() and os.path.isdir('/proc/' + pid) else 1}/"
    limits = hard_limits(_read(folder + "limits"))
    return {
        "name": name, "version": version, "root": root, "driver": driver, "store": kind, "cgroup": cgroup,
        "rootless": rootless, "free_bytes": _free_bytes(str(root)), "memlock": limits.get("memlock"),
        "limits": limits, "raises_limits": raises_limits(_read(folder + "status"), _read(folder + "uid_map")),
        "cgroup_writable": cgroup_writable(), "problem": problem, "error": error,
    }  # fmt: skip


def _free_bytes(root: str) -> int | None:
    try:
        room = os.statvfs(root)
    except OSError:
        return None
    return room.f_bavail * room.f_frsize


def cgroup_writable(mounts: str | None = None) -> bool:
    """Whether the node's cgroups can be written: where not, Slurm has to do without."""
    for line in (_read("/proc/self/mounts") if mounts is None else mounts).splitlines():
        words = line.split()
        if len(words) > 3 and words[1].startswith("/sys/fs/cgroup"):
            options = words[3].split(",")
            if "rw" in options and (words[2] == "cgroup2" or (words[2] == "cgroup" and "devices" in options)):
                return True
    return False


def _container(row: Row) -> ContainerRow:
    state, labels = row.get("State") or {}, (row.get("Config") or {}).get("Labels") or {}
    health = state.get("Health") or {}
    return {
        "name": str(row.get("Name", "")).lstrip("/"), "id": str(row.get("Id", "")),
        "service": str(labels.get(SERVICE, "")), "image": image_id(row.get("Image")), "spec": str(labels.get(SPEC, "")),
        "status": str(state.get("Status", "")), "health": str(health.get("Status") or ""),
        "restarts": int(row.get("RestartCount") or 0), "started": str(state.get("StartedAt", "")),
        "pid": int(state.get("Pid") or 0), "error": str(state.get("Error") or ""),
    }  # fmt: skip


def _image(row: Row) -> ImageRow:
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


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""

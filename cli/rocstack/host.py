"""What `run` needs to know of the host: device nodes and their groups, GPUs, NICs, limits of the engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from pydantic import Field

from rocstack.node.system import LIMITS, UNLIMITED
from rocstack.words import Value

CAP_SYS_RESOURCE = 24  # raises a hard limit (capabilities(7))


class Device(Value):
    """A device node: its path on the host, owning group and permission bits."""

    path: str
    gid: int
    mode: int

    @property
    def only_root(self) -> bool:
        """Neither its group nor everybody opens it up to a user who is not root."""
        return self.gid == 0 and self.mode & 0o006 != 0o006


class Host(Value):
    """A host as `run` sees it. Sizes are bytes; a limit of -1 is none."""

    kfd: Device | None = None
    render: tuple[Device, ...] = ()  # /dev/dri/renderD*
    cards: tuple[Device, ...] = ()  # /dev/dri/card*
    infiniband: tuple[Device, ...] = ()
    cxi: tuple[Device, ...] = ()  # Slingshot
    gpus: tuple[int, ...] = ()  # render minor of each GPU, in the order of the KFD topology
    rdma: tuple[str, ...] = ()  # /sys/class/infiniband
    hsn: tuple[str, ...] = ()  # Slingshot's network devices
    limits: dict[str, int] = Field(default_factory=dict)  # the engine's hard limits, by docker's names
    raises_limits: bool = True  # may the engine go beyond them?
    shm: int | None = None  # size of /dev/shm


class Stat(Protocol):
    @property
    def st_gid(self) -> int: ...
    @property
    def st_mode(self) -> int: ...


def shm_size(path: Path) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def read_host(
    root: Path = Path("/"),
    *,
    stat: Callable[[Path], Stat] = os.stat,
    shm: Callable[[Path], int | None] = shm_size,
) -> Host:
    """Reads the host whose file system lies under `root`. What is absent or unreadable is left empty.

    Limits are those of the process that starts containers (dockerd, or else PID 1): the caller's own say
    nothing about a container.
    """

    def device(path: Path) -> Device | None:
        try:
            found = stat(path)
        except OSError:
            return None
        return Device(path="/" + str(path.relative_to(root)), gid=found.st_gid, mode=found.st_mode & 0o777)

    def devices(folder: str, pattern: str) -> tuple[Device, ...]:
        paths = [path for path in (root / folder).glob(pattern) if not path.is_dir()]
        found = (device(path) for path in sorted(paths, key=_natural))
        return tuple(item for item in found if item)

    engine = _engine(root / "proc", root / "run/docker.pid")
    return Host(
        kfd=device(root / "dev/kfd"),
        render=devices("dev/dri", "renderD*"),
        cards=devices("dev/dri", "card*"),
        infiniband=devices("dev/infiniband", "*"),
        cxi=devices("dev", "cxi[0-9]*"),
        gpus=_gpus(root / "sys/class/kfd/kfd/topology/nodes"),
        rdma=_names(root / "sys/class/infiniband", "*"),
        hsn=_names(root / "sys/class/net", "hsn*"),
        limits=_limits(_text(engine / "limits")),
        raises_limits=_raises_limits(_text(engine / "status"), _text(engine / "uid_map")),
        shm=shm(root / "dev/shm"),
    )


def _natural(path: Path) -> tuple[str, int]:
    stem = path.name.rstrip("0123456789")
    return stem, int(path.name[len(stem) :] or 0)


def _names(folder: Path, pattern: str) -> tuple[str, ...]:
    return tuple(path.name for path in sorted(folder.glob(pattern), key=_natural))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _engine(proc: Path, pid_file: Path) -> Path:
    pid = _text(pid_file).strip()
    return proc / pid if pid.isdigit() and (proc / pid).is_dir() else proc / "1"


def _pairs(lines: Iterable[str]) -> dict[str, str]:
    """`key value` lines, as KFD's properties and /proc/PID/status have them."""
    found = (line.split(None, 1) for line in lines)
    return {words[0].rstrip(":"): words[1] for words in found if len(words) == 2}


def _gpus(nodes: Path) -> tuple[int, ...]:
    """Render minors in the order in which ROCm counts GPUs. CPU nodes have no SIMD units."""
    minors = []
    for node in sorted((path for path in nodes.glob("*") if path.name.isdigit()), key=lambda path: int(path.name)):
        properties = _pairs(_text(node / "properties").splitlines())
        minor = int(properties.get("drm_render_minor", "0"))
        if minor > 0 and int(properties.get("simd_count", "0")) > 0:
            minors.append(minor)
    return tuple(minors)


def _limits(table: str) -> dict[str, int]:
    """Hard limits from /proc/PID/limits: columns limit (26 wide), soft, hard, unit."""
    found = {}
    for line in table.splitlines():
        name = LIMITS.get(line[:26].strip())
        values = line[26:].split()
        if name and len(values) >= 2:
            found[name] = UNLIMITED if values[1] == "unlimited" else int(values[1])
    return found


def _raises_limits(status: str, uid_map: str) -> bool:
    """Not without CAP_SYS_RESOURCE, nor from a user namespace (rootless). Unknown counts as yes: the engine
    says no by itself, and that is handled when it starts the container."""
    capabilities = _pairs(status.splitlines())
    usable = int(capabilities.get("CapEff", "f" * 16), 16) & int(capabilities.get("CapBnd", "f" * 16), 16)
    mapped = uid_map.split()
    whole = not mapped or mapped[:3] == ["0", "0", str(2**32 - 1)]
    return whole and bool(usable >> CAP_SYS_RESOURCE & 1)

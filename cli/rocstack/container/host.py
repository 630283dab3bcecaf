"""What `run` needs to know of the host: device nodes and their groups, GPUs, NICs, limits of the engine."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pydantic import Field

from rocstack.base.words import Value
from rocstack.node.limits import hard_limits, pairs, raises_limits
from rocstack.node.profile import NodeProfile
from rocstack.node.recording import Recording, natural_key


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
        system = os.statvfs(path)
    except OSError:
        return None
    return system.f_blocks * system.f_frsize


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
            status = stat(path)
        except OSError:
            return None
        return Device(path="/" + str(path.relative_to(root)), gid=status.st_gid, mode=status.st_mode & 0o777)

    def devices(folder: str, pattern: str) -> tuple[Device, ...]:
        paths = [path for path in (root / folder).glob(pattern) if not path.is_dir()]
        nodes = (device(path) for path in sorted(paths, key=_natural))
        return tuple(item for item in nodes if item)

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
        limits=hard_limits(_text(engine / "limits")),
        raises_limits=raises_limits(_text(engine / "status"), _text(engine / "uid_map")),
        shm=shm(root / "dev/shm"),
    )


def of_node(recording: Recording, profile: NodeProfile) -> Host:
    """The host of a probed node, for which `run_line` then makes the line that starts a container there. The size of
    its /dev/shm is not recorded; a limit that its engine can't raise is met when the container starts."""

    def devices(pattern: str) -> tuple[Device, ...]:
        paths = sorted((path for path in recording.devices if re.fullmatch(pattern, path)), key=natural_key)
        return tuple(Device(path=p, gid=recording.devices[p].gid, mode=recording.devices[p].mode) for p in paths)

    return Host(
        kfd=next(iter(devices("/dev/kfd")), None),
        render=devices(r"/dev/dri/renderD\d+"),
        cards=devices(r"/dev/dri/card\d+"),
        infiniband=devices("/dev/infiniband/.+"),
        cxi=devices(r"/dev/cxi\d+"),
        gpus=tuple(gpu.render_minor for gpu in profile.gpus if gpu.render_minor),
        rdma=tuple(device.name for device in profile.verbs),
        hsn=tuple(netdev.name for netdev in profile.netdevs if netdev.name.startswith("hsn")),
        limits=dict(profile.limits),
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


def _gpus(nodes: Path) -> tuple[int, ...]:
    """Render minors in the order in which ROCm counts GPUs. CPU nodes have no SIMD units."""
    minors = []
    for node in sorted((path for path in nodes.glob("*") if path.name.isdigit()), key=lambda path: int(path.name)):
        properties = pairs(_text(node / "properties").splitlines())
        minor = int(properties.get("drm_render_minor", "0"))
        if minor > 0 and int(properties.get("simd_count", "0")) > 0:
            minors.append(minor)
    return tuple(minors)

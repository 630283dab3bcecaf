"""What `run` needs to know of the host: device nodes and their groups, GPUs, NICs, limits of the engine."""

import os
import re
from collections.abc import Mapping

from pydantic import Field

from rocstack.base.words import Value
from rocstack.node.collect import collect
from rocstack.node.engine_facts import engine_limits
from rocstack.node.parse import parse
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


def read_host() -> Host:
    """This host. Its limits are those of the process that starts containers: the caller's own say nothing about one."""
    recording = Recording.from_dict(collect("/", run=False, libraries=False))
    limits, raises_limits = engine_limits()
    return of_node(recording, parse(recording), limits, raises_limits, shm_size())


def shm_size() -> int | None:
    try:
        system = os.statvfs("/dev/shm")
    except OSError:
        return None
    return system.f_blocks * system.f_frsize


def of_node(
    recording: Recording,
    profile: NodeProfile,
    limits: Mapping[str, int],
    raises_limits: bool,
    shm: int | None = None,
) -> Host:
    """A node that was read, for which `run_line` then makes the line that starts a container there."""

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
        limits=dict(limits),
        raises_limits=raises_limits,
        shm=shm,
    )

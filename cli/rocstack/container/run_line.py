"""The `docker run` line for this host: the least that GPUs and RDMA need, never --privileged."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rocstack.base.errors import BadInput, Missing
from rocstack.base.words import MemorySize, Value
from rocstack.container import privileges, ulimit
from rocstack.container.environment import NOTHING, Environment
from rocstack.container.mount import Mount
from rocstack.container.ulimit import Ulimits
from rocstack.node import limits

if TYPE_CHECKING:
    from rocstack.container.host import Device, Host

WORKSPACE = "/workspace"  # where the current folder appears
SHM_NEEDED = 8 << 30  # bytes; RCCL and data loaders share memory (Primus' node smoke test asks for as much)


class RunProfile(Value):
    """What a site sets once for all its containers. `shm`: "host" shares its /dev/shm, a size makes one."""

    ulimits: Ulimits = "auto"
    shm: Literal["host"] | MemorySize = "host"


DEFAULT = RunProfile()


@dataclass(frozen=True)
class RunLine:
    """Arguments for the engine's client, and what the person should know about them."""

    flags: tuple[str, ...]
    image: str
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def args(self) -> tuple[str, ...]:
        """Everything after the word `docker`."""
        return ("run", *self.flags, self.image, *self.command)

    def without_ulimit(self, name: str) -> RunLine:
        """The same line for an engine that refused this limit."""
        flags = tuple(flag for flag in self.flags if not flag.startswith(f"--ulimit={name}="))
        return replace(self, flags=flags, notes=(*self.notes, limits.limit_note(name, None)))


def parse_gpus(text: str) -> tuple[int, ...] | None:
    """`all` (None), `none`, or numbers and ranges such as `0,2-3`.

    Raises:
        BadInput: anything else.
    """
    if text == "all":
        return None
    chosen: dict[int, None] = {}
    for part in [] if text == "none" else text.split(","):
        match = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", part.strip())
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise BadInput.of("bad-gpus", text=text)
        chosen.update(dict.fromkeys(range(int(match[1]), int(match[2] or match[1]) + 1)))
    return tuple(chosen)


def run_line(
    host: Host,
    image: str,
    command: Sequence[str] = (),
    *,
    profile: RunProfile = DEFAULT,
    gpus: tuple[int, ...] | None = None,
    mounts: Sequence[Mount] = (),
    workspace: Path | None = None,
    env: Environment = NOTHING,
    user: tuple[int, int] | None = None,
    terminal: bool = False,
    stdin: bool = False,
    name: str | None = None,
    stays: bool = False,
) -> RunLine:
    """The line that starts `image` on `host`. Without `command` the image's own role starts.

    Args:
        gpus: numbers of GPUs as ROCm counts them; None is all, () is none.
        workspace: the host's folder to appear at /workspace, where the command then starts.
        user: uid and gid of the command, so that what it writes is theirs; the image's own (root) without.
        terminal: a person sits at it (`-it`); `stdin`: something is piped in (`-i`).
        stays: a service, which is there until somebody removes it.

    Raises:
        BadInput: a GPU number that this host does not have.
        Missing: GPUs were chosen and this host has none.
    """
    gpu, gpu_notes = _gpu_devices(host, gpus)
    rdma = [*host.infiniband, *host.cxi]
    limits, limit_notes = ulimit.choose(host, profile.ulimits)
    work, work_notes = _workspace(workspace, mounts)
    flags = [
        *([] if stays else ["--rm"]),
        *(["--interactive", "--tty"] if terminal else ["--interactive"] if stdin else []),
        *([f"--name={name}"] if name else []),
        *(["--no-healthcheck"] if command else []),  # it asks for the role's daemons
        *privileges.LEAST,
        *privileges.WORKER,
        "--network=host",
        "--ipc=host" if profile.shm == "host" else f"--shm-size={profile.shm}",
        *_device_flags(host, gpu, gpus),
        *(f"--group-add={gid}" for gid in dict.fromkeys(device.gid for device in [*gpu, *rdma]) if gid),
        *(["--cap-add=IPC_LOCK"] if rdma else []),
        *(["--cap-add=SYS_PTRACE"] if gpu else []),  # ranks read each other's memory
        *(f"--ulimit={key}={value}" for key, value in limits.items()),
        # A uid that the image doesn't know has no home, and ROCm's libraries keep compiled kernels there.
        *([f"--user={user[0]}:{user[1]}", "--env=HOME=/tmp"] if user else []),
        *env.flags,
        *work,
        *(f"--volume={mount}" for mount in mounts),
    ]
    closed = [device.path for device in gpu if device.only_root]
    notes = (
        *gpu_notes,
        *([f"{', '.join(closed)}: group 0, so only root in the container can open it"] if closed else []),
        *_rdma_notes(host),
        *limit_notes,
        *_shm_notes(host, profile),
        *env.notes,
        *work_notes,
    )
    return RunLine(tuple(flags), image, tuple(command), notes)


def _gpu_devices(host: Host, gpus: tuple[int, ...] | None) -> tuple[list[Device], list[str]]:
    """The nodes that the container gets, KFD first; none without KFD, since ROCm can't do without."""
    if gpus == ():
        return [], []
    lacks = "/dev/kfd" if host.kfd is None else "/dev/dri/renderD*" if not host.render else None
    if lacks and gpus:
        raise Missing.of("host-without-gpu", lacks=lacks)
    if lacks or host.kfd is None:
        return [], [f"no {lacks}: GPUs are not visible in the container"]
    if gpus is None:
        return [host.kfd, *host.render, *host.cards], []
    if absent := [number for number in gpus if number >= len(host.gpus)]:
        count = len(host.gpus)
        raise BadInput.of("no-such-gpu" if count else "no-gpu-known", number=absent[0], count=count, last=count - 1)
    paths = [f"/dev/dri/renderD{host.gpus[number]}" for number in gpus]
    return [host.kfd, *(device for path in paths for device in host.render if device.path == path)], []


def _device_flags(host: Host, gpu: list[Device], gpus: tuple[int, ...] | None) -> list[str]:
    paths = [device.path for device in gpu]
    if gpu and gpus is None:
        paths = ["/dev/kfd", "/dev/dri"]  # a folder stands for all its nodes
    if host.infiniband:
        paths.append("/dev/infiniband")
    return [f"--device={path}" for path in [*paths, *(device.path for device in host.cxi)]]


def _rdma_notes(host: Host) -> Iterator[str]:
    if host.rdma and not any("/uverbs" in device.path for device in host.infiniband):
        yield f"{', '.join(host.rdma)} but no /dev/infiniband/uverbs*: `modprobe ib_uverbs`, or RCCL falls back to TCP"
    elif host.hsn and not host.cxi:
        yield f"{', '.join(host.hsn)} but no /dev/cxi*: the Slingshot driver is not loaded, traffic goes over TCP"
    elif not host.rdma and not host.cxi:
        yield "no RDMA device: MPI and RCCL use TCP"


def _shm_notes(host: Host, profile: RunProfile) -> Iterator[str]:
    if profile.shm == "host" and host.shm is not None and host.shm < SHM_NEEDED:
        has, needs = host.shm / 2**30, SHM_NEEDED >> 30
        yield f"/dev/shm has {has:.1f} GiB; RCCL and data loaders may need {needs} GiB: enlarge it, or set shm"


def _workspace(folder: Path | None, mounts: Sequence[Mount]) -> tuple[list[str], list[str]]:
    """Flags for the current folder; the user's own mount at /workspace wins."""
    if folder is None:
        return [], []
    if any(mount.target == WORKSPACE for mount in mounts):
        return [f"--workdir={WORKSPACE}"], []
    if folder == Path("/") or ":" in str(folder):  # all of the host is no workspace; ':' ends a path for docker
        return [], [f"{folder} is not mounted at {WORKSPACE}: start from another folder, or use --mount"]
    return [f"--volume={folder}:{WORKSPACE}", f"--workdir={WORKSPACE}"], []


def shell_quote(line: RunLine, program: str = "docker") -> str:
    """The line to paste into a shell: a flag per row."""
    last = shlex.join([line.image, *line.command])
    return " \\\n  ".join([f"{program} run", *(shlex.quote(flag) for flag in line.flags), last])

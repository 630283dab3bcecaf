"""What slurm.conf and gres.conf say of one worker: its size, its GPUs in ROCm's order, its features."""

import itertools
import re
from dataclasses import dataclass

from rocstack.base.errors import BadInput
from rocstack.node import hostlist
from rocstack.node.profile import Gpu, NodeProfile

MIB = 1 << 20
_PRODUCT = re.compile(r"\bMI\d{2,3}[A-Z]?\b", re.IGNORECASE | re.ASCII)
# A virtual node says the machine's own CPUs; with fewer than these, jobs that fill its GPUs would never start.
VIRTUAL_CPUS_PER_GPU = 4
# What Slurm can hold, and the kernel: a line that slurmctld can't read would end it.
MOST_CPUS = 0xFFF0  # uint16, whose last values have a meaning of their own
MOST_MEMORY = 1 << 50  # bytes
MOST_GPUS = 1024  # MAX_GRES_BITMAP
MOST_MINOR = (1 << 20) - 1  # MINORBITS, linux/kdev_t.h


@dataclass(frozen=True)
class Gres:
    """GPUs of one type: their device nodes as a hostlist, in ROCm's order."""

    type: str
    count: int
    files: str


@dataclass(frozen=True)
class SlurmNodeConfig:
    """One worker. `name` is what its container calls itself (hostname), `address` an IP: slurmctld waits minutes for a
    name that doesn't resolve."""

    name: str
    address: str
    cpus: int
    memory: int  # MiB that jobs may have
    topology: tuple[int, int, int] | None = None  # sockets, cores a socket, threads a core
    gres: tuple[Gres, ...] = ()
    features: tuple[str, ...] = ()
    virtual: bool = False
    cgroup: int | None = None  # 1 or 2
    cgroup_writable: bool = False

    @property
    def gpus(self) -> int:
        return sum(each.count for each in self.gres)


def slurm_node(
    profile: NodeProfile,
    *,
    name: str,
    address: str,
    cgroup: int | None = None,
    cgroup_writable: bool = False,
    topology: tuple[int, int, int] | None = None,
    offer_gpus: bool = True,
) -> SlurmNodeConfig:
    """
    Raises:
        BadInput: the profile doesn't say how large the node is, or says what can't be.
    """
    system = profile.system
    if not system.cpus or not system.memory:
        raise BadInput.of("no-node-size", node=name)
    gres = gpu_gres(profile.gpus) if offer_gpus else ()
    count = sum(each.count for each in gres)
    minor = max((gpu.render_minor or 0 for gpu in profile.gpus), default=0)
    for what, said, most in (
        ("CPUs", system.cpus, MOST_CPUS),
        ("bytes of memory", system.memory, MOST_MEMORY),
        ("GPUs", count, MOST_GPUS),
        ("as the number of a render node", minor, MOST_MINOR),
    ):
        if said > most:
            raise BadInput.of("bad-node-size", node=name, what=what, said=said, most=most)
    words = {gpu.gfx for gpu in profile.gpus} | {nic.nic for nic in profile.nics} | {each.type for each in gres}
    if topology and topology[0] * topology[1] * topology[2] != system.cpus:
        topology = None  # CPUs are switched off: the number alone is right
    return SlurmNodeConfig(
        name=name,
        address=address,
        cpus=max(system.cpus, VIRTUAL_CPUS_PER_GPU * count) if profile.virtual else system.cpus,
        memory=job_memory(system.memory),
        topology=None if profile.virtual else topology,
        gres=gres,
        features=(*sorted(filter(None, words)), *(["virtual"] if profile.virtual else [])),
        virtual=bool(profile.virtual),
        cgroup=cgroup,
        cgroup_writable=cgroup_writable,
    )


def job_memory(memory: int) -> int:
    """MiB for jobs of so many bytes: all but 1/32 or 512 MiB for the system. In steps, so that another kernel, which
    reserves a little more, neither drains the node nor changes slurm.conf."""
    whole = memory // MIB
    step = 1024 if whole >= 65536 else 256
    return max((whole - max(whole // 32, 512)) // step * step, 256)


def gpu_type(gpu: Gpu) -> str:
    """mi300x, by the product's name; else gfx942, by its architecture."""
    product = _PRODUCT.search(gpu.name or "")
    return product[0].lower() if product else gpu.gfx or "unknown"


def gpu_gres(gpus: tuple[Gpu, ...]) -> tuple[Gres, ...]:
    """The GPUs that the driver drives. Slurm numbers them line by line in the order of their files, and that number is
    what jobs get in ROCR_VISIBLE_DEVICES; so both are ROCm's order."""
    driven = [gpu for gpu in gpus if gpu.kfd_node is not None and gpu.render_minor]
    result = []
    for kind, group in itertools.groupby(driven, key=gpu_type):
        files = [f"/dev/dri/renderD{gpu.render_minor}" for gpu in group]
        result.append(Gres(kind, len(files), hostlist.fold(files)))
    return tuple(result)

"""Whether jobs are held in cgroups: by what the workers allow, one answer for the cluster (slurm.conf is one)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rocstack.base.errors import BadInput
from rocstack.base.paths import images
from rocstack.cluster.slurm_node import SlurmNodeConfig
from rocstack.node import hostlist

MOUNT = "/sys/fs/cgroup"
CONTROLLERS = ("cpuacct", "cpuset", "devices", "freezer", "memory")  # of version 1, that Slurm uses
BRANCH = "rocstack.slice"  # of version 2; systemd asks for the ending
SECCOMP = "/etc/rocstack/seccomp.json"  # on the node; its engine's client reads it


@dataclass(frozen=True)
class Cgroups:
    """`plugin` is cgroup.conf's word. Without cgroups a job can reach GPUs and memory that it didn't ask for."""

    plugin: str
    notes: tuple[str, ...] = ()

    @property
    def used(self) -> bool:
        return self.plugin != "disabled"

    @property
    def unified(self) -> bool:
        """Some node has version 2."""
        return self.plugin in ("cgroup/v2", "autodetect")


DISABLED = Cgroups("disabled")


def decide(setting: str, machines: Sequence[SlurmNodeConfig]) -> Cgroups:
    """`setting` is `cluster.cgroup`: auto, v1, v2 or disabled.

    Raises:
        BadInput: v1 or v2 is asked for and a node doesn't allow it: its slurmd would not start.
    """
    if setting == "disabled" or not machines:
        return DISABLED
    lacking = {each.name: _lack(each) for each in machines}
    if setting != "auto":
        version = int(setting[1])
        lacking |= {m.name: f"has cgroup v{m.cgroup}" for m in machines if m.cgroup and m.cgroup != version}
    closed = [name for name, why in lacking.items() if why]
    if not closed:
        versions = {each.cgroup for each in machines}
        return Cgroups("autodetect" if len(versions) > 1 else f"cgroup/v{versions.pop()}")
    why = "; ".join(sorted({f"{name} {lacking[name]}" for name in closed[:3]}))
    more = f" and {len(closed) - 3} more" if len(closed) > 3 else ""
    if setting == "auto":
        names = hostlist.fold(sorted(closed, key=hostlist.natural))
        said = (
            f"jobs are not held in cgroups (a job can use GPUs and memory it didn't ask for), because of {names}: {why}"
        )
        return Cgroups("disabled", (said + more,))
    raise BadInput.of("bad-cgroup", setting=setting, why=why + more)


def lost(setting: str, before: Iterable[SlurmNodeConfig], now: Iterable[SlurmNodeConfig]) -> str:
    """What a running cluster is told that loses its cgroups by a node that came, or changed; "" where none does."""
    closed = sorted((each.name for each in now if _lack(each)), key=hostlist.natural)
    was = decide("auto", tuple(before))
    if setting != "auto" or not closed or not was.used:
        return ""
    names = hostlist.fold(closed)
    return (
        f"jobs will no longer be held in cgroups because of {names}, and every worker is replaced for it: "
        f"take {names} out of the inventory, or `cluster.cgroup: {'v2' if was.unified else 'v1'}` refuses it"
    )


def _lack(each: SlurmNodeConfig) -> str:
    if each.cgroup is None:
        return "says no cgroup version"
    return "" if each.cgroup_writable else "lets no container write its cgroups"


def cgroup_flags(
    name: str, version: int | None, allowed: bool, *, engine: str = "docker", driver: str = "systemd"
) -> tuple[str, ...]:
    """Flags with which the container of worker `name` may hold jobs; never --privileged.

    slurmd writes to folders of its own, beside the container's, whose list of devices would hold for jobs too, and sees
    the rest of the host's tree read-only, with /sys. Seen at work with both versions: a GPU that a job didn't ask for
    can't be opened, memory over its limit ends it.
    Version 1: a folder of each controller that Slurm uses. devices.deny asks for CAP_SYS_ADMIN, and the profile takes
    from it the system calls that come with it, mount before all.
    Version 2: a branch of the tree. The engine puts the container there, so the controllers are enabled down to it, and
    Slurm makes its scope beside it. The kernel (5.8) asks for CAP_BPF and CAP_NET_ADMIN of who loads a program that
    says which devices a job may open.

    Args:
        engine: podman makes no folder that it is to mount, so there slurmd gets the whole tree of version 2.
        driver: who makes the engine's cgroups, "systemd" or "cgroupfs", which want the branch named differently.
    """
    if not allowed or version not in (1, 2):
        return ()
    common = ("--cgroupns=host", f"--security-opt=seccomp={SECCOMP}")
    if version == 2:
        branch = f"--volume={MOUNT}/{BRANCH}:{MOUNT}/{BRANCH}"
        parent = f"--cgroup-parent={'/' if driver == 'cgroupfs' else ''}{BRANCH}"
        tree = (f"--volume={MOUNT}:{MOUNT}",) if engine == "podman" else (parent, branch)
        return (*common, "--cap-add=BPF", "--cap-add=NET_ADMIN", *tree)
    # By Slurm's name for it; the engine makes a folder that isn't there.
    paths = [f"{MOUNT}/{controller}/slurm_{name}" for controller in CONTROLLERS]
    paths.append(f"{MOUNT}/memory/memory.use_hierarchy")  # set by slurmd, and by the kernel since 5.11
    return (*common, "--cap-add=SYS_ADMIN", *(f"--volume={path}:{path}" for path in paths))


def seccomp_profile() -> bytes:
    """What SECCOMP holds."""
    return (images() / "seccomp.json").read_bytes()

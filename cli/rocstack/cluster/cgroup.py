"""Whether jobs are held in cgroups: by what the workers allow, one answer for the cluster (slurm.conf is one)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rocstack.base.errors import BadInput
from rocstack.cluster.slurm_node import SlurmNodeConfig
from rocstack.node import hostlist

MOUNT = "/sys/fs/cgroup"


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


def cgroup_flags(version: int | None, allowed: bool) -> tuple[str, ...]:
    """Flags with which a worker's container may hold jobs; never --privileged.

    CAP_SYS_NICE: slurmstepd binds tasks to CPUs when they are the user's already ("task_g_set_affinity: Operation not
    permitted" without it). Where cgroups are allowed, slurmd makes its folders in the host's tree, beside the
    container's own, whose list of devices would hold for jobs too; v1's devices.deny and v2's device programs ask for
    CAP_SYS_ADMIN. Version 1 was seen at work with these flags: a GPU that a job didn't ask for can't be opened, memory
    over its limit ends it. Version 2 takes the same by Slurm's cgroup_v2 page; it was not seen.
    """
    nice = ("--cap-add=SYS_NICE",)
    if not allowed or version not in (1, 2):
        return nice
    return (*nice, "--cgroupns=host", f"--volume={MOUNT}:{MOUNT}", "--cap-add=SYS_ADMIN")

"""slurm.conf, gres.conf, cgroup.conf and slurmdbd.conf. Pure: the same input gives the same bytes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput, did_you_mean
from rocstack.cluster import cgroup, hostlist
from rocstack.cluster.operation import seconds
from rocstack.cluster.settings import VERIFY, ClusterSettings, Partition
from rocstack.cluster.slurm_node import SlurmNodeConfig
from rocstack.stack import component, sourcemap
from rocstack.stack.blocks import Blocks, environment, sources

ALL = "all"
JWT_KEY = "/run/slurm/jwt_hs256.key"
BLOCKS = {
    "slurm.conf": ("controller", "security", "jobs", "scheduling", "accounting", "nodes", "partitions", "more"),
    "gres.conf": ("gpus",),
    "cgroup.conf": ("limits",),
    "slurmdbd.conf": ("daemon", "database"),
}
_WORD = re.compile(r"[A-Za-z0-9._~+/=-]{8,200}")  # a password that slurmdbd.conf can hold


@dataclass(frozen=True)
class Control:
    """The control node. `name` is what its container calls itself, `address` what the workers reach."""

    name: str
    address: str


@dataclass(frozen=True)
class Files:
    """Texts by file name; slurmdbd.conf holds the database's password. `notes` are for the person."""

    texts: Mapping[str, str] = field(repr=False)
    cgroups: cgroup.Cgroups
    notes: tuple[str, ...] = ()


def files(
    cluster: ClusterSettings,
    control: Control,
    machines: Sequence[SlurmNodeConfig],
    *,
    absent: Sequence[str] = (),
    groups: Mapping[str, Sequence[str]] | None = None,
    password: str,
    overlay: Path | None = None,
) -> Files:
    """
    Args:
        machines: the workers, in any order.
        absent: workers of which nothing is known yet: they may be named, and are left out.
        groups: the inventory's groups -> node names, for partitions and reservations.
        password: of the database.
        overlay: the user's folder, whose slurm/*.j2 override blocks.

    Raises:
        BadInput: a partition names nodes that are not there, `cluster.slurm` a keyword that is ours, cgroups are
            asked for that a node doesn't allow, or an override is wrong.
    """
    if not _WORD.fullmatch(password):
        raise ValueError("a password that slurmdbd.conf can't hold")
    workers = sorted(machines, key=lambda each: hostlist.natural(each.name))
    cgroups = cgroup.decide(cluster.cgroup, workers)
    library = component.library("slurm", overlay)
    blocks = Blocks(
        environment(sources(library)), library, _variables(cluster, control, workers, absent, groups or {}, cgroups)
    )

    def text(name: str, **extra: Any) -> str:
        return "".join(sourcemap.split(blocks.render(name, block, **extra))[0] for block in BLOCKS[name])

    conf = text("slurm.conf", more=())
    texts = {
        "slurm.conf": text("slurm.conf", more=_more(cluster, conf)),
        "gres.conf": text("gres.conf"),
        "cgroup.conf": text("cgroup.conf"),
        "slurmdbd.conf": text("slurmdbd.conf", password=password),
    }
    return Files(texts, cgroups, (*cgroups.notes, *_left_out(absent)))


def _left_out(absent: Sequence[str]) -> tuple[str, ...]:
    names = hostlist.fold(sorted(absent, key=hostlist.natural))
    return (
        (f"Slurm doesn't know {names} yet, of which nothing could be read: the next deploy adds it",) if names else ()
    )


def members(texts: Sequence[str], workers: Sequence[str], groups: Mapping[str, Sequence[str]], key: str) -> list[str]:
    """The workers that `texts` name: all, a group of the inventory, or hostlists. `key` says where it was written.

    Raises:
        BadInput: a name that is no worker and no group.
    """
    result: set[str] = set()
    for text in texts:
        if text == ALL:
            result.update(workers)
        elif text in groups and text not in workers:
            result.update(name for name in groups[text] if name in workers)
        else:
            unknown = [name for name in hostlist.expand(text) if name not in workers]
            if unknown:
                hint = did_you_mean(unknown[0], {*workers, *groups, ALL})
                raise BadInput(
                    f"{key} names '{unknown[0]}', which is neither a worker nor a group"
                    + (f": {hint}" if hint else ""),
                    code="unknown-node",
                    next_step="name workers, a hostlist such as n[1-3], a group of the inventory, or all",
                )
            result.update(hostlist.expand(text))
    return sorted(result, key=hostlist.natural)


def _variables(
    cluster: ClusterSettings,
    control: Control,
    workers: Sequence[SlurmNodeConfig],
    absent: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    cgroups: cgroup.Cgroups,
) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "control": control,
        "cgroups": cgroups,
        "seconds": seconds,
        "jwt_key": JWT_KEY,
        "nodes": [_node(alike) for alike in _alike(workers)],
        "virtual": any(each.virtual for each in workers),
        "gres_types": sorted({gres.type for each in workers for gres in each.gres}),
        "gres": _gres(workers),
        # A virtual node's CPUs are not there to be bound to: `srun --cpu-bind=cores` would fail.
        "affinity": not any(each.virtual for each in workers),
        "memory_per_cpu": min((each.memory // each.cpus for each in workers), default=1),
        "partitions": [_partition(cluster, name, workers, absent, groups) for name in cluster.partitions],
        "suite": VERIFY,
    }


def _alike(workers: Sequence[SlurmNodeConfig]) -> list[list[SlurmNodeConfig]]:
    """Workers that differ in nothing that slurm.conf says but name and address."""
    result: dict[SlurmNodeConfig, list[SlurmNodeConfig]] = {}
    for each in workers:
        result.setdefault(replace(each, name="", address="", cgroup=None, cgroup_writable=False), []).append(each)
    return list(result.values())


def _node(alike: Sequence[SlurmNodeConfig]) -> dict[str, str]:
    one = alike[0]
    size = f"CPUs={one.cpus}"
    if one.topology:
        size = "Sockets={} CoresPerSocket={} ThreadsPerCore={}".format(*one.topology)
    kinds = dict.fromkeys(each.type for each in one.gres)
    counts = {kind: sum(each.count for each in one.gres if each.type == kind) for kind in kinds}
    gres = ",".join(f"gpu:{kind}:{count}" for kind, count in counts.items())
    return {
        "names": hostlist.fold(each.name for each in alike),
        "addresses": hostlist.fold(each.address for each in alike),
        "size": f"{size} RealMemory={one.memory}",
        "gres": f" Gres={gres}" if gres else "",
        "features": f" Features={','.join(one.features)}" if one.features else "",
    }


def _gres(workers: Sequence[SlurmNodeConfig]) -> list[dict[str, str]]:
    rows = []
    result: dict[tuple[Any, ...], list[str]] = {}
    for each in workers:
        if each.gres:
            result.setdefault(each.gres, []).append(each.name)
    for gres, names in result.items():
        rows += [{"names": hostlist.fold(names), "type": each.type, "files": each.files} for each in gres]
    return rows


def _partition(
    cluster: ClusterSettings,
    name: str,
    workers: Sequence[SlurmNodeConfig],
    absent: Sequence[str],
    groups: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    part: Partition = cluster.partitions[name]
    every = [*(each.name for each in workers), *absent]
    named = members(part.nodes, every, groups, f"cluster.partitions.{name}")
    names = [each for each in named if each not in absent]
    cpus_per_gpu = min((each.cpus // each.gpus for each in workers if each.name in names and each.gpus), default=0)
    words = {
        "Nodes": "ALL" if part.nodes == (ALL,) else hostlist.fold(names) or '""',
        "Default": "YES" if name == cluster.default_partition else "NO",
        "MaxTime": minutes(part.max_time),
        "State": part.state.upper(),
        "PriorityTier": str(part.tier),
        "QOS": part.qos,
        "AllowAccounts": ",".join(part.accounts),
        # A job that asks for a GPU gets the CPUs that go with it, and with them its memory.
        "DefCpuPerGPU": str(cpus_per_gpu) if cpus_per_gpu else None,
    }
    return {"name": name, "text": " ".join(f"{key}={value}" for key, value in words.items() if value)}


def minutes(text: str) -> str:
    """A Duration as slurm.conf's MaxTime, which counts whole minutes."""
    whole = seconds(text)
    return "UNLIMITED" if whole is None else str(max(whole // 60, 1))


def _more(cluster: ClusterSettings, conf: str) -> tuple[str, ...]:
    ours = {line.partition("=")[0].lower(): line.partition("=")[0] for line in conf.splitlines() if "=" in line}
    for key in cluster.slurm:
        if key.lower() in {*ours, "nodename", "partitionname", "slurmdparameters", "grestypes", "include"}:
            raise BadInput(
                f"cluster.slurm sets {key}, which rocstack sets itself",
                code="bad-slurm-line",
                next_step="use its key under `cluster:`, or override a block of slurm/slurm.conf.j2 in your overlay",
            )
    yes = {True: "YES", False: "NO"}
    return tuple(
        f"{key}={yes[value] if isinstance(value, bool) else value}" for key, value in sorted(cluster.slurm.items())
    )

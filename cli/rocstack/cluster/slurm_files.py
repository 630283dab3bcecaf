"""slurm.conf, gres.conf, cgroup.conf, slurmdbd.conf and topology.conf. Pure: the same input gives the same bytes."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from rocstack.base import paths
from rocstack.base.errors import BadInput, did_you_mean
from rocstack.cluster import cgroup, topology
from rocstack.cluster.operation import minutes, seconds
from rocstack.cluster.settings import LONGEST_TOKEN, SLURMCTLD, SLURMD, SLURMDBD, VERIFY, ClusterSettings, Partition
from rocstack.cluster.slurm_node import Gres, SlurmNodeConfig
from rocstack.node import hostlist
from rocstack.stack import component
from rocstack.stack.blocks import Blocks, environment, sources, split
from rocstack.stack.rules import upstream
from rocstack.stack.sandbox import for_templates

ALL = "all"
COMMUNICATION = "communicationparameters"  # ours and those of `cluster.slurm` together
JWT_KEY = "/run/slurm/jwt_hs256.key"
BLOCKS = {
    "slurm.conf": ("controller", "security", "jobs", "scheduling", "accounting", "nodes", "partitions", "more"),
    "gres.conf": ("gpus",),
    "cgroup.conf": ("limits",),
    "slurmdbd.conf": ("daemon", "database"),
}
# Below root's folder: in /tmp a job could take the names of others' steps, which then don't start.
MPI = {"mpi.conf": "PMIxCliTmpDirBase=/run/rocstack\n"}
# Of a job that is to run for ever. slurmctld looks so far ahead as a job's time limit says, by a number that ends after
# 68 years: then it hangs (_future_run_test in Slurm's cons_tres, until 25.11.1).
YEAR = str(365 * 24 * 60)  # minutes
REFUSE_LOGIN = "job_submit.lua"
NO_CACHE = Version("25.05")  # from which on slurmd takes a user's environment from her login shell alone
PORTS = {  # whatever an overlay's blocks say
    "slurm.conf": {"SlurmctldPort": SLURMCTLD, "SlurmdPort": SLURMD, "AccountingStoragePort": SLURMDBD},
    "slurmdbd.conf": {"DbdPort": SLURMDBD},
}
# Not to be written beside ours.
_NEVER = ("nodename", "partitionname", "slurmdparameters", "grestypes", "include", "topologyplugin")
_KEYS = {  # of slurm.conf -> below `cluster:`
    "clustername": "name", "slurmctldhost": "control_address", "slurmctldtimeout": "timeouts.slurmctld",
    "slurmdtimeout": "timeouts.slurmd", "killwait": "timeouts.kill_wait", "inactivelimit": "timeouts.inactive",
    "healthcheckprogram": "health", "healthcheckinterval": "health.every", "healthchecknodestate": "health",
    "proctracktype": "cgroup", "taskplugin": "cgroup", "jobacctgathertype": "cgroup", "grestypes": "gres",
    "priorityweightage": "priorities.age", "priorityweightfairshare": "priorities.fairshare",
    "priorityweightqos": "priorities.qos", "priorityweightjobsize": "priorities.size",
    "priorityweightpartition": "priorities.partition", "partitionname": "partitions", "topologyplugin": "topology",
}  # fmt: skip
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
    pmix: bool = True,
    slurm: str = "",
    overlay: Path | None = None,
) -> Files:
    """
    Args:
        machines: the workers, in any order.
        absent: workers of which nothing is known yet: they may be named, and are left out.
        groups: the inventory's groups -> node names, for partitions and reservations.
        password: of the database.
        pmix: whether the workers have it, by which srun starts ranks of MPI.
        slurm: the version in the control image; empty for one that isn't known.
        overlay: the user's folder, whose slurm/*.j2 override blocks.

    Raises:
        BadInput: a partition or switch names nodes that are not there, a worker has no switch, `cluster.slurm` a
            keyword that is ours, cgroups are asked for that a node doesn't allow, or an override is wrong.
    """
    if not _WORD.fullmatch(password):
        raise ValueError("a password that slurmdbd.conf can't hold")
    workers = sorted(machines, key=lambda each: hostlist.natural(each.name))
    cgroups = cgroup.decide(cluster.cgroup, workers)
    virtual = any(each.virtual for each in workers)
    reads_login = (upstream(slurm) or Version("0")) >= NO_CACHE
    variables: dict[str, Any] = {
        "cluster": cluster,
        "control": control,
        "cgroups": cgroups,
        "seconds": for_templates(seconds),
        "jwt_key": JWT_KEY,
        # Where people sign in at the site's issuer nobody makes a token of her own that outlasts it.
        "tokens": "disable_token_creation"
        if cluster.service and cluster.service.oidc
        else f"max_token_lifespan={LONGEST_TOKEN}",
        "communication": [str(value) for key, value in cluster.slurm.items() if key.lower() == COMMUNICATION],
        "pmix": pmix,
        "reads_login": reads_login,
        "nodes": _nodes(workers),
        "virtual": virtual,
        "gres_types": sorted({gres.type for each in workers for gres in each.gres}),
        "gres": _gres(workers),
        # A virtual node's CPUs are not there to be bound to: `srun --cpu-bind=cores` would fail.
        "affinity": not virtual,
        "memory_per_cpu": min((each.memory // each.cpus for each in workers), default=1),
        "partitions": [_partition(cluster, name, workers, absent, groups or {}) for name in cluster.partitions],
        "suite": VERIFY,
    }
    library = component.library("slurm", overlay)
    blocks = Blocks(environment(sources(library)), library, variables)

    def text(name: str, **extra: Any) -> str:
        ports = "".join(f"{key}={port}\n" for key, port in PORTS.get(name, {}).items())
        return ports + "".join(split(blocks.render(name, block, **extra))[0] for block in BLOCKS[name])

    conf = text("slurm.conf", more=())
    texts = {
        "slurm.conf": text("slurm.conf", more=_more(cluster, conf)),
        "gres.conf": text("gres.conf"),
        "cgroup.conf": text("cgroup.conf"),
        "slurmdbd.conf": text("slurmdbd.conf", password=password),
    }
    if pmix:
        texts |= MPI
    if reads_login:
        texts[REFUSE_LOGIN] = (paths.templates() / "slurm" / REFUSE_LOGIN).read_text(encoding="utf-8")
    if cluster.topology and workers:
        texts["topology.conf"] = _topology(cluster.topology, workers, absent, groups or {})
    notes = list(cgroups.notes)
    if absent:
        names = hostlist.fold(sorted(absent, key=hostlist.natural))
        notes.append(f"Slurm doesn't know {names} yet, of which nothing could be read: the next deploy adds it")
    return Files(texts, cgroups, tuple(notes))


def members(
    texts: Sequence[str], workers: Sequence[str], groups: Mapping[str, Sequence[str]], loc: tuple[str, ...]
) -> list[str]:
    """The workers that `texts` name: all, a group of the inventory, or hostlists. `loc` says where below `cluster:`.

    Raises:
        BadInput: a name that is no worker and no group.
    """
    result: set[str] = set()
    for index, text in enumerate(texts):
        if text == ALL:
            result.update(workers)
        elif text in groups and text not in workers:
            result.update(name for name in groups[text] if name in workers)
        else:
            unknown = [name for name in hostlist.expand(text) if name not in workers]
            if unknown:
                hint = did_you_mean(unknown[0], {*workers, *groups, ALL})
                hint = f": {hint}" if hint else ""
                key = ".".join(("cluster", *loc))
                raise BadInput.of("not-in-the-cluster", key=key, name=unknown[0], hint=hint).at("cluster", *loc, index)
            result.update(hostlist.expand(text))
    return sorted(result, key=hostlist.natural)


def _nodes(workers: Sequence[SlurmNodeConfig]) -> list[dict[str, str]]:
    """A line for the workers that differ in nothing that slurm.conf says but name and address."""
    alike: dict[SlurmNodeConfig, list[SlurmNodeConfig]] = {}
    for each in workers:
        alike.setdefault(replace(each, name="", address="", cgroup=None, cgroup_writable=False), []).append(each)
    rows = []
    for one, machines in alike.items():
        size = f"CPUs={one.cpus}"
        if one.topology:
            size = "Sockets={} CoresPerSocket={} ThreadsPerCore={}".format(*one.topology)
        counts = Counter[str]()
        for gres in one.gres:
            counts[gres.type] += gres.count
        row = {
            "names": hostlist.fold(each.name for each in machines),
            "addresses": hostlist.fold(each.address for each in machines),
            "size": f"{size} RealMemory={one.memory}",
            "gres": f" Gres={','.join(f'gpu:{kind}:{count}' for kind, count in counts.items())}" if counts else "",
            "features": f" Features={','.join(one.features)}" if one.features else "",
        }
        rows.append(row)
    return rows


def _gres(workers: Sequence[SlurmNodeConfig]) -> list[dict[str, str]]:
    alike: dict[tuple[Gres, ...], list[str]] = {}
    for each in workers:
        alike.setdefault(each.gres, []).append(each.name)
    return [
        {"names": hostlist.fold(names), "type": each.type, "files": each.files}
        for gres, names in alike.items()
        for each in gres
    ]


def _partition(
    cluster: ClusterSettings,
    name: str,
    workers: Sequence[SlurmNodeConfig],
    absent: Sequence[str],
    groups: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    part: Partition = cluster.partitions[name]
    every = [*(each.name for each in workers), *absent]
    named = members(part.nodes, every, groups, ("partitions", name, "nodes"))
    names = [each for each in named if each not in absent]
    cpus_per_gpu = min((each.cpus // each.gpus for each in workers if each.name in names and each.gpus), default=0)
    words = {
        "Nodes": "ALL" if part.nodes == (ALL,) else hostlist.fold(names) or '""',
        "Default": "YES" if name == cluster.default_partition else "NO",
        "MaxTime": minutes(part.max_time, forever=YEAR),
        "State": part.state.upper(),
        "PriorityTier": str(part.tier),
        "QOS": part.qos,
        "AllowAccounts": ",".join(part.accounts),
        # A job that asks for a GPU gets the CPUs that go with it, and with them its memory.
        "DefCpuPerGPU": str(cpus_per_gpu) if cpus_per_gpu else None,
    }
    return {"name": name, "text": " ".join(f"{key}={value}" for key, value in words.items() if value)}


def _topology(
    wanted: topology.SwitchTopology,
    workers: Sequence[SlurmNodeConfig],
    absent: Sequence[str],
    groups: Mapping[str, Sequence[str]],
) -> str:
    every = [*(each.name for each in workers), *absent]
    loc = ("topology", "switches")
    named = {
        name: members(texts, every, groups, (*loc, name))
        for name, texts in wanted.switches.items()
        if not wanted.below(name)
    }
    found = topology.leaves(wanted, named, every)
    there = {name: [each for each in own if each not in absent] for name, own in found.items()}
    return topology.text(wanted, {name: own for name, own in there.items() if own})


def _step(key: str) -> str:
    if key.lower().endswith("port"):
        return "leave it out: only root may take the ports that Slurm has here"
    if key.lower() == "nodename":
        return "leave it out: the nodes are those of the inventory"
    own = _KEYS.get(key.lower())
    return (
        f"write `{own}` below `cluster:` instead" if own else "override a block of slurm/slurm.conf.j2 in your overlay"
    )


def _more(cluster: ClusterSettings, conf: str) -> tuple[str, ...]:
    ours = {line.partition("=")[0].lower() for line in conf.splitlines() if "=" in line} - {COMMUNICATION}
    for key in cluster.slurm:
        if key.lower() in {*ours, *_NEVER}:
            raise BadInput.of("bad-slurm-line", key=key, step=_step(key)).at("cluster", "slurm", key)
    yes = {True: "YES", False: "NO"}
    return tuple(
        f"{key}={yes[value] if isinstance(value, bool) else value}"
        for key, value in sorted(cluster.slurm.items())
        if key.lower() != COMMUNICATION
    )

"""`cluster:` as a whole, before a node is asked: are the nodes there that it names, and would Slurm read its files?
Pure; an error says below which keys of rocstack.yml its reason stands."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from rocstack.base.errors import BadInput, Where, hinted
from rocstack.cluster import slurm_files, slurm_syntax
from rocstack.cluster.operation import seconds
from rocstack.cluster.settings import MOMENT, ClusterSettings
from rocstack.cluster.slurm_files import ALL, Control
from rocstack.cluster.slurm_node import Gres, SlurmNodeConfig
from rocstack.node import hostlist
from rocstack.stack import component

_PASSWORD = "0" * 16


def check(
    cluster: ClusterSettings,
    *,
    workers: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    overlay: Path | None = None,
) -> None:
    """
    Args:
        workers: of the inventory, as `groups`; None: any name may be one.

    Raises:
        BadInput: a partition or reservation names nodes that are not there; a line of a file that Slurm couldn't read.
    """
    named = [(("partitions", name), each.nodes) for name, each in cluster.partitions.items()]
    named += [(("reservations", name), each.nodes) for name, each in cluster.reservations.items()]
    known = workers is not None
    if not known:  # nobody knows which nodes a group has, and a switch more than one could have them
        cluster = cluster.model_copy(update={"topology": None})
    if workers is None:
        workers = sorted(
            {name for _, texts in named for text in texts if text != ALL for name in hostlist.expand(text)}
        )
    for loc, texts in named:
        slurm_files.members(texts, workers, groups or {}, (*loc, "nodes"))
    _check_reservations(cluster, workers, groups or {}, known)
    files = slurm_files.files(
        cluster,
        Control("control", "192.0.2.1"),
        [_stand_in(name, cluster) for name in workers or ["node1"]],
        groups=groups,
        password=_PASSWORD,
        overlay=overlay,
    )
    for file in slurm_files.BLOCKS:
        text = files.texts[file]
        for line, why in slurm_syntax.problems(file, text):
            raise BadInput.of("slurm-unreadable", _written(file, line, overlay), file=file, line=line.strip(), why=why)
    for file, ports in slurm_files.PORTS.items():
        _check_ports(file, files.texts[file], ports, overlay)
    _check_blocks(files.texts[slurm_syntax.CONF], workers if known else None, overlay)


def _check_ports(file: str, text: str, ports: Mapping[str, int], overlay: Path | None) -> None:
    for line in text.splitlines():
        row = dict(slurm_syntax.pairs(line))
        for key, port in ports.items():
            if row.get(key.lower(), str(port)) != str(port):
                raise BadInput.of("slurm-port", _written(file, line, overlay), line=line.strip(), port=port)


def _check_blocks(text: str, workers: Sequence[str] | None, overlay: Path | None) -> None:
    """Of slurm.conf: partitions of nodes that are not there."""
    lines = [dict(slurm_syntax.pairs(line)) for line in text.splitlines()]
    named = [value for row in lines for key, value in row.items() if key in ("nodename", "nodeset")]
    there = {*(workers or ()), "ALL", *(each for value in named for each in _expanded(value))}
    for line, row in zip(text.splitlines(), lines, strict=True):
        if workers is not None and "partitionname" in row:
            lost = [each for each in _expanded(row.get("nodes", "")) if each not in there]
            if lost:
                at, hint = _written(slurm_syntax.CONF, line, overlay), hinted(lost[0], there)
                raise BadInput.of(
                    "not-in-the-cluster", at, key=f"PartitionName={row['partitionname']}", name=lost[0], hint=hint
                )


def _expanded(text: str) -> tuple[str, ...]:
    try:
        return hostlist.expand(text) if text.strip('"') else ()
    except ValueError:
        return (text,)


def _check_reservations(
    cluster: ClusterSettings, workers: Sequence[str], groups: Mapping[str, Sequence[str]], known: bool
) -> None:
    taken: list[tuple[str, set[str], datetime, datetime]] = []
    for name, each in cluster.reservations.items():
        at = ("cluster", "reservations", name)
        if each.count and known:
            partition = each.partition or cluster.default_partition
            nodes = cluster.partitions[partition].nodes
            there = len(slurm_files.members(nodes, workers, groups, ("partitions", partition, "nodes")))
            if each.count > there:
                error = BadInput.of("too-few-nodes", name=name, count=each.count, partition=partition, there=there)
                raise error.at(*at, "count")
        own = {*slurm_files.members(each.nodes, workers, groups, (*at[1:], "nodes"))}
        start = datetime.min if each.start == "now" else datetime.strptime(each.start, MOMENT)
        lasts = seconds(each.duration)
        end = datetime.max if lasts is None or each.start == "now" else start + timedelta(seconds=lasts)
        for other, nodes_of, begins, ends in taken:
            if own & nodes_of and start < ends and begins < end:
                both = hostlist.fold(sorted(own & nodes_of, key=hostlist.natural))
                raise BadInput.of("reserved-twice", name=name, other=other, nodes=both).at(*at, "nodes")
        taken.append((name, own, start, end))


def _stand_in(name: str, cluster: ClusterSettings) -> SlurmNodeConfig:
    gres = (Gres("mi300x", 8, "/dev/dri/renderD[128-135]"),) if cluster.gres == "auto" else ()
    return SlurmNodeConfig(name, "192.0.2.2", 192, 1 << 20, (2, 48, 2), gres, cgroup=2, cgroup_writable=True)


def _written(file: str, line: str, overlay: Path | None) -> Where | None:
    """Where an overlay has that line, or as much of it as is no template."""
    override = component.library("slurm", overlay).overrides.get(file)
    if override is None:
        return None
    for number, each in enumerate(override.body.splitlines(), override.body_line):
        start = each.partition("{")[0].strip()
        if start and line.strip().startswith(start):
            return Where(str(override.path), number)
    return Where(str(override.path), 1)

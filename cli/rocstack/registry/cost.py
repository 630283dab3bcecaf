"""How long each way of shipping takes, and which to take. Pure: sizes in bytes, links in Gbit/s, times in seconds.

Every node pays for unpacking, whatever the way; unpacking goes on while the layers come in, so a way takes as long as
the longer of the two. The rates are those of one core of a slow virtual machine, measured with docker 26 on ROCm's
own files: bare metal is quicker, but the ratios hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Method = Literal["registry", "rack", "p2p", "archive", "save-load", "serial-pull"]

UNPACK = 145e6  # bytes/s, uncompressed, `docker pull` of zstd layers
UNPACK_GZIP = 88e6  # the same of gzip layers
LOAD = 100e6  # `docker load`
SAVE = 130e6  # `docker save`: one engine feeds all
SSH = 500e6  # bytes/s of one ssh stream (guessed: not measured on real servers)
GZIP = 0.90  # zstd's size in gzip's
P2P = 2.0  # times the ideal (aria2: 1.9 to 2.2 measured; Uber Kraken says "more than 50 %")
FORKS = 8  # archives that are sent at once
NEARLY = 0.8  # a way with more parts must be this much quicker to be taken


@dataclass(frozen=True)
class Job:
    """An image and those who want it."""

    nodes: int
    compressed: float  # bytes, zstd
    uncompressed: float  # bytes
    link: float  # Gbit/s, of the control node and of each node

    @property
    def copy(self) -> float:
        """Seconds for one copy over one link."""
        return self.compressed * 8 / (self.link * 1e9)


@dataclass(frozen=True)
class Time:
    """`network` and `unpack` are what the way would take if the other were free."""

    network: float  # seconds
    unpack: float  # seconds
    total: float  # seconds until the last node has it
    egress: float  # bytes that leave the control node


@dataclass(frozen=True)
class Options:
    """What this site has."""

    registry: bool = True
    mirrors: int = 0  # hosts that may be a rack's registry
    p2p: bool = False


@dataclass(frozen=True)
class Choice:
    method: Method
    why: str
    times: dict[Method, Time]  # of every way that is possible here


def registry(job: Job) -> Time:
    """All nodes pull from the control node at once."""
    network, unpack = job.nodes * job.copy, job.uncompressed / UNPACK
    return Time(network, unpack, max(network, unpack), job.nodes * job.compressed)


def mirrors_for(nodes: int) -> int:
    """R that makes (R + N/R) smallest."""
    return max(1, round(math.sqrt(nodes)))


def waves(mirrors: int) -> int:
    """Who has the image gives it to one other, and so on: 1, 3, 7 ... mirrors after 1, 2, 3 ... waves."""
    return math.ceil(math.log2(mirrors + 1))


def rack(job: Job, mirrors: int) -> Time:
    """Mirrors are filled first, in waves: one that is still empty would fetch from the control node for every node
    that asks. Then each serves its rack."""
    mirrors = max(1, mirrors)
    fill, unpack = waves(mirrors) * job.copy, job.uncompressed / UNPACK
    network = fill + math.ceil(job.nodes / mirrors) * job.copy
    return Time(network, unpack, fill + max(network - fill, unpack), waves(mirrors) * job.compressed)


def p2p(job: Job) -> Time:
    """Every node passes on what it has; the control node sends it once, to the seed."""
    network, unpack = P2P * job.copy, job.uncompressed / UNPACK
    return Time(network, unpack, max(network, unpack), job.compressed)


def archive(job: Job) -> Time:
    """zstd archives over ssh, FORKS at a time."""
    rounds = math.ceil(job.nodes / FORKS)
    network = max(job.nodes * job.copy, rounds * job.compressed / SSH)
    unpack = rounds * job.uncompressed / LOAD
    return Time(network, unpack, max(network, unpack), job.nodes * job.compressed)


def save_load(job: Job) -> Time:
    """What is done by hand: `docker save | ssh NODE docker load`, a node after the other."""
    one = max(job.uncompressed * 8 / (job.link * 1e9), job.uncompressed / SSH)
    unpack = job.uncompressed / min(LOAD, SAVE)
    total = job.nodes * max(one, unpack)
    return Time(job.nodes * one, job.nodes * unpack, total, job.nodes * job.uncompressed)


def serial_pull(job: Job) -> Time:
    """And with a registry: gzip layers, a node after the other."""
    one, unpack = job.copy / GZIP, job.uncompressed / UNPACK_GZIP
    return Time(job.nodes * one, job.nodes * unpack, job.nodes * max(one, unpack), job.nodes * job.compressed / GZIP)


def by_hand(job: Job) -> dict[Method, Time]:
    """The ways that rocstack is measured against."""
    return {"save-load": save_load(job), "serial-pull": serial_pull(job)}


def choose(job: Job, options: Options) -> Choice:
    """The quickest of the ways that this site has; one with fewer parts wins where the difference is small."""
    if not options.registry:
        only = archive(job)
        return Choice("archive", f"no registry is possible here: {_words(job, only)}", {"archive": only})
    ways: dict[Method, Callable[[], Time]] = {"registry": lambda: registry(job)}
    if options.mirrors:
        ways["rack"] = lambda: rack(job, min(options.mirrors, job.nodes))
    if options.p2p:
        ways["p2p"] = lambda: p2p(job)
    times = {method: way() for method, way in ways.items()}
    best: Method = "registry"
    for method, time in times.items():
        if time.total < NEARLY * times[best].total:
            best = method
    why = _words(job, times[best])
    if best != "registry":
        why += f"; from the control node alone it would take {seconds(times['registry'].total)}"
    elif len(times) == 1 and times["registry"].network > 2 * times["registry"].unpack:
        quick = rack(job, mirrors_for(job.nodes)).total
        why += f"; {mirrors_for(job.nodes)} registries in the racks would make it {seconds(quick)}"
    return Choice(best, why, times)


def seconds(value: float) -> str:
    """As a person says it."""
    if value < 1:
        return "less than a second"
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _words(job: Job, time: Time) -> str:
    many = f"{job.nodes} nodes x {job.compressed / 1e9:.2f} GB at {job.link:g} Gbit/s"
    longer = "the network is the longer part" if time.network > time.unpack else "unpacking is the longer part"
    return f"{many}: about {seconds(time.total)}, {longer}"

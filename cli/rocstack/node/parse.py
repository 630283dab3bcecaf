"""Recording -> NodeProfile. Pure; never fails on what a file holds: what makes no sense counts as unread."""

from __future__ import annotations

from collections.abc import Sequence

from .affinity import affinity
from .gpus import gpus
from .libraries import ReadLibrary, driver_files, libraries
from .network import addresses, netdevs, routes
from .nics import NicKind, module_version, nics
from .profile import SCHEMA, NodeProfile, Unread
from .recording import Recording, natural
from .system import cxi, groups, limits, modules, sysctl, system, tools
from .verbs import verbs


def parse(rec: Recording, kinds: Sequence[NicKind] = (), read_library: ReadLibrary | None = None) -> NodeProfile:
    """`kinds` are the NIC profiles' heads; without `read_library` the libraries' ABIs stay unread."""
    devices = netdevs(rec)
    rdma = verbs(rec, kinds, devices)
    cards = nics(rec, kinds, devices, rdma)
    accelerators = gpus(rec)
    return NodeProfile(
        schema=SCHEMA,
        name=rec.host,
        virtual=rec.virtual,
        system=system(rec),
        amdgpu=module_version(rec, "amdgpu"),
        gpus=accelerators,
        nics=cards,
        netdevs=devices,
        verbs=rdma,
        libraries=libraries(rec, read_library),
        driver_files=driver_files(rec),
        affinity=affinity(accelerators, cards, devices),
        routes=routes(rec),
        addresses=addresses(rec),
        modules=modules(rec),
        groups=groups(rec),
        limits=limits(rec),
        sysctl=sysctl(rec),
        tools=tools(rec),
        cxi=cxi(rec),
        unread=tuple(Unread(what, rec.unread[what]) for what in sorted(rec.unread, key=natural)),
    )

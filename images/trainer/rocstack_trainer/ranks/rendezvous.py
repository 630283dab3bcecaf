"""Where ranks find each other: in a store, each start of a group in a corner of its own."""

from __future__ import annotations

import json
import os
import re
import socket
import time
import zlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from rocstack_trainer.errors import ConfigError, PeerLostError, few
from rocstack_trainer.rank import Rank, number
from rocstack_trainer.ranks import connect, secret
from rocstack_trainer.report import wire

if TYPE_CHECKING:
    from torch.distributed import Store

HEARD_S = 3.0
STORE_S = 5.0  # how long a store may take to listen; three times that, where --ranks starts it beside the ranks
STORE = "ROCSTACK_TRAINER_STORE"  # HOST:PORT of the control-plane store, where the settings don't say it


def join(rank: Rank, timeout_s: float, given: str, start_s: float) -> Store:
    """Meets the other ranks in the store at `given`, or in rank 0's. Ranks are waited for `start_s`; a store has to be
    there before them.

    gloo gets the network that they met on: it would look up this host's own name, which may not resolve, or to
    127.0.1.1 as Debian's installer writes it.

    Raises:
        ConfigError: it isn't said where.
        PeerLostError: the store can't be reached, or somebody didn't come.
    """
    import torch.distributed as dist

    if given := given or os.environ.get(STORE, ""):
        patience_s = min(STORE_S * (3 if given == os.environ.get(STORE) else 1), start_s)
        host, port = connect.address(given)
        hint = f"start `rocstack-train --store {port}` there, before the ranks"
        store = connect.connect(host, port, patience_s, timeout_s, "the store", hint)
    elif rank.groups > 1:
        raise ConfigError(
            "DiLoCo groups meet in a store that no rank has: start `rocstack-train --store PORT` on a host\n"
            "  that all of them reach, and set parallel.store=HOST:PORT"
        )
    elif rank.world == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return dist.HashStore()
    else:
        secret.of_job()
        host, port = meeting_point(rank, os.environ)
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # then torchrun itself has it
        if rank.rank == 0 and not agent:
            store = connect.host(host, port, timeout_s, doors(rank, host, port, os.environ))
        else:
            hint = "is it running there? MASTER_ADDR and MASTER_PORT say where rank 0 is"
            at = next(doors(rank, host, port, os.environ), host) if beside(rank, host) else host
            store = connect.connect(at, port, start_s, timeout_s, "rank 0", hint)
    own = wire.own_address(host, port)
    corner, outside = meet(store, rank, start_s, own)
    if own.startswith("127.") and rank.world > rank.local_world:
        own = wire.own_address(outside, port) if outside else ""
    if own and (name := wire.interface(own)):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    return corner


def tell_host(rank: Rank, store: str) -> None:
    """Over MPI, which doesn't need to know where rank 0 is; and the secret: rank 0 makes one if the ranks meet at its
    own store, since no other launch has to know it then."""
    from rocstack_trainer.ranks.peers import Peers

    elsewhere = bool(store or os.environ.get(STORE))
    host, key = Peers(rank).first(lambda: (socket.gethostname(), secret.given() if elsewhere else secret.make()))
    os.environ[secret.NAME] = key
    if rank.world > rank.local_world:
        os.environ.setdefault("MASTER_ADDR", host)


def meeting_point(rank: Rank, env: Mapping[str, str]) -> tuple[str, int]:
    """Host and port where rank 0 listens: MASTER_ADDR and MASTER_PORT, else the same guess on every rank."""
    nodes = env.get("SLURM_STEP_NODELIST", "")
    host = env.get("MASTER_ADDR") or ("127.0.0.1" if rank.world == rank.local_world else first_host(nodes))
    if not host:
        raise ConfigError(
            f"{rank.launcher} over several nodes doesn't say where rank 0 is\n"
            "  set MASTER_ADDR to its host (mpirun: -x MASTER_ADDR=HOST)"
        )
    job = " ".join(env.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"))
    derived = 15000 + zlib.crc32(job.encode()) % 16000  # below Linux' ephemeral ports
    return host, number(env, "MASTER_PORT", derived)


def doors(rank: Rank, host: str, port: int, env: Mapping[str, str]) -> Iterator[str]:
    """Addresses at which rank 0 may listen, the likeliest first: the one that `host` has, the one that leads to it
    (this machine may have it from outside only), and the one that leads to another node.

    With ranks on other nodes none of the loopback's, though that is what a host's own name has where Debian's installer
    wrote it into /etc/hosts.
    """
    last = last_host(env.get("SLURM_STEP_NODELIST", "")) or host
    names = (partial(wire.address, host), partial(wire.own_address, host, port), partial(wire.own_address, last, port))
    for own in (look() for look in names):  # one after the other: an unknown name takes seconds
        if own and (rank.world == rank.local_world or not own.startswith("127.")):
            yield own


def beside(rank: Rank, host: str) -> bool:
    """Is `host` this very node, under a loopback address at which rank 0 doesn't listen?"""
    return rank.world > rank.local_world and wire.address(host).startswith("127.")


def last_host(nodelist: str) -> str:
    """The last name of a Slurm host list: `login,n[03-05,9]` gives n9."""
    match = re.search(r"([^,\[]*)(?:\[(?:[^\]]*[,-])?([^\],-]+)\]([^,\[]*))?$", nodelist)
    return "".join(part or "" for part in match.groups()) if match else ""


def first_host(nodelist: str) -> str:
    """The first name of a Slurm host list: `n[03-05,9],login` gives n03."""
    match = re.match(r"([^,\[]*)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", nodelist)
    return "".join(part or "" for part in match.groups()) if match else ""


def meet(store: Store, rank: Rank, timeout_s: float, here: str = "") -> tuple[Store, str]:
    """Waits for all ranks of this start, at the addresses `here` of each.

    A store that outlives its ranks (torchrun's, `rocstack-train --store`) still has the addresses of the dead ones.
    So rank 0 opens a new corner of it, and says which to everyone who asks after that.

    Returns:
        The corner, and the first address that isn't the loopback's.

    Raises:
        PeerLostError: somebody didn't come within `timeout_s`; raised on all that did.
    """
    from torch.distributed import PrefixStore

    group, patience = PrefixStore(f"group{rank.group}", store), timedelta(seconds=timeout_s)
    name, own_host = f"rank {rank.rank}", socket.gethostname()
    if rank.rank:
        ticket = group.add("tickets", 1)
        attempt = _get(group, f"ticket/{ticket}", patience, f"rank 0 didn't come: {name} on {own_host} waited")
    else:
        attempt = str(group.add("attempts", 1))
    corner = PrefixStore(f"attempt{attempt}", group)
    corner.set(f"here/{rank.rank}", f"{own_host} {here}")
    corner.add("came", 1)
    if rank.rank == 0:
        corner.set("all", json.dumps(_await(group, corner, attempt, rank.world, timeout_s)))
    late = timedelta(seconds=timeout_s + 5)  # rank 0 may have come last, and knows more
    fault, outside = json.loads(_get(corner, "all", late, f"rank 0 is gone: {name} on {own_host} waited"))
    heard = corner.add("heard", 1)
    if fault:
        until = time.monotonic() + HEARD_S
        while rank.rank == 0 and heard < corner.add("came", 0) and time.monotonic() < until:
            time.sleep(0.05)  # the store may end with this rank: the others have to read it before
            heard = corner.add("heard", 0)
        raise PeerLostError(fault + _same_secret())
    return corner, outside


def _await(group: Store, corner: Store, attempt: str, world: int, timeout_s: float) -> tuple[str, str]:
    """Rank 0's part: what to say of those who didn't come, if any; an address outside of the loopback's. Short: with
    the hosts of all, each rank would read as much as there are ranks."""
    deadline, answered, whole = time.monotonic() + timeout_s, 0, False
    keys = [f"here/{rank}" for rank in range(world)]
    while not whole and time.monotonic() < deadline:
        asked = group.add("tickets", 0)
        for ticket in range(answered + 1, asked + 1):  # of dead ranks too: nobody reads those
            group.set(f"ticket/{ticket}", attempt)
        answered, whole = asked, corner.add("came", 0) >= world and corner.check(keys)  # two may have one number
        time.sleep(0.02)
    there = [rank for rank, key in enumerate(keys) if whole or corner.check([key])]
    hosts = [host.decode().partition(" ") for host in corner.multi_get([keys[rank] for rank in there])]
    outside = next((own for _, _, own in hosts if own and not own.startswith("127.")), "")
    missing = sorted({*range(world)} - {*there})
    fault = (
        f"rank {few(missing)} of {world} didn't come within {timeout_s:.0f} s\n  the others are on"
        f" {few(sorted({name for name, _, _ in hosts}))}; look for an earlier error of the missing, or at their node"
    )
    return fault if missing else "", outside


def _get(store: Store, key: str, patience: timedelta, complaint: str) -> str:
    try:
        store.wait([key], patience)
        return store.get(key).decode()
    except RuntimeError as error:
        waited = f"{complaint} {patience.total_seconds():.0f} s"
        raise PeerLostError(f"{waited}{_same_secret()}\n  {connect.first_line(error)}") from None


def _same_secret() -> str:
    return f"\n  do all ranks have the same {secret.NAME}? mpirun: -x {secret.NAME}" if secret.given() else ""

"""All that a deploy reads off a node, in one go: the recording of its hardware, and the dict that NodeFacts is made
of (rocstack.deploy.read.facts has its shape). Read-only; standard library only."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import host_facts
from .collect import collect
from .engine_facts import engine_facts

SCHEMA = 1


def facts(
    *,
    names: Sequence[str] = (),
    reach: Sequence[str] = (),
    ports: Sequence[int] = (),
    uids: Sequence[int] = (),
    users: Sequence[str] = (),
) -> dict[str, Any]:
    """`names` are resolved, `reach` are "address:port" to be tried; of `ports`, `uids` and `users` is said whose they
    are."""
    began = time.time()
    unread: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=4) as pool:
        engine = pool.submit(engine_facts)
        network = pool.submit(lambda: (host_facts.resolve(names), host_facts.reach(reach)))
        recording = collect("/")
        of_engine = engine.result()
        services = {row["pid"]: row["service"] for row in of_engine["containers"] if row["pid"]}
        resolved, reached = network.result()
    by_uid, by_name = host_facts.users(uids, users)
    deploy = {
        "schema": SCHEMA,
        **of_engine,
        "user": _user(),
        "state": host_facts.document(host_facts.STATE, unread),
        "journal": host_facts.document(host_facts.JOURNAL, unread),
        "files": host_facts.files(unread),
        "ports": host_facts.ports(ports, services),
        "daemons": host_facts.daemons(services),
        "passwd": by_uid,
        "ids": by_name,
        "resolve": resolved,
        "reach": reached,
        "machine": host_facts.machine(),
        "memory": host_facts.memory(),
        "cpus": os.cpu_count() or 0,
        "unread": unread,
        "began": began,
        "ended": time.time(),
    }
    return {"recording": recording, "deploy": deploy}


def _user() -> dict[str, Any]:
    uid = os.geteuid()
    try:
        return {"uid": uid, "name": pwd.getpwuid(uid).pw_name}
    except KeyError:
        return {"uid": uid, "name": ""}

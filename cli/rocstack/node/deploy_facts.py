"""All that a deploy reads off a node, in one go: the recording of its hardware, and the facts that NodeFacts is made
of (rocstack.deploy.read.facts). Read-only; standard library only."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pwd
import re
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, Dict, Tuple  # noqa: UP035

from . import cluster_lock
from .collect import collect
from .engine import Row
from .engine_facts import engine_facts, read_text
from .names import resolve

SCHEMA = 1  # of the facts
TIMEOUT_S = 2.0  # seconds for a name or an address of the network
LARGEST_FILE = 1 << 20  # bytes of a file of ours
ETC, STATE, JOURNAL = "/etc/rocstack", "/var/lib/rocstack/node.json", "/var/lib/rocstack/deploy.json"
FENCE = "/var/lib/rocstack/" + cluster_lock.FENCE
UNDER_WAY = "/var/lib/rocstack/under-way"  # apply's mark
DAEMONS = re.compile(r"(slurmctld|slurmd|slurmdbd|slurmrestd|munged)(-wlm)?")
LISTENS = "0A"
Processes = Dict[int, Tuple[str, int]]  # noqa: UP006  (pid -> name and parent; evaluated by Python 3.8)
Services = Dict[int, str]  # noqa: UP006  (a container's first process -> its service)


def listening(tables: Iterable[str]) -> dict[int, dict[str, int]]:
    """Port -> inodes of the sockets that listen on it, with the uid of each, by the text of /proc/net/tcp
    and tcp6."""
    sockets: dict[int, dict[str, int]] = {}
    for table in tables:
        for line in table.splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == LISTENS:
                sockets.setdefault(int(words[1].rpartition(":")[2], 16), {})[words[9]] = int(words[7])
    return sockets


def processes() -> Processes:
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            name, _, rest = read_text(f"/proc/{entry}/stat").partition("(")[2].rpartition(")")
            words = rest.split()
            if len(words) > 1:
                table[int(entry)] = (name, int(words[1]))
    return table


def service_of(pid: int, known: Processes, services: Services) -> str:
    """The service of ours to which a process belongs."""
    for _ in range(64):
        if pid in services or pid not in known:
            break
        pid = known[pid][1]
    return services.get(pid, "")


def socket_owners(inodes: Iterable[str]) -> list[int]:
    """Processes that hold one of these sockets; those that can't be looked into are left out."""
    links = {f"socket:[{inode}]" for inode in inodes}
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                folder = f"/proc/{entry}/fd/"
                if any(_link(folder + number) in links for number in os.listdir(folder)):
                    pids.append(int(entry))
            except OSError:
                continue
    return pids


def listening_services(ports: Sequence[int], known: Processes, services: Services) -> dict[str, dict[str, str]]:
    """Of `ports` those that somebody listens on: {"297": {"program": "slurmctld", "service": "control"}}. `program`
    is empty where it can't be seen, `service` where it is none of ours: in the worker's container jobs run, too, and
    only what is root's there is slurmd's."""
    listeners = {}
    for port, inodes in listening(read_text("/proc/net/" + name) for name in ("tcp", "tcp6")).items():
        if port in ports:
            pids = socket_owners(inodes)
            ours = [pid for pid in pids if service_of(pid, known, services)]
            pid = next(iter(ours + pids), 0)
            program = known[pid][0] if pid in known else ""
            service = service_of(pid, known, services)
            if service == "worker" and 0 not in inodes.values():
                service = ""
            listeners[str(port)] = {"program": program, "service": service}
    return listeners


def unprivileged_ports() -> int:
    """From which on any user may listen (ip(7)); 1024 where the kernel doesn't say."""
    said = read_text("/proc/sys/net/ipv4/ip_unprivileged_port_start").strip()
    return int(said) if said.isdecimal() else 1024


def foreign_daemons(known: Processes, services: Services) -> list[str]:
    """Slurm's and MUNGE's daemons on this node's network that run outside our containers. Another container may have
    a network of its own; where only root can tell, it counts."""
    own_network = _link("/proc/self/ns/net")
    named = {pid: name for pid, (name, _) in known.items() if DAEMONS.fullmatch(name)}
    near = {pid: name for pid, name in named.items() if _link(f"/proc/{pid}/ns/net") in ("", own_network)}
    return sorted({name for pid, name in near.items() if not service_of(pid, known, services)})


def try_addresses(addresses: Sequence[str]) -> dict[str, str]:
    """ "10.0.0.1:297" -> "" where that host answers, be it with a refusal; else why not. All at once."""
    errors = dict.fromkeys(addresses, f"no answer within {TIMEOUT_S:g} s")
    with selectors.DefaultSelector() as waiting, ExitStack() as open_sockets:
        for address in addresses:
            host, _, port = address.rpartition(":")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = open_sockets.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setblocking(False)
            try:
                code = sock.connect_ex((host.strip("[]"), int(port)))
            except (OSError, ValueError) as error:
                errors[address] = str(error)
                continue
            if code == errno.EINPROGRESS:
                waiting.register(sock, selectors.EVENT_WRITE, (address, sock))
            else:
                errors[address] = _connect_error(code)
        until = time.monotonic() + TIMEOUT_S
        while waiting.get_map() and time.monotonic() < until:
            for key, _ in waiting.select(max(0.0, until - time.monotonic())):
                address, sock = key.data
                errors[address] = _connect_error(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                waiting.unregister(sock)
    return errors


def _connect_error(code: int) -> str:
    return "" if code in (0, errno.ECONNREFUSED) else os.strerror(code)


def written_files(unread: dict[str, str], root: str = ETC) -> dict[str, str]:
    """Path -> sha256 of what deploy wrote."""
    hashes = {}
    for folder, _, names in os.walk(root, onerror=lambda error: _missed(error.filename, error, unread)):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) <= LARGEST_FILE:
                    with open(path, "rb") as file:
                        hashes[path] = hashlib.sha256(file.read()).hexdigest()
            except OSError as error:
                _missed(path, error, unread)
    return hashes


def _missed(path: str, error: OSError, unread: dict[str, str]) -> None:
    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
        unread[path] = error.strerror or str(error)


def json_file(path: str, unread: dict[str, str]) -> dict[str, Any] | None:
    """A JSON file of ours; None where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.loads(file.read(LARGEST_FILE))
    except OSError as error:
        _missed(path, error, unread)
        return None
    except ValueError:
        unread[path] = "not JSON"
        return None
    return data if isinstance(data, dict) else None


def fence() -> int:
    """The largest number of the cluster's lock of which this node heard; 0 where that can't be told."""
    try:
        return int(cluster_lock.newest(FENCE)["number"])
    except OSError:
        return 0


def machine_id() -> str:
    """The same for two names of one machine, and only then: this boot of the kernel, and the network in it (node
    containers share a kernel)."""
    boot = read_text("/proc/sys/kernel/random/boot_id").strip()
    return f"{boot} {_link('/proc/self/ns/net')}"


def total_memory() -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB", read_text("/proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def collect_facts(
    *,
    names: Sequence[str] = (),
    reach: Sequence[str] = (),
    ports: Sequence[int] = (),
    uids: Sequence[int] = (),
    users: Sequence[str] = (),
) -> Row:
    """{"recording", "deploy"}; the shape of the second is that of rocstack.deploy.read.facts.FactsAnswer.

    `names` are resolved, `reach` are "address:port" to be tried; of `ports`, `uids` and `users` is said whose
    they are.
    """
    began = time.time()
    unread: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=4) as pool:
        engine = pool.submit(engine_facts)
        network = pool.submit(lambda: (resolve(names, TIMEOUT_S), try_addresses(reach)))
        recording = collect("/")
        of_engine = engine.result()
        services: Services = {row["pid"]: row["service"] for row in of_engine["containers"] if row["pid"]}
        resolved, reached = network.result()
    known = processes()
    me = os.geteuid()
    by_uid, by_name = accounts(pwd.getpwuid, (me, *uids)), accounts(pwd.getpwnam, users)
    deploy = {
        "schema": SCHEMA,
        **of_engine,
        "user": {"uid": me, "name": by_uid[me].pw_name if me in by_uid else ""},
        "state": json_file(STATE, unread),
        "journal": json_file(JOURNAL, unread),
        "fence": fence(),
        "unfinished": os.path.lexists(UNDER_WAY),
        "files": written_files(unread),
        "ports": listening_services(ports, known, services),
        "unprivileged_ports": unprivileged_ports(),
        "daemons": foreign_daemons(known, services),
        "passwd": {str(uid): by_uid[uid].pw_name for uid in uids if uid in by_uid},
        "ids": {name: entry.pw_uid for name, entry in by_name.items()},
        "resolve": {name: sorted(set(addresses)) for name, addresses in resolved.items()},
        "reach": reached,
        "machine": machine_id(),
        "memory": total_memory(),
        "cpus": os.cpu_count() or 0,
        "unread": unread,
        "began": began,
        "ended": time.time(),
    }
    return {"recording": recording, "deploy": deploy}


def accounts(look_up: Callable[[Any], pwd.struct_passwd], keys: Iterable[Any]) -> dict[Any, pwd.struct_passwd]:
    """Whose these numbers or names are, as far as anybody's."""
    found = {}
    for key in keys:
        with suppress(KeyError):
            found[key] = look_up(key)
    return found

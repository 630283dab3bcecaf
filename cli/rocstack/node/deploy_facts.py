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
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

from .collect import collect
from .engine_facts import EngineFacts, engine_facts

TIMEOUT_S = 2.0  # seconds for a name or an address of the network
LARGEST_FILE = 1 << 20  # bytes of a file of ours
ETC, STATE, JOURNAL = "/etc/rocstack", "/var/lib/rocstack/node.json", "/var/lib/rocstack/deploy.json"
DAEMONS = re.compile(r"(slurmctld|slurmd|slurmdbd|slurmrestd|munged)(-wlm)?")
LISTENS = "0A"


def listening(tables: Iterable[str]) -> dict[int, set[str]]:
    """Port -> inodes of the sockets that listen on it, from the text of /proc/net/tcp and tcp6."""
    sockets: dict[int, set[str]] = {}
    for table in tables:
        for line in table.splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == LISTENS:
                sockets.setdefault(int(words[1].rpartition(":")[2], 16), set()).add(words[9])
    return sockets


def processes() -> dict[int, tuple[str, int]]:
    """Pid -> name and parent."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            text = read_text("/proc/" + entry + "/stat")
            name, _, rest = text.partition("(")[2].rpartition(")")
            words = rest.split()
            if len(words) > 1:
                table[int(entry)] = (name, int(words[1]))
    return table


def service_of(pid: int, known: Mapping[int, tuple[str, int]], services: Mapping[int, str]) -> str:
    """The service of ours to which a process belongs; `services` is a container's first process -> its service."""
    for _ in range(64):
        if pid in services or pid not in known:
            break
        pid = known[pid][1]
    return services.get(pid, "")


def socket_owners(inodes: set[str]) -> list[int]:
    """Processes that hold one of these sockets; those that can't be looked into are left out."""
    links = {"socket:[" + inode + "]" for inode in inodes}
    pids = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                folder = "/proc/" + entry + "/fd/"
                if any(_link(folder + number) in links for number in os.listdir(folder)):
                    pids.append(int(entry))
            except OSError:
                continue
    return pids


def listening_services(asked_ports: Sequence[int], services: Mapping[int, str]) -> dict[str, dict[str, str]]:
    """Of the wanted ports those that somebody listens on: {"6817": {"program": "slurmctld", "service": "control"}}.
    `program` is empty where it can't be seen, `service` where it is none of ours."""
    taken = listening(read_text("/proc/net/" + name) for name in ("tcp", "tcp6"))
    taken = {port: inodes for port, inodes in taken.items() if port in asked_ports}
    known = processes() if taken else {}
    services_by_port = {}
    for port, inodes in taken.items():
        pids = socket_owners(inodes)
        ours = [pid for pid in pids if service_of(pid, known, services)]
        pid = next(iter(ours + pids), 0)
        program = known[pid][0] if pid in known else ""
        services_by_port[str(port)] = {"program": program, "service": service_of(pid, known, services)}
    return services_by_port


def foreign_daemons(services: Mapping[int, str]) -> list[str]:
    """Slurm's and MUNGE's daemons on this node's network that run outside our containers. Another container may have
    a network of its own; where only root can tell, it counts."""
    known, own_network = processes(), _link("/proc/self/ns/net")
    named = {pid: name for pid, (name, _) in known.items() if DAEMONS.fullmatch(name)}
    near = {pid: name for pid, name in named.items() if _link(f"/proc/{pid}/ns/net") in ("", own_network)}
    return sorted({name for pid, name in near.items() if not service_of(pid, known, services)})


def user_ids(uids: Sequence[int], names: Sequence[str]) -> tuple[dict[str, str], dict[str, int]]:
    """Who has these numbers, and which numbers these names have."""
    by_uid, by_name = {}, {}
    for uid in uids:
        try:
            by_uid[str(uid)] = pwd.getpwuid(uid).pw_name
        except KeyError:
            continue
    for name in names:
        try:
            by_name[name] = pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    return by_uid, by_name


def resolve_names(names: Sequence[str]) -> dict[str, list[str]]:
    """Name -> IPv4 and IPv6 addresses, none where nobody knows it. A name server that is silent costs TIMEOUT_S."""
    addresses: dict[str, list[str]] = {name: [] for name in names}

    def ask(name: str) -> None:
        try:
            rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        addresses[name] = sorted({str(row[4][0]) for row in rows})

    # Not a pool, which waits for its threads when the program ends.
    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    until = time.monotonic() + TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(addresses)


def try_addresses(addresses: Sequence[str]) -> dict[str, str]:
    """ "10.0.0.1:6817" -> "" where that host answers, be it with a refusal; else why not. All at once."""
    errors = dict.fromkeys(addresses, f"no answer within {TIMEOUT_S:g} s")
    with selectors.DefaultSelector() as waiting:
        for address in addresses:
            host, _, port = address.rpartition(":")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            try:
                code = sock.connect_ex((host.strip("[]"), int(port)))
            except (OSError, ValueError) as error:
                errors[address] = str(error)
                sock.close()
                continue
            if code in (0, errno.ECONNREFUSED):
                errors[address] = ""
                sock.close()
            elif code == errno.EINPROGRESS:
                waiting.register(sock, selectors.EVENT_WRITE, address)
            else:
                errors[address] = os.strerror(code)
                sock.close()
        until = time.monotonic() + TIMEOUT_S
        while waiting.get_map() and time.monotonic() < until:
            for key, _ in waiting.select(max(0.0, until - time.monotonic())):
                sock = key.fileobj  # type: ignore[assignment]
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                errors[key.data] = "" if code in (0, errno.ECONNREFUSED) else os.strerror(code)
                waiting.unregister(sock)
                sock.close()
        for key in list(waiting.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return errors


def written_files(unread: dict[str, str], root: str = ETC) -> dict[str, str]:
    """Path -> sha256 of what deploy wrote."""
    hashes = {}

    def missed(error: OSError) -> None:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            unread[str(error.filename)] = error.strerror or str(error)

    for folder, _, names in os.walk(root, onerror=missed):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) <= LARGEST_FILE:
                    with open(path, "rb") as file:
                        hashes[path] = hashlib.sha256(file.read()).hexdigest()
            except OSError as error:
                missed(error)
    return hashes


def json_file(path: str, unread: dict[str, str]) -> dict[str, Any] | None:
    """A JSON file of ours; None where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.loads(file.read(LARGEST_FILE))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            unread[path] = error.strerror or str(error)
        return None
    except ValueError:
        unread[path] = "not JSON"
        return None
    return data if isinstance(data, dict) else None


def machine_id() -> str:
    """The same for two names of one machine, and only then: this boot of the kernel, and the network in it (node
    containers share a kernel)."""
    boot = read_text("/proc/sys/kernel/random/boot_id").strip()
    return f"{boot} {_link('/proc/self/ns/net')}"


def total_memory() -> int:
    match = re.search(r"^MemTotal:\s+(\d+) kB", read_text("/proc/meminfo"), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


SCHEMA = 1


class DeployFacts(EngineFacts):
    """What NodeFacts is made of (rocstack.deploy.read.facts)."""

    schema: int
    user: dict[str, Any]
    state: dict[str, Any] | None
    journal: dict[str, Any] | None
    files: dict[str, str]
    ports: dict[str, dict[str, str]]
    daemons: list[str]
    passwd: dict[str, str]
    ids: dict[str, int]
    resolve: dict[str, list[str]]
    reach: dict[str, str]
    machine: str
    memory: int
    cpus: int
    unread: dict[str, str]
    began: float
    ended: float


class CollectedFacts(TypedDict):
    recording: dict[str, Any]
    deploy: DeployFacts


def collect_facts(
    *,
    names: Sequence[str] = (),
    reach: Sequence[str] = (),
    ports: Sequence[int] = (),
    uids: Sequence[int] = (),
    users: Sequence[str] = (),
) -> CollectedFacts:
    """`names` are resolved, `reach` are "address:port" to be tried; of `ports`, `uids` and `users` is said whose they
    are."""
    began = time.time()
    unread: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=4) as pool:
        engine = pool.submit(engine_facts)
        network = pool.submit(lambda: (resolve_names(names), try_addresses(reach)))
        recording = collect("/")
        of_engine = engine.result()
        services = {row["pid"]: row["service"] for row in of_engine["containers"] if row["pid"]}
        resolved, reached = network.result()
    by_uid, by_name = user_ids(uids, users)
    deploy: DeployFacts = {
        "schema": SCHEMA,
        **of_engine,
        "user": _user(),
        "state": json_file(STATE, unread),
        "journal": json_file(JOURNAL, unread),
        "files": written_files(unread),
        "ports": listening_services(ports, services),
        "daemons": foreign_daemons(services),
        "passwd": by_uid,
        "ids": by_name,
        "resolve": resolved,
        "reach": reached,
        "machine": machine_id(),
        "memory": total_memory(),
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

"""Recording -> NodeProfile. Pure; never fails on what a file holds: what makes no sense counts as unread."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from .collect_commands import TOOLS
from .limits import hard_limits
from .nic_settings import NicSettings
from .parse_cards import affinity, gpus, module_version, nics
from .parse_libraries import ReadLibrary, driver_files, libraries, package_versions
from .parse_network import addresses, netdevs, routes, verbs
from .profile import SCHEMA, NodeProfile, System, Unread
from .recording import Recording, natural_key

SHARED_DEVICES = ("/dev/kfd", "/dev/dri/renderD*", "/dev/dri/card*", "/dev/infiniband/uverbs*", "/dev/cxi*")
_SYSCTL_SWAP = str.maketrans("/.", "./")  # sysctl(8) writes the dot of eth1.100 as a slash
# From the first digit of a number only: of a megabyte of digits each would be tried to the end, for hours.
_VERSION = re.compile(r"(?<!\d)\d+(?:\.\d+)+[\w.+~-]*")


def system(rec: Recording) -> System:
    assignments = re.findall(r"^(\w+)=(.*)$", rec.text("/etc/os-release") or "", re.MULTILINE)
    release = {name: value.strip("\"'") for name, value in assignments}
    memory = re.search(r"^MemTotal:\s+(\d{1,15}) kB", rec.text("/proc/meminfo") or "", re.MULTILINE)
    glibc = _VERSION.search(_answer(rec, "getconf GNU_LIBC_VERSION"))
    try:
        clock = float(_answer(rec, "date +%s.%N"))
    except ValueError:
        clock = math.nan
    cgroup = 1 if rec.exists("/sys/fs/cgroup/memory") else None
    return System(
        os="-".join(filter(None, (release.get("ID"), release.get("VERSION_ID")))) or None,
        os_name=release.get("PRETTY_NAME"),
        kernel=rec.text("/proc/sys/kernel/osrelease") or None,
        cmdline=rec.text("/proc/cmdline"),
        glibc=glibc[0] if glibc else None,
        arch=_answer(rec, "uname -m") or None,
        cpus=_number(_answer(rec, "getconf _NPROCESSORS_ONLN")),
        numa_nodes=_count(rec.text("/sys/devices/system/node/online")),
        memory=int(memory[1]) * 1024 if memory else None,
        numa_balancing=rec.number("/proc/sys/kernel/numa_balancing"),
        cgroup=2 if rec.exists("/sys/fs/cgroup/cgroup.controllers") else cgroup,
        clock=clock if math.isfinite(clock) else None,
    )


def groups(rec: Recording) -> dict[str, int]:
    """Groups by name, and the group that owns each kind of device node; where nodes of one kind differ, each one's."""
    by_name = {}
    for line in (rec.text("/etc/group") or "").splitlines():
        words = line.split(":")
        gid = _number(words[2]) if len(words) > 2 else None
        if gid is not None:
            by_name[words[0]] = gid
    for kind in SHARED_DEVICES:
        pattern = re.compile(kind.replace("*", r"\d+"))
        owners = {path: node.gid for path, node in rec.devices.items() if pattern.fullmatch(path)}
        gids = set(owners.values())
        by_name.update({kind: gids.pop()} if len(gids) == 1 else owners)
    return by_name


def limits(rec: Recording) -> dict[str, int]:
    """Hard limits of the process that starts containers: dockerd, or else PID 1."""
    engine = rec.text(f"/proc/{rec.text('/run/docker.pid') or 1}/limits")
    return hard_limits(engine or rec.text("/proc/1/limits") or "")


def sysctl(rec: Recording) -> dict[str, str]:
    """Kernel settings by their dotted names."""
    values = {"kernel.numa_balancing": rec.text("/proc/sys/kernel/numa_balancing")}
    for folder in ("net/core", *(f"net/ipv4/conf/{name}" for name in rec.names("/proc/sys/net/ipv4/conf"))):
        for name in rec.names(f"/proc/sys/{folder}"):
            key = f"{folder}/{name}".translate(_SYSCTL_SWAP)
            values[key] = rec.text(f"/proc/sys/{folder}/{name}")
    return {key: value for key, value in values.items() if value is not None}


def tools(rec: Recording) -> dict[str, str]:
    """Versions, as far as somebody said them."""
    packages = package_versions(rec)
    known = {}
    for name, (command, candidates) in TOOLS.items():
        said = _VERSION.search(_answer(rec, command))
        installed = [packages[package] for package in candidates if package in packages]
        if said or installed:
            known[name] = said[0] if said else installed[0]
    for folder in ("/opt/rocm", "/opt/rocm/core"):  # the second one since ROCm 10
        if rocm := _VERSION.search(rec.text(f"{folder}/.info/version") or ""):
            return {**known, "rocm": rocm[0]}
    return known


def _answer(rec: Recording, line: str) -> str:
    answer = rec.commands.get(line)
    return answer.out.strip() if answer and answer.code == 0 else ""


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) else None


def _count(ranges: str | None) -> int | None:
    """How many numbers "0-3,8" names."""
    if not ranges or not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", ranges):
        return None
    ends = (part.split("-") for part in ranges.split(","))
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def parse(rec: Recording, kinds: Sequence[NicSettings] = (), read_library: ReadLibrary | None = None) -> NodeProfile:
    """`kinds` are the NIC profiles; without `read_library` the libraries' ABIs stay unread."""
    devices = netdevs(rec)
    rdma = verbs(rec, kinds, devices)
    cards = nics(rec, kinds, devices, rdma)
    accelerators = gpus(rec)
    modules = {name: module_version(rec, name) for name in rec.names("/sys/module")}
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
        modules={name: version for name, version in modules.items() if version},
        groups=groups(rec),
        limits=limits(rec),
        sysctl=sysctl(rec),
        tools=tools(rec),
        cxi=tuple(f"/dev/{name}" for name in rec.names("/dev") if re.fullmatch(r"cxi\d+", name)),
        unread=tuple(Unread(what, rec.unread[what]) for what in sorted(rec.unread, key=natural_key)),
    )

"""Machine -> recording: the /sys that real tools read, the device nodes, and what /proc would say.

What lies outside /sys stands in the tree too, below /sys/devices/virtual/rocstack, where the collector looks on a
virtual node: `model` (its name), `root/` (files by their path), `commands/` (answers by command line); and for the
node's start script `devices` (device nodes to make), `groups` and `netdev` (what its network device is called).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

from rocstack.node.recording import MODEL_FILE, DeviceNode, RecordedAnswer, Recording
from rocstack.virtual import gpu_files, nic_files
from rocstack.virtual.machine import Machine
from rocstack.virtual.tree_builder import TreeBuilder

OURS = MODEL_FILE.rpartition("/")[0]
# Where a container's own cgroups and the real CPUs are mounted: programs do run on those.
_REAL = ("/sys/fs/cgroup", "/sys/devices/system/cpu")


def record(machine: Machine, *, live: bool = False) -> Recording:
    """Everything that a collector could read off this machine. `live`: it will be a container of its own, whose
    userspace and management network are real and speak for themselves."""
    tree = TreeBuilder()
    tree.folders += _REAL
    last = machine.model.cpu.numa - 1
    tree.put("/sys/devices/system/node", {"online": f"0-{last}" if last else "0"})
    dmi = "/sys/devices/virtual/dmi/id"
    tree.put(dmi, {"sys_vendor": "rocstack", "product_name": f"virtual node {machine.model.name}"})
    tree.links["/sys/class/dmi/id"] = dmi
    gpu_files.add(tree, machine)
    nic_files.add(tree, machine)
    tree.commands |= _commands(machine, live)
    outside = _proc(machine, live)
    tree.put(OURS, {
        "model": machine.model.name, "faults": "\n".join(machine.faults),
        "netdev": next(port.interface for port in machine.ports if port.spec.management),
    })  # fmt: skip
    gpus = machine.model.gpus
    groups = {"video": gpus.video, "render": gpus.render} if gpus else {}
    tree.files |= outside | _outside(outside, tree.commands, tree.devices, groups)
    return tree.recording(machine.host)


def shown(recording: Recording) -> Recording:
    """A node's recording as a virtual node: its tree is one that real tools read, and says that it is none itself."""
    outside = {path: text for path, text in recording.files.items() if not path.startswith("/sys/")}
    values = re.findall(r"^(video|render):[^:]*:(\d+):", outside.get("/etc/group", ""), re.MULTILINE)
    own = _outside(outside, recording.commands, recording.devices, {name: int(gid) for name, gid in values})
    files = {MODEL_FILE: "recording\n", **recording.files, **own}
    return replace(recording, files=files, folders=(*recording.folders, *_REAL), _children={})


def _outside(
    files: Mapping[str, str],
    commands: Mapping[str, RecordedAnswer],
    devices: Mapping[str, DeviceNode],
    groups: Mapping[str, int],
) -> dict[str, str]:
    """What lies outside /sys, as files below OURS. A command whose line names a path can't be one."""
    nodes = (f"{path} {n.kind} {n.major} {n.minor} {n.gid} {n.mode:o}\n" for path, n in sorted(devices.items()))
    return {
        f"{OURS}/devices": "".join(nodes),
        f"{OURS}/groups": "".join(f"{name} {gid}\n" for name, gid in groups.items()),
        **{f"{OURS}/root{path}": text for path, text in files.items()},
        **{f"{OURS}/commands/{line}": a.out for line, a in commands.items() if not a.code and "/" not in line},
    }


def _proc(machine: Machine, live: bool) -> dict[str, str]:
    """Files of /proc and, but for a live node, /etc."""
    system, cpu, gpus = machine.model.system, machine.model.cpu, machine.model.gpus
    out = {
        "/proc/cmdline": machine.cmdline + "\n",
        "/proc/version": f"Linux version {machine.kernel} (a virtual node of rocstack)\n",
        "/proc/meminfo": f"MemTotal:       {cpu.memory_gib << 20} kB\n",
        "/proc/sys/kernel/osrelease": machine.kernel + "\n",
        "/proc/net/route": _routes(machine, live),
    }
    out |= {f"/proc/sys/{key.replace('.', '/')}": value + "\n" for key, value in system.sysctl.items()}
    if system.limits:
        out["/proc/1/limits"] = _limits(system.limits)
    if not live:
        out["/proc/sys/kernel/hostname"] = machine.host + "\n"
        out["/etc/os-release"] = f'ID={system.os}\nVERSION_ID="{system.version}"\nPRETTY_NAME="{system.name}"\n'
        out["/etc/group"] = f"video:x:{gpus.video}:\nrender:x:{gpus.render}:\n" if gpus else ""
    return out


def _commands(machine: Machine, live: bool) -> dict[str, RecordedAnswer]:
    cpu = machine.model.cpu
    own = [(p.interface, p.address) for p in machine.ports if p.address and not (live and p.spec.management)]
    rows = "".join(f"{number}: {name}    inet {address}\n" for number, (name, address) in enumerate(own, 101))
    said = {"getconf _NPROCESSORS_ONLN": f"{cpu.sockets * cpu.cores * cpu.threads}\n", "ip -o -4 addr": rows}
    if not live:
        said["uname -m"] = "x86_64\n"
    return {line: RecordedAnswer(0, text) for line, text in said.items()}


def _routes(machine: Machine, live: bool) -> str:
    """/proc/net/route: an address is a number as memory holds it, so its bytes are the other way round."""

    def row(netdev: str, to: IPv4Address, gateway: IPv4Address, flags: str, mask: IPv4Address) -> str:
        words = [address.packed[::-1].hex().upper() for address in (to, gateway, mask)]
        return "\t".join([netdev, *words[:2], flags, "0", "0", "0", words[2], "0", "0", "0"])

    none = IPv4Address(0)
    rows = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
    for port in machine.ports:
        if port.address and not (live and port.spec.management):
            network = port.address.network
            rows.append(row(port.interface, network.network_address, none, "0001", network.netmask))
            if port.spec.management and machine.gateway:
                rows.append(row(port.interface, none, IPv4Address(machine.gateway), "0003", none))
    return "\n".join(rows) + "\n"


def _limits(limits: Mapping[Any, int]) -> str:
    """/proc/1/limits, by docker's names of limits."""
    names = {
        "memlock": ("Max locked memory", "bytes"), "nofile": ("Max open files", "files"),
        "stack": ("Max stack size", "bytes"), "nproc": ("Max processes", "processes"),
        "core": ("Max core file size", "bytes"),
    }  # fmt: skip
    lines = [f"{'Limit':25} {'Soft Limit':20} {'Hard Limit':20} {'Units':10}"]
    for key, value in limits.items():
        name, unit = names[key]
        shown = "unlimited" if value < 0 else str(value)
        lines.append(f"{name:25} {shown:20} {shown:20} {unit:10}")
    return "\n".join(lines) + "\n"

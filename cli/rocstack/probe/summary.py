"""A node profile in a few lines of words: what `rocstack probe` shows of each node."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from rocstack.base.text import count, listed
from rocstack.node import gate
from rocstack.node.parse_network import SOFT_ROCE_MODULE
from rocstack.node.profile import Library, Nic, NodeProfile, Verbs
from rocstack.probe.classes import classes, differences
from rocstack.probe.diagram import below_most, bits, speed

UNKNOWN = "not read"
MOST = 16  # differences shown
COLUMNS = ("NODE", "SYSTEM", "GPUS", "NICS", "NIC DRIVER", "FIRMWARE", "ABI", "LIBRARIES", "STATE")


def facts(profile: NodeProfile) -> dict[str, str]:
    """What one node has, in a few rows."""
    system = profile.system
    memory = [f"{system.memory / 2**30:.0f} GiB"] if system.memory else []
    gpus = _counted(f"{gpu.name or gpu.device} {gpu.gfx or ''}".strip() for gpu in profile.gpus)
    gpus += [f"amdgpu {profile.amdgpu}"] if profile.amdgpu else []
    return {
        "system": ", ".join([system.os or UNKNOWN, f"kernel {system.kernel or UNKNOWN}", *memory]),
        "GPUs": ", ".join(gpus) or "none",
        "NICs": ", ".join(_nics(profile)) or "none",
        "RDMA": ", ".join(_counted(map(_verbs, profile.verbs))) or "none",
        "libraries": ", ".join(map(_library, profile.libraries)) or "none",
        "state": ", ".join(_state(profile)) or "no fault seen",
    }


def cells(profile: NodeProfile) -> tuple[str, ...]:
    """COLUMNS of a table of many nodes: the same in fewer words."""
    system = profile.system
    known = [nic for nic in profile.nics if nic.nic]
    gpus = _counted(f"{_short(gpu.name or gpu.device)} {gpu.gfx or ''}".strip() for gpu in profile.gpus)
    nics = _counted(f"{nic.nic} {bits(speed(profile, nic))}".strip() for nic in known)
    drivers = dict.fromkeys(f"{nic.driver or 'none'} {nic.driver_version or ''}".strip() for nic in known)
    abis = sorted({device.kernel_abi for device in profile.verbs if device.kernel_abi is not None})
    libraries = [f"{each.driver or 'libibverbs'} {each.version or '?'}" for each in profile.libraries]
    return (
        name(profile),
        f"{system.os or UNKNOWN} {system.kernel or UNKNOWN}",
        ", ".join(gpus) or "none",
        ", ".join(nics) or "none",
        ", ".join(drivers) or "none",
        ", ".join(dict.fromkeys(nic.firmware or UNKNOWN for nic in known)) or "none",
        ", ".join(map(str, abis)) or "none",
        ", ".join(libraries) or "none",
        ", ".join(_state(profile)) or "no fault seen",
    )


def name(profile: NodeProfile) -> str:
    """The node's name, and that it is virtual."""
    return profile.name + (f" (virtual {profile.virtual})" if profile.virtual else "")


def alike(profiles: Iterable[NodeProfile]) -> list[str]:
    """Which nodes are alike, and what sets the others apart; a line each."""
    groups = classes(profiles)
    if len(groups) == 1 and len(groups[0].nodes) > 1:
        return [f"{len(groups[0].nodes)} nodes, all alike"]
    if len(groups) < 2:
        return []
    first = groups[0].nodes
    if len(first) > 1:
        lines = [f"{count(len(first), 'node')} alike: {listed(first)}"]
    else:
        lines = [f"no two of the {len(groups)} nodes are alike" if len(groups) > 2 else "the two nodes differ"]
    result = differences(groups)
    for difference in result[:MOST]:
        *others, most = difference.values
        sides = "; ".join(f"{listed(nodes)}: {value}" for value, nodes in others)
        lines.append(f"{difference.what}: {sides}; {listed(most[1])}: {most[0]}")
    if len(result) > MOST:
        lines.append(f"{len(result) - MOST} more differences; --json has all values")
    return lines


def _short(gpu: str) -> str:
    """MI300X of "AMD Instinct MI300X OAM"."""
    match = re.search(r"\bMI\d+\w*", gpu)
    return match[0] if match else gpu


def _counted(words: Iterable[str]) -> list[str]:
    """ "8 × a", "1 × b"."""
    return [f"{many} × {word}" for word, many in Counter(words).items()]


def _nics(profile: NodeProfile) -> Iterator[str]:
    known = [nic for nic in profile.nics if nic.nic]
    yield from _counted(_nic(profile, nic) for nic in known)
    others = len(profile.nics) - len(known)
    if others:
        yield f"{others} other{'s' * (others > 1)}" if known else f"{others} without a NIC profile"


def _nic(profile: NodeProfile, nic: Nic) -> str:
    rate = bits(speed(profile, nic))
    driver = f"{nic.driver or 'no driver'} {nic.driver_version or ''}".strip()
    return " ".join(filter(None, (nic.nic, rate, f"({driver}, firmware {nic.firmware or UNKNOWN})")))


def _verbs(device: Verbs) -> str:
    software = " (RDMA in software)" if device.driver == SOFT_ROCE_MODULE else ""
    abi = UNKNOWN if device.kernel_abi is None else device.kernel_abi
    return f"{device.driver or UNKNOWN}{software}, kernel ABI {abi}"


def _library(library: Library) -> str:
    version = library.version or "version not read"
    if library.driver is None:
        abi = UNKNOWN if library.private_abi is None else library.private_abi
        return f"libibverbs {version} (private ABI {abi})"
    if library.driver in gate.SLINGSHOT_FILES:  # no provider of libibverbs
        return f"{library.driver} {version}"
    low, high = library.kernel_abi or (None, None)
    span = UNKNOWN if low is None else f"{low}" if low == high else f"{low}-{high}"
    return f"{library.driver} {version} (kernel ABI {span})"


def _state(profile: NodeProfile) -> Iterator[str]:
    """What is plainly not as it should be, or not hardware. What it means and what to do is the doctor's affair."""
    ports = [port for device in profile.verbs for port in device.ports]
    down = sum(port.state != "ACTIVE" for port in ports)
    if down:
        yield f"{down} of {count(len(ports), 'RDMA port')} not active"
    links = [gpu.pcie for gpu in profile.gpus] + [nic.pcie for nic in profile.nics if nic.nic]
    slow = sum(any(below_most(link)) for link in links)
    if slow:
        yield f"{count(slow, 'PCIe link')} below what the device can"
    software = [device.name for device in profile.verbs if device.driver == SOFT_ROCE_MODULE]
    if software:
        yield f"RDMA in software: {listed(software)}"
    if profile.unread:
        yield f"{count(len(profile.unread), 'thing')} not read"

"""Faults: what can be wrong with a virtual node.

`--fault port-down=bnxt_re2`, on one node only: `--fault n2:port-down=bnxt_re2`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from rocstack.base.errors import BadInput, did_you_mean, hinted
from rocstack.virtual.machine import Machine, VirtualPort, pci_id

_ONE_NODE = re.compile(r"n([0-9]+):(.*)", re.DOTALL)


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault: what it takes, what it does (both for the help text), and how the machine is changed."""

    name: str
    takes: str
    does: str
    change: Callable[[Machine, str], Machine]


@dataclass(frozen=True)
class Fault:
    """One fault as asked for; `node` is None where every node has it."""

    kind: str
    value: str = ""
    node: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}={self.value}" if self.value else self.kind


def parse(text: str) -> Fault:
    """
    Raises:
        BadInput: no such fault, or it lacks its value.
    """
    one = _ONE_NODE.fullmatch(text)
    node, rest = (int(one[1]), one[2]) if one else (None, text)
    name, _, value = rest.partition("=")
    if not text.isprintable():
        raise bad(ascii(text), "a fault is one line of text")
    kind = KINDS.get(name)
    if kind is None:
        raise BadInput.of("unknown-fault", name=name, hint=hinted(name, KINDS), known=", ".join(KINDS))
    if (bool(value) and not kind.takes) or (not value and kind.takes and not kind.takes.startswith("[")):
        takes = f"{name}={kind.takes}" if kind.takes else f"{name}, without a value"
        raise bad(text, f"the form is {takes}")
    return Fault(name, value, node)


def apply(machine: Machine, faults: Iterable[Fault]) -> Machine:
    """The machine with its model's own faults, then those of the list that are meant for this node, in their order.

    Raises:
        BadInput: the machine has no such device, or the value is of no use.
    """
    for fault in (*map(parse, machine.model.faults), *faults):
        if fault.node in (None, machine.node):
            try:
                changed = KINDS[fault.kind].change(machine, fault.value)
            except ValueError as error:
                raise bad(str(fault), f"{machine.host}: {error}") from None
            machine = replace(changed, faults=(*machine.faults, str(fault)))
    return machine


def bad(text: str, why: str) -> BadInput:
    return BadInput.of("bad-fault", fault=text, why=why)


def _meant(machine: Machine, name: str, rdma: bool) -> list[VirtualPort]:
    """The port called `name` (verbs or network device), or, without a name, every port of a NIC profile that carries
    data. `rdma`: only ports with an RDMA device."""
    ports = [port for port in machine.ports if port.verbs or not rdma]
    names = [known for port in ports for known in (port.verbs, port.netdev) if known]
    if name and name not in names:
        hint = did_you_mean(name, names) or f"known: {', '.join(names)}"
        raise ValueError(f"no {'RDMA ' * rdma}device '{name}'" + (f": {hint}" if names else ""))
    meant = [port for port in ports if (name in (port.verbs, port.netdev) if name else port.carries_data)]
    if rdma and not meant:
        raise ValueError("it has no RDMA device in its data network")
    return meant


def _ports(
    machine: Machine,
    name: str,
    change: Callable[[VirtualPort], dict[str, Any]] = lambda port: {},
    *,
    rdma: bool = False,
    **values: Any,
) -> Machine:
    """The machine with other `values` of the ports that are meant; `change` gives those that depend on the port."""
    meant = _meant(machine, name, rdma)
    ports = (replace(port, **values, **change(port)) if port in meant else port for port in machine.ports)
    return replace(machine, ports=tuple(ports))


def _number(text: str, what: str, highest: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > highest:
        raise ValueError(f"{what} is a number up to {highest}, not '{text}'")
    return int(text)


def _named(value: str) -> tuple[str, str]:
    """`device:value` or `value`."""
    name, colon, rest = value.partition(":")
    return (name, rest) if colon else ("", value)


def _gpu_missing(machine: Machine, value: str) -> Machine:
    index = _number(value, "a GPU", 255)
    if index not in machine.gpus:
        raise ValueError(f"no GPU {index}")
    return replace(machine, gpus={slot: pci for slot, pci in machine.gpus.items() if slot != index})


def _nic_missing(machine: Machine, value: str) -> Machine:
    gone = _meant(machine, value, rdma=False)
    return replace(machine, ports=tuple(port for port in machine.ports if port not in gone))


def _pcie(machine: Machine, value: str) -> Machine:
    name, _, width = value.partition(":")
    if width not in ("x1", "x2", "x4", "x8", "x16"):
        raise ValueError("the form is bnxt_re1:x8 or gpu3:x8")
    lanes = int(width[1:])
    gpu = re.fullmatch(r"gpu([0-9]+)", name)
    if not gpu:
        return _ports(machine, name, lambda port: {"pci": replace(port.pci, width=lanes)})
    slot = int(gpu[1])
    if slot not in machine.gpus:
        raise ValueError(f"no GPU {gpu[1]}")
    return replace(machine, gpus={**machine.gpus, slot: replace(machine.gpus[slot], width=lanes)})


def _abi(machine: Machine, value: str) -> Machine:
    name, text = _named(value)
    abi = _number(text, "a kernel ABI", 999)

    def change(port: VirtualPort) -> dict[str, Any]:
        return {"pci": replace(port.pci, id=pci_id(port.spec, abi)), "driver": port.spec.drivers.get(str(abi))}

    return _ports(machine, name, change, rdma=True, kernel_abi=abi)


def _firmware(machine: Machine, value: str) -> Machine:
    name, version = _named(value)
    return _ports(machine, name, firmware=version)


def _mtu(machine: Machine, value: str) -> Machine:
    name, text = _named(value)
    mtu = _number(text, "an MTU", 65535)
    if mtu < 68:  # RFC 791
        raise ValueError(f"an MTU is 68 or more, not {mtu}")
    return _ports(machine, name, mtu=mtu)


def _gid_holes(machine: Machine, value: str) -> Machine:
    def change(port: VirtualPort) -> dict[str, Any]:
        half = len(port.gids) // 2  # the link-local rows stay
        return {"gids": (*port.gids[:half], *[None] * half, *port.gids[half:])}

    return _ports(machine, value, change, rdma=True)


KINDS = {kind.name: kind for kind in (
    FaultKind("gpu-missing", "NUMBER", "a GPU is not there; those behind it move up", _gpu_missing),
    FaultKind("nic-missing", "DEVICE", "a NIC is not there", _nic_missing),
    FaultKind("port-down", "DEVICE", "no link", lambda m, name: _ports(m, name, up=False)),
    FaultKind("pcie", "DEVICE:xLANES", "a device (NIC, or gpu3) runs with fewer PCIe lanes", _pcie),
    FaultKind("abi", "[DEVICE:]NUMBER", "the NIC driver speaks this kernel ABI; its version follows", _abi),
    FaultKind("driver", "VERSION", "another release of the NIC driver", lambda m, text: _ports(m, "", driver=text)),
    FaultKind("gpu-driver", "VERSION", "another release of amdgpu", lambda m, text: replace(m, amdgpu=text)),
    FaultKind("firmware", "[DEVICE:]VERSION", "another NIC firmware", _firmware),
    FaultKind("mtu", "[DEVICE:]BYTES", "another MTU", _mtu),
    FaultKind("gid-holes", "[DEVICE]", "addresses were taken away and given back: empty rows, and later indexes",
              _gid_holes),
    FaultKind("gids-zero", "[DEVICE]", "the GID table is empty", lambda m, name: _ports(m, name, rdma=True, gids=())),
    FaultKind("no-device-node", "DEVICE", "/dev/infiniband/uverbs* of a NIC is not there",
              lambda m, name: _ports(m, name, rdma=True, device_node=False)),
    FaultKind("kernel", "RELEASE", "another kernel", lambda m, text: replace(m, kernel=text)),
    FaultKind("cmdline", "[TEXT]", "another kernel command line", lambda m, text: replace(m, cmdline=text)),
)}  # fmt: skip

"""Faults: what can be wrong with a virtual node, each a function that changes the machine.

`--fault port-down=bnxt_re2`, on one node only: `--fault n2:port-down=bnxt_re2`.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rocstack.base.errors import BadInput, did_you_mean
from rocstack.virtual.machine import GidRow, Machine, VirtualPort, pci_id
from rocstack.virtual.model import NodeModel

FaultChange = Callable[[Machine, str], Machine]
_ONE_NODE = re.compile(r"n([0-9]+):(.*)", re.DOTALL)


@dataclass(frozen=True)
class FaultKind:
    """A kind of fault: what it takes, and what it does, for the help text."""

    name: str
    takes: str
    does: str
    change: FaultChange


@dataclass(frozen=True)
class Fault:
    """One fault as asked for; `node` is None where every node has it."""

    kind: str
    value: str = ""
    node: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}={self.value}" if self.value else self.kind


KINDS: dict[str, FaultKind] = {}


def _kind(name: str, takes: str, does: str) -> Callable[[FaultChange], FaultChange]:
    def register(change: FaultChange) -> FaultChange:
        KINDS[name] = FaultKind(name, takes, does, change)
        return change

    return register


def parse(text: str) -> Fault:
    """
    Raises:
        BadInput: no such fault, or it lacks its value.
    """
    one = _ONE_NODE.fullmatch(text)
    node, rest = (int(one[1]), one[2]) if one else (None, text)
    name, _, value = rest.partition("=")
    if not text.isprintable():
        raise _bad(ascii(text), "a fault is one line of text")
    kind = KINDS.get(name)
    if kind is None:
        hint = did_you_mean(name, KINDS)
        raise BadInput(
            f"no fault '{name}'" + (f": {hint}" if hint else ""),
            code="bad-fault",
            next_step=f"known: {', '.join(KINDS)}; `rocstack local models` shows their values",
        )
    if (bool(value) and not kind.takes) or (not value and kind.takes and not kind.takes.startswith("[")):
        takes = f"{name}={kind.takes}" if kind.takes else f"{name}, without a value"
        raise _bad(text, f"the form is {takes}")
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
                raise _bad(str(fault), f"{machine.host}: {error}") from None
            machine = replace(changed, faults=(*machine.faults, str(fault)))
    return machine


def check(model: NodeModel, faults: Iterable[Fault], nodes: int) -> None:
    """
    Raises:
        BadInput: a fault of a node that there won't be.
    """
    for fault in faults:
        if fault.node is not None and not 1 <= fault.node <= nodes:
            raise _bad(f"n{fault.node}:{fault}", f"there is no node n{fault.node}: nodes are n1 to n{nodes}")


def _bad(text: str, why: str) -> BadInput:
    return BadInput(f"fault '{text}': {why}", code="bad-fault", next_step="correct the fault and run again")


def _ports(
    machine: Machine, name: str, change: Callable[[VirtualPort], VirtualPort], *, verbs: bool = False
) -> Machine:
    """Changes the port called `name` (verbs or network device), or, without a name, every port of a NIC profile that
    carries data. `verbs`: only ports with an RDMA device can have it."""
    ports = [port for port in machine.ports if port.verbs or not verbs]
    names = [known for port in ports for known in (port.verbs, port.netdev) if known]
    if name and name not in names:
        hint = did_you_mean(name, names) or f"known: {', '.join(names)}"
        raise ValueError(f"no {'RDMA ' * verbs}device '{name}'" + (f": {hint}" if names else ""))
    meant = [port for port in ports if (name in (port.verbs, port.netdev) if name else _data(port))]
    if verbs and not meant:
        raise ValueError("it has no RDMA device in its data network")
    return replace(machine, ports=tuple(change(port) if port in meant else port for port in machine.ports))


def _data(port: VirtualPort) -> bool:
    return port.spec.nic is not None and not port.spec.management


def _number(text: str, what: str, highest: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > highest:
        raise ValueError(f"{what} is a number up to {highest}, not '{text}'")
    return int(text)


def _named(value: str) -> tuple[str, str]:
    """`device:value` or `value`."""
    name, colon, rest = value.partition(":")
    return (name, rest) if colon else ("", value)


@_kind("gpu-missing", "NUMBER", "a GPU is not there; those behind it move up")
def _gpu_missing(machine: Machine, value: str) -> Machine:
    index = _number(value, "a GPU", 255)
    left = tuple(gpu for gpu in machine.gpus if gpu.slot != index)
    if len(left) == len(machine.gpus):
        raise ValueError(f"no GPU {index}")
    return replace(machine, gpus=left)


@_kind("nic-missing", "DEVICE", "a NIC is not there")
def _nic_missing(machine: Machine, value: str) -> Machine:
    gone: list[VirtualPort] = []
    _ports(machine, value, lambda port: gone.append(port) or port)  # type: ignore[func-returns-value]
    return replace(machine, ports=tuple(port for port in machine.ports if port not in gone))


@_kind("port-down", "DEVICE", "no link")
def _port_down(machine: Machine, value: str) -> Machine:
    return _ports(machine, value, lambda port: replace(port, up=False))


@_kind("pcie", "DEVICE:xLANES", "a device (NIC, or gpu3) runs with fewer PCIe lanes")
def _pcie(machine: Machine, value: str) -> Machine:
    name, _, width = value.partition(":")
    if width not in ("x1", "x2", "x4", "x8", "x16"):
        raise ValueError("the form is bnxt_re1:x8 or gpu3:x8")
    lanes = int(width[1:])
    gpu = re.fullmatch(r"gpu([0-9]+)", name)
    if not gpu:
        return _ports(machine, name, lambda p: replace(p, pci=replace(p.pci, link=replace(p.pci.link, width=lanes))))
    if int(gpu[1]) not in [each.slot for each in machine.gpus]:
        raise ValueError(f"no GPU {gpu[1]}")
    gpus = (
        replace(g, pci=replace(g.pci, link=replace(g.pci.link, width=lanes))) if g.slot == int(gpu[1]) else g
        for g in machine.gpus
    )
    return replace(machine, gpus=tuple(gpus))


@_kind("abi", "[DEVICE:]NUMBER", "the NIC driver speaks this kernel ABI; its version follows")
def _abi(machine: Machine, value: str) -> Machine:
    name, text = _named(value)
    abi = _number(text, "a kernel ABI", 999)

    def change(port: VirtualPort) -> VirtualPort:
        pci = replace(port.pci, id=pci_id(port.spec, abi))
        return replace(port, kernel_abi=abi, driver=port.spec.drivers.get(str(abi)), pci=pci)

    return _ports(machine, name, change, verbs=True)


@_kind("driver", "VERSION", "another release of the NIC driver")
def _driver(machine: Machine, value: str) -> Machine:
    return _ports(machine, "", lambda port: replace(port, driver=value))


@_kind("gpu-driver", "VERSION", "another release of amdgpu")
def _gpu_driver(machine: Machine, value: str) -> Machine:
    return replace(machine, amdgpu=value)


@_kind("firmware", "[DEVICE:]VERSION", "another NIC firmware")
def _firmware(machine: Machine, value: str) -> Machine:
    name, version = _named(value)
    return _ports(machine, name, lambda port: replace(port, firmware=version))


@_kind("mtu", "[DEVICE:]BYTES", "another MTU")
def _mtu(machine: Machine, value: str) -> Machine:
    name, text = _named(value)
    mtu = _number(text, "an MTU", 65535)
    if mtu < 68:  # RFC 791
        raise ValueError(f"an MTU is 68 or more, not {mtu}")
    return _ports(machine, name, lambda port: replace(port, mtu=mtu))


@_kind("gid-holes", "[DEVICE]", "addresses were taken away and given back: empty rows, and later indexes")
def _gid_holes(machine: Machine, value: str) -> Machine:
    def change(port: VirtualPort) -> VirtualPort:
        half = len(port.gids) // 2  # the link-local rows stay
        holes: tuple[GidRow | None, ...] = (None,) * half
        return replace(port, gids=(*port.gids[:half], *holes, *port.gids[half:]))

    return _ports(machine, value, change, verbs=True)


@_kind("gids-zero", "[DEVICE]", "the GID table is empty")
def _gids_zero(machine: Machine, value: str) -> Machine:
    return _ports(machine, value, lambda port: replace(port, gids=()), verbs=True)


@_kind("no-device-node", "DEVICE", "/dev/infiniband/uverbs* of a NIC is not there")
def _no_device_node(machine: Machine, value: str) -> Machine:
    return _ports(machine, value, lambda port: replace(port, device_node=False), verbs=True)


@_kind("kernel", "RELEASE", "another kernel")
def _kernel(machine: Machine, value: str) -> Machine:
    return replace(machine, kernel=value)


@_kind("cmdline", "[TEXT]", "another kernel command line")
def _cmdline(machine: Machine, value: str) -> Machine:
    return replace(machine, cmdline=value)

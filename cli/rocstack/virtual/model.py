"""The node model: a kind of machine as data, `images/node-models/<name>.yml`."""

import re
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from rocstack.base import document, paths
from rocstack.base.errors import BadInput, did_you_mean, hinted
from rocstack.base.words import Driver, Gfx, Line, Name, Value, Version


def _matches(pattern: str, meaning: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} is not {meaning}")
        return text

    return AfterValidator(check)


def _network(text: str) -> str:
    if IPv4Network(text).prefixlen > 16:
        raise ValueError(f"{text} holds too few /24 networks: one per card is needed, so a /16")
    return text


PciId = Annotated[str, _matches(r"[0-9a-f]{4}:[0-9a-f]{4}", "vendor:device, such as 14e4:1760")]
Bus = Annotated[str, _matches(r"[0-9a-e][0-9a-f]", "a PCI bus from 00 to ef, two hex digits")]
First = Annotated[str, _matches(r"[a-z][a-z0-9_]{0,11}[0-9]{1,2}", "a device name that ends in its number")]
Network = Annotated[str, AfterValidator(_network)]
Sysctl = Annotated[str, _matches(r"[a-z0-9_]+(\.[a-z0-9_-]+)+", "a sysctl such as kernel.numa_balancing")]
Abi = Annotated[str, _matches(r"[0-9]{1,3}", "a kernel ABI number")]


class ModelSystem(Value):
    """What /proc and /etc say. `limits` are hard limits by docker's names; -1 is none."""

    os: Name
    version: Line
    name: Line
    kernel: Line
    cmdline: Line
    sysctl: dict[Sysctl, Line] = {}
    limits: dict[Literal["memlock", "nofile", "stack", "nproc", "core"], int] = {}


class Cpu(Value):
    name: Line
    sockets: int = Field(ge=1, le=8)
    cores: int = Field(ge=1, le=256)  # per socket
    threads: int = Field(1, ge=1, le=4)
    numa: int = Field(ge=1, le=16)
    memory_gib: int = Field(ge=1)


class ModelPcie(Value):
    """A link at its full speed: GT/s and lanes."""

    speed: float = Field(gt=0)
    width: int = Field(ge=1, le=32)


class Gpus(Value):
    """All GPUs as the driver counts them: a card of two dies is two. `xgmi` is `all` where each has a link to each,
    else the pairs that have one."""

    count: int = Field(ge=1, le=64)
    pci: PciId
    name: Line
    gfx: Gfx
    memory_gib: int = Field(ge=1)
    compute_units: int = Field(ge=1)
    xcc: int = Field(1, ge=1)
    vbios: Line
    driver: Version | None = None  # of amdgpu; None: in-tree
    watts: int = Field(ge=1)
    pcie: ModelPcie
    xgmi: Literal["all"] | tuple[tuple[int, int], ...] = ()
    video: int = 44  # gid of /dev/dri/card*
    render: int = 109  # gid of /dev/kfd and /dev/dri/renderD*


class Nics(Value):
    """Cards of one kind. `netdev` and `verbs` name the first; the others count on."""

    count: int = Field(ge=1, le=32)
    nic: Name | None = None  # the NIC profile; None: a network card of no interest to us
    pci: PciId
    inbox_pci: PciId | None = None  # shown instead with kernel ABI 1
    name: Line
    netdev: First
    module: Driver
    verbs: First | None = None
    verbs_module: Driver | None = None
    kernel_abi: int = Field(1, ge=1)
    drivers: dict[Abi, Version] = {}  # kernel ABI -> the driver release that speaks it; not listed: in-tree
    cxi: First | None = None  # Slingshot's own devices instead of verbs
    firmware: Line | None = None
    speed: int = Field(ge=1)  # Mb/s
    mtu: int = Field(1500, ge=576, le=65535)
    gids: Literal["v1+v2", "v2"] = "v1+v2"
    network: Network | None = None  # card k of node n is host n of this network's k-th /24
    management: bool = False  # it carries the default route
    bond: Name | None = None  # all of them form this bond, and share one verbs device
    numa: int = 0  # where no switch holds them
    pcie: ModelPcie

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if (self.verbs is None) != (self.verbs_module is None):
            raise ValueError("verbs: a verbs device and its kernel module (verbs_module) go together")
        if self.network and self.management:
            raise ValueError("network: the management network is the cluster's own")
        return self


class Switch(Value):
    """A PCIe switch below its own root port, and what hangs on it: GPUs by number, NICs by network device."""

    bus: Bus
    numa: int = Field(0, ge=0)
    gpus: tuple[int, ...] = ()
    nics: tuple[str, ...] = ()


class NodeModel(Value):
    name: Name
    about: Line
    sources: Annotated[tuple[Line, ...], Field(min_length=1)]
    system: ModelSystem
    cpu: Cpu
    gpus: Gpus | None = None
    nics: tuple[Nics, ...]
    switches: tuple[Switch, ...] = ()
    faults: tuple[Line, ...] = ()  # what is broken on every node of this model

    @model_validator(mode="after")
    def _everything_has_one_place(self) -> Self:
        netdevs = [name for nics in self.nics for name in counted(nics.netdev, nics.count)]
        for what, names in (
            ("network device", netdevs),
            ("bus", [s.bus for s in self.switches]),
            ("verbs device", [v for n in self.nics if n.verbs for v in counted(n.verbs, 1 if n.bond else n.count)]),
        ):
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"nics: {what} '{twice[0]}' is there twice")
        if sum(nics.management for nics in self.nics) != 1:
            raise ValueError("nics: exactly one kind of card is the management network")
        gpus = [gpu for switch in self.switches for gpu in switch.gpus]
        if self.gpus is None and gpus:
            raise ValueError(f"switches: hold GPUs {gpus}, and the model has no `gpus`")
        if self.gpus and sorted(gpus) != list(range(self.gpus.count)):
            raise ValueError(f"switches: must hold each GPU from 0 to {self.gpus.count - 1} once, not {gpus}")
        placed = [nic for switch in self.switches for nic in switch.nics]
        for name in placed:
            if name not in netdevs:
                raise ValueError(f"switches: no network device '{name}' here: {did_you_mean(name, netdevs) or ''}")
            if placed.count(name) > 1:
                raise ValueError(f"switches: '{name}' is on two switches")
        for numa in (*(s.numa for s in self.switches), *(n.numa for n in self.nics)):
            if numa >= self.cpu.numa:
                raise ValueError(f"switches: something on NUMA node {numa}, and the machine has {self.cpu.numa}")
        if self.gpus and self.gpus.xgmi != "all":
            for pair in self.gpus.xgmi:
                if not all(0 <= gpu < self.gpus.count for gpu in pair) or pair[0] == pair[1]:
                    raise ValueError(f"gpus: xgmi link {list(pair)} is between no two GPUs")
        return self


def counted(first: str, count: int) -> list[str]:
    """`rdma0`, 3 -> rdma0, rdma1, rdma2."""
    stem = first.rstrip("0123456789")
    start = int(first[len(stem) :])
    return [f"{stem}{start + i}" for i in range(count)]


def folder() -> Path:
    return paths.images() / "node-models"


def names() -> list[str]:
    return sorted(file.stem for file in folder().glob("*.yml"))


def load(name: str) -> NodeModel:
    """The model called `name`, or the file at that path when it ends in .yml.

    Raises:
        BadInput: no such model, or its file is wrong (with file:line).
    """
    file = Path(name) if name.endswith((".yml", ".yaml")) else folder() / f"{name}.yml"
    if not file.exists():
        raise BadInput.of("unknown-model", name=name, hint=hinted(name, names()))
    return document.read(file).validate(NodeModel, extra={"name": file.stem})

"""The node profile: what a probe read off one node, as a value. None means "could not be read", never "no".

Sizes are bytes, speeds Mb/s, PCIe speeds GT/s. Written as JSON by `rocstack probe`, read by `build`, `deploy`,
`verify` and by the gate inside the image.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SCHEMA = 1


class _Part:
    __pydantic_config__ = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class System(_Part):
    """Operating system and machine."""

    os: str | None = None  # "debian-13", "ubuntu-24.04": ID and VERSION_ID of os-release
    os_name: str | None = None
    kernel: str | None = None
    cmdline: str | None = None
    glibc: str | None = None
    arch: str | None = None
    cpus: int | None = None
    numa_nodes: int | None = None
    memory: int | None = None
    numa_balancing: int | None = None
    cgroup: int | None = None  # 1 or 2
    clock: float | None = None  # the node's time, seconds since the epoch


@dataclass(frozen=True)
class Pcie(_Part):
    """A PCIe link as it runs and as it could."""

    speed: float | None = None
    width: int | None = None
    max_speed: float | None = None
    max_width: int | None = None


@dataclass(frozen=True)
class GpuLink(_Part):
    """A link to another GPU, by its index. `kind` is xgmi or pcie; `weight` is KFD's distance."""

    to: int
    kind: str
    weight: int | None = None


@dataclass(frozen=True)
class Gpu(_Part):
    index: int  # as ROCm counts them
    pci: str  # domain:bus:device.function
    device: str  # "1002:74a1"
    gfx: str | None = None
    name: str | None = None  # "AMD Instinct MI300X OAM"
    render_minor: int | None = None  # /dev/dri/renderD<minor>
    numa: int | None = None
    memory: int | None = None
    kfd_node: int | None = None  # None: the driver does not drive it
    firmware: str | None = None  # VBIOS
    pcie: Pcie = Pcie()
    path: tuple[str, ...] = ()  # PCI addresses from the root port down to the device itself
    links: tuple[GpuLink, ...] = ()


@dataclass(frozen=True)
class Netdev(_Part):
    """A network device."""

    name: str
    state: str | None = None  # operstate
    speed: int | None = None
    mtu: int | None = None
    master: str | None = None  # the bond or bridge that holds it
    kind: str = "physical"  # physical, bond, bridge, vlan, virtual
    pci: str | None = None


@dataclass(frozen=True)
class Gid(_Part):
    """One row of a GID table that holds something."""

    index: int
    gid: str  # eight groups of four hex digits
    type: str | None = None  # "RoCE v2", "IB/RoCE v1"
    netdev: str | None = None


@dataclass(frozen=True)
class Port(_Part):
    number: int
    state: str | None = None  # ACTIVE, DOWN, INIT ...
    physical: str | None = None  # LinkUp, Disabled ...
    link_layer: str | None = None  # Ethernet or InfiniBand
    rate: int | None = None
    gids: tuple[Gid, ...] = ()


@dataclass(frozen=True)
class Verbs(_Part):
    """An RDMA device."""

    name: str  # bnxt_re0
    uverbs: str | None = None  # uverbs0; None: the kernel offers it to no program
    device_node: bool | None = None  # is /dev/infiniband/<uverbs> there?
    kernel_abi: int | None = None
    driver: str | None = None  # the kernel module, bnxt_re
    firmware: str | None = None
    pci: str | None = None
    numa: int | None = None
    netdevs: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True)
class Nic(_Part):
    """A network card's PCI function that a NIC profile knows, or any other network controller."""

    pci: str
    device: str  # "14e4:1760"
    nic: str | None = None  # the NIC profile it belongs to
    driver: str | None = None
    driver_version: str | None = None
    firmware: str | None = None
    numa: int | None = None
    pcie: Pcie = Pcie()
    path: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()
    verbs: str | None = None


@dataclass(frozen=True)
class Library(_Part):
    """A libibverbs or provider library found on the node, or one of Slingshot's."""

    path: str
    driver: str | None = None  # bnxt_re; None: libibverbs itself
    version: str | None = None  # of the release, by package or by the vendor's symbolic link
    private_abi: int | None = None
    kernel_abi: tuple[int, int] | None = None
    glibc: str | None = None  # the highest symbol version it needs
    sha256: str | None = None
    build_id: str | None = None
    fabric: str | None = None  # of a libfabric: the newest symbol version of its own, "1.7"


@dataclass(frozen=True)
class Affinity(_Part):
    """A GPU's nearest NIC. `via` is switch (same PCIe switch), root (same root complex), numa or system."""

    gpu: int
    nic: str  # verbs device, else network device
    via: str


@dataclass(frozen=True)
class Route(_Part):
    """A row of the IPv4 routing table; "0.0.0.0/0" is the default."""

    to: str
    netdev: str
    gateway: str | None = None
    metric: int = 0


@dataclass(frozen=True)
class Address(_Part):
    netdev: str
    address: str  # IPv4 with prefix length, 10.0.0.1/24


@dataclass(frozen=True)
class Unread(_Part):
    """Something that could not be read, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class NodeProfile(_Part):
    schema: int
    name: str
    virtual: str | None = None  # the node model, where the hardware is not real
    system: System = System()
    amdgpu: str | None = None  # driver version; "in-tree" where the module has none
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    netdevs: tuple[Netdev, ...] = ()
    verbs: tuple[Verbs, ...] = ()
    libraries: tuple[Library, ...] = ()  # libibverbs first, then providers
    driver_files: tuple[str, ...] | None = None  # what /etc/libibverbs.d names: the only providers that are loaded
    affinity: tuple[Affinity, ...] = ()
    routes: tuple[Route, ...] = ()
    addresses: tuple[Address, ...] = ()
    modules: dict[str, str] = field(default_factory=dict)  # loaded RDMA, NIC and GPU modules -> version or "in-tree"
    groups: dict[str, int] = field(default_factory=dict)  # "/dev/kfd", "render", "video" -> gid
    limits: dict[str, int] = field(default_factory=dict)  # docker's names -> hard limit, -1 is none
    sysctl: dict[str, str] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)  # slurmd, munge, pmix, docker, rocm ... -> version
    cxi: tuple[str, ...] = ()  # Slingshot device nodes
    unread: tuple[Unread, ...] = ()

"""The gate: does this image fit this node? One pure function, called by build, deploy, the entrypoint and Slurm.

An image whose provider library doesn't speak the kernel driver's ABI trains over TCP at a tenth of the speed, or not
at all, without an error. So `fits` is said only where every number was read and agrees; what could not be read is
`unknown`, never a guess. How libibverbs chooses is in rdma-core, libibverbs/init.c and dynamic_driver.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .image import Image, Provider
from .profile import Library, NodeProfile, Verbs

FITS, UNFIT, UNKNOWN = "fits", "doesn't fit", "unknown"
TCP, SLINGSHOT = "tcp", "slingshot"


@dataclass(frozen=True)
class Finding:
    """One reason. `says` is a sentence without the node's name, `then` the next step."""

    result: str
    says: str
    then: str = ""


@dataclass(frozen=True)
class Verdict:
    """`place` is the provider that the node needs, where the image holds several."""

    node: str
    image: str
    result: str
    findings: tuple[Finding, ...]
    place: str | None = None
    virtual: str | None = None

    @property
    def says(self) -> str:
        """The sentence a person needs."""
        worst = [finding for finding in self.findings if finding.result == self.result]
        text = "; ".join(f.says + (f"; {f.then}" if f.then else "") for f in worst)
        return f"{self.node}{f' (virtual {self.virtual})' if self.virtual else ''}: {text}"


def judge(image: Image, node: NodeProfile) -> Verdict:
    """Whether `image` fits `node`."""
    findings, place = _findings(image, node)
    results = {finding.result for finding in findings}
    result = UNFIT if UNFIT in results else UNKNOWN if UNKNOWN in results or not findings else FITS
    return Verdict(node.name, image.name, result, tuple(findings), place if result == FITS else None, node.virtual)


def _findings(image: Image, node: NodeProfile) -> tuple[list[Finding], str | None]:
    if not image.nic:
        return [Finding(UNKNOWN, "the image has no rocstack labels", "build it with `rocstack build`")], None
    if image.nic == TCP:
        names = ", ".join(device.name for device in node.verbs)
        return [Finding(FITS, f"{names} stay unused: the image is built for TCP" if names else "no RDMA is used")], None
    if image.nic == SLINGSHOT:
        return [_cxi(node)], None
    devices = [device for device in node.verbs if _is_of(device, image, node)]
    if not devices:
        return [_absent(image, node)], None
    findings = _nodes_missing(devices)
    strangers = [device.name for device in node.verbs if device.driver is None and device not in devices]
    if strangers:
        findings.append(Finding(UNKNOWN, f"the driver of {', '.join(strangers)} could not be read"))
    return _library(image, node, devices, findings)


def _is_of(device: Verbs, image: Image, node: NodeProfile) -> bool:
    if device.driver is not None:
        return device.driver in image.modules
    return any(nic.verbs == device.name and nic.device in image.pci for nic in node.nics)


def _absent(image: Image, node: NodeProfile) -> Finding:
    """Why there is no device for the image to use."""
    cards = [nic for nic in node.nics if nic.device in image.pci]
    modules = image.modules[-1:] or ("the driver",)
    if cards:
        return Finding(
            UNFIT,
            f"{len(cards)} {image.nic} NIC{'s' if len(cards) > 1 else ''} without an RDMA device",
            f"`modprobe {modules[0]}` on the host, then look at `dmesg`",
        )
    if any(item.what.startswith("/sys/class/infiniband") for item in node.unread):
        return Finding(UNKNOWN, "the RDMA devices could not be read", "probe again as root")
    others = sorted({nic.nic for nic in node.nics if nic.nic} - {image.nic})
    named = sorted({device.driver or device.name for device in node.verbs})
    if others or named:
        has = ", ".join(others or named)
        return Finding(
            UNFIT,
            f"the NICs are {has}, the image is built for {image.nic}",
            f"`rocstack build --nic {others[0]}`" if others else "",
        )
    return Finding(UNFIT, f"no {image.nic} NIC", "`rocstack build --nic tcp` makes an image that needs none")


def _cxi(node: NodeProfile) -> Finding:
    if node.cxi:
        return Finding(FITS, f"{len(node.cxi)} Slingshot devices")
    if any(item.what.startswith("/dev") for item in node.unread):
        return Finding(UNKNOWN, "/dev could not be read")
    return Finding(UNFIT, "no /dev/cxi*", "load the Slingshot driver (cxi_ss1) on the host")


def _nodes_missing(devices: Sequence[Verbs]) -> list[Finding]:
    """libibverbs drops a device without its device node silently."""
    findings = []
    lacking = [device for device in devices if device.uverbs is None or device.device_node is False]
    if lacking:
        names = ", ".join(device.uverbs or device.name for device in lacking)
        findings.append(Finding(UNFIT, f"no /dev/infiniband node for {names}", "`modprobe ib_uverbs` on the host"))
    unseen = [device.name for device in devices if device.uverbs is not None and device.device_node is None]
    if unseen:
        findings.append(Finding(UNKNOWN, f"whether {', '.join(unseen)} have a device node could not be read"))
    return findings


def _library(
    image: Image, node: NodeProfile, devices: Sequence[Verbs], findings: list[Finding]
) -> tuple[list[Finding], str | None]:
    unread = [device.name for device in devices if device.kernel_abi is None and device.uverbs is not None]
    if unread:
        findings.append(Finding(UNKNOWN, f"the kernel ABI of {', '.join(unread)} could not be read"))
    abis = sorted({device.kernel_abi for device in devices if device.kernel_abi is not None})
    if len(abis) > 1:
        which = ", ".join(map(str, abis))
        findings.append(Finding(UNFIT, f"its devices speak several kernel ABIs ({which})", "one driver for all cards"))
        return findings, None
    if not abis:
        if not findings:
            findings.append(Finding(UNKNOWN, "no kernel ABI could be read"))
        return findings, None
    providers = [_from_host(provider, image, node, findings) for provider in image.providers]
    known = [provider for provider in providers if provider is not None]
    if not known:
        if not any(finding.result == UNFIT for finding in findings):
            findings.append(Finding(UNKNOWN, "the image does not say which provider it holds"))
        return findings, None
    return _choose(image, known, abis[0], findings)


def _choose(
    image: Image, providers: Sequence[Provider], abi: int, findings: list[Finding]
) -> tuple[list[Finding], str | None]:
    """The provider whose range holds the node's ABI, if its private ABI is libibverbs' own."""
    holding = [p for p in providers if p.kernel_abi is not None and p.kernel_abi[0] <= abi <= p.kernel_abi[1]]
    if not holding:
        unread = [p for p in providers if p.kernel_abi is None]
        if unread:
            says = f"kernel ABI {abi}; the range of the image's {unread[0].driver} could not be read"
            return [*findings, Finding(UNKNOWN, says, "build the image again")], None
        ranges = ", ".join(f"{low}-{high}" for low, high in sorted({p.kernel_abi for p in providers if p.kernel_abi}))
        return [*findings, Finding(UNFIT, *_mismatch(image, providers[0].driver, abi, ranges))], None
    if len(holding) > 1 and len({p.sha256 for p in holding}) > 1:
        places = ", ".join(p.place for p in holding)
        return [*findings, Finding(UNKNOWN, f"kernel ABI {abi} is in the range of several providers ({places})")], None
    chosen = holding[0]
    if image.private_abi is None or chosen.private_abi is None:
        says = f"the private ABI of {chosen.driver} or of the image's libibverbs could not be read"
        return [*findings, Finding(UNKNOWN, says, "build the image again")], None
    if image.private_abi != chosen.private_abi:
        says = f"{chosen.driver} needs libibverbs' private ABI {chosen.private_abi}, the image has {image.private_abi}"
        return [*findings, Finding(UNFIT, says, "build the library in the image: `--way source`")], None
    version = f" {chosen.version}" if chosen.version else ""
    says = f"kernel ABI {abi}, {chosen.driver}{version} supports {chosen.kernel_abi[0]}-{chosen.kernel_abi[1]}"  # type: ignore[index]
    return [*findings, Finding(FITS, says)], chosen.place


def _mismatch(image: Image, driver: str, abi: int, ranges: str) -> tuple[str, str]:
    says = f"kernel ABI {abi}, the image's {driver} supports {ranges}"
    load = "load the kernel's own driver (ABI 1)" if abi > 1 and "1-1" in ranges else "load the driver that it fits"
    return says, f"rebuild with `rocstack build --nic {image.nic} --profiles FILE`, or {load}"


def _from_host(provider: Provider, image: Image, node: NodeProfile, findings: list[Finding]) -> Provider | None:
    """For way `host` the library is the node's own: it must fit the image's libibverbs and libc."""
    if provider.way != "host":
        return provider
    library = mountable(node.libraries, provider.driver)
    if library is None:
        says = f"no {provider.driver} library on the host to mount"
        findings.append(Finding(UNFIT, says, "install the vendor's library there, or build with `--way source`"))
        return None
    wants, has = _release(library.glibc), _release(image.glibc)
    if wants is None or has is None:
        findings.append(Finding(UNKNOWN, f"which glibc {library.path} or the image needs could not be read"))
    elif wants > has:
        says = f"{library.path} needs glibc {library.glibc}, the image has {image.glibc}"
        findings.append(Finding(UNFIT, says, "build with `--way source`"))
    return Provider(
        provider.place,
        provider.way,
        provider.driver,
        library.path,
        library.version,
        library.private_abi,
        library.kernel_abi,
        library.sha256,
    )


def mountable(libraries: Iterable[Library], driver: str) -> Library | None:
    """The node's own library for a driver: the vendor's before the distribution's, since it is the one installed
    for the driver that runs."""
    own = [library for library in libraries if library.driver == driver]
    return min(own, key=lambda item: (not item.path.startswith("/usr/local/"), item.path), default=None)


def _release(version: str | None) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in (version or "").split("."))
    except ValueError:
        return None

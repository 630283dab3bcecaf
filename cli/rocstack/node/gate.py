"""The gate: does this image fit this node? One pure function, called by build, deploy, the entrypoint and Slurm.

An image whose provider library doesn't speak the kernel driver's ABI trains over TCP at a tenth of the speed, or not
at all, without an error. So `fits` is said only where every number was read and agrees; what could not be read is
`unknown`, never a guess. How libibverbs chooses is in rdma-core, libibverbs/init.c and dynamic_driver.c.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .image_facts import ImageFacts, ImageProvider
from .profile import Library, NodeProfile, Verbs

# Names in the image, under which its loader finds them. json-c is that of SLES 15, which no image has (as OLCF's guide
# to containers on Frontier mounts it).
SLINGSHOT_FILES = {"libfabric": "libfabric.so.1", "cxi": "libcxi.so.1", "json-c": "libjson-c.so.3"}
VENDOR_PREFIX = "/usr/local/"  # where a vendor's own build puts its library
_RELEASE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")
_UPSTREAM = re.compile(r"[0-9.]+(?=[-+]|\Z)")  # 56.1 of Debian's 56.1-1


def slingshot_libraries(libraries: Sequence[Library]) -> dict[str, Library]:
    """Driver -> the library that is mounted: HPE's newest, since the distribution's libfabric lacks cxi."""

    def rank(library: Library) -> tuple[bool, list[int], str]:
        release = list(map(int, re.findall(r"[0-9]+", library.path)))  # HPE's folders: /opt/cray/libfabric/1.22.0
        return library.path.startswith("/opt/cray/"), release, library.path

    newest = {library.driver: library for library in sorted(libraries, key=rank)}
    return {driver: newest[driver] for driver in SLINGSHOT_FILES if driver in newest}


def release_numbers(version: str | None) -> tuple[int, ...] | None:
    """2, 34 of "2.34"."""
    if not version or not _RELEASE.fullmatch(version):
        return None
    return tuple(map(int, version.split(".")))


FITS, UNFIT, UNKNOWN = "fits", "doesn't fit", "unknown"
TCP, SLINGSHOT = "tcp", "slingshot"
HOST = "host"  # the way by which the node's own library is mounted
PACKAGE = "package"  # the vendor's
VENDOR_WAYS = ("source", PACKAGE)  # whose libraries have releases of their own
LIBRARIES = "libraries"  # what a node's profile has unread where its libraries were not looked for
FRAMEWORKS = {"pytorch": "PyTorch", "jax": "JAX", "maxtext": "MaxText"}
REBUILD = "build the image again"
# What hides a device, or that the kernel offers it to programs; what else is unread stays None in the device.
_HIDES = re.compile(r"/sys/(.*/)?infiniband(_verbs)?(/[^/]+(/(node_type|ibdev))?)?")


@dataclass(frozen=True)
class GateFinding:
    """One reason. `what` is a sentence without the node's name, `next` the next step, `place` the provider meant."""

    result: str
    what: str
    next: str = ""
    place: str | None = None


@dataclass(frozen=True)
class GateVerdict:
    """`place` is the provider that the node needs, where the image holds several."""

    node: str
    image: str
    result: str
    findings: tuple[GateFinding, ...]
    place: str | None
    virtual: str | None

    @property
    def sentence(self) -> str:
        """What a person needs to know."""
        worst = [finding for finding in self.findings if finding.result == self.result]
        text = "; ".join(f.what + (f"; {f.next}" if f.next else "") for f in worst)
        return f"{self.node}{f' (virtual {self.virtual})' if self.virtual else ''}: {text}"


def judge(image: ImageFacts, node: NodeProfile) -> GateVerdict:
    """Whether `image` fits `node`."""
    findings = tuple(_reasons(image, node))
    results = {finding.result for finding in findings}
    result = UNFIT if UNFIT in results else FITS if results == {FITS} else UNKNOWN
    prefix = findings[0].place if result == FITS else None
    return GateVerdict(node.name, image.name, result, findings, prefix, node.virtual)


def gpu_lacks(image: ImageFacts, targets: Collection[str]) -> tuple[str, ...]:
    """Why GPUs of these targets can't train with the image, as ends of the sentence "it has". Of an image that doesn't
    say what it has, nothing is said."""
    lacks = []
    missing = sorted(set(targets) - {*image.gfx})
    if image.gfx and missing:
        lacks.append(f"no code for {', '.join(missing)}")
    if targets and image.framework and not image.framework_rocm:
        lacks.append(f"no {FRAMEWORKS.get(image.framework, image.framework)} with ROCm")
    return tuple(lacks)


def _reasons(image: ImageFacts, node: NodeProfile) -> Iterator[GateFinding]:
    unseen = unread_devices(node)
    if not image.nic:
        yield GateFinding(UNKNOWN, "the image has no rocstack labels", "build it with `rocstack build`")
    elif image.nic == TCP:
        count = len(node.verbs)
        unused = f"{count} RDMA device{'s stay' if count > 1 else ' stays'} unused: the image is built for TCP"
        yield GateFinding(FITS, unused if count else "no RDMA is used")
    elif image.nic == SLINGSHOT:
        yield from _slingshot_reasons(image, node)
    elif not image.modules:
        yield GateFinding(UNKNOWN, f"the image does not say which drivers {image.nic} NICs have", REBUILD)
    elif unseen:
        what = f"there may be RDMA devices that could not be read: {unseen}"
        yield GateFinding(UNKNOWN, what, "probe again as root")
    else:
        yield from _verbs_reasons(image, node)


def unread_devices(node: NodeProfile) -> str:
    """What could not be read where devices may be, and why."""
    return ", ".join(f"{item.what} ({item.why})" for item in node.unread if _HIDES.fullmatch(item.what))


def candidates(image: ImageFacts, node: NodeProfile) -> tuple[list[Verbs], list[Verbs]]:
    """The node's RDMA devices that the image is for, and those of which that could not be read."""
    by_card = {nic.verbs for nic in node.nics if nic.device in image.pci}
    devices = [d for d in node.verbs if (d.driver in image.modules if d.driver else d.name in by_card)]
    return devices, [device for device in node.verbs if not device.driver and device not in devices]


def _no_device(image: ImageFacts, node: NodeProfile) -> GateFinding:
    """Why there is no device for the image to use."""
    cards = _cards(image, node)
    others = sorted({nic.nic for nic in node.nics if nic.nic})
    if cards:
        what = f"{cards} {image.nic} NIC{'s' if cards > 1 else ''} without an RDMA device"
        step = f"`modprobe {image.modules[-1]}` on the host, then look at `dmesg`"
    elif others or node.verbs:
        has = others or sorted({str(device.driver) for device in node.verbs})
        what = f"the NICs are {', '.join(has)}, the image is built for {image.nic}"
        step = f"`rocstack build --nic {others[0]}`" if others else ""
    else:
        what, step = f"no {image.nic} NIC", "`rocstack build --nic tcp` makes an image that needs none"
    return GateFinding(UNFIT, what, step)


def _cards(image: ImageFacts, node: NodeProfile) -> int:
    return sum(nic.device in image.pci or nic.nic == image.nic for nic in node.nics)


def _slingshot_reasons(image: ImageFacts, node: NodeProfile) -> Iterator[GateFinding]:
    """Of the devices, and of the host's libraries, which are mounted."""
    if not node.cxi:
        if any(item.what == "/dev" or item.what.startswith("/dev/cxi") for item in node.unread):
            yield GateFinding(UNKNOWN, "/dev could not be read")
        elif _cards(image, node):
            yield GateFinding(UNFIT, "no /dev/cxi*", "load the Slingshot driver (cxi_ss1) on the host")
        else:
            yield _no_device(image, node)
        return
    yield GateFinding(FITS, f"{len(node.cxi)} Slingshot device{'s' if len(node.cxi) > 1 else ''}")
    if any(item.what == LIBRARIES for item in node.unread):
        yield GateFinding(UNKNOWN, "whether the host's libfabric fits can't be read here")
        return
    own = slingshot_libraries(node.libraries)
    for name in (SLINGSHOT_FILES[driver] for driver in ("libfabric", "cxi") if driver not in own):
        yield GateFinding(UNFIT, f"no {name} on the host to mount", "install HPE's Slingshot host software")
    for library in own.values():
        yield from _glibc_reasons(library, image, "build on a newer base")
    if image.fabric is not None and "libfabric" in own:
        library = own["libfabric"]
        wants, has = release_numbers(image.fabric), release_numbers(library.fabric)
        if wants is None:
            what = "the image does not say which symbol versions RCCL's plugin needs"
            yield GateFinding(UNKNOWN, what, REBUILD)
        elif has is None:
            yield GateFinding(UNKNOWN, f"which symbol versions {library.path} has could not be read")
        elif wants > has:
            what = f"RCCL's plugin needs FABRIC_{image.fabric}, {library.path} has FABRIC_{library.fabric}"
            yield GateFinding(UNFIT, what, "build on a stack with an older libfabric (Ubuntu 24.04 has 1.17)")


def _glibc_reasons(library: Library, image: ImageFacts, remedy: str) -> Iterator[GateFinding]:
    """What speaks against mounting the host's library into the image."""
    wants, has = release_numbers(library.glibc), release_numbers(image.glibc)
    if wants is None or has is None:
        yield GateFinding(UNKNOWN, f"which glibc {library.path} or the image needs could not be read")
    elif wants > has:
        what = f"{library.path} needs glibc {library.glibc}, the image has {image.glibc}"
        yield GateFinding(UNFIT, what, remedy)


def _verbs_reasons(image: ImageFacts, node: NodeProfile) -> Iterator[GateFinding]:
    devices, undriven = candidates(image, node)
    if undriven:
        names = ", ".join(device.name for device in undriven)
        yield GateFinding(UNKNOWN, f"the driver of {names} could not be read")
    elif not devices:
        yield _no_device(image, node)
    lacking = [device.uverbs or device.name for device in devices if not device.uverbs or device.device_node is False]
    if lacking:  # libibverbs drops them silently
        what = f"no /dev/infiniband node for {', '.join(lacking)}"
        yield GateFinding(UNFIT, what, "`modprobe ib_uverbs` on the host")
    unseen = [device.name or "a device" for device in devices if device.device_node is None]
    if unseen:
        yield GateFinding(UNKNOWN, f"whether {', '.join(unseen)} can be opened could not be read")
    unread = [device.name or "a device" for device in devices if device.kernel_abi is None]
    if unread:
        yield GateFinding(UNKNOWN, f"the kernel ABI of {', '.join(unread)} could not be read")
    abis = sorted({device.kernel_abi for device in devices if device.kernel_abi is not None})
    if len(abis) > 1:
        which = ", ".join(map(str, abis))
        yield GateFinding(UNFIT, f"its devices speak several kernel ABIs ({which})", "one driver for all cards")
    elif abis:
        yield from _provider_reasons(image, node, devices, abis[0])


def _provider_reasons(
    image: ImageFacts, node: NodeProfile, devices: Sequence[Verbs], abi: int
) -> Iterator[GateFinding]:
    """Of the providers as they are in a container on that node. For way `host` the library is the node's own: it must
    fit the image's libibverbs and libc."""
    drivers = {provider.driver for provider in image.providers}
    if len(drivers) != 1 or "" in drivers:
        yield GateFinding(UNKNOWN, "the image does not say which provider it holds", REBUILD)
        return
    known = []
    for provider in image.providers:
        if provider.way != HOST:
            known.append(provider)
            continue
        library = mountable(node.libraries, provider.driver)
        if library is not None:
            yield from _glibc_reasons(library, image, "build without `--way host`")
            yield from _leftover_reasons(library, node.libraries)
            span, private = library.kernel_abi, library.private_abi
            span = span if span and 0 <= span[0] <= span[1] else None
            known.append(replace(provider, path=None, version=library.version, private_abi=private, kernel_abi=span))
        elif any(item.what == LIBRARIES for item in node.unread):
            yield GateFinding(UNKNOWN, f"whether the host's {provider.driver} fits can't be read here")
        else:
            what = f"no {provider.driver} library on the host to mount"
            yield GateFinding(UNFIT, what, "install the vendor's library there, or build without `--way host`")
    holding = [p for p in known if p.kernel_abi and p.kernel_abi[0] <= abi <= p.kernel_abi[1]]
    if holding:
        # Ranges may overlap (7-8, 8-8): the one that was built for this ABI, as rocstack.nic.ways names it.
        chosen = min(holding, key=lambda provider: provider.place != f"abi-{abi}")
        yield _loaded(image, chosen, abi)
        yield from _card_reasons(image, node, devices, chosen)
    elif known:
        yield _outside(image, known, abi, devices[0].driver or image.modules[-1])


def _leftover_reasons(library: Library, libraries: Iterable[Library]) -> Iterator[GateFinding]:
    """What speaks against a library that the node's own libibverbs doesn't load: an upgrade of rdma-core leaves the
    vendor's old one behind, which no longer goes with the node's driver."""
    abis = {each.private_abi for each in libraries if each.driver is None}
    if library.private_abi is None or library.private_abi in abis:
        return  # None: said where it is compared with the image's
    if not abis or None in abis:
        yield GateFinding(UNKNOWN, f"whether the host's own libibverbs loads {library.path} could not be read")
        return
    has = " and ".join(map(str, sorted(abi for abi in abis if abi is not None)))
    what = f"{library.path} needs libibverbs' private ABI {library.private_abi}, the host's has {has}"
    yield GateFinding(UNFIT, what, "install the vendor's library for it there, or build without `--way host`")


def _card_reasons(
    image: ImageFacts, node: NodeProfile, devices: Sequence[Verbs], provider: ImageProvider
) -> Iterator[GateFinding]:
    """libibverbs binds a provider by the driver's name, whether or not the provider knows the card."""
    version, mounted = provider.version, mountable(node.libraries, provider.driver)
    if provider.way in VENDOR_WAYS or (provider.way == HOST and mounted and mounted.path.startswith(VENDOR_PREFIX)):
        return
    if image.card_needs is None:
        yield GateFinding(UNKNOWN, "the image does not say which cards need which rdma-core", REBUILD)
        return
    names = {device.name for device in devices}
    used: set[str | None] = {nic.device for nic in node.nics if nic.verbs in names}
    if names - {nic.verbs for nic in node.nics}:
        used.add(None)  # a device without a card
    found = _UPSTREAM.match(version) if version else None
    has = release_numbers(found[0] if found else None)
    for card, wanted in image.card_needs:
        wants = release_numbers(wanted)
        if (has and wants and wants <= has) or not used & {card, None}:
            continue
        if card not in used:
            yield GateFinding(UNKNOWN, f"a card could not be read, and {card} needs rdma-core {wanted}")
        elif has is None or wants is None:
            yield GateFinding(UNKNOWN, f"{card} needs rdma-core {wanted}; {_owner(provider)} is of an unknown release")
        else:
            what = f"{card} needs rdma-core {wanted} or newer, {_owner(provider)} is of {version}"
            mount = "update it there, or build without `--way host`"
            yield GateFinding(UNFIT, what, mount if provider.way == HOST else "build on a newer base, or `--way newer`")


def _loaded(image: ImageFacts, chosen: ImageProvider, abi: int) -> GateFinding:
    """The provider whose range holds the node's ABI, if it is the one that libibverbs loads then."""
    span = "-".join(map(str, chosen.kernel_abi or ()))
    same = [p for p in image.providers if p.place == chosen.place or p.path == chosen.path]
    if len(image.providers) > 1 and (len(same) > 1 or not chosen.place or not chosen.path):
        return GateFinding(UNKNOWN, f"which of the image's libraries is for kernel ABI {abi} is not known", REBUILD)
    if image.private_abi is None or chosen.private_abi is None:
        what = f"the private ABI of {_owner(chosen)} or of the image's libibverbs could not be read"
        return GateFinding(UNKNOWN, what)
    if image.private_abi != chosen.private_abi:
        what = f"{_owner(chosen)} needs libibverbs' private ABI {chosen.private_abi}, the image has {image.private_abi}"
        return GateFinding(UNFIT, what, f"`rocstack build --nic {image.nic}` puts one that fits into the image")
    expected = f"lib{chosen.driver}-rdmav{image.private_abi}.so"
    name = (chosen.path or expected).rpartition("/")[2]
    if name != expected:
        return GateFinding(UNFIT, f"libibverbs loads {expected}, the image has {name}", REBUILD)
    version = f" {chosen.version}" if chosen.version else ""
    return GateFinding(FITS, f"kernel ABI {abi}, {chosen.driver}{version} supports {span}", place=chosen.place)


def _outside(image: ImageFacts, providers: Sequence[ImageProvider], abi: int, module: str) -> GateFinding:
    ranges = sorted({p.kernel_abi for p in providers if p.kernel_abi})
    if not all(p.kernel_abi for p in providers):
        return GateFinding(UNKNOWN, f"kernel ABI {abi}; the range of {_owner(providers[0])} could not be read")
    spans = ", ".join(f"{low}-{high}" for low, high in ranges)
    what = f"kernel ABI {abi}, {_owner(providers[0])} supports {spans}"
    if providers[0].way == HOST:
        return GateFinding(UNFIT, what, "install the library of the driver's own release there")
    if providers[0].way == PACKAGE:  # its releases have numbers of their own, and the ABI changed between them
        named = f"{_owner(providers[0])} {providers[0].version or 'of an unknown release'}"
        what = f"kernel ABI {abi} of {module}, {named} supports {spans}"
        step = f"rebuild with `rocstack build --nic {image.nic} --profiles FILE --nic-accept RELEASE`"
        return GateFinding(UNFIT, what, f"{step}, the package's release for that driver")
    inbox = any(low <= 1 <= high for low, high in ranges)
    load = "the kernel's own driver (ABI 1)" if inbox else "the driver it is for"
    return GateFinding(UNFIT, what, f"rebuild with `rocstack build --nic {image.nic} --profiles FILE`, or load {load}")


def _owner(provider: ImageProvider) -> str:
    return f"{'the host' if provider.way == HOST else 'the image'}'s {provider.driver}"


def mountable(libraries: Iterable[Library], driver: str) -> Library | None:
    """The node's own library for a driver: one that the node's own libibverbs loads, the vendor's before the
    distribution's, since it is the one installed for the driver that runs."""
    found = tuple(libraries)
    loading = {each.private_abi for each in found if each.driver is None} - {None}

    def rank(library: Library) -> tuple[bool, bool, str]:
        loaded = library.private_abi in loading
        return not loaded, not library.path.startswith(VENDOR_PREFIX), library.path

    return min((library for library in found if library.driver == driver), key=rank, default=None)

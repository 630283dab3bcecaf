"""By which way the NIC's provider gets into the image: chosen from what the nodes need of it (which kernel ABI their
driver speaks, of which release it is), before anything is built."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from rocstack.base.errors import BadInput, hinted
from rocstack.base.text import listed
from rocstack.nic.vendor_release import VendorRelease, pick
from rocstack.node.image_facts import ImageFacts, ImageProvider
from rocstack.node.profile import NodeProfile
from rocstack.stack.component import NicProfile, Way
from rocstack.stack.resolve import ROOT, PluginSpec, ProviderSpec

VERSION = re.compile(r"[0-9][0-9A-Za-z.+~:-]{0,63}")  # of a vendor's release; the kernel's own driver has none


@dataclass(frozen=True)
class Need:
    """Nodes that are alike in this. `release` is the vendor driver's version, None for the kernel's own driver."""

    kernel_abi: int
    release: str | None
    nodes: tuple[str, ...]


def is_worker(profile: NodeProfile, modules: Collection[str], pci: Collection[str]) -> bool:
    """Must a worker image fit this node? If it has GPUs, or cards or RDMA devices of the image's NIC profile; drivers
    need not be loaded. A control node with some other NIC is none."""
    cards = any(nic.device in pci for nic in profile.nics)
    return bool(profile.gpus or profile.cxi or cards or any(device.driver in modules for device in profile.verbs))


def needs(nic: NicProfile, profiles: Iterable[NodeProfile]) -> tuple[Need, ...]:
    """By kernel ABI and release, the most nodes first. What could not be read is left to the gate."""
    nodes_by_driver: dict[tuple[int, str | None], list[str]] = {}
    for profile in profiles:
        devices = [device for device in profile.verbs if device.driver in nic.modules]
        abis = {device.kernel_abi for device in devices if device.kernel_abi is not None}
        version = profile.modules.get(nic.modules[-1]) if nic.modules else None
        release = version if version and VERSION.fullmatch(version) else None
        for abi in sorted(abis):
            nodes_by_driver.setdefault((abi, release), []).append(profile.name)
    rows = (Need(abi, release, tuple(nodes)) for (abi, release), nodes in nodes_by_driver.items())
    return tuple(sorted(rows, key=lambda need: (-len(need.nodes), need.kernel_abi, need.release or "")))


def needs_of_releases(
    nic: NicProfile, known: Sequence[Need], releases: Sequence[VendorRelease], named: Sequence[str]
) -> tuple[Need, ...]:
    """As if nodes had the driver of each of these releases: for images that are built before their nodes are known.

    Raises:
        BadInput: a release is not among `releases`, two speak one kernel ABI, or one's ABI can't be read in its source.
    """
    wanted, by_abi = list(known), {need.kernel_abi: f"the driver of {listed(need.nodes)}" for need in known}
    for version in named:
        found = pick(releases, version)
        if found.kernel_abi is None:
            raise BadInput.of("release-without-abi", release=version, driver=nic.provider or nic.name)
        if other := by_abi.get(found.kernel_abi):
            raise BadInput.of("releases-of-one-abi", release=version, other=other, abi=found.kernel_abi)
        by_abi[found.kernel_abi] = f"release {version}"
        wanted.append(Need(found.kernel_abi, version, (f"nodes with release {version}",)))
    return tuple(wanted)


@dataclass(frozen=True)
class ProviderRow:
    """A provider to build, and what is shown of it before. `supports` is the kernel-ABI range, where it is known by
    then; `source` is the archive that it is built from."""

    provider: ProviderSpec
    nodes: tuple[str, ...]
    why: str
    supports: tuple[int, int] | None = None
    source: VendorRelease | None = None


@dataclass(frozen=True)
class ProviderPlan:
    rows: tuple[ProviderRow, ...]
    archives: dict[str, bytes] = field(default_factory=dict, repr=False)  # path in the context -> bytes
    notes: tuple[str, ...] = ()
    plugin: PluginSpec | None = None  # of RCCL

    @property
    def providers(self) -> tuple[ProviderSpec, ...]:
        return tuple(row.provider for row in self.rows)


@dataclass(frozen=True)
class Offer:
    """What there is to choose from; sources are looked for when they are asked for."""

    releases: Callable[[], Sequence[VendorRelease]]
    rdma_core: Callable[[], VendorRelease]
    accept: str | None = None  # a release by name, whatever the driver's version
    repository: bool = False  # does a setting name the vendor's apt repository?
    versions: Mapping[str, str] = field(default_factory=dict)  # component -> version in this stack


def plan(
    nic: NicProfile, wanted: Sequence[Need], offer: Offer, *, way: str | None = None, variants: bool = False
) -> ProviderPlan:
    """One provider for each kernel ABI that the nodes speak.

    Raises:
        BadInput: no such way; several kernel ABIs without `variants`; nothing that speaks a node's ABI.
    """
    if way is not None and way not in nic.ways:
        raise BadInput.of("unknown-way", nic=nic.name, way=way, hint=hinted(way, nic.ways))
    by_abi: dict[int, list[Need]] = {}
    for need in sorted(wanted, key=lambda need: need.kernel_abi):
        by_abi.setdefault(need.kernel_abi, []).append(need)
    several = len(by_abi) > 1
    if several and not variants:
        shown = "; ".join(f"{abi}: {listed(_nodes(group))}" for abi, group in by_abi.items())
        raise BadInput.of("several-abis", count=len(by_abi), shown=shown)
    rows, notes = [], [f"--way {way} is for one kernel ABI; here each has its own"] if way and several else []
    for abi, group in by_abi.items():
        release = group[0].release
        name, why = (way, "asked for") if way and not several else _choose(nic, abi, release, offer)
        rows.append(_row(nic, name, offer, why, f"abi-{abi}" if several else name, abi, release, _nodes(group)))
        notes += [  # another release of the driver, but the same ABI
            f"{listed(other.nodes)}: driver {other.release or 'in-tree'}, not {release or 'in-tree'}; "
            f"both speak kernel ABI {abi}"
            for other in group[1:]
        ]
    if not by_abi:
        rows.append(_for_nobody(nic, offer, way))
    archives = {f"nic/{row.provider.place}/{row.source.name}": row.source.data for row in rows if row.source}
    return ProviderPlan(tuple(rows), archives, tuple(notes))


def _nodes(group: Sequence[Need]) -> tuple[str, ...]:
    return tuple(node for need in group for node in need.nodes)


def _for_nobody(nic: NicProfile, offer: Offer, way: str | None) -> ProviderRow:
    """No node is known: the way that was asked for, that of a release which was named, or the first that works."""
    if way:
        return _row(nic, way, offer, "asked for", way)
    if offer.accept:
        why, fitting = "no node is known; a release was named", (n for n, w in nic.ways.items() if w.release)
    else:
        plain = {n: w for n, w in nic.ways.items() if not (w.asked or w.release)}
        why, fitting = "no node is known", (n for n, w in plain.items() if _met(w, offer.versions))
    name = next(fitting, next(iter(nic.ways)))
    return _row(nic, name, offer, why, name)


def _row(
    nic: NicProfile,
    name: str,
    offer: Offer,
    why: str,
    place: str,
    abi: int | None = None,
    release: str | None = None,
    nodes: tuple[str, ...] = (),
) -> ProviderRow:
    """The provider by the way `name`, with its source and the range that it is known to support."""
    way = nic.ways[name]
    if not _met(way, offer.versions):
        asks = ", ".join(f"{component} {versions}" for component, versions in way.needs.items())
        has = ", ".join(f"{component} {offer.versions.get(component, 'none')}" for component in way.needs)
        others = " or --way ".join(other for other in nic.ways if other != name)
        raise BadInput.of("way-unmet", way=name, driver=nic.provider, needs=asks, has=has, others=others)
    source: VendorRelease | None = None
    if way.archive == "release":
        source = pick(offer.releases(), release, offer.accept)
    elif way.archive == "rdma-core":
        source = offer.rdma_core()
    named = way.release == "named"
    version = source.version if source else (offer.accept or (None if named else release)) if way.release else None
    if way.release and version is None:
        raise BadInput.of("no-named-release" if named else "no-node-release", packages=", ".join(way.packages))
    if version is not None and not VERSION.fullmatch(version):
        raise BadInput.of("bad-release", version=version)
    provider = ProviderSpec(
        place=place,
        way=name,
        version=version,
        archive=source.name if source else None,
        sha256=source.sha256 if source else None,
        kernel_abi=abi,
        packages=way.packages,
    )
    supports = bounds(way.kernel_abi) if way.kernel_abi else None
    if source and source.kernel_abi is not None:
        supports = (source.kernel_abi, source.kernel_abi)
    return ProviderRow(provider, nodes, why, supports, source)


def _choose(nic: NicProfile, abi: int, release: str | None, offer: Offer) -> tuple[str, str]:
    """The first way that is known to speak this ABI, else the one that follows the driver's release."""
    for name, way in nic.ways.items():
        if not way.asked and way.kernel_abi and holds(way.kernel_abi, abi) and _met(way, offer.versions):
            return name, f"speaks kernel ABI {way.kernel_abi} ({way.source})" if way.source else "speaks it"
    why = f"the host's driver is {release}" if release else "the host's driver is not the kernel's own"
    versioned = [name for name, way in nic.ways.items() if way.release and not way.asked]
    with_source = [name for name in versioned if nic.ways[name].archive]
    packaged = [name for name in versioned if nic.ways[name].packages]
    if with_source:
        found = not offer.repository or offer.accept
        if found or any(each.kind == "source" and each.version == release for each in offer.releases()):
            return with_source[0], why
    if packaged and offer.repository:
        return packaged[0], why
    raise _none(nic, abi, offer, packaged)


def _none(nic: NicProfile, abi: int, offer: Offer, packaged: Sequence[str]) -> BadInput:
    known = ", ".join(f"{name} {way.kernel_abi}" for name, way in nic.ways.items() if way.kernel_abi)
    speaking = {name: way for name, way in nic.ways.items() if way.kernel_abi and holds(way.kernel_abi, abi)}
    unmet = [
        f"way '{name}' needs {component} {specifier}, the stack has {offer.versions.get(component, 'none')}"
        for name, way in speaking.items()
        for component, specifier in way.needs.items()
        if not _met(way, offer.versions)
    ]
    steps = [f"--way {name}: {way.about}" for name, way in speaking.items() if way.asked]
    if packaged:
        steps.append("set nic_repository to the vendor's apt repository")
    return BadInput.of(
        "no-way",
        driver=nic.provider or nic.name,
        abi=abi,
        known=f" (known: {known})" if known else "",
        cause="; ".join(unmet) or "the nodes run a vendor driver that is newer than rdma-core's provider",
        step="; or ".join(steps) or "load the kernel's own driver on the nodes",
    )


def _met(way: Way, versions: Mapping[str, str]) -> bool:
    """Are the components there in versions with which this way works?"""
    try:
        return all(SpecifierSet(v).contains(versions.get(name, ""), prereleases=True) for name, v in way.needs.items())
    except InvalidVersion:
        return False


def bounds(kernel_abi: str) -> tuple[int, int]:
    """Both ends of "min-max", which rocstack.base.words has checked."""
    low, _, high = kernel_abi.partition("-")
    return int(low), int(high)


def holds(kernel_abi: str, abi: int) -> bool:
    """Is `abi` in the range "min-max"?"""
    low, high = bounds(kernel_abi)
    return low <= abi <= high


def planned(nic: NicProfile, plan: ProviderPlan, rdma_core: str | None = None) -> ImageFacts:
    """The image that a plan will give, as far as the gate can know it: enough to refuse before building. Without
    private ABIs, which are measured in the image: the gate finds it unfit or unknown, never fitting. `rdma_core` is
    the version that the stack has."""
    providers = []
    for row in plan.rows if nic.provider else ():
        own = row.provider
        abis = row.supports or (None if own.kernel_abi is None else (own.kernel_abi, own.kernel_abi))
        path = f"{ROOT}/{own.place}/planned"
        version = rdma_core if own.way == "inbox" else own.version
        providers.append(ImageProvider(own.place, own.way, str(nic.provider), path, version, None, abis, None))
    needs = tuple(nic.card_needs.items())
    return ImageFacts("planned", nic.name, "worker", nic.modules, nic.pci, card_needs=needs, providers=tuple(providers))


def with_card_needs(image: ImageFacts, nics: Iterable[NicProfile]) -> ImageFacts:
    """An image that an older rocstack built doesn't say which cards need which rdma-core. Its NIC's profile does, since
    that is so whatever the image."""
    if image.card_needs is not None:
        return image
    own = next((nic for nic in nics if nic.name == image.nic), None)
    return replace(image, card_needs=tuple(own.card_needs.items())) if own else image

"""By which way the NIC's provider gets into the image: chosen from what the nodes need, before anything is built."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion

from rocstack.base.errors import BadInput, did_you_mean
from rocstack.base.text import listed
from rocstack.nic.needs import VERSION, Need
from rocstack.nic.rdma_core import RdmaCore
from rocstack.nic.vendor_release import VendorRelease, pick
from rocstack.stack.component import NicProfile, Way
from rocstack.stack.plugin import PluginSpec
from rocstack.stack.provider import ProviderSpec


@dataclass(frozen=True)
class ProviderRow:
    """One line of what is shown before building. `supports` is the kernel-ABI range, where it is known by then."""

    place: str
    way: str
    version: str | None
    kernel_abi: int | None
    nodes: tuple[str, ...]
    why: str
    supports: tuple[int, int] | None = None


@dataclass(frozen=True)
class ProviderPlan:
    providers: tuple[ProviderSpec, ...]
    rows: tuple[ProviderRow, ...]
    archives: dict[str, bytes] = field(default_factory=dict, repr=False)  # path in the context -> bytes
    notes: tuple[str, ...] = ()
    plugin: PluginSpec | None = None  # of RCCL


@dataclass(frozen=True)
class Offer:
    """What there is to choose from; sources are looked for when they are asked for."""

    releases: Callable[[], Sequence[VendorRelease]]
    rdma_core: Callable[[], RdmaCore]
    accept: str | None = None  # a release by name, whatever the driver's version
    repository: bool = False  # does a setting name the vendor's apt repository?
    versions: Mapping[str, str] = field(default_factory=dict)  # component -> version in this stack


def plan(
    nic: NicProfile, needs: Sequence[Need], offer: Offer, *, way: str | None = None, variants: bool = False
) -> ProviderPlan:
    """One provider for each kernel ABI that the nodes speak.

    Raises:
        BadInput: no such way; several kernel ABIs without `variants`; nothing that speaks a node's ABI.
    """
    if way is not None and way not in nic.ways:
        hint = did_you_mean(way, nic.ways)
        raise BadInput(
            f"NIC profile '{nic.name}' has no way '{way}'" + (f": {hint}" if hint else ""),
            code="unknown-way",
        )
    groups = _by_abi(needs)
    if len(groups) > 1 and not variants:
        shown = "; ".join(f"{abi}: {listed(_nodes(rows))}" for abi, rows in groups.items())
        raise BadInput(
            f"the nodes' NIC drivers speak {len(groups)} different kernel ABIs ({shown})",
            code="several-abis",
            cause="the drivers are of different releases",
            next_step="put a provider for each into one image with --nic-variants, or load one driver on all nodes",
        )
    if not groups:
        return _for_nobody(nic, offer, way)
    made = [_provider(nic, abi, rows, offer, way, several=len(groups) > 1) for abi, rows in groups.items()]
    ignored = [f"--way {way} is for one kernel ABI; here each has its own"] if way and len(groups) > 1 else []
    return ProviderPlan(
        tuple(provider for provider, _, _ in made),
        tuple(row for _, row, _ in made),
        {path: data for _, _, archive in made for path, data in archive.items()},
        (*ignored, *_strays(groups)),
    )


def _by_abi(needs: Sequence[Need]) -> dict[int, list[Need]]:
    groups: dict[int, list[Need]] = {}
    for need in needs:
        groups.setdefault(need.kernel_abi, []).append(need)
    return dict(sorted(groups.items()))


def _strays(groups: Mapping[int, Sequence[Need]]) -> list[str]:
    """Nodes whose driver is of another release, but speaks the same ABI."""
    return [
        f"{listed(other.nodes)}: driver {other.release or 'in-tree'}, not {rows[0].release or 'in-tree'}; "
        f"both speak kernel ABI {abi}"
        for abi, rows in groups.items()
        for other in rows[1:]
    ]


def _for_nobody(nic: NicProfile, offer: Offer, way: str | None) -> ProviderPlan:
    """No node is known: the way that was asked for, that of a release which was named, or the first that works."""
    why = "asked for" if way else "no node is known; a release was named" if offer.accept else "no node is known"
    if not way and not offer.accept:
        way = next((n for n, w in nic.ways.items() if not (w.asked or w.release) and _met(w, offer.versions)), None)
    elif not way:
        way = next((n for n, w in nic.ways.items() if w.release), None)
    name = way or next(iter(nic.ways))
    made = _made(nic, name, name, None, None, offer)
    return ProviderPlan(
        (made.provider,), (ProviderRow(name, name, made.provider.version, None, (), why, made.supports),), made.files
    )


def _provider(
    nic: NicProfile, abi: int, rows: Sequence[Need], offer: Offer, way: str | None, *, several: bool
) -> tuple[ProviderSpec, ProviderRow, dict[str, bytes]]:
    release = rows[0].release
    name, why = (way, "asked for") if way and not several else _choose(nic, abi, release, offer)
    place = f"abi-{abi}" if several else name
    made = _made(nic, place, name, abi, release, offer)
    row = ProviderRow(place, name, made.provider.version, abi, _nodes(rows), why, made.supports)
    return made.provider, row, made.files


@dataclass(frozen=True)
class _Made:
    """A provider, its source for the context, and the range it is known to support."""

    provider: ProviderSpec
    files: dict[str, bytes]
    supports: tuple[int, int] | None


def _made(nic: NicProfile, place: str, name: str, abi: int | None, release: str | None, offer: Offer) -> _Made:
    way = nic.ways[name]
    if not _met(way, offer.versions):
        needs = ", ".join(f"{component} {versions}" for component, versions in way.needs.items())
        has = ", ".join(f"{component} {offer.versions.get(component, 'none')}" for component in way.needs)
        others = [other for other in nic.ways if other != name]
        raise BadInput(
            f"way '{name}' to the {nic.provider} provider needs {needs}; this stack has {has}",
            code="no-provider",
            next_step=f"use --way {' or --way '.join(others)}, or a stack that has it",
        )
    source: VendorRelease | RdmaCore | None = None
    if way.archive == "release":
        source = pick(offer.releases(), release, offer.accept)
    elif way.archive == "rdma-core":
        source = offer.rdma_core()
    named = way.release == "named"
    version = source.version if source else (offer.accept or (None if named else release)) if way.release else None
    if way.release and version is None:
        raise BadInput(
            f"the version of {', '.join(way.packages)} to install is not known",
            code="no-release",
            cause="the package has its own version numbers"
            if named
            else "no node is known, so there is no driver to match",
            next_step="give it with --nic-accept VERSION" + ("" if named else ", or --profiles FILE"),
        )
    if version is not None and not VERSION.fullmatch(version):
        raise BadInput(
            f"'{version}' is not a version", code="no-release", next_step="give it with --nic-accept VERSION"
        )
    provider = ProviderSpec(
        place=place,
        way=name,
        version=version,
        archive=source.name if source else None,
        sha256=source.sha256 if source else None,
        kernel_abi=abi,
        packages=way.packages,
    )
    release_abi = source.kernel_abi if isinstance(source, VendorRelease) else None
    supports = (
        (release_abi, release_abi) if release_abi is not None else bounds(way.kernel_abi) if way.kernel_abi else None
    )
    return _Made(provider, {f"nic/{place}/{source.name}": source.data} if source else {}, supports)


def _choose(nic: NicProfile, abi: int, release: str | None, offer: Offer) -> tuple[str, str]:
    """The first way that is known to speak this ABI, else the one that follows the driver's release."""
    for name, way in nic.ways.items():
        if not way.asked and way.kernel_abi and holds(way.kernel_abi, abi) and _met(way, offer.versions):
            return name, f"speaks kernel ABI {way.kernel_abi} ({way.source})" if way.source else "speaks it"
    why = f"the host's driver is {release}" if release else "the host's driver is not the kernel's own"
    versioned = [name for name, way in nic.ways.items() if way.release and not way.asked]
    with_source = [name for name in versioned if nic.ways[name].archive]
    packaged = [name for name in versioned if nic.ways[name].packages]
    if with_source and (not offer.repository or offer.accept or _has(nic, with_source[0], release, offer)):
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
    return BadInput(
        f"no way to a {nic.provider} provider that speaks kernel ABI {abi}" + (f" (known: {known})" if known else ""),
        code="no-provider",
        cause="; ".join(unmet) or "the nodes run a vendor driver that is newer than rdma-core's provider",
        next_step="; or ".join(steps) or "load the kernel's own driver on the nodes",
    )


def _has(nic: NicProfile, name: str, release: str | None, offer: Offer) -> bool:
    return any(each.kind == "source" and each.version == release for each in offer.releases())


def _met(way: Way, versions: Mapping[str, str]) -> bool:
    """Are the components there in versions with which this way works?"""
    for component, specifier in way.needs.items():
        try:
            if not SpecifierSet(specifier).contains(versions.get(component, ""), prereleases=True):
                return False
        except InvalidVersion:
            return False
    return True


def bounds(kernel_abi: str) -> tuple[int, int]:
    """Both ends of "min-max", which rocstack.base.words has checked."""
    low, _, high = kernel_abi.partition("-")
    return int(low), int(high)


def holds(kernel_abi: str, abi: int) -> bool:
    """Is `abi` in the range "min-max"?"""
    low, high = bounds(kernel_abi)
    return low <= abi <= high


def _nodes(rows: Sequence[Need]) -> tuple[str, ...]:
    return tuple(node for row in rows for node in row.nodes)

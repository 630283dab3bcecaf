"""Stack + NIC profile + overlay -> one resolved value: all that rendering needs, and nothing it must look up."""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from rocstack.base.document import Path_
from rocstack.base.errors import BadInput, Where, hinted
from rocstack.base.words import FileName, ImageRef, Name, Package, Sha256, Value, Version
from rocstack.node.nic_settings import condition_names
from rocstack.stack import base_reading, coherence
from rocstack.stack.base_reading import BaseReading
from rocstack.stack.component import (
    FACTS,
    FURTHER,
    Component,
    NicProfile,
    Packages,
    Role,
    TemplateFile,
    TemplateLibrary,
    validate_head,
)
from rocstack.stack.overlay import Overlay
from rocstack.stack.sandbox import for_templates
from rocstack.stack.stack import UNREAD, AptRepository, ComponentChoice, Stack

ROOT = "/opt/rocstack/nic"  # in the image; every provider's place is a folder below


class ProviderSpec(Value):
    """One provider library as it is to be built. `place` is its folder in the image; libibverbs' own folder holds a
    link to the one in use."""

    place: Name
    way: Name
    version: Version | None = None  # of the vendor's release
    archive: FileName | None = None  # the source, in the context under nic/<place>/
    sha256: Sha256 | None = None  # of the archive
    kernel_abi: int | None = None  # what the nodes that it is for speak
    packages: tuple[Package, ...] = ()

    @property
    def pins(self) -> tuple[str, ...]:
        """What apt is asked for: the vendor's package at exactly the release of the nodes' driver."""
        return tuple(f"{name}={self.version}*" if self.version else name for name in self.packages)


class PluginSource(Value):
    """An archive in the context, under nic/plugin/."""

    archive: FileName
    sha256: Sha256


class PluginSpec(Value):
    """RCCL's network plugin as it is to be built: which release, from which source."""

    name: Name  # aws-ofi-nccl
    version: Version
    library: FileName  # librccl-net.so, in /opt/rocstack/nic/plugin/
    source: PluginSource
    beside: PluginSource | None = None  # what it is compiled with
    packages: tuple[Package, ...] = ()


class Part(Value):
    """One component as it will be built."""

    name: Name
    about: str
    roles: tuple[Role, ...]
    needs: tuple[Name, ...]
    choice: ComponentChoice
    packages: Packages
    below_nic: bool = False  # as in its head

    @for_templates
    def reaches(self, role: Role) -> bool:
        return role in self.roles


class Resolved(Value):
    stack: Stack
    nic: NicProfile
    providers: tuple[ProviderSpec, ...]
    nic_repository: AptRepository | None = None  # the vendor's, for the NIC's own packages alone
    plugin: PluginSpec | None  # of RCCL, for the NIC
    base: ImageRef
    parts: tuple[Part, ...]  # in layer order
    exclude: tuple[str, ...]
    cards: tuple[str, ...] = ()  # PCI ids of the GPUs that it is for; none: all that its targets are of
    reading: BaseReading | None = None  # of the base image, where components are its own
    on_top: bool = False  # nothing but the NIC's layer on that image

    @property
    def ways(self) -> str:
        """How the NIC's providers get in, for a label: "inbox", "inbox+source"."""
        return "+".join(dict.fromkeys(provider.way for provider in self.providers))

    @for_templates
    def called(self, role: Role) -> str:
        """The role that an image's labels and name say: a base with a NIC's layer runs jobs, and is no node's."""
        return "job" if self.on_top else role

    @for_templates
    def nic_packages(self) -> tuple[str, ...]:
        """What the NIC adds to the worker, as apt is asked for it."""
        pins = [pin for provider in self.providers for pin in provider.pins]
        return _unique([*pins, *(self.plugin.packages if self.plugin else ())])

    @for_templates
    def package_names(self) -> tuple[str, ...]:
        """The NIC's packages without their versions."""
        return _unique([name for provider in self.providers for name in provider.packages])

    @for_templates
    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    @for_templates
    def has(self, name: str) -> bool:
        return any(part.name == name for part in self.parts)

    @for_templates
    def build_order(self) -> tuple[Part, ...]:
        """All parts, each after what it needs."""
        placed: dict[str, Part] = {}

        def place(part: Part, above: tuple[str, ...] = ()) -> None:
            for need in part.needs:
                if need not in placed and need not in above:
                    place(self.part(need), (*above, part.name))
            placed[part.name] = part

        for part in self.parts:
            if part.name not in placed:
                place(part)
        return tuple(placed.values())

    @for_templates
    def layer_packages(self, layer: tuple[str, ...], role: Role) -> tuple[str, ...]:
        """What one layer installs for one role, beyond what both roles share."""
        out: list[str] = []
        for name in layer:
            part = self.part(name)
            if not part.reaches(role):
                continue
            own = part.packages.of_role(role)
            out += own if len(part.roles) > 1 else part.packages.packages + own
        return _unique(out)

    @for_templates
    def shared_packages(self) -> tuple[str, ...]:
        """What both roles install first, in a layer they share."""
        return _unique([p for part in self.parts if len(part.roles) > 1 for p in part.packages.packages])

    def facts(self) -> dict[str, Any]:
        """What the rules judge: component versions and methods, OS, gfx, NIC, and the PMIx each side was built
        against. The host's `driver` is not known here."""
        facts: dict[str, Any] = {p.name: p.choice.version for p in self.parts if p.choice.version != UNREAD}
        facts |= {f"{p.name}.method": p.choice.method for p in self.parts if p.choice.method != "base"}
        facts |= {"os": self.stack.base.os, "gfx": list(self.stack.gfx), "nic": self.nic.name}
        facts["python"] = self.stack.python
        if self.stack.base.os in coherence.distributions():
            facts["packages.absent"] = list(self._absent()) or ["none"]
        facts["wheels"] = list(self.stack.wheels)
        of_rocm = re.search(r"\+rocm([0-9.]+[0-9])", facts.get("pytorch", ""))
        if of_rocm:
            facts["pytorch.rocm"] = of_rocm[1]
        if self.reading:  # whose packages the base's components are, it says itself
            own = base_reading.facts(self.reading)
            facts = {**own, **facts} if self.on_top else {**{k: own[k] for k in own if self._of_base(k)}, **facts}
        pmix = facts.get("pmix")
        for name in ("slurm", "openmpi"):
            if self.has(name):
                facts[f"{name}.pmix"] = self.part(name).choice.pmix or pmix
        return facts

    def _absent(self) -> tuple[str, ...]:
        """Packages that its release of the distribution hasn't got, or calls otherwise."""
        every = [name for part in self.parts for field in part.packages for name in field[1]]
        return coherence.absent(self.stack.base.os, [*every, *self.package_names()])

    @property
    def framework(self) -> tuple[str | None, str | None]:
        """What trains, and the ROCm release that it is built for; None where there is none."""
        if self.on_top and self.reading:
            read = base_reading.image_facts(self.reading)
            return read.framework, read.framework_rocm
        name = self.stack.framework if self.stack.framework in self.stack.components else None
        return name, self.stack.framework_rocm

    @property
    def needs_reading(self) -> bool:
        """Whether components come from the base image, which must be read before anything is decided of them."""
        return self.reading is None and any(part.choice.method == "base" for part in self.parts)

    def with_reading(self, reading: BaseReading, reference: str) -> "Resolved":
        """The same for a base image as it was read.

        Raises:
            BadInput: the stack can't be built on it.
        """
        stack = base_reading.applied(self.stack, reading, reference)
        parts = tuple(part.model_copy(update={"choice": stack.components[part.name]}) for part in self.parts)
        return self.model_copy(update={"stack": stack, "parts": parts, "reading": reading, "base": reference})

    def _of_base(self, fact: str) -> bool:
        name = fact.partition(".")[0]
        return self.has(name) and self.part(name).choice.method == "base"

    def digest(self) -> str:
        """sha256 of the whole resolved value."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def resolve(
    stack: Stack,
    nic_name: str,
    components: TemplateLibrary,
    nics: TemplateLibrary,
    overlay: Overlay,
    *,
    base: str | None = None,
    providers: tuple[ProviderSpec, ...] = (),
    plugin: PluginSpec | None = None,
    reading: BaseReading | None = None,
    on_top: bool = False,
    known: Sequence[str] = (),
    where: Callable[[Path_], Where | None] = lambda loc: None,
) -> Resolved:
    """Joins the choices; without `providers` the NIC profile's first way is taken. `where` finds the line of a
    key path of the stack, for messages. `known` are components that the overlay may speak of beside the stack's.

    Raises:
        BadInput: an unknown component, NIC or method; a component whose need the stack doesn't meet;
            an override that matches nothing.
    """
    spoken = (*stack.every_component, *known)
    overlay.check_components(spoken)
    for name, file in components.overrides.items():
        if name not in spoken:
            at = Where(str(file.path), 1)
            raise BadInput.of("override-of-absent-component", at, file=file.path.name, stack=stack.name, name=name)
    parts = tuple(_part(stack, name, components, overlay, where) for layer in stack.layers for name in layer)
    heads = {part.name: validate_head(components.get(part.name), Component) for part in parts}
    for part in parts:
        for need in heads[part.name].needs:
            if need not in stack.components:
                place = where(("components", part.name))
                raise BadInput.of("need-unmet", place, name=part.name, need=need, stack=stack.name)
    nic = validate_head(nics.get(nic_name), NicProfile)
    _check_conditions(nics.get(nic_name), nic, (*components.files, *FACTS))
    first, way = next(iter(nic.ways.items()))
    return Resolved(
        stack=stack,
        nic=nic,
        providers=providers or (ProviderSpec(place=first, way=first, packages=way.packages),),
        plugin=plugin,
        base=base or stack.base.image,
        parts=parts,
        exclude=_unique([*stack.exclude, *(glob for head in heads.values() for glob in head.exclude)]),
        reading=reading,
        on_top=on_top,
    )


def _part(
    stack: Stack, name: str, components: TemplateLibrary, overlay: Overlay, where: Callable[[Path_], Where | None]
) -> Part:
    head = validate_head(components.get(name, where(("components", name))), Component)
    choice = stack.components[name]
    if choice.method not in head.methods:
        place, known = where(("components", name, "method")), ", ".join(head.methods)
        raise BadInput.of("unknown-method", place, name=name, method=choice.method, known=known)
    # A role that has no image here counts for nothing: what others share stays the same.
    roles = tuple(role for role in head.roles if role not in FURTHER or role in stack.roles)
    overlay.check_roles(name, roles)
    lists = head.methods[choice.method]
    own = {field: [n for each in getattr(lists, field) for n in stack.each(each)] for field in Packages.model_fields}
    if missing := [each for each in choice.without if all(each not in names for names in own.values())]:
        place = where(("components", name, "without", choice.without.index(missing[0])))
        hint = hinted(missing[0], [each for names in own.values() for each in names])
        raise BadInput.of("without-nothing", place, name=name, package=missing[0], method=choice.method, hint=hint)
    changed = {
        field: overlay.for_list(name, field, tuple(each for each in names if each not in choice.without))
        for field, names in own.items()
    }
    changed["worker_packages"] = _unique([*changed["worker_packages"], *choice.packages])
    changed["builder_packages"] = _unique([*changed["builder_packages"], *choice.builder_packages])
    needs = (*head.needs, *(other for other in head.after if other in stack.components))
    return Part(
        name=name,
        about=head.about,
        roles=roles,
        needs=needs,
        choice=choice,
        packages=Packages(**changed),
        below_nic=head.below_nic,
    )


def _check_conditions(file: TemplateFile, nic: NicProfile, known: Sequence[str]) -> None:
    """A condition on a misspelt name would never hold, and its variable never be set."""
    whens: dict[Path_, str | None] = {("env", index, "when"): each.when for index, each in enumerate(nic.env)}
    if nic.plugin:
        whens |= {("plugin", "when"): nic.plugin.when}
        whens |= {("plugin", "releases", release): when for release, when in nic.plugin.releases.items()}
    whens |= {("ways", way, "needs", name): name for way, each in nic.ways.items() for name in each.needs}
    for loc, when in whens.items():
        for name in condition_names(when or ""):
            if name not in known:
                raise BadInput.of("unknown-condition", file.head.where(loc), name=name, hint=hinted(name, known))


def _unique(items: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))

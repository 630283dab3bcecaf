"""Stack + NIC profile + overlay -> one resolved value: all that rendering needs, and nothing it must look up."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

from rocstack.base.document import Path_
from rocstack.base.errors import BadInput, Where
from rocstack.base.words import ImageRef, Name, Value
from rocstack.stack.component import Component, NicProfile, Packages, Role, TemplateLibrary, validate_head
from rocstack.stack.overlay import Overlay
from rocstack.stack.plugin import PluginSpec
from rocstack.stack.provider import ProviderSpec
from rocstack.stack.stack import AptRepository, ComponentChoice, Stack


class Part(Value):
    """One component as it will be built."""

    name: Name
    about: str
    roles: tuple[Role, ...]
    needs: tuple[Name, ...]
    choice: ComponentChoice
    packages: Packages

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

    @property
    def ways(self) -> str:
        """How the NIC's providers get in, for a label: "inbox", "inbox+source"."""
        return "+".join(dict.fromkeys(provider.way for provider in self.providers))

    def nic_packages(self) -> tuple[str, ...]:
        """What the NIC adds to the worker, as apt is asked for it."""
        pins = [pin for provider in self.providers for pin in provider.pins]
        return _unique([*pins, *(self.plugin.packages if self.plugin else ())])

    def package_names(self) -> tuple[str, ...]:
        """The NIC's packages without their versions."""
        return _unique([name for provider in self.providers for name in provider.packages])

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    def has(self, name: str) -> bool:
        return any(part.name == name for part in self.parts)

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

    def layer_packages(self, layer: tuple[str, ...], role: Role) -> tuple[str, ...]:
        """What one layer installs for one role, beyond what both roles share."""
        out: list[str] = []
        for name in layer:
            part = self.part(name)
            if not part.reaches(role):
                continue
            own = part.packages.worker_packages if role == "worker" else part.packages.control_packages
            out += own if len(part.roles) > 1 else part.packages.packages + own
        return _unique(out)

    def shared_packages(self) -> tuple[str, ...]:
        """What both roles install first, in a layer they share."""
        return _unique([p for part in self.parts if len(part.roles) > 1 for p in part.packages.packages])

    def facts(self) -> dict[str, Any]:
        """What the rules judge: component versions and methods, OS, gfx, NIC, and the PMIx each side was built
        against. The host's `driver` is not known here."""
        facts: dict[str, Any] = {part.name: part.choice.version for part in self.parts}
        facts |= {f"{part.name}.method": part.choice.method for part in self.parts}
        facts |= {"os": self.stack.base.os, "gfx": list(self.stack.gfx), "nic": self.nic.name}
        facts["wheels"] = list(self.stack.wheels)
        of_rocm = re.search(r"\+rocm([0-9.]+[0-9])", facts.get("pytorch", ""))
        if of_rocm:
            facts["pytorch.rocm"] = of_rocm[1]
        pmix = facts.get("pmix")
        for name in ("slurm", "openmpi"):
            if self.has(name):
                facts[f"{name}.pmix"] = self.part(name).choice.pmix or pmix
        return facts

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
    where: Callable[[Path_], Where | None] = lambda loc: None,
) -> Resolved:
    """Joins the choices; without `providers` the NIC profile's first way is taken. `where` finds the line of a
    key path of the stack, for messages.

    Raises:
        BadInput: an unknown component, NIC or method; a component whose need the stack doesn't meet;
            an override that matches nothing.
    """
    overlay.check_components(tuple(stack.components))
    for name, file in components.overrides.items():
        if name not in stack.components:
            raise BadInput(
                f"'{file.path.name}' overrides nothing: stack '{stack.name}' has no component '{name}'",
                code="override-unmatched",
                where=Where(str(file.path), 1),
            )
    parts = tuple(_part(stack, name, components, overlay, where) for layer in stack.layers for name in layer)
    heads = {part.name: validate_head(components.get(part.name), Component) for part in parts}
    for part in parts:
        for need in heads[part.name].needs:
            if need not in stack.components:
                raise BadInput(
                    f"component '{part.name}' needs '{need}', which stack '{stack.name}' does not have",
                    code="need-unmet",
                    where=where(("components", part.name)),
                    next_step=f"add '{need}' to the stack's components",
                )
    nic = validate_head(nics.get(nic_name), NicProfile)
    exclude = _unique([*stack.exclude, *(g for head in heads.values() for g in head.exclude)])
    return Resolved(
        stack=stack,
        nic=nic,
        providers=providers or (default_provider(nic),),
        plugin=plugin,
        base=base or stack.base.image,
        parts=parts,
        exclude=exclude,
    )


def default_provider(nic: NicProfile) -> ProviderSpec:
    """What is built where no host says more: the profile's first way."""
    name, way = next(iter(nic.ways.items()))
    return ProviderSpec(place=name, way=name, packages=way.packages)


def _part(
    stack: Stack, name: str, components: TemplateLibrary, overlay: Overlay, where: Callable[[Path_], Where | None]
) -> Part:
    head = validate_head(components.get(name, where(("components", name))), Component)
    choice = stack.components[name]
    if choice.method not in head.methods:
        raise BadInput(
            f"component '{name}' has no method '{choice.method}'; it has {', '.join(head.methods)}",
            code="unknown-method",
            where=where(("components", name, "method")),
        )
    overlay.check_roles(name, head.roles)
    lists = head.methods[choice.method]
    changed = {field: overlay.for_list(name, field, getattr(lists, field)) for field in Packages.model_fields}
    changed["worker_packages"] = _unique([*changed["worker_packages"], *choice.packages])
    return Part(
        name=name, about=head.about, roles=head.roles, needs=head.needs, choice=choice, packages=Packages(**changed)
    )


def _unique(items: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))

"""The user's own folder: package-list changes (`overlay.yml`), block overrides, new components, NICs, stacks."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rocstack.base import document
from rocstack.base.errors import BadInput, Where, did_you_mean, hinted, nearest
from rocstack.base.words import Package, Value
from rocstack.stack.component import LISTS, ROLES, Role

OPERATIONS = ("append", "remove", "override")
FILES = {
    "overlay.yml": ".yml", "components": ".j2", "nic": ".j2", "slurm": ".j2", "recipes": ".sbatch.j2", "stacks": ".yml",
}  # fmt: skip
_KEY = re.compile(rf"(?P<component>.+?)_(?P<list>{'|'.join(LISTS)})_(?P<op>{'|'.join(OPERATIONS)})")
_PACKAGES = TypeAdapter(tuple[Package, ...])


@dataclass(frozen=True)
class OverlayChange:
    """One line of overlay.yml: what happens to one package list of one component."""

    component: str
    list: str
    op: str
    packages: tuple[str, ...]
    where: Where

    @property
    def key(self) -> str:
        """As it stands in overlay.yml, but for '-' where the file has '_'."""
        return f"{self.component.replace('-', '_')}_{self.list}_{self.op}"

    def meant(self, known: tuple[str, ...]) -> str | None:
        """The key that is meant where the list is misspelt: ucx_bulder_packages_append."""
        for name in known:
            if self.component.startswith(f"{name}-"):
                rest = f"{self.component.removeprefix(f'{name}-')}_{self.list}".replace("-", "_")
                if found := nearest(rest, LISTS):
                    return f"{name.replace('-', '_')}_{found}_{self.op}"
        return None

    def apply(self, current: tuple[str, ...]) -> tuple[str, ...]:
        """The changed list.

        Raises:
            BadInput: a package to remove that is not there.
        """
        if self.op == "override":
            return self.packages
        if self.op == "append":
            return current + tuple(p for p in self.packages if p not in current)
        for package in self.packages:
            if package not in current:
                hint = hinted(package, current)
                raise BadInput.of("remove-of-nothing", self.where, package=package, change=self, hint=hint)
        return tuple(p for p in current if p not in self.packages)


@dataclass(frozen=True)
class Overlay:
    folder: Path | None = None
    changes: tuple[OverlayChange, ...] = field(default=())

    def for_list(self, component: str, name: str, current: tuple[str, ...]) -> tuple[str, ...]:
        for change in self.changes:
            if (change.component, change.list) == (component, name):
                current = change.apply(current)
        return current

    def check_components(self, known: tuple[str, ...]) -> None:
        """Every change must meet a component of the stack being built."""
        for change in self.changes:
            if change.component not in known:
                if key := change.meant(known):
                    raise BadInput.of("override-of-no-list", change.where, key=change.key, meant=key)
                hint = hinted(change.component, known)
                raise BadInput.of("override-of-no-component", change.where, name=change.component, hint=hint)

    def check_roles(self, component: str, roles: tuple[Role, ...]) -> None:
        """A list of a role that the component doesn't reach is never installed."""
        for change in self.changes:
            role = change.list.removesuffix("_packages")
            if change.component == component and role in ROLES and role not in roles:
                raise BadInput.of("override-of-other-role", change.where, change=change, role=role)


def load(folder: Path | None) -> Overlay:
    """Reads the overlay folder; without one, an empty overlay.

    Raises:
        BadInput: the folder is missing, a file in it is misspelt, or a key has not the form
            <component>_<list>_<append|remove|override>.
    """
    if folder is None:
        return Overlay()
    if not folder.is_dir():
        raise BadInput.of("no-overlay", folder=folder)
    _refuse_misspelt(folder)
    file = folder / "overlay.yml"
    if not file.exists():
        return Overlay(folder)
    doc = document.read(file)
    return Overlay(folder, tuple(_change(doc, key, value) for key, value in doc.data.items()))


def _refuse_misspelt(folder: Path) -> None:
    """What looks like one of our files and is none would be passed over in silence."""
    for path in sorted(folder.iterdir()):
        hint = did_you_mean(path.name, FILES)
        if path.name not in FILES and hint and hint.startswith("did you mean"):
            raise BadInput.of("misspelt-file", path, name=path.name, hint=hint)
        if path.name in FILES and path.is_dir():
            for file in sorted(path.iterdir()):
                if not file.name.endswith(FILES[path.name]) and not file.name.startswith((".", "README")):
                    ending = FILES[path.name]
                    raise BadInput.of("wrong-ending", file, name=file.name, folder=path.name, ending=ending)


def _change(doc: document.Document, key: str, value: Any) -> OverlayChange:
    where = doc.where((key,))
    match = _KEY.fullmatch(key)
    if match is None:
        raise BadInput.of("unknown-override", where, key=key, lists=", ".join(LISTS), operations=", ".join(OPERATIONS))
    try:
        packages = _PACKAGES.validate_python(tuple(value) if isinstance(value, list) else value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        problem = document.sentence(first, Value) if first["loc"] else "must be a list of packages: [a, b]"
        raise BadInput.of("bad-override", doc.where((key, *first["loc"])), key=key, problem=problem) from None
    return OverlayChange(match["component"].replace("_", "-"), match["list"], match["op"], packages, where)

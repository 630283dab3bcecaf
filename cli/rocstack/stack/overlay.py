"""The user's own folder: package-list changes (`overlay.yml`), block overrides, new components, NICs, stacks."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rocstack.base import document
from rocstack.base.errors import BadInput, Where, did_you_mean
from rocstack.base.words import Package
from rocstack.stack.component import LISTS, ROLES, Role

OPERATIONS = ("append", "remove", "override")
FILES = {"overlay.yml": ".yml", "components": ".j2", "nic": ".j2", "slurm": ".j2", "stacks": ".yml"}
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
                hint = did_you_mean(package, current)
                raise BadInput(
                    f"'{package}' is not in {self.component}'s {self.list}" + (f": {hint}" if hint else ""),
                    code="override-unmatched",
                    where=self.where,
                    next_step="an override that matches nothing is refused; remove or correct it",
                )
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
                hint = did_you_mean(change.component, known)
                raise BadInput(
                    f"no component '{change.component}' in this stack" + (f": {hint}" if hint else ""),
                    code="override-unmatched",
                    where=change.where,
                )

    def check_roles(self, component: str, roles: tuple[Role, ...]) -> None:
        """A list of a role that the component doesn't reach is never installed."""
        for change in self.changes:
            role = change.list.removesuffix("_packages")
            if change.component == component and role in ROLES and role not in roles:
                raise BadInput(
                    f"{component} is not part of the {role} image, so its {change.list} are never installed",
                    code="override-unmatched",
                    where=change.where,
                )


def load(folder: Path | None) -> Overlay:
    """Reads the overlay folder; without one, an empty overlay.

    Raises:
        BadInput: the folder is missing, a file in it is misspelt, or a key has not the form
            <component>_<list>_<append|remove|override>.
    """
    if folder is None:
        return Overlay()
    if not folder.is_dir():
        raise BadInput(f"no overlay folder {folder}", code="no-overlay", next_step="create it, or drop --overlay")
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
            raise BadInput(f"'{path.name}' is never read: {hint}", code="override-unmatched", where=Where(str(path)))
        if path.name in FILES and path.is_dir():
            for file in sorted(path.iterdir()):
                if file.suffix != FILES[path.name] and not file.name.startswith((".", "README")):
                    raise BadInput(
                        f"'{file.name}' is never read: files in {path.name}/ end in {FILES[path.name]}",
                        code="override-unmatched",
                        where=Where(str(file)),
                    )


def _change(doc: document.Document, key: str, value: Any) -> OverlayChange:
    where = doc.where((key,))
    match = _KEY.fullmatch(key)
    if match is None:
        raise BadInput(
            f"unknown override '{key}'",
            code="override-unmatched",
            where=where,
            cause="the form is <component>_<list>_<operation>, such as slurm_worker_packages_append",
            next_step=f"lists: {', '.join(LISTS)}; operations: {', '.join(OPERATIONS)}",
        )
    try:
        packages = _PACKAGES.validate_python(tuple(value) if isinstance(value, list) else value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        problem = first["msg"].removeprefix("Value error, ") if first["loc"] else "must be a list of packages: [a, b]"
        raise BadInput(f"{key}: {problem}", code="bad-value", where=doc.where((key, *first["loc"]))) from None
    return OverlayChange(match["component"].replace("_", "-"), match["list"], match["op"], packages, where)

"""The user's own folder: package-list changes (`overlay.yml`), block overrides, new components, NICs, stacks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rocstack import document
from rocstack.component import LISTS
from rocstack.errors import BadInput, Where, did_you_mean
from rocstack.words import Package

OPERATIONS = ("append", "remove", "override")
_KEY = re.compile(rf"(?P<component>.+?)_(?P<list>{'|'.join(LISTS)})_(?P<op>{'|'.join(OPERATIONS)})")
_PACKAGES = TypeAdapter(tuple[Package, ...])


@dataclass(frozen=True)
class Change:
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
    changes: tuple[Change, ...] = field(default=())

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


def load(folder: Path | None) -> Overlay:
    """Reads the overlay folder; without one, an empty overlay.

    Raises:
        BadInput: the folder is missing, or a key has not the form <component>_<list>_<append|remove|override>.
    """
    if folder is None:
        return Overlay()
    if not folder.is_dir():
        raise BadInput(f"no overlay folder {folder}", code="no-overlay", next_step="create it, or drop --overlay")
    file = folder / "overlay.yml"
    if not file.exists():
        return Overlay(folder)
    doc = document.read(file)
    return Overlay(folder, tuple(_change(doc, key, value) for key, value in doc.data.items()))


def _change(doc: document.Document, key: str, value: Any) -> Change:
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
        raise BadInput(f"{key}: {error.errors()[0]['msg']}", code="bad-value", where=where) from None
    return Change(match["component"].replace("_", "-"), match["list"], match["op"], packages, where)

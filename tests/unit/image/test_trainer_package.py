"""The trainer's package as it lies in the image: what it needs is what it imports, and the image says so."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from email import message_from_bytes
from pathlib import Path

from rocstack.base import paths
from rocstack.image.context import BuildContext

SOURCE = paths.images() / "trainer"
PROJECT = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
MODULES = sorted((SOURCE / "rocstack_trainer").rglob("*.py"))


def name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_-]+", requirement)
    assert found
    return found[0]


def imported(file: Path) -> set[str]:
    """Top-level packages that are not Python's own."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"rocstack_trainer"}


def test_what_it_imports_is_what_it_requires() -> None:
    required = {name(each) for each in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["mpi"]]}
    assert set().union(*map(imported, MODULES)) == required


def test_the_image_knows_its_requirements(default_context: BuildContext) -> None:
    metadata = next(file.data for path, file in default_context.files.items() if path.endswith("/METADATA"))
    told = message_from_bytes(metadata)
    assert told["Name"] == PROJECT["name"]
    assert told.get_all("Requires-Dist") == PROJECT["dependencies"]


def test_every_module_can_be_read_in_one_go() -> None:
    long = {file.name: len(file.read_text().splitlines()) for file in MODULES}
    assert {file: lines for file, lines in long.items() if lines > 200} == {}

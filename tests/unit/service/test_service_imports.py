"""What the service imports, with only what its image installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
NAMES = {"yaml": "pyyaml"}  # Debian's, where they aren't PyPI's
ALONE = """
import sys
class Image:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"the image has no {{name}}", name=name)
sys.meta_path.insert(0, Image())
"""


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> set[str]:
    """The distributions that service.j2 installs, and those that they need."""
    head = (ROOT / "templates/components/service.j2").read_text().split("---")[1]
    packages: list[str] = yaml.safe_load(head)["methods"]["apt"]["packages"]
    left = [each.removeprefix("python3-") for each in packages if each.startswith("python3-")]
    found: set[str] = set()
    while left:
        if (name := plain(NAMES.get(each := left.pop(), each))) in found:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # of another system or Python
            continue
        found.add(name)
        left += [re.split(r"[^A-Za-z0-9._-]", need)[0] for need in needs if "extra ==" not in need]
    assert {"fastapi", "starlette", "pydantic-core", "mako", "pyyaml", "cryptography"} <= found
    return found


def absent() -> set[str]:
    """Modules of all other distributions that are here."""
    there = installed() | {"rocstack"}
    return {
        module for module, owners in metadata.packages_distributions().items() if not there & set(map(plain, owners))
    }


@pytest.mark.parametrize(
    "program",
    [
        "import rocstack.service.app",
        "import runpy; sys.argv = ['service', '--version']; runpy.run_module('rocstack.service', run_name='__main__')",
    ],
)
def test_the_service_has_all_that_it_imports(program: str) -> None:
    gone = absent()
    assert "pytest" in gone
    gone |= {"authlib", "joserfc", "cryptography"}  # there, and only for a site with an issuer: they take a while
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(absent=gone) + program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "cli")}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

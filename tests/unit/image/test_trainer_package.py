"""The trainer's package as it lies in the image: what it needs is what it imports, and the image says so."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from email import message_from_bytes
from pathlib import Path

from rocstack.base import paths
from rocstack.image.context import BuildContext

SOURCE = paths.images() / "trainer"
PROJECT = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
TRACKERS = {"mlflow", "wandb"}  # used where somebody installed them; TensorBoard's writer is torch's
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
    required = {name(each) for each in PROJECT["dependencies"]}
    optional = {
        name(each) for extra, needs in PROJECT["optional-dependencies"].items() if extra != "test" for each in needs
    }
    assert set().union(*map(imported, MODULES)) == required | optional | TRACKERS


def test_the_image_knows_its_requirements(default_context: BuildContext) -> None:
    metadata = next(file.data for path, file in default_context.files.items() if path.endswith("/METADATA"))
    told = message_from_bytes(metadata)
    assert told["Name"] == PROJECT["name"]
    assert told.get_all("Requires-Dist") == PROJECT["dependencies"]


def test_every_module_can_be_read_in_one_go() -> None:
    long = {file.name: len(file.read_text().splitlines()) for file in MODULES}
    assert {file: lines for file, lines in long.items() if lines > 400} == {}


def test_its_command_takes_no_modules_of_the_working_folder(default_context: BuildContext, tmp_path: Path) -> None:
    """In a shared folder they are somebody else's. The ranks that --ranks starts are started likewise."""
    command = tmp_path / "bin/rocstack-train"
    command.parent.mkdir()
    command.write_bytes(default_context.files["trainer/usr/local/bin/rocstack-train"].data)
    command.chmod(0o755)
    (tmp_path / "bin/python3").symlink_to(sys.executable)
    package = tmp_path / "site/rocstack_trainer"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text("import json, sys; print(json.__file__, sys.argv[1:])")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/json.py").touch()
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}/site"}
    ran = subprocess.run([command, "--x"], cwd=tmp_path / "shared", env=env, capture_output=True, text=True, check=True)
    assert json.__file__ in ran.stdout
    assert "['--x']" in ran.stdout
    again = (SOURCE / "rocstack_trainer/ranks/spawn.py").read_text().partition("def python()")[2].partition("\ndef ")[0]
    words = f"import os, sys\ndef python(){again}\nprint(python()[1])"
    said = [subprocess.run([sys.executable, *safe, "-c", words], capture_output=True, text=True, check=True).stdout
            for safe in (["-P"], [])]  # fmt: skip
    assert said == ["-Pm\n", "-m\n"]
    others = [file.name for file in MODULES if re.search(r"sys\.executable[^\n]*-m", file.read_text())]
    assert others == ["spawn.py"]

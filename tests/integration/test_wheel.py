"""The wheel in an empty environment, used from another folder: there is no checkout near it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from workspace import REPO, Built, Workspace

pytestmark = pytest.mark.engine


def pip(python: str | Path, *args: str) -> None:
    done = subprocess.run([python, "-m", "pip", *args], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(REPO))
    return next(folder.glob("rocstack-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """An environment of its own, dependencies from the index."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip(folder / "venv/bin/python", "install", "--quiet", str(wheel))
    (folder / "elsewhere").mkdir()
    # Without the checkout on PYTHONPATH there is nothing but the wheel.
    return replace(
        built.workspace, folder=folder / "elsewhere", tree=folder / "nothing", python=str(folder / "venv/bin/python")
    )


def test_wheel_holds_its_data_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    data = ("stacks/debian-13.yml", "findings/rules.yml", "check/smoke")
    for wanted in (*(f"images/{name}" for name in data), "templates/Dockerfile.j2"):
        assert f"rocstack/data/{wanted}" in names
    assert any(name.startswith("rocstack/data/images/trainer/rocstack_trainer/") for name in names)
    unwanted = ("__pycache__", ".pyc", "_cache/", "/.")
    assert [name for name in names if any(word in name for word in unwanted)] == []


def test_command_works_from_another_folder(installed: Workspace) -> None:
    command = Path(installed.python).with_name("rocstack")
    done = subprocess.run(
        [command, "stacks"], cwd=installed.folder, env=installed.environ(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "debian-13" in done.stdout
    where = subprocess.run(
        [installed.python, "-c", "import rocstack; print(rocstack.__file__)"],
        cwd=installed.folder, env=installed.environ(), capture_output=True, text=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(Path(installed.python).parents[1])), where.stdout


def test_renders_what_the_checkout_renders(installed: Workspace, built: Built) -> None:
    ours = built.workspace.run("render", "--json")
    theirs = installed.run("render", "--json")
    assert theirs.code == 0, theirs.err
    assert theirs.json["files"].keys() == ours.json["files"].keys()
    assert theirs.json == ours.json


def test_has_the_checks_of_the_checkout(installed: Workspace, built: Built) -> None:
    theirs = installed.run("verify", "--list", "--json")
    assert theirs.code == 0, theirs.err
    assert theirs.json == built.workspace.run("verify", "--list", "--json").json
    assert theirs.json["checks"]


def test_builds_the_very_same_images(installed: Workspace, built: Built) -> None:
    outcome = installed.build()
    for role in ("worker", "control"):
        assert outcome.image(role)["image_id"] == built.first.image(role)["image_id"]

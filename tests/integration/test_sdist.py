"""The source distribution and the installers that people use: no git, no checkout, no Ansible on the PATH."""

from __future__ import annotations

import email
import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from workspace import REPO

LOCAL = """all:
  children:
    control: {hosts: {n1: {ansible_connection: local}}}
    workers: {hosts: {n1: {}}}
"""


def run(*words: str | Path, cwd: Path, **env: str) -> str:
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path, out: Path, *targets: str) -> Path:
    """What hatchling makes of a source tree."""
    run(sys.executable, "-m", "hatchling", "build", "-d", out, *(f"-t{each}" for each in targets), cwd=folder)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    build(REPO, out, "sdist", "wheel")
    return out


def test_the_sdist_builds_the_same_wheel(dist: Path, tmp_path: Path) -> None:
    """Byte for byte, where there is no git."""
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "NOTICE", "CHANGELOG.md", "README.md", "docs/man/rocstack.1"} <= names
    assert [name for name in names if "__pycache__" in name or name.startswith(("tests/unit", "bench"))] == []
    again = build(next(tmp_path.iterdir()), tmp_path / "again", "wheel")
    first = next(dist.glob("*.whl"))
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(first.read_bytes()).digest()


def test_the_wheel_says_its_licence(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(wheel.read(metadata))
    assert told["License-Expression"] == "Apache-2.0"
    assert told.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert {name.rpartition("/")[2] for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["pipx", "uv"])
def test_an_installer_of_programs(dist: Path, tmp_path: Path, tool: str) -> None:
    """Its data, playbooks and Ansible are found from an empty folder, and pipx's `man` finds its pages."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    run(tmp_path / "venv/bin/pip", "install", "--quiet", tool, cwd=tmp_path)
    places = {"PIPX_HOME": "home", "PIPX_BIN_DIR": "bin", "PIPX_MAN_DIR": "man"}
    places |= {"UV_TOOL_DIR": "home", "UV_TOOL_BIN_DIR": "bin", "UV_CACHE_DIR": "cache"}
    env = {name: str(tmp_path / place) for name, place in places.items()}
    words = ["install"] if tool == "pipx" else ["tool", "install", "--quiet"]
    command = tmp_path / "venv/bin" / tool
    run(command, *words, "--python", sys.executable, next(dist.glob("*.whl")), cwd=tmp_path, **env)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "inventory.yml").write_text(LOCAL)
    own = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ""}
    command = tmp_path / "bin/rocstack"
    assert "debian-13" in run(command, "stacks", cwd=empty, **own)
    assert run(command, "render", "--nic", "broadcom", cwd=empty, **own).startswith("# debian-13 for broadcom")
    assert '"name": "n1"' in run(command, "probe", "inventory.yml", "--json", cwd=empty, **own)
    (pages,) = (tmp_path / "home").glob("**/share/man/man1")
    assert {"rocstack.1", "rocstack-deploy.1", "rocstack-release.1"} <= {page.name for page in pages.iterdir()}
    if tool == "pipx":
        assert (tmp_path / "man/man1/rocstack-deploy.1").is_file()

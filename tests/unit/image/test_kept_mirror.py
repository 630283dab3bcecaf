"""apt's update from kept packages, with this machine's own apt."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rocstack.base import paths

pytestmark = pytest.mark.skipif(shutil.which("apt-get") is None, reason="no apt here")

PACKAGE = """\
Package: munge
Version: 0.5
Architecture: amd64
Maintainer: nobody
Filename: pool/munge_0.5_amd64.deb
Size: 3
SHA256: {sum}
Description: none

"""
LISTS = "deb [trusted=yes arch=amd64] http://archive.example/debian stable main\n"
DEB822 = """\
Types: deb
URIs: http://archive.example/debian
Suites: stable
Components: main
Architectures: amd64
Trusted: yes
"""


def run(root: Path, *words: str) -> str:
    env = {**os.environ, "APT_CONFIG": str(root / "apt.conf")}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("compressed", ["true", "false"])
@pytest.mark.parametrize(
    ("name", "text"), [("sources.list", LISTS), ("sources.list.d/base.sources", DEB822)], ids=["list", "sources"]
)
def test_a_plain_index_serves_where_the_release_names_other_forms_too(
    tmp_path: Path, name: str, text: str, compressed: str
) -> None:
    """As a mirror's Release does, of which the folder has the plain index alone."""
    root = tmp_path
    for each in ("etc/apt/sources.list.d", "lists/partial", "cache/partial", "build", "kept/mirror"):
        (root / each).mkdir(parents=True)
    index = PACKAGE.format(sum=hashlib.sha256(b"deb").hexdigest()).encode()
    suite = root / "kept/mirror/archive.example/debian/dists/stable"
    (suite / "main/binary-amd64").mkdir(parents=True)
    (suite / "main/binary-amd64/Packages").write_bytes(index)
    forms = {"Packages": index, "Packages.xz": lzma.compress(index)}
    rows = "".join(
        f" {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-amd64/{form}\n" for form, data in forms.items()
    )
    about = "Origin: x\nSuite: stable\nCodename: stable\nDate: Thu, 01 Jan 2026 00:00:00 UTC\n"
    (suite / "Release").write_text(f"{about}Architectures: amd64\nComponents: main\nSHA256:\n{rows}")
    (root / "etc/apt" / name).write_text(text)
    (root / "build/site").write_text(f"KEPT={root}/kept\nAPT_OPTIONS=()\n")
    own = {
        "Dir::State::lists": root / "lists",
        "Dir::Etc::sourcelist": root / "etc/apt/sources.list",
        "Dir::Etc::sourceparts": root / "etc/apt/sources.list.d",
        "Dir::Etc::parts": "/dev/null",
        "Dir::Cache": root / "cache",
        "Acquire::GzipIndexes": compressed,
        "APT::Sandbox::User": "",
        "APT::Architecture": "amd64",
    }
    (root / "apt.conf").write_text("".join(f'{key} "{value}";\n' for key, value in own.items()))
    script = (paths.images() / "build/apt-update").read_text()
    script = script.replace("/run/rocstack/build", f"{root}/build").replace("/etc/apt", f"{root}/etc/apt")
    (root / "build/apt-update").write_text(script)
    for _ in range(2):  # a second call finds them, too
        run(root, "bash", str(root / "build/apt-update"))
        found = run(root, "apt-get", "-qq", "--print-uris", "download", "munge")
        assert found.startswith(f"'file:{root}/kept/mirror/archive.example/debian/pool/munge_0.5_amd64.deb'")

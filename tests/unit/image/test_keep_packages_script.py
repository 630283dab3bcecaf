"""The script that keeps a part of the mirror, with apt's own lists as they are in different base images."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rocstack.base import paths

HELPER = "/usr/lib/apt/apt-helper"
pytestmark = pytest.mark.skipif(shutil.which(HELPER) is None, reason="no apt here")

SHA = "ab" * 32
UBUNTU = """\
# See http://help.ubuntu.com/ubuntu for more.
Types: deb
# http://snapshot.example/archive/ubuntu/20260101T000000Z
URIs: http://archive.ubuntu.com/ubuntu/
Suites: noble noble-updates

Types: deb
URIs: http://security.ubuntu.com/ubuntu/
Suites: noble-security
"""


class Container:
    """A base image's apt, in a folder: its lists, and what it would install."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        for each in ("lists", "keyrings", "build", "bin"):
            (folder / each).mkdir()
        (folder / "build/site").write_text("APT_OPTIONS=()\n")
        self.before = UBUNTU
        self.mirror = ""
        self.install("")

    def install(self, uris: str) -> None:
        """What `apt-get --print-uris install` says."""
        (self.root / "uris").write_text(uris)
        (self.root / "bin/apt-get").write_text(f"#!/bin/sh\ncat {self.root}/uris\n")
        (self.root / "bin/apt-get").chmod(0o755)

    def keep(self, *have: str, asked: str = "munge\n") -> Path:
        text = (paths.images() / "build/keep-packages").read_text()
        for path, name in (
            ("/run/rocstack/build", "build"),
            ("/var/lib/apt/lists", "lists"),
            ("/etc/apt/keyrings", "keyrings"),
        ):
            assert path in text
            text = text.replace(path, str(self.root / name))
        given = {"sets": asked, "sources": "", "have": "".join(f"{each}\n" for each in have), "before": self.before}
        for name, content in given.items():
            (self.root / name).write_text(content)
        out = self.root / "kept"
        words = [*(str(self.root / name) for name in given), str(out)]
        path = f"{self.root}/bin:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "ROCSTACK_MIRROR": self.mirror}
        subprocess.run(["bash", "-s", *words], input=text, text=True, env=env, check=True)
        return out


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


@pytest.mark.parametrize(("ending", "form"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_an_index_is_kept_as_a_build_looks_for_it(container: Container, ending: str, form: type[bytes]) -> None:
    """The images of Docker's library have Acquire::GzipIndexes."""
    text = b"Package: munge\n" * 1000
    lists = container.root / "lists"
    (lists / f"archive.ubuntu.com_ubuntu_dists_noble_main_binary-amd64_Packages{ending}").write_bytes(form(text))
    (lists / f"archive.ubuntu.com_ubuntu_dists_noble_main_source_Sources{ending}").write_bytes(form(text))
    (lists / "archive.ubuntu.com_ubuntu_dists_noble_InRelease").write_text("signed")
    noble = container.keep() / "mirror/archive.ubuntu.com/ubuntu/dists/noble"
    assert (noble / "main/binary-amd64/Packages").read_bytes() == text
    assert (noble / "main/source/Sources").read_bytes() == text
    assert (noble / "InRelease").read_text() == "signed"
    assert len([each for each in noble.rglob("*") if each.is_file()]) == 3


def test_what_came_from_the_sites_mirror_is_below_the_first_of_the_hosts(container: Container) -> None:
    """The mirror stands for both; a comment names no host."""
    container.mirror = "http://mirror.example:3142/ubuntu/"
    (container.root / "lists/mirror.example:3142_ubuntu_dists_noble-security_InRelease").touch()
    pool = "pool/main/m/munge/munge_0.5_amd64.deb"
    container.install(f"'http://mirror.example:3142/ubuntu/{pool}' munge_0.5_amd64.deb 1 SHA256:{SHA}\n")
    kept = container.keep(f"archive.ubuntu.com/ubuntu/{pool}")
    assert (kept / "list").read_text() == f"munge_0.5_amd64.deb {SHA} archive.ubuntu.com/ubuntu/{pool}\n"
    assert (kept / "own").read_text().split() == ["archive.ubuntu.com/ubuntu", "security.ubuntu.com/ubuntu"]
    assert (kept / "mirror/archive.ubuntu.com/ubuntu/dists/noble-security/InRelease").exists()


def test_without_a_mirror_each_host_has_its_own(container: Container) -> None:
    (container.root / "lists/security.ubuntu.com_ubuntu_dists_noble-security_InRelease").touch()
    kept = container.keep()
    assert (kept / "mirror/security.ubuntu.com/ubuntu/dists/noble-security/InRelease").exists()
    assert (kept / "own").read_text() == ""


def test_a_build_that_takes_no_package_has_an_empty_list(container: Container) -> None:
    assert (container.keep(asked="") / "list").read_text() == ""

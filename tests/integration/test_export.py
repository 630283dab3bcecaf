"""`rocstack export`: what unsquashfs and an engine make of it."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from workspace import Workspace, engine, inspect

pytestmark = pytest.mark.engine
squashfs = pytest.mark.skipif(not shutil.which("mksquashfs"), reason="no mksquashfs here (tests/programs.sh)")
START = '["/start", "with space"]'


@pytest.fixture
def image(workspace: Workspace) -> str:
    """A small image with a link, a set-uid file, and a layer that removes a file of the one below."""
    name = f"{workspace.prefix}/small:1.0"
    first, tree = io.BytesIO(), workspace.folder / "tree.tar"
    with tarfile.open(fileobj=first, mode="w") as tar:
        for path, kind, mode, data in (
            ("etc", tarfile.DIRTYPE, 0o755, b""),
            ("etc/name", tarfile.REGTYPE, 0o4755, b"rocstack\n"),
            ("etc/rc", tarfile.REGTYPE, 0o644, b"of the image\n"),
            ("gone", tarfile.REGTYPE, 0o644, b"gone\n"),
            ("random", tarfile.REGTYPE, 0o644, os.urandom(300_000)),
        ):
            member = tarfile.TarInfo(path)
            member.type, member.mode, member.size, member.mtime = kind, mode, len(data), 1_700_000_000
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "etc/name"
        tar.addfile(link)
    tree.write_bytes(first.getvalue())
    engine("import", str(tree), f"{workspace.prefix}/below:1.0")
    (workspace.folder / "Dockerfile").write_text(
        f"FROM {workspace.prefix}/below:1.0 AS below\nFROM {workspace.prefix}/below:1.0\n"
        f'COPY --from=below /etc/name /second\nENV A="b c"\nWORKDIR /work\nENTRYPOINT {START}\nCMD ["x"]\n'
    )
    engine("build", "--quiet", "--tag", name, str(workspace.folder))
    workspace.note_images()
    return name


@squashfs
def test_a_squashfs_file_has_the_files_and_what_enroot_reads(workspace: Workspace, image: str) -> None:
    done = workspace.run("export", "--image", image, "-o", "small.sqsh", "--json")
    assert done.code == 0, done.err
    file, tree = workspace.folder / "small.sqsh", workspace.folder / "tree"
    assert done.json["size"] == file.stat().st_size
    assert not [each for each in workspace.folder.iterdir() if each.name.startswith(".small")]
    subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-dest", tree, file], check=True, capture_output=True)
    assert ((tree / "etc/name").read_text(), (tree / "link").readlink()) == ("rocstack\n", Path("etc/name"))
    assert (tree / "etc/name").stat().st_mode & 0o7777 == 0o4755
    assert (tree / "etc/name").stat().st_mtime == 1_700_000_000
    assert (tree / "etc/environment").read_text().splitlines()[-1] == "A=b c"
    assert "exec /start 'with space' \"$@\"" in (tree / "etc/rc").read_text()
    assert tree.stat().st_mode & 0o777 == 0o755
    assert (tree / "work").is_dir()
    assert [each.name for each in (tree / "dev").iterdir()] == []
    assert not (tree / ".dockerenv").exists()
    assert engine("ps", "--all", "--quiet", "--filter", f"ancestor={image}").stdout == ""


def test_an_engine_loads_the_layout_as_the_same_image(workspace: Workspace, image: str) -> None:
    done = workspace.run("export", "--image", image, "--format", "oci", "-o", "small", "--json")
    assert done.code == 0, done.err
    folder, ident = workspace.folder / "small", inspect(image)["Id"]
    assert done.json["size"] == sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    archive = workspace.folder / "small.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, ".")
    engine("rmi", image)
    engine("load", "--input", str(archive))
    assert inspect(image)["Id"] == ident


@pytest.mark.parametrize("kind", ["squashfs", "oci"])
def test_what_is_there_stays(workspace: Workspace, image: str, kind: str) -> None:
    (workspace.folder / "taken").write_text("mine")
    done = workspace.run("export", "--image", image, "--format", kind, "-o", "taken", "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "file-exists")
    assert (workspace.folder / "taken").read_text() == "mine"
    wrong = workspace.run("export", "--image", image, "--format", kind, "-o", "no/such/folder", "--json")
    assert (wrong.code, wrong.json["error"]["code"]) == (2, "no-folder")


APPTAINER = """#!/bin/sh
[ "$1 $2 $3" = "build small.sif oci:layout:latest" ] || { echo "not so: $*" >&2; exit 255; }
[ ! -e fail ] && [ ! -e ../fail ] || { echo "FATAL: no room" >&2; exit 255; }
cat layout/index.json >small.sif
"""


def test_a_sif_file_is_apptainers(workspace: Workspace, image: str) -> None:
    """A recorder stands for it: Debian has none."""
    line = ("export", "--image", image, "--format", "sif", "-o", "small.sif", "--json")
    if not shutil.which("apptainer"):
        done = workspace.run(*line)
        assert (done.code, done.json["error"]["code"]) == (3, "no-apptainer")
    programs = workspace.folder / "programs"
    programs.mkdir()
    (programs / "apptainer").write_text(APPTAINER)
    (programs / "apptainer").chmod(0o755)
    here = workspace.with_env(PATH=f"{programs}:{os.environ['PATH']}")
    (workspace.folder / "fail").touch()
    done = here.run(*line)
    assert (done.code, done.json["error"]["code"]) == (1, "sif-failed")
    assert "FATAL: no room" in done.json["error"]["what"]
    (workspace.folder / "fail").unlink()
    done = here.run(*line)
    assert done.code == 0, done.err
    (manifest,) = json.loads((workspace.folder / "small.sif").read_text())["manifests"]
    assert manifest["annotations"] == {"org.opencontainers.image.ref.name": "latest"}
    assert {each.name for each in workspace.folder.iterdir()} >= {"small.sif", "programs"}
    assert not [each for each in workspace.folder.iterdir() if each.name.startswith(".small")]


def test_an_image_that_is_not_there(workspace: Workspace) -> None:
    done = workspace.run("export", "--image", f"{workspace.prefix}/none:1", "--format", "oci", "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "no-image")
    assert workspace.run("export", "--format", "tar").code == 2
    assert list(workspace.folder.iterdir()) == []


@squashfs
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a small disk")
@pytest.mark.parametrize(("kind", "code"), [("squashfs", "export-failed"), ("oci", "disk-full")])
def test_a_disk_that_is_full_leaves_nothing(workspace: Workspace, image: str, kind: str, code: str) -> None:
    disk = workspace.folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk], check=True)
    try:
        done = workspace.run("export", "--image", image, "--format", kind, "-o", "disk/small", "--json")
        assert done.json["error"]["code"] == code
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)
    assert engine("ps", "--all", "--quiet", "--filter", f"ancestor={image}").stdout == ""

"""What `keep` brings into a folder, sends for, and leaves; the base image and pip are played."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.image import kept_packages as kept
from rocstack.image.base_image import BaseImage
from rocstack.settings.site import Site
from rocstack.stack import lock as locks
from rocstack.stack.resolve import Resolved
from rocstack.steps.image_plan import join
from rocstack.steps.options import BuildOptions, settings

AMD = "rocm-7.2-ubuntu-24.04"
START = BaseImage(reference="ubuntu:24.04", digest=f"sha256:{'ab' * 32}", how="registry")
FIRST, SECOND = "archive.ubuntu.com/ubuntu", "security.ubuntu.com/ubuntu"
INDEX = f"mirror/{FIRST}/dists/noble/main/binary-amd64/Packages"
POOL = "pool/main/m/munge/munge_0.5_amd64.deb"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class World:
    """What the base image and the wheels' index give, and what they were asked for."""

    def __init__(self, folder: Path, value: Resolved) -> None:
        self.folder, self.value = folder / "kept", value
        self.archives = [(part.name, each) for part in value.parts for each in part.choice.archives]
        wheel = locks.LockedWheel(name="torch", version="2.9.0", sha256=(sha256(b"torch"),))
        self.lock = locks.Lock(
            stack=value.stack.name,
            definition=locks.definition_digest(value.stack),
            wheels=(wheel,),
            sources=tuple(
                locks.LockedSource(
                    component=name, version="1", url=each.url, sha256=each.sha256 or sha256(each.file.encode())
                )
                for name, each in self.archives
            ),
        )
        self.files = {"list": b"", "own": b"", INDEX: b"Package: munge\n"}
        self.scripts: list[str] = []
        self.wheels: list[str] = []
        self.places: list[Path] = []

    def mirror(self, script: str, base: BaseImage, place: Path) -> None:
        self.scripts.append(script)
        self.places.append(place)
        for name, data in self.files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)

    def pip(self, command: list[str], index: str | None, site: Site) -> subprocess.CompletedProcess[str]:
        self.wheels.append(Path(command[command.index("-r") + 1]).read_text())
        (Path(command[command.index("--dest") + 1]) / "torch-2.9.0-cp312-cp312-linux_x86_64.whl").write_bytes(b"torch")
        return subprocess.CompletedProcess(command, 0, "", "")

    def keep(self, given: Path | None = None) -> kept.KeptPackages:
        text = "RUN /run/rocstack/build/apt-install \\\n    munge\n"
        return kept.keep(self.value, self.lock, text, START, Site(), self.folder, lambda text: None, given)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    value = join(settings(BuildOptions(stack=AMD, nic="tcp"))).resolved
    assert value.stack.components
    # An archive that the lock alone pins, so that a test can have one.
    parts = tuple(
        part.model_copy(
            update={
                "choice": part.choice.model_copy(
                    update={
                        "sha256": None,
                        "beside": tuple(each.model_copy(update={"sha256": None}) for each in part.choice.beside),
                    }
                )
            }
        )
        for part in value.parts
    )
    out = World(tmp_path, value.model_copy(update={"parts": parts}))
    assert out.archives
    monkeypatch.setattr(kept, "_from_mirror", out.mirror)
    monkeypatch.setattr(kept.pinning, "run_pip", out.pip)
    return out


def fetched(script: str) -> list[str]:
    return [line for line in script.splitlines() if "/kept/sources/" in line]


def test_an_archive_of_the_sources_is_not_downloaded(world: World, tmp_path: Path) -> None:
    given = tmp_path / "archives"
    given.mkdir()
    for _, archive in world.archives[1:]:
        (given / archive.file).write_bytes(archive.file.encode())
    name, first = world.archives[0]
    (given / first.file).write_bytes(b"another")
    assert world.keep(given).archives == len(world.archives) - 1
    (asked,) = fetched(world.scripts[0])
    assert first.url in asked
    assert f"SHA256:{locks.source_sha256(name, first, world.lock)}" in asked


def test_what_the_folder_has_is_not_sent_again(world: World) -> None:
    for _, archive in world.archives:
        world.files[f"sources/{archive.file}"] = archive.file.encode()
    first = world.keep()
    assert (len(fetched(world.scripts[0])), len(world.wheels)) == (len(world.archives), 1)
    again = world.keep()
    assert (fetched(world.scripts[1]), len(world.wheels)) == ([], 1)
    assert again == first.model_copy(update={"new": 0})


def test_what_the_folder_has_damaged_is_sent_again(world: World) -> None:
    world.keep()
    wheel = next((world.folder / "wheels").iterdir())
    wheel.write_bytes(b"half")
    world.keep()
    assert (len(world.wheels), wheel.read_bytes()) == (2, b"torch")


def test_a_mirror_without_an_index_is_not_kept(world: World) -> None:
    del world.files[INDEX]
    world.files[f"mirror/{FIRST}/dists/noble/InRelease"] = b"signed"
    with pytest.raises(CheckFailed) as caught:
        world.keep()
    assert (caught.value.code, world.folder.exists()) == ("kept-without-index", False)


def test_both_hosts_of_a_sites_mirror_find_their_files(world: World) -> None:
    world.files["own"] = f"{FIRST}\n{SECOND}\n".encode()
    world.files[f"mirror/{FIRST}/{POOL}"] = b"deb"
    found = world.keep()
    for host in (FIRST, SECOND):
        assert (world.folder / "mirror" / host / POOL).read_bytes() == b"deb"
    assert os.readlink(world.folder / "mirror" / SECOND) == "../archive.ubuntu.com/ubuntu"
    assert (found.debs, world.keep().debs) == (1, 1)
    assert not list(world.folder.glob("own")) + list(world.folder.glob("list"))


def test_a_folder_that_was_kept_without_the_mirror_goes_on(world: World) -> None:
    world.files[f"mirror/{SECOND}/{POOL}"] = b"deb"
    world.keep()
    del world.files[f"mirror/{SECOND}/{POOL}"]
    world.files["own"] = f"{FIRST}\n{SECOND}\n".encode()
    assert world.keep().debs == 1
    for host in (FIRST, SECOND):
        assert (world.folder / "mirror" / host / POOL).read_bytes() == b"deb"


@pytest.mark.parametrize("place", ["../../out", "/out", f"{FIRST}/below", "archive.ubuntu.com"])
def test_the_base_image_names_no_place_elsewhere(world: World, tmp_path: Path, place: str) -> None:
    world.files["own"] = f"{FIRST}\n{place}\n".encode()
    world.keep()
    assert not [each for each in tmp_path.rglob("*") if each.is_symlink()]
    assert (world.folder / INDEX).exists()


def test_what_a_killed_run_left_goes(world: World) -> None:
    world.keep()
    left = world.places[0]
    assert not left.exists()
    (left / "mirror").mkdir(parents=True)
    (left / "mirror/half.deb").write_bytes(b"x" * 1000)
    world.keep()
    assert not left.exists()


def test_what_another_run_is_bringing_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def mirror(script: str, base: BaseImage, place: Path) -> None:
        monkeypatch.setattr(kept, "_from_mirror", world.mirror)
        world.mirror(script, base, place)
        world.keep()
        assert place.is_dir()

    monkeypatch.setattr(kept, "_from_mirror", mirror)
    world.keep()
    assert len(world.places) == 2


def test_a_base_image_writes_nowhere_else(world: World, tmp_path: Path) -> None:
    """It names its mirrors so that the second link lies below the first, and from there leads out of the folder. The
    next time it sends a file through that one."""
    mine = tmp_path / "keys/authorized"
    mine.parent.mkdir()
    mine.write_text("mine")
    world.files |= {"own": b"keys\na/b/c\na/b/c/d\n", "mirror/keys/x": b""}
    world.keep()
    world.files |= {"own": b"keys\n", "mirror/keys/d/authorized": b"its own"}
    world.keep()
    assert mine.read_text() == "mine"
    links = [each for each in world.folder.rglob("*") if each.is_symlink()]
    assert links
    assert all(each.resolve().is_relative_to(world.folder.resolve()) for each in links)
    out = world.folder / "mirror/out"
    out.symlink_to("../../keys")  # as an older rocstack would have made it
    world.files |= {"mirror/out/authorized": b"its own"}
    with pytest.raises(BadInput) as caught:
        world.keep()
    assert caught.value.code == "kept-leads-out"
    out.unlink()
    del world.files["mirror/out/authorized"]
    out.symlink_to("../../keys")
    world.files |= {"mirror/out": b"its own"}  # where the link itself is: it would be moved into the folder
    with pytest.raises(BadInput) as caught:
        world.keep()
    assert caught.value.code == "kept-leads-out"
    assert [each.name for each in mine.parent.iterdir()] == ["authorized"]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("text", [b"munge_0.5_amd64.deb", b"\xff", b"\n" * 4_000_000])
@pytest.mark.parametrize("name", ["list", "own"])
def test_a_base_images_list_may_be_anything(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, text: bytes
) -> None:
    monkeypatch.setattr(kept, "MOST_LINES", 1 << 20)
    world.files[name] = text
    if (name, text[:1]) == ("own", b"m"):
        world.keep()  # a place that nothing came from
        return
    with pytest.raises(CheckFailed) as caught:
        world.keep()
    assert caught.value.code == "packages-unresolved"
    assert not (world.folder / "mirror").exists()


def test_a_base_image_that_sends_folders_for_ever_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FILES", 1000)
    folder = tarfile.TarInfo("mirror")
    folder.type = tarfile.DIRTYPE
    sent = 0

    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            nonlocal sent
            sent += size
            assert sent < 64 << 20, "it goes on"
            return folder.tobuf() * (size // tarfile.BLOCKSIZE)

    with pytest.raises(tarfile.TarError):
        kept._receive(Endless(), tmp_path)  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())


ENDLESS = """#!/bin/sh
if [ "$1" = rm ]; then echo "$3" >{place}/removed; exit; fi
echo "$@" >{place}/ran
{sends}
exec python3 -c 'import os
while 1: os.write(1, b"y"), os.write(2, b"y")'
"""


@pytest.mark.parametrize("sends", ["", "tar --create --directory=/etc hostname"])
def test_a_base_image_that_sends_for_ever_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sends: str
) -> None:
    """Neither its output nor its errors may fill the disk, nor its container's log."""
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(ENDLESS.format(place=tmp_path, sends=sends))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    (tmp_path / "kept").mkdir()
    with pytest.raises(CheckFailed) as caught:
        kept._from_mirror("", START, tmp_path / "kept")
    assert caught.value.code == "packages-unresolved"
    words = (tmp_path / "ran").read_text().split()
    assert f"--name={(tmp_path / 'removed').read_text().strip()}" in words
    assert {"--log-driver=none", "--cap-drop=ALL"} <= {*words}

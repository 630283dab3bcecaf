"""What a build takes from mirrors, as the Dockerfile says it, and folders of kept packages that are none."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from cli_run import Cli

from rocstack.base import paths
from rocstack.base.errors import BadInput, RocstackError
from rocstack.image import kept_packages as kept
from rocstack.stack import lock as locks
from rocstack.stack.lock import Lock


def test_each_place_that_asks_apt_is_found(cli: Cli, tmp_path: Path) -> None:
    assert cli("render", "--nic", "mellanox", "--to", "context").code == 0
    text = (tmp_path / "context/Dockerfile").read_text()
    found = kept.sets(text)
    assert len(found) >= 5
    named = {package for each in found for package in each}
    assert {"munge", "ibverbs-providers", "binutils"} <= named
    assert not {each for each in named if not each[0].isalnum()}
    asked = [line for line in text.splitlines() if line == "/run/rocstack/build/apt-install \\"]
    assert len(asked) >= len(found)


def stream(*members: tuple[str, bytes | None]) -> io.BytesIO:
    """A tar; without content a link to somewhere."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data) if data is not None else None)
    return io.BytesIO(out.getvalue())


def test_plain_files_come_out(tmp_path: Path) -> None:
    sent = stream(("./mirror/a.deb", b"x"))
    found = [(name, data.read(), size) for name, data, size in kept._members(sent, tmp_path)]
    assert found == [("mirror/a.deb", b"x", 1)]


@pytest.mark.parametrize(("name", "most"), [("SPARE", 1 << 62), ("FILES", 1)])
def test_a_base_image_fills_no_disk(name: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, name, most)
    with pytest.raises(tarfile.TarError, match="too many, or the disk"):
        list(kept._members(stream(("a", b"x"), ("b", b""), ("c", b"")), tmp_path))


@pytest.mark.parametrize("member", [("../out", b"x"), ("/out", b"x"), ("a/../../out", b"x"), ("link", None)])
def test_a_name_that_leads_elsewhere_is_refused(member: tuple[str, bytes | None], tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError):
        list(kept._members(stream(member), tmp_path))


@pytest.fixture
def lock() -> Lock:
    return locks.read(paths.images() / "stacks/debian-13.lock")


def code(folder: Path, lock: Lock) -> str:
    with pytest.raises(BadInput) as caught:
        kept.check(folder, lock)
    return caught.value.code


def test_a_folder_that_is_none_is_refused(tmp_path: Path, lock: Lock) -> None:
    assert code(tmp_path / "gone", lock) == "no-kept-packages"
    assert code(tmp_path, lock) == "no-kept-packages"
    (tmp_path / kept.MIRROR).mkdir()
    assert code(tmp_path, lock) == "kept-lacks-wheels"
    (tmp_path / kept.WHEELS).mkdir()
    for wheel in lock.wheels:
        (tmp_path / kept.WHEELS / f"{wheel.name.replace('-', '_')}-{wheel.version}-py3-none-any.whl").touch()
    kept.check(tmp_path, lock)
    next((tmp_path / kept.WHEELS).iterdir()).unlink()
    assert code(tmp_path, lock) == "kept-lacks-wheels"


def test_the_mirror_has_moved_on(lock: Lock) -> None:
    one, two = (each for each in lock.packages[-2:])

    def row(name: str, sha256: str | None) -> kept._Row:
        return kept._Row(f"{name}_1_amd64.deb", str(sha256), f"m/{name}.deb")

    kept._refuse_other([row(one.name, one.sha256), row("compiler", "0" * 64)], lock)
    kept._refuse_other([row(one.name, "0" * 64), row(one.name, one.sha256)], lock)  # a vendor's repository beside it
    with pytest.raises(RocstackError) as caught:
        kept._refuse_other([row(one.name, one.sha256), row(two.name, "0" * 64)], lock)
    assert caught.value.code == "kept-moved-on"
    assert two.name in caught.value.what


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--packages", "gone"), "no-kept-packages"),
        (("--keep-packages", "other"), "kept-elsewhere"),
        (("--keep-packages", "other/file"), "kept-elsewhere"),
        (("--packages", "gone", "--keep-packages", "new"), "bad-value"),
        (("--from", "image", "--packages", "gone"), "bad-value"),
    ],
)
def test_options_that_cannot_be(cli: Cli, tmp_path: Path, words: tuple[str, ...], code: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    done = cli("build", "--json", *words)
    assert (done.code, done.json()["error"]["code"]) == (2, code), done.err

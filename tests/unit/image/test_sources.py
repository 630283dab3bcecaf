"""`--sources`: upstream archives from a folder, each by its name and its sha256."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
from cli_run import Cli
from resolved_stack import join

from rocstack.base.errors import BadInput
from rocstack.image import pinning, sources
from rocstack.image.buildkit import BuildkitRequest
from rocstack.settings.site import Site
from rocstack.stack import lock, stack
from rocstack.stack.resolve import Resolved

UCX, OAC = (gzip.compress(data) for data in (b"UCX's archive", b"PMIx' autotools"))
URL = "https://example.org/pmix/archive/v5.tar.gz"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def resolved(*, pinned: bool = True) -> Resolved:
    """The default stack with UCX from an archive, and PMIx from two whose names say nothing."""
    oac = stack.SourceArchive(
        url="https://example.org/oac/archive/v5.tar.gz",
        sha256=sha256(OAC) if pinned else None,
        archive="oac-5.tar.gz",
        into="config/oac",
    )
    chosen = {
        "ucx": stack.ComponentChoice(
            method="source", version="1.20", url="https://example.org/ucx-1.20.tar.gz", sha256=sha256(UCX)
        ),
        "pmix": stack.ComponentChoice(
            method="source", version="5", url=URL, sha256=sha256(b""), archive="pmix-5.tar.gz", beside=(oac,)
        ),
    }
    return join(components={**stack.load("debian-13").components, **chosen}).resolved


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    given = tmp_path / "given"
    given.mkdir()
    for name, data in (("ucx-1.20.tar.gz", UCX), ("pmix-5.tar.gz", b""), ("oac-5.tar.gz", OAC), ("notes", b"ours")):
        (given / name).write_bytes(data)
    return given


def test_they_are_taken_by_name_and_nothing_else_is(folder: Path, tmp_path: Path) -> None:
    files = sources.check(resolved(), None, folder)
    assert [file.name for file in files] == ["ucx-1.20.tar.gz", "pmix-5.tar.gz", "oac-5.tar.gz"]
    place = sources.place(files, tmp_path / "place")
    (place / "of-another-build").touch()
    assert sources.place(files[:1], place) == place
    assert [(file.name, file.read_bytes()) for file in place.iterdir()] == [("ucx-1.20.tar.gz", UCX)]
    command = BuildkitRequest(tmp_path, "worker", "2026.47", Site(), sources=place).command()
    assert command[command.index("--build-context") + 1] == f"sources={place}"


def test_all_that_are_missing_are_named(folder: Path) -> None:
    (folder / "ucx-1.20.tar.gz").unlink()
    (folder / "oac-5.tar.gz").unlink()
    with pytest.raises(BadInput, match=r"lacks ucx-1.20.tar.gz \(ucx 1.20\), oac-5.tar.gz \(pmix 5\)$") as error:
        sources.check(resolved(), None, folder)
    assert error.value.code == "no-source"
    assert f"https://example.org/ucx-1.20.tar.gz as ucx-1.20.tar.gz (sha256 {sha256(UCX)})" in error.value.next_step
    with pytest.raises(BadInput, match="no such folder"):
        sources.check(resolved(), None, folder / "elsewhere")


def test_another_archive_is_refused(folder: Path) -> None:
    (folder / "oac-5.tar.gz").write_bytes(b"packed anew")
    with pytest.raises(BadInput, match=f"archive of pmix 5: its sha256 is .*, expected {sha256(OAC)}") as error:
        sources.check(resolved(), None, folder)
    assert error.value.code == "other-source"
    assert str(error.value.where) == str(folder / "oac-5.tar.gz")


def test_a_lock_pins_what_the_folder_has(folder: Path) -> None:
    value = resolved(pinned=False)
    assert lock.unpinned(value.stack, None)[:1] == ("pmix's oac-5.tar.gz",)
    asked = pinning.script(sources.pinned(value, folder), Site())
    assert f"echo {sha256(OAC)} | cut" in asked
    assert "build/fetch https" not in asked
    assert "build/fetch https://example.org/oac/archive/v5.tar.gz /tmp/archive" in pinning.script(value, Site())

    answer = "--- sources\n" + "".join(
        f"{name} {url} {sum}\n"
        for name, url, sum in (
            ("pmix", URL, sha256(b"")),
            ("pmix", "https://example.org/oac/archive/v5.tar.gz", sha256(OAC)),
        )
    )
    locked = lock.Lock(stack="s", definition="ab" * 32, sources=pinning.parse_sources(answer, value))
    assert "pmix's oac-5.tar.gz" not in lock.unpinned(value.stack, locked)
    assert len(sources.check(value, locked, folder)) == 3


def test_no_key_is_pinned(folder: Path) -> None:
    """A rocstack.yml that was copied could name ~/.ssh, and its stack a file there: what is pinned its steps read."""
    (folder / "oac-5.tar.gz").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    with pytest.raises(BadInput) as refused:
        sources.pinned(resolved(pinned=False), folder)
    assert (refused.value.code, str(refused.value.where)) == ("no-archive", str(folder / "oac-5.tar.gz"))


def test_the_dockerfile_downloads_what_no_folder_gives() -> None:
    value = join(components=resolved().stack.components)
    text = value.dockerfile()
    assert "FROM scratch AS sources" in text
    assert text.count("from=sources,target=/run/rocstack/sources") == 2
    assert f"fetch-source {URL} {sha256(b'')} /src pmix-5.tar.gz" in text
    assert f"{sha256(OAC)} /src/config/oac oac-5.tar.gz" in text
    assert "sources" not in join().dockerfile().split()


def test_two_archives_of_one_name_are_refused() -> None:
    data = stack.load("debian-13").model_dump()
    for name in ("ucx", "pmix"):
        data["components"][name] = {"method": "source", "version": "1", "url": f"https://example.org/{name}/v1.tar.gz"}
    with pytest.raises(ValueError, match=r"'pmix' has an archive 'v1.tar.gz' as another has"):
        stack.Stack.model_validate(data)


def test_nothing_is_built_without_them(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    text = stack.names()["debian-13"].read_text()
    old = '  ucx: {method: apt, version: "1.18.1"}\n'
    assert old in text
    new = f'  ucx: {{method: source, version: "1", url: "https://example.org/ucx-1.tar.gz", sha256: {"ab" * 32}}}\n'
    file.write_text(text.replace(old, new).partition("\nwheels:")[0] + "\nbudget_mb: 1600\ndisk_mb: 5000\n")
    ran = cli("build", "--stack", str(file), "--sources", str(tmp_path), "--json")
    assert (ran.code, ran.json()["error"]["code"]) == (2, "no-source")
    assert "ab" * 32 in ran.json()["error"]["next"]

"""The default stack from kept packages, where no mirror and no index can be reached."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from released import current
from workspace import STACK, Built, Workspace

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# A new name: an engine keeps what apt downloaded by that of the stack, and a build would take it from there.
NAME = f"kept-{secrets.token_hex(3)}"
NOWHERE = "http://127.0.0.1:9"  # the discard port, where nothing listens
UNREACHED = {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "PIP_INDEX_URL": f"{NOWHERE}/simple"}


@pytest.fixture(scope="module")
def site(base: str, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A folder with a lock and the packages that it names."""
    folder = tmp_path_factory.mktemp("kept")
    here = Workspace(folder, f"{built.workspace.prefix}-k", made=built.workspace.made)
    here = here.with_env(ROCSTACK_BASE_IMAGE=base)
    current(built, here)
    (folder / f"{STACK}.yml").rename(folder / f"{NAME}.yml")
    done = here.run("lock", "--stack", f"{NAME}.yml", "--to", "rocstack.lock", "--keep-packages", "kept")
    assert done.code == 0, done.err
    assert "kept: " in done.err
    return here


def build(site: Workspace, *words: str) -> tuple[int, str]:
    done = site.with_env(**UNREACHED).run("build", "--stack", f"{NAME}.yml", "--json", "--frozen", "--no-cache", *words)
    return done.code, done.err + done.failures()


def test_both_images_without_a_mirror(site: Workspace) -> None:
    code, said = build(site, "--packages", "kept")
    assert code == 0, said
    report = json.loads(next(site.folder.glob(".rocstack/*/report.json")).read_text())
    assert [(image["status"], image["drift"]) for image in report["images"]] == [("built", []), ("built", [])]


def test_the_mirror_was_not_reached_at_all(site: Workspace) -> None:
    code, said = build(site.with_env(ROCSTACK_ATTEMPTS="1"), "--role", "control")
    assert code == 1, said
    assert "127.0.0.1" in said


def test_what_was_kept_is_not_sent_again(site: Workspace) -> None:
    before = {path: path.stat().st_mtime_ns for path in (site.folder / "kept").rglob("*.deb")}
    done = site.run("lock", "--stack", f"{NAME}.yml", "--to", "again.lock", "--keep-packages", "kept")
    assert done.code == 0, done.err
    assert before == {path: path.stat().st_mtime_ns for path in (site.folder / "kept").rglob("*.deb")}
    assert " 0 files new" in done.err


def changed(path: Path) -> bytes:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
    return data


@pytest.mark.parametrize("pattern", ["mirror/**/munge_*.deb", "mirror/**/*Packages"])
def test_what_was_changed_is_refused(site: Workspace, pattern: str) -> None:
    files = [*(site.folder / "kept").glob(pattern)]
    assert files
    before = {file: changed(file) for file in files}
    try:
        code, said = build(site, "--packages", "kept", "--role", "control")
    finally:
        for file, data in before.items():
            file.write_bytes(data)
    assert code == 1, said

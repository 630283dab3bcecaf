"""Somebody's own image as a base: what is refused before anything of it runs, and what a mirror may answer."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.image import base_image, base_reader, in_base, newest, pinning
from rocstack.image.base_image import BaseImage
from rocstack.settings.settings import Settings
from rocstack.settings.site import Site
from rocstack.stack import base_reading, component, lock, overlay, resolve, stack
from rocstack.steps import build as steps
from rocstack.steps.options import BuildOptions

GLIBC, MUSL = "/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"
APT = ("/usr/bin/apt-get", "/usr/bin/dpkg")
READINGS = {
    path.stem: json.loads(path.read_text()) for path in (Path(__file__).parents[1] / "data/bases").glob("*.json")
}


class Files:
    """A container of an image with these paths. None of its programs is started."""

    id = "1"

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    def get_archive(self, path: str) -> tuple[Any, dict[str, Any]]:
        if path not in self.paths:
            raise docker.errors.NotFound(path)
        return SimpleNamespace(close=lambda: None), {"name": path, "size": 1, "linkTarget": ""}


def given(monkeypatch: pytest.MonkeyPatch, files: Files, **config: Any) -> None:
    """An engine that has one image, with these files."""

    @contextlib.contextmanager
    def created(*_: object) -> Iterator[Files]:
        yield files

    attrs = {"Architecture": config.pop("machine", "amd64"), "Config": config}
    monkeypatch.setattr(base_reader, "find_image", lambda *_: SimpleNamespace(attrs=attrs))
    monkeypatch.setattr(base_reader, "_created", created)
    monkeypatch.setattr(base_reader, "_run", lambda *_: pytest.fail("its Python was started"))


UNFIT = [
    # files, configuration, what is said
    ((MUSL, "/sbin/apk"), {}, "IMAGE has musl instead of glibc"),
    (("/busybox",), {}, "IMAGE has no glibc"),
    ((GLIBC, "/usr/bin/dnf"), {}, "IMAGE has dnf, not apt"),
    ((GLIBC,), {}, "IMAGE has no package manager"),
    ((GLIBC, "/usr/bin/dpkg"), {}, "IMAGE has no package manager"),
    ((GLIBC, *APT), {"machine": "arm64"}, "IMAGE is for arm64"),
    ((GLIBC, *APT), {"Labels": {"io.rocstack.role": "worker"}}, "IMAGE has labels of rocstack's own"),
    ((GLIBC, *APT), {"OnBuild": ["RUN reboot"]}, "IMAGE has ONBUILD instructions"),
]


@pytest.mark.parametrize(("files", "config", "says"), UNFIT, ids=[row[2] for row in UNFIT])
def test_an_unfit_base_is_refused_before_it_runs(
    files: tuple[str, ...], config: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, Files(*files), **config)
    for ask in (base_reader.read, base_reader.look):
        with pytest.raises(BadInput) as refused:
            ask(None, "IMAGE", None)  # type: ignore[arg-type]
        assert (refused.value.what, refused.value.code, refused.value.exit_code) == (says, "base-unfit", 2)
        assert refused.value.cause
        assert refused.value.next_step


def test_without_python_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack that puts everything on its base needs none there; one that takes components from it does."""
    given(monkeypatch, Files(GLIBC, *APT))
    assert base_reader.look(None, "IMAGE", None) is None  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="IMAGE has no /usr/bin/python3") as refused:
        base_reader.read(None, "IMAGE", None)  # type: ignore[arg-type]
    assert "apt-get install -y python3" in str(refused.value.next_step)


OWN = [
    ("amd-pytorch", "stack 'debian-13' is for system debian-13; IMAGE has ubuntu-24.04"),
    ("cuda", "is built for CUDA"),
    ("own-libibverbs", "which is not the distribution's libibverbs"),
]


@pytest.mark.parametrize(("case", "says"), OWN)
def test_a_base_of_ones_own_is_judged_for_every_stack(
    case: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """--base-image, with a stack that takes nothing from its base."""
    monkeypatch.chdir(tmp_path)
    reading = base_reading.parse(json.dumps(READINGS[case]["reading"]), "IMAGE")
    start = BaseImage(reference="IMAGE", digest="sha256:1", how="given")
    monkeypatch.setattr(steps, "_engine", lambda: None)
    monkeypatch.setattr(steps.engine, "find_image", lambda *_: object())
    monkeypatch.setattr(steps.bases, "ensure", lambda *_: start)
    monkeypatch.setattr(steps.base_reader, "look", lambda *_: reading)
    monkeypatch.setattr(steps, "_run", lambda *_: pytest.fail("it was built"))
    with pytest.raises(BadInput) as refused:
        steps.build(BuildOptions(base_image="own:1", nic="broadcom", way="inbox"))
    assert says in refused.value.what
    assert refused.value.next_step
    assert not list(tmp_path.iterdir())


def test_a_base_without_python_is_built_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    start = BaseImage(reference="IMAGE", digest="sha256:1", how="given")
    monkeypatch.setattr(steps, "_engine", lambda: None)
    monkeypatch.setattr(steps.engine, "find_image", lambda *_: object())
    monkeypatch.setattr(steps.bases, "ensure", lambda *_: start)
    monkeypatch.setattr(steps.base_reader, "look", lambda *_: None)
    monkeypatch.setattr(steps, "_run", lambda options, events, plan, *_: SimpleNamespace(ok=True, plan=plan))
    report: Any = steps.build(BuildOptions(base_image="own:1"))
    assert report.plan.resolved.base == "IMAGE"


# What apt 2.6 says of a suite that a mirror has no more, here of a name that it never had
GONE = """\
Ign:1 http://mirror.example/debian nosuchsuite InRelease
Err:2 http://mirror.example/debian nosuchsuite Release
  404  Not Found [IP: 192.0.2.80 80]
E: The repository 'http://mirror.example/debian nosuchsuite Release' does not have a Release file.
"""


def test_a_suite_that_has_moved_is_told_by_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    nics, components = component.library("nic"), component.library("components")
    value = resolve.resolve(stack.load("debian-13"), "tcp", components, nics, overlay.Overlay())
    start = BaseImage(reference="a", digest="sha256:1", how="registry")
    said = bytearray(GONE.encode())
    ended = in_base.RunningScript(io.BytesIO(), said, 100)
    monkeypatch.setattr(in_base, "running", lambda *_: contextlib.nullcontext(ended))
    with pytest.raises(CheckFailed, match="nosuchsuite Release' does not have a Release file") as refused:
        pinning.ask_apt(pinning.script(value, Site()), start)
    assert (refused.value.code, refused.value.exit_code) == ("index-unread", 1)
    assert "the mirror has no such suite" in str(refused.value.cause)
    assert "apt_mirror" in str(refused.value.next_step)
    said[:] = b"E: Unable to locate package x\n"
    with pytest.raises(CheckFailed) as refused:
        pinning.ask_apt(pinning.script(value, Site()), start)
    assert refused.value.code == "packages-unresolved"


@pytest.mark.parametrize(
    "said", ["a", "--- sources\none\n", "--- sources\nnosuch a b\n", "--- keys\none\n", "a b c d e\n"]
)
def test_a_base_that_answers_anything_is_told_of(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nics, components = component.library("nic"), component.library("components")
    value = resolve.resolve(stack.load("debian-13"), "tcp", components, nics, overlay.Overlay())
    start = BaseImage(reference="a", digest="sha256:1", how="registry")
    monkeypatch.setattr(pinning, "ask_apt", lambda *_: said)
    with pytest.raises(CheckFailed, match="the base image's answer is none"):
        pinning.make(value, start, Site())
    if not said.startswith("---"):
        with pytest.raises(CheckFailed, match="the base image's answer is none"):
            newest.ask_apt(value, lock.Lock(stack="a", definition="ab" * 32), start, Site())


def test_a_suite_that_has_moved_is_told_where_the_base_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"echo {json.dumps(line)} >&2\n" for line in (*GONE.splitlines(), "E: apt-get update failed"))
    for name, text in {"mmdebstrap": f"{lines}exit 25\n", "docker": "cat >/dev/null\nexit 1\n"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(CheckFailed) as refused:
        base_image.bootstrap(stack.load("debian-13"), Settings(), "a:1")
    assert refused.value.code == "index-unread"
    assert "nosuchsuite" in refused.value.what

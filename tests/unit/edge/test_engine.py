"""What a build needs of its engine, with a stand-in for it: room, and a base from somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from docker import DockerClient
from docker.errors import APIError, ImageNotFound

from rocstack.base.errors import Missing
from rocstack.edge import engine
from rocstack.image import base_image
from rocstack.settings.settings import Settings
from rocstack.stack import stack

STACK = stack.load("debian-13")
UNREACHABLE = 'Get "https://registry.example/v2/": dial tcp: lookup registry.example: no such host'


class Engine:
    """Images by name, and what the registry gives."""

    def __init__(self, local: Sequence[str] = (), remote: Sequence[str] = ()) -> None:
        self.local = local  # a list may grow meanwhile
        self.remote = remote
        self.pulled: list[str] = []
        self.images = SimpleNamespace(get=self.get, pull=self.pull)

    def get(self, name: str) -> Any:
        if name not in self.local:
            raise ImageNotFound(name)
        digests = [] if name.startswith("rocstack/") else [f"{name.partition(':')[0]}@sha256:{'1' * 64}"]
        return SimpleNamespace(attrs={"RepoDigests": digests}, id="sha256:" + "2" * 64)

    def pull(self, name: str) -> Any:
        self.pulled.append(name)
        if name not in self.remote:
            raise APIError("500", explanation=UNREACHABLE)
        self.local = [*self.local, name]
        return self.get(name)


def ensure(found: Engine, **settings: Any) -> base_image.BaseImage:
    return base_image.ensure(cast(DockerClient, found), STACK, Settings(**settings), lambda text: None)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of bases that mmdebstrap would have made."""
    names: list[str] = []
    monkeypatch.setattr(base_image, "bootstrap", lambda chosen, settings, reference: names.append(reference))
    return names


def test_the_registrys_base(made: list[str]) -> None:
    image = STACK.base.image
    for found in (Engine(local=(image,)), Engine(remote=(image,))):
        start = ensure(found)
        assert (start.reference, start.how, start.digest) == (image, "registry", "sha256:" + "1" * 64)
    assert made == []


def test_no_registry_answers(made: list[str]) -> None:
    found = Engine(local=made)
    start = ensure(found)
    assert start.how == "mmdebstrap"
    assert start.digest == "sha256:" + "2" * 64
    assert made == [start.reference] == [base_image.local_name(STACK, Settings())]
    pulls = len(found.pulled)
    assert ensure(found) == start
    assert (len(made), len(found.pulled)) == (1, pulls)  # not made again, and the registry not asked again


def test_no_registry_answers_and_it_must(made: list[str]) -> None:
    for settings in ({"base": "registry"}, {"base_image": "registry.example/own:1"}):
        with pytest.raises(Missing) as refused:
            ensure(Engine(), **settings)
        assert (refused.value.code, refused.value.exit_code) == ("no-base", 3)
        assert "no such host" in str(refused.value.cause)
        assert "base: mmdebstrap" in str(refused.value.next_step)
    assert made == []


def test_no_registry_and_no_mmdebstrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Missing) as refused:
        ensure(Engine())
    assert refused.value.code == "no-mmdebstrap"
    assert "apt-get install mmdebstrap" in str(refused.value.next_step)


def test_a_base_made_here_is_named_by_what_made_it() -> None:
    plain = base_image.local_name(STACK, Settings())
    assert plain.startswith("rocstack/base:debian-13-")
    assert plain != base_image.local_name(STACK, Settings(apt_mirror="http://mirror.example"))
    assert plain != base_image.local_name(STACK.model_copy(update={"exclude": ()}), Settings())
    assert plain == base_image.local_name(STACK.model_copy(update={"about": "x"}), Settings())


def test_room(tmp_path: Path) -> None:
    def client(root: Path) -> DockerClient:
        return cast(DockerClient, SimpleNamespace(info=lambda: {"DockerRootDir": str(root)}))

    engine.require_disk(client(tmp_path), 1)
    engine.require_disk(client(tmp_path / "on another machine"), 10**9)
    with pytest.raises(Missing) as refused:
        engine.require_disk(client(tmp_path), 10**9)
    assert (refused.value.code, refused.value.exit_code) == ("disk-full", 3)
    assert "1000000.0 GB" in refused.value.what
    assert str(tmp_path) in refused.value.what
    assert "docker builder prune" in str(refused.value.next_step)

"""Publishing against a real registry: the distribution's docker-registry, with a password, in a container."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from docker import DockerClient
from docker.errors import NotFound
from site_registry import USER, Registry, engine, free_port, running
from workspace import Built, Workspace, inspect

from rocstack.base.errors import CheckFailed, Missing
from rocstack.registry.local_image import LocalImage
from rocstack.registry.oci import parse_manifest
from rocstack.registry.push import push
from rocstack.registry.registry_http import as_engine
from rocstack.registry.repository import Repository

pytestmark = pytest.mark.engine

CONTENT = "c-0123456789abcdef"
WEEK = "2026.47"


@pytest.fixture(scope="module")
def registry(base: str) -> Iterator[Registry]:
    with running(base) as registry:
        yield registry


@dataclass
class Site:
    """One person's machine: a login and a repository of its own; local images are removed again."""

    client: DockerClient
    registry: Registry
    repository: str
    config: Path
    made: list[str]

    def login(self, password: str | None) -> None:
        token = base64.b64encode(f"{USER}:{password}".encode()).decode()
        auths = {self.registry.host: {"auth": token}} if password else {}
        self.config.write_text(json.dumps({"auths": auths}))
        self.client.api.reload_config(str(self.config))

    def image(self, text: str) -> str:
        """A tiny image that nobody else has; returns its id."""
        found = engine("build", "--quiet", "-", stdin=f"FROM scratch\nLABEL content={self.repository}/{text}\n")
        self.made.append(found)
        return found

    def push(
        self,
        image: str,
        tags: tuple[str, ...] = (WEEK,),
        content_tag: str = CONTENT,
        *,
        move_tags: bool = False,
        repository: str = "",
        **options: Any,
    ) -> tuple[str, list[str]]:
        """As `rocstack build --push` does: with what `docker login` left, and by the engine's rules for the host. The
        digest, and what was said."""
        said: list[str] = []
        host, _, name = (repository or self.repository).partition("/")
        target = Repository(
            as_engine(self.client.info(), host), name, on_retry=said.append, **{"attempts": 1, **options}
        )
        with LocalImage.find(self.client, image) as source:
            done = push(source, target, content_tag, tags, said.append, move_tags=move_tags)
        target.http.close()
        return done, said

    def digest(self, tag: str) -> str:
        return str(self.client.images.get_registry_data(f"{self.repository}:{tag}").id)


@pytest.fixture
def site(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    repository = f"{registry.host}/{secrets.token_hex(4)}/rocstack-worker"
    here = Site(docker.from_env(), registry, repository, tmp_path / "config.json", [])
    here.login(registry.password)
    yield here
    for image in here.made:
        subprocess.run(["docker", "rmi", "--force", image], capture_output=True)
    here.client.close()


def test_push_reads_back_and_a_second_push_sends_nothing(site: Site) -> None:
    image = site.image("one")
    tags = (CONTENT, "debian-13-tcp-2026.47", WEEK)
    done, said = site.push(image, tags[1:])
    assert {site.digest(tag) for tag in tags} == {done}
    assert said[1:] == [f"{site.repository}:{tag} is {done}" for tag in tags]

    again, said = site.push(image, tags[1:])
    assert again == done
    assert all("is there already" in text for text in said)


def test_a_real_layer_is_there_as_a_whole(site: Site, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(secrets.token_bytes(300_000))
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY weights /\n")
    image = engine("build", "--quiet", str(tmp_path))
    site.made.append(image)
    site.push(image)
    here = Repository(as_engine(site.client.info(), site.registry.host), site.repository.partition("/")[2])
    (layer,) = parse_manifest(here.manifest(WEEK) or b"")[1]
    here.http.close()
    assert 300_000 <= layer.size < 330_000


def test_existing_tag_is_not_moved_unless_asked(site: Site) -> None:
    first = site.push(site.image("one"))[0]
    other = site.image("two")
    second_content = "c-fedcba9876543210"
    with pytest.raises(CheckFailed) as caught:
        site.push(other, content_tag=second_content)
    assert caught.value.code == "tag-exists"
    assert first in caught.value.what
    assert site.digest(WEEK) == first
    with pytest.raises(NotFound):  # nothing was sent
        site.digest(second_content)

    site.push(other, content_tag=second_content, move_tags=True)
    assert site.digest(WEEK) == site.digest(second_content) != first


def test_a_release_tag_names_what_was_built_here(site: Site) -> None:
    """Not what somebody else put under the content tag. Where the release is somebody else's, nothing moves."""
    theirs = site.push(site.image("elsewhere"))[0]
    here = site.image("here")
    with pytest.raises(CheckFailed) as caught:
        site.push(here, (WEEK, "2026.48"))
    assert caught.value.code == "tag-exists"
    assert site.digest(CONTENT) == site.digest(WEEK) == theirs

    done, said = site.push(here, ("2026.48",))
    assert done == site.digest("2026.48") == site.digest(CONTENT) != theirs
    assert any(f"{CONTENT} is another image, {theirs}" in text for text in said)
    assert site.digest(WEEK) == theirs
    client = site.client
    client.images.pull(site.repository, tag="2026.48")
    assert client.images.get(f"{site.repository}:2026.48").id == here


@pytest.mark.parametrize("password", [None, "wrong"])
def test_login_is_asked_for(site: Site, password: str | None) -> None:
    site.login(password)
    with pytest.raises(Missing) as caught:
        site.push(site.image("one"), attempts=5, sleep=pytest.fail)
    assert caught.value.code == "registry-denied"
    assert f"docker login {site.registry.host}" in (caught.value.next_step or "")
    assert site.registry.password not in json.dumps(caught.value.to_dict())


def test_registry_that_is_not_there(site: Site) -> None:
    waits: list[float] = []
    nowhere = f"127.0.0.1:{free_port()}/a/rocstack-worker"
    with pytest.raises(Missing, match=r"can't be reached \(3 attempts\)") as caught:
        site.push(site.image("one"), repository=nowhere, attempts=3, sleep=waits.append)
    assert (caught.value.code, caught.value.exit_code) == ("registry-unreachable", 3)
    assert waits == [2, 4]


def test_registry_that_comes_back_between_attempts(site: Site) -> None:
    image = site.image("one")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            site.registry.start()

    site.registry.stop()
    try:
        done, said = site.push(image, attempts=4, sleep=wait)
    finally:
        site.registry.start()
    assert waits == [2, 4]
    assert site.digest(WEEK) == done
    assert sum("attempt" in text for text in said) == 2


def test_a_build_is_pushed_under_its_release_tags(site: Site, built: Built, workspace: Workspace) -> None:
    target = site.repository.rpartition("/")[0]
    here = workspace.with_env(DOCKER_CONFIG=str(site.config.parent))
    done = here.build("--role", "control", "--push", target, "--tag", WEEK)
    pushed = done.image("control")["pushed"]
    repository = f"{target}/rocstack-control"
    content = inspect(here.reference("control"))["Config"]["Labels"]["io.rocstack.content"]
    names = {f"c-{content[:16]}", WEEK, f"debian-13-tcp-{WEEK}"}
    assert set(pushed) == {f"{repository}:{name}" for name in names}
    for reference, digest in pushed.items():
        assert site.client.images.get_registry_data(reference).id == digest
    report = json.loads((here.folder / ".rocstack/debian-13-tcp/report.json").read_text())
    assert report["images"][0]["pushed"] == pushed
    again = here.build("--role", "control", "--push", target, "--tag", WEEK)
    assert again.image("control")["pushed"] == pushed
    assert "is there already" in again.err

"""Real builds on the real engine. What is made here is called rocstack-test-* and removed at the end; the builder's
cache stays, because it is what makes the next run quick."""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
from deployed_cluster import DeployedCluster, deploy
from workspace import STACK, Built, Workspace, engine
from xdist.scheduler import LoadScopeScheduling

from rocstack.edge import engine as engines
from rocstack.image import base_image as bases
from rocstack.settings.settings import Settings
from rocstack.stack import stack

# Of the files whose tests have the deployed cluster, those of the second one: about as much as the others.
SECOND = ("test_jobs", "test_lost_lock", "test_rotate_keys", "test_trust", "test_verify_store")


def lane(file: Path) -> str:
    """Tests of one lane run one after the other in one process: all of a deployed cluster, which is made once; else
    those of a file, which share what takes long to make."""
    if "deployed: DeployedCluster" not in file.read_text():
        return file.stem
    return f"deployed {2 if file.stem in SECOND else 1}"


class Lanes(LoadScopeScheduling):
    """What each of several processes (`pytest -n 4`) takes."""

    def _split_scope(self, nodeid: str) -> str:
        return lane(self.config.rootpath / nodeid.partition("::")[0])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those that take longest begin: as the last they would keep one process busy and the others waiting. Without
    several processes there is one cluster, and the order is that of the files."""
    first = ("deployed 1", "deployed 2", "test_trainer", "test_service_deploy")
    if config.getoption("numprocesses", None) or "PYTEST_XDIST_WORKER" in os.environ:
        lanes = {item.path: lane(item.path) for item in items}
        items.sort(key=lambda item: first.index(lanes[item.path]) if lanes[item.path] in first else len(first))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    return Lanes(config, log)


@pytest.fixture(scope="session")
def client() -> Iterator[docker.DockerClient]:
    engines.require_buildx()
    client = engines.connect()
    yield client
    client.close()


def tags() -> list[str]:
    return engine("image", "ls", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()


@contextmanager
def machine_lock() -> Iterator[None]:
    """Among all processes of the tests."""
    with (Path(tempfile.gettempdir()) / "rocstack-test.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def prefix(client: docker.DockerClient) -> Iterator[str]:
    """Every image name, container name and network of this run starts with it."""
    name = f"rocstack-test-{secrets.token_hex(4)}"
    yield name
    for container in engine("ps", "--all", "--quiet", "--filter", f"name=^{name}").stdout.split():
        engine("rm", "--force", "--volumes", container, check=False)
    for network in engine("network", "ls", "--quiet", "--filter", f"name=^{name}").stdout.split():
        engine("network", "rm", network, check=False)
    for volume in engine("volume", "ls", "--quiet", "--filter", f"name=^{name}").stdout.split():
        engine("volume", "rm", volume, check=False)
    for tag in tags():
        if tag.startswith(name):
            engine("rmi", tag, check=False)


@pytest.fixture(scope="session")
def made(prefix: str) -> Iterator[set[str]]:
    """Ids of the images built in this run: some lose their name to a later build."""
    ids: set[str] = set()
    yield ids
    for image in ids:
        # Without force: an image that carries somebody else's name, or runs, stays.
        names = engine("image", "inspect", "--format", "{{len .RepoTags}}", image, check=False).stdout.strip()
        if names == "0":
            engine("rmi", image, check=False)


def tag_base(client: docker.DockerClient, prefix: str) -> str:
    """The default stack's base, by rocstack's own way. One made here before, under whatever prefix, gets a second
    name: that saves 15 s, and the cache of everything built on it."""
    settings, choice = Settings(image_prefix=prefix), stack.load(STACK)
    wanted = bases.local_name(choice, settings)
    with machine_lock():
        if engines.find_image(client, wanted) is None:
            ending = wanted.removeprefix(prefix)
            same = [tag for tag in tags() if tag.endswith(ending)]
            if same:
                engine("tag", same[0], wanted)
        return bases.ensure(client, choice, settings, print).reference


@pytest.fixture(scope="session")
def base(client: docker.DockerClient, prefix: str) -> str:
    return tag_base(client, prefix)


@pytest.fixture
def workspace(tmp_path: Path, base: str, prefix: str, made: set[str]) -> Workspace:
    """An empty folder; its builds carry the names of this run, so nearly all of them come from the cache."""
    folder = tmp_path / "work"
    folder.mkdir()
    return Workspace(folder, prefix, made=made)


@pytest.fixture
def private_workspace(client: docker.DockerClient, workspace: Workspace) -> Workspace:
    """As `workspace`, but no other test sees the images built here."""
    other = Workspace(workspace.folder, f"{workspace.prefix}-{secrets.token_hex(2)}", made=workspace.made)
    tag_base(client, other.prefix)
    return other


@pytest.fixture(scope="session")
def built(base: str, prefix: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> Built:
    workspace = Workspace(tmp_path_factory.mktemp("built"), prefix, made=made)
    return Built(workspace, workspace.build())


@pytest.fixture(scope="session")
def deployed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedCluster]:
    workspace = Workspace(tmp_path_factory.mktemp("deployed"), built.workspace.prefix, made=built.workspace.made)
    with deploy(workspace) as cluster:
        yield cluster


@pytest.fixture
def unverified(deployed: DeployedCluster) -> Iterator[None]:
    """What a test proves of the cluster's images is gone after it."""
    yield
    deployed.unverify()


@pytest.fixture(scope="session")
def vllm_image(prefix: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """2 GB of packages and wheels, unless ROCSTACK_SERVE_IMAGE names one."""
    if given := os.environ.get("ROCSTACK_SERVE_IMAGE"):
        return given
    workspace = Workspace(tmp_path_factory.mktemp("vllm"), prefix, made=made)
    done = workspace.run("build", "--json", "--stack", "vllm-cpu", "--nic", "tcp", "--role", "worker", timeout=3600)
    assert done.code == 0, done.err + done.failures()
    return f"{prefix}/worker:vllm-cpu-tcp"

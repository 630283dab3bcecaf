"""Registries and virtual nodes for the tests of shipping."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from slurm_containers import Node, until
from workspace import Built, Workspace, engine

from rocstack.deploy.plan import tls
from rocstack.registry.registry_http import RegistryHttp, RegistryLogin
from rocstack.registry.repository import Repository

USER, NAME = "rocstack", "rocstack-worker"


@dataclass(frozen=True)
class Registry:
    """One of the control image. `host` is where this machine finds it, and nodes if it is in their network."""

    node: Node
    host: str
    password: str
    ca: Path

    def row(self, **changes: str) -> dict[str, str]:
        return {"host": self.host, "user": USER, "password": self.password, "ca": self.ca.read_text(), **changes}

    def repository(self) -> Repository:
        return Repository(RegistryHttp(self.host, RegistryLogin(USER, self.password), ca=self.ca), NAME)


def start(name: str, image: str, folder: Path, address: str, port: int, *flags: str) -> Registry:
    """With a certificate for `address`. As a site's would, it takes pushes where others reach it."""
    folder.mkdir()
    ca, ca_key = tls.make_ca(datetime.now(UTC))
    key, password = tls.make_key(), secrets.token_hex(16)
    (folder / "registry").mkdir()
    (folder / "registry/server.pem").write_text(tls.certificate(ca, ca_key, key, {address}, datetime.now(UTC)))
    (folder / "registry/server.key").write_text(key)
    (folder / "password").write_text(password)
    (folder / "pulls").mkdir()
    (folder / "pulls/accounts").write_text(f"n1:{secrets.token_hex(16)}\n")
    (folder / "ca.pem").write_text(ca)
    mounts = (
        f"--volume={folder}/registry:/etc/rocstack/registry:ro",
        f"--volume={folder}/pulls:/etc/rocstack/pulls:ro",
        f"--volume={folder}/password:/run/secrets/registry:ro",
    )
    listen = (f"--env=ROCSTACK_REGISTRY_PUSH=0.0.0.0:{port}", f"--env=ROCSTACK_REGISTRY_LISTEN=127.0.0.1:{port + 100}")
    kind = (*listen, "--env=ROCSTACK_SERVICE=registry")
    health = ("--health-interval=1s", "--health-start-period=1s", "--health-retries=1")
    engine("run", "--detach", f"--name={name}", *mounts, *kind, *health, *flags, image)
    node = Node(name)
    until(node.health, "healthy", node)
    return Registry(node, f"{address}:{port}", password, folder / "ca.pem")


@dataclass
class ShippingCluster:
    """Two virtual nodes, and worker images that differ in one layer."""

    workspace: Workspace
    built: Built
    images: list[str] = field(default_factory=list)

    @property
    def local(self) -> Path:
        return self.workspace.folder / ".rocstack/local"

    def container(self, node: str) -> Node:
        return Node(self.workspace.nodes()[node])

    def update(self, size: int) -> str:
        """The worker image with one more layer, that doesn't compress."""
        folder = self.workspace.folder / f"update{len(self.images)}"
        folder.mkdir()
        (folder / "change").write_bytes(secrets.token_bytes(size))
        (folder / "Dockerfile").write_text(f"FROM {self.built.worker}\nCOPY change /opt/change\n")
        name = f"{self.workspace.prefix}/worker:update{len(self.images)}"
        engine("build", "--quiet", f"--tag={name}", str(folder))
        self.images.append(name)
        return name

    def network(self) -> str:
        settings = json.loads(engine("inspect", self.container("n1").name).stdout)[0]["NetworkSettings"]
        return str(next(iter(settings["Networks"])))

    def inventory(self, **variables: object) -> Path:
        data = yaml.safe_load((self.local / "inventory.yml").read_text())
        data["all"]["vars"].update(variables)
        file = self.local / "other.yml"
        file.write_text(yaml.safe_dump(data))
        return file

    def address(self, node: str) -> str:
        data = yaml.safe_load((self.local / "inventory.yml").read_text())
        return str(data["all"]["children"]["workers"]["hosts"][node]["ansible_host"])

    def deploy(self, image: str, *args: str, inventory: Path | None = None, code: int = 0) -> Any:
        workspace = str(inventory or self.local / "inventory.yml")
        images = (f"--image={image}", f"--control-image={self.built.control}")
        done = self.workspace.run("deploy", workspace, "--nic", "tcp", *images, *args, "--json")
        assert done.code == code, done.err + done.out
        return done.json

    def settings(self, **ship: object) -> None:
        (self.workspace.folder / "rocstack.yml").write_text(yaml.safe_dump({"cluster": {"ship": ship}}))

    def runs(self, node: str) -> str:
        return self.container(node).run("docker", "inspect", "--format", "{{.Image}}", "rocstack-worker").stdout.strip()

    def services(self, node: str) -> set[str]:
        return set(self.container(node).run("docker", "ps", "--format", "{{.Names}}").stdout.split())

    def write(self, node: str, path: str, text: str) -> None:
        line = f"mkdir -p '{Path(path).parent}' && cat >'{path}'"
        engine("exec", "--interactive", self.container(node).name, "sh", "-c", line, input=text)

    def sent(self, node: str) -> int:
        """Bytes that left the node by its network card."""
        rows = self.container(node).run("cat", "/proc/net/dev").stdout.splitlines()[2:]
        return sum(int(row.split()[9]) for row in rows if not row.split()[0].startswith(("lo", "docker", "veth")))

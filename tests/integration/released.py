"""A folder from which releases are made, and a registry with TLS and a password to make them in: to be changed as
somebody could who reaches its storage, or may write there."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosign import logged_in
from site_registry import USER, Registry, certificate, engine, running
from workspace import REPO, STACK, Built, Outcome, Workspace

from rocstack.image import image_manifest
from rocstack.registry.registry_http import RegistryHttp, RegistryLogin
from rocstack.registry.repository import Repository
from rocstack.trust.keys import PublicKey, SigningKey

PASSWORD = "of the release's key"
STORE = "/var/lib/docker-registry/docker/registry/v2"


@dataclass
class Releases:
    """`here` is the folder's commands; `registry` where they release to, below `prefix`."""

    here: Workspace
    registry: Registry
    authority: Path
    prefix: str

    @property
    def target(self) -> str:
        return f"{self.registry.host}/{self.prefix}"

    @property
    def key(self) -> SigningKey:
        return SigningKey.load(self.here.folder / "release.key", PASSWORD.encode())

    @property
    def public(self) -> PublicKey:
        return PublicKey.load(self.here.folder / "release.pub")

    @contextmanager
    def repository(self, role: str) -> Iterator[Repository]:
        """As somebody who may write there."""
        http = RegistryHttp(self.registry.host, RegistryLogin(USER, self.registry.password), ca=self.authority)
        yield Repository(http, f"{self.prefix}/rocstack-{role}", attempts=3)
        http.close()

    def run(self, *words: str) -> Outcome:
        return self.here.run("release", *words)

    def must(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.code == 0, done.err + done.out
        return done.json

    def verify(self, *words: str) -> dict[str, Any]:
        """What `release verify` says, whatever it is."""
        done = self.run("verify", *words, "--json")
        found: dict[str, Any] = done.json
        assert done.code == (0 if found.get("ok") else found.get("error", {}).get("exit_code", 1)), done.err
        return found

    def write(self, *entries: dict[str, Any], **more: Any) -> None:
        """release.yml."""
        plan = {"registry": self.target, "keys": ["release.key"], "password_file": "password", **more}
        (self.here.folder / "release.yml").write_text(json.dumps({**plan, "images": list(entries)}, indent=1))

    def inside(self, script: str) -> str:
        """A command in the registry's container, on its storage."""
        return engine("exec", self.registry.container, "sh", "-ec", f"cd {STORE}; {script}")

    def with_storage(self, change: Callable[[], object]) -> None:
        """Changes the storage; the registry keeps some of it in its memory."""
        change()
        self.registry.stop()
        self.registry.start()

    def blob(self, digest: str) -> str:
        """The file of a blob in the storage."""
        return f"blobs/sha256/{digest[7:9]}/{digest[7:]}/data"

    def tag_folder(self, role: str, tag: str) -> str:
        return f"repositories/{self.prefix}/rocstack-{role}/_manifests/tags/{tag}"

    @contextmanager
    def restored(self) -> Iterator[None]:
        """What is done to the storage in the block is undone."""
        self.inside("rm -rf /kept; cp -a . /kept")
        try:
            yield
        finally:
            self.with_storage(lambda: self.inside("find . -mindepth 1 -delete; cp -a /kept/. ."))


def entry(nic: str = "tcp", **more: Any) -> dict[str, Any]:
    """The default stack as its lock here has it."""
    return {"stack": f"{STACK}.yml", "lock": f"{STACK}.lock", "nic": nic, **more}


@contextmanager
def releases(base: str, built: Built, here: Workspace, folder: Path) -> Iterator[Releases]:
    """The folder gets a stack and a lock of what the distribution has today, and a pair of keys."""
    tls = folder / "tls"
    tls.mkdir()
    authority = certificate(tls, "IP:127.0.0.1")
    with running(base, tls=tls) as registry:
        login = logged_in(folder / "login", registry, USER)
        own = here.with_env(DOCKER_CONFIG=str(login))
        current(built, own)
        (own.folder / "password").write_text(f"{PASSWORD}\n")
        (own.folder / "password").chmod(0o600)
        made = own.run("release", "keygen", "release.key", "--password-file", "password")
        assert made.code == 0, made.err
        yield Releases(own, registry, authority, f"t{secrets.token_hex(3)}")


def current(built: Built, here: Workspace) -> None:
    """The default stack with the versions that the distribution has now, and its lock: the stack's own names those of
    its last review."""
    text = (REPO / f"images/stacks/{STACK}.yml").read_text()
    manifests = Path(built.workspace.folder) / f".rocstack/{STACK}-tcp"
    for manifest in manifests.glob("*/manifest.json"):
        for name, version in image_manifest.read(manifest.parent)["versions"].items():
            text = re.sub(rf'(?m)^(  {name}: \{{method: apt, version: )"[^"]*"', rf'\1"{version}"', text)
    (here.folder / f"{STACK}.yml").write_text(text)
    done = here.run("lock", "--stack", f"{STACK}.yml", "--to", f"{STACK}.lock")
    assert done.code == 0, done.err

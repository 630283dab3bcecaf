"""The distribution's cosign, in a container with the folder of a test and the host's network."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from site_registry import Registry, engine

PASSWORD = "of the test's keys"


@dataclass(frozen=True)
class Cosign:
    """`login` is a folder with docker's config.json for the registry; the registry's authority is `authority`."""

    image: str
    folder: Path
    login: Path

    def run(self, *args: str, authority: Path | None = None) -> subprocess.CompletedProcess[str]:
        mounts = [f"--volume={self.folder}:/work", f"--volume={self.login}:/login:ro", "--workdir=/work"]
        options = ["--network=host", "--env=COSIGN_PASSWORD", "--env=DOCKER_CONFIG=/login", "--env=HOME=/tmp"]
        if authority:
            options += [f"--volume={authority}:/authority.pem:ro", "--env=SSL_CERT_FILE=/authority.pem"]
        line = ["docker", "run", "--rm", *mounts, *options, self.image, "cosign", *args]
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "COSIGN_PASSWORD": PASSWORD}
        return subprocess.run(line, capture_output=True, text=True, env=env, check=False)

    def must(self, *args: str, authority: Path | None = None) -> str:
        done = self.run(*args, authority=authority)
        assert done.returncode == 0, f"cosign {' '.join(args)}: {done.stderr}"
        return done.stdout


@contextmanager
def installed(base: str) -> Iterator[str]:
    """An image with cosign."""
    name = f"rocstack-test-cosign-{secrets.token_hex(4)}"
    line = "RUN apt-get update -qq && apt-get install -qqy --no-install-recommends cosign"
    engine("build", "--quiet", "--tag", name, "-", stdin=f"FROM {base}\n{line}\n")
    try:
        yield name
    finally:
        subprocess.run(["docker", "rmi", "--force", name], capture_output=True)


def logged_in(folder: Path, registry: Registry, user: str) -> Path:
    """A folder of docker's with a login for the registry."""
    import base64
    import json

    folder.mkdir(exist_ok=True)
    token = base64.b64encode(f"{user}:{registry.password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": token}}}))
    return folder

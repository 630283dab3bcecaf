"""The registry of the control image: TLS, a password, and what it keeps."""

from __future__ import annotations

import base64
import io
import json
import secrets
import ssl
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from slurm_containers import Node, until
from workspace import Built, engine

from rocstack.deploy.plan import tls

pytestmark = pytest.mark.engine


PULLS, PUSHES = "localhost:5000", "localhost:5001"


@dataclass(frozen=True)
class Registry:
    node: Node
    folder: Path
    image: str
    password: str
    pull: str
    ca: str

    def flags(self) -> tuple[str, ...]:
        tls = f"--volume={self.folder / 'registry'}:/etc/rocstack/registry:ro"
        pulls = f"--volume={self.folder / 'pulls'}:/etc/rocstack/pulls:ro"
        password = f"--volume={self.folder / 'password'}:/run/secrets/registry:ro"
        volume = f"--volume={self.node.name}:/var/lib/registry"
        health = ("--health-interval=1s", "--health-start-period=1s", "--health-retries=1")
        ports = ("--publish=127.0.0.1::5000", "--env=ROCSTACK_SERVICE=registry")
        return ("--detach", f"--name={self.node.name}", *ports, volume, tls, pulls, password, *health)

    def start(self) -> None:
        engine("run", *self.flags(), self.image)
        until(self.node.health, "healthy", self.node)

    @property
    def address(self) -> str:
        return engine("port", self.node.name, "5000").stdout.split()[0]

    def ask(self, path: str, password: str | None = None, method: str = "GET", user: str = "node") -> int:
        """From outside."""
        request = urllib.request.Request(f"https://{self.address}{path}", method=method)
        request.add_header("Accept", "application/vnd.oci.image.manifest.v1+json")
        if password is not None:
            word = base64.b64encode(f"{user}:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {word}")
        try:
            context = ssl.create_default_context(cadata=self.ca)
            return int(urllib.request.urlopen(request, timeout=20, context=context).status)
        except urllib.error.HTTPError as error:
            return error.code

    def skopeo(self, *command: str, fails: bool = False) -> str:
        """In a container beside it, which trusts its CA: what it says."""
        line = ("run", "--rm", f"--network=container:{self.node.name}", f"--volume={self.folder}:/scratch")
        done = engine(*line, self.image, "skopeo", *command, check=not fails)
        assert bool(done.returncode) == fails, done.stdout
        return done.stderr if fails else done.stdout


@pytest.fixture(scope="module")
def registry(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    folder, password, pull = tmp_path_factory.mktemp("registry"), secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    ca, ca_key = tls.make_ca(datetime.now(UTC))
    key = tls.make_key()
    (folder / "registry").mkdir()
    (folder / "registry/server.key").write_text(key)
    (folder / "registry/server.pem").write_text(tls.certificate(ca, ca_key, key, ["10.0.0.1"], datetime.now(UTC)))
    (folder / "certs").mkdir()
    (folder / "certs/ca.crt").write_text(ca)
    (folder / "password").write_text(password + "\n")
    many = "".join(f"n{each}:{secrets.token_hex(32)}\n" for each in range(100))
    (folder / "pulls").mkdir()
    (folder / "pulls/accounts").write_text(f"{many}node:{pull}\nother-node.example:{pull[::-1]}\n")
    words = {
        name: {"auth": base64.b64encode(login.encode()).decode()}
        for name, login in ((PULLS, f"node:{pull}"), (PUSHES, f"rocstack:{password}"))
    }
    (folder / "auth.json").write_text(json.dumps({"auths": words}))
    swapped = {PULLS: words[PUSHES], PUSHES: words[PULLS]}
    (folder / "swapped.json").write_text(json.dumps({"auths": swapped}))
    found = Registry(Node(f"{built.workspace.prefix}-registry"), folder, built.control, password, pull, ca)
    found.start()
    yield found
    found.node.remove()
    engine("volume", "rm", found.node.name)


def image(folder: Path) -> None:
    """An OCI image with one small file, in `folder`."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as layer:
        member = tarfile.TarInfo("hello")
        member.size = 5
        layer.addfile(member, io.BytesIO(b"hello"))
    name = f"rocstack-test-{secrets.token_hex(4)}"
    (folder / "layer.tar").write_bytes(data.getvalue())
    engine("import", str(folder / "layer.tar"), name)
    engine("save", "--output", str(folder / "image.tar"), name)
    engine("rmi", name)


def test_only_who_knows_the_password_is_let_in(registry: Registry) -> None:
    assert registry.ask("/v2/") == 401
    assert registry.ask("/v2/", registry.pull[:-1]) == 401
    assert registry.ask("/v2/", registry.pull) == 200
    assert registry.ask("/v2/", registry.pull[::-1], user="other-node.example") == 200
    assert registry.ask("/v2/", registry.pull, user="other-node.example") == 401
    assert registry.ask("/v2/", registry.pull, user="n1") == 401
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"https://{registry.address}/v2/", timeout=20)


def test_a_node_comes_and_another_goes_while_it_runs(registry: Registry) -> None:
    """As an order writes the file: another one in its place. A line that is no account changes nothing."""
    file, new = registry.folder / "pulls/accounts", secrets.token_hex(32)
    before, started = file.read_text(), engine("inspect", "--format={{.State.StartedAt}}", registry.node.name).stdout

    def take(text: str) -> int:
        (registry.folder / "next").write_text(text)
        (registry.folder / "next").rename(file)
        return registry.node.run("rocstack-registry-accounts", check=False).returncode

    assert take(f"node:{registry.pull}\nn1000:{new}\n") == 0
    assert registry.ask("/v2/", new, user="n1000") == 200
    assert registry.ask("/v2/", registry.pull) == 200
    assert registry.ask("/v2/", registry.pull[::-1], user="other-node.example") == 401
    assert take("n1:short\n") == 2
    assert registry.ask("/v2/", new, user="n1000") == 200
    assert take(before) == 0
    assert registry.ask("/v2/", new, user="n1000") == 401
    assert engine("inspect", "--format={{.State.StartedAt}}", registry.node.name).stdout == started
    assert registry.node.run("ls", "/run/rocstack/registry").stdout.split().count("node") == 1


def test_push_and_pull_and_what_outlives_the_container(registry: Registry) -> None:
    image(registry.folder)
    known = (
        "--authfile=/scratch/auth.json",
        "--dest-cert-dir=/scratch/certs",
        "--format=oci",
        "--dest-compress-format=zstd",
    )
    target = f"docker://{PULLS}/hello:1"
    registry.skopeo("copy", "--quiet", *known, "docker-archive:/scratch/image.tar", f"docker://{PUSHES}/hello:1")
    engine("kill", registry.node.name)
    registry.node.remove()
    registry.start()
    read = ("--authfile=/scratch/auth.json", "--cert-dir=/scratch/certs")
    found = json.loads(registry.skopeo("inspect", *read, target))
    manifest = json.loads(registry.skopeo("inspect", "--raw", *read, target))
    assert [layer["mediaType"] for layer in manifest["layers"]] == ["application/vnd.oci.image.layer.v1.tar+zstd"]
    registry.skopeo("copy", "--quiet", "--src-cert-dir=/scratch/certs", read[0], target, "oci:/scratch/pulled")
    assert (registry.folder / "pulled/index.json").exists()
    engine("run", "--rm", f"--volume={registry.folder}:/scratch", registry.image, "rm", "-rf", "/scratch/pulled")
    nodes_cannot_write(registry, known, found["Digest"], manifest["layers"][0]["digest"])


def nodes_cannot_write(registry: Registry, known: tuple[str, ...], digest: str, layer: str) -> None:
    """Neither with the account of the nodes nor, from outside, with the other one."""
    manifest, blob = f"/v2/hello/manifests/{digest}", f"/v2/hello/blobs/{layer}"
    tag, uploads = "/v2/hello/manifests/1", "/v2/hello/blobs/uploads/"
    asked = [("DELETE", path) for path in (manifest, blob, tag)] + [("PUT", manifest), ("PUT", tag), ("POST", uploads)]
    asked.append(("POST", f"/v2/other/blobs/uploads/?mount={layer}&from=hello"))
    for method, path in asked:
        assert registry.ask(path, registry.pull, method) == 405, (method, path)
        assert registry.ask(path, registry.password, method, user="rocstack") == 401, (method, path)
        assert registry.ask(path, registry.password, method) == 401, (method, path)
    archive = "docker-archive:/scratch/image.tar"
    for target in (PULLS, PUSHES):
        for login in ("auth", "swapped"):
            if (target, login) != (PUSHES, "auth"):
                line = (f"--authfile=/scratch/{login}.json", *known[1:], archive, f"docker://{target}/hello:1")
                said = registry.skopeo("copy", "--quiet", *line, fails=True)
                assert any(word in said for word in ("authentication required", "405", "unsupported")), (login, said)
    ports = registry.node.run("ss", "--listening", "--no-header", "--tcp", "--numeric").stdout
    listens = {line.split()[3] for line in ports.splitlines() if line.split()[3].endswith((":5000", ":5001"))}
    assert sorted(address.rpartition(":")[2] for address in listens) == ["5000", "5001"]
    assert "127.0.0.1:5001" in listens, "nobody but this host reaches what takes pushes"
    # Nobody deletes, not even who may push.
    line = ("--authfile=/scratch/auth.json", "--cert-dir=/scratch/certs", f"docker://{PUSHES}/hello:1")
    assert "unsupported" in registry.skopeo("delete", *line, fails=True).lower()
    for path in (manifest, blob, "/v2/hello/manifests/1"):
        assert registry.ask(path, registry.pull) == 200


def test_it_is_no_roots_and_tells_no_password(registry: Registry) -> None:
    lines = registry.node.run("ps", "-eo", "user:20,args").stdout.splitlines()
    assert any(line.split()[:2] == ["docker-registry", "docker-registry"] for line in lines), lines
    said = registry.node.run("ps", "axeww").stdout + registry.node.log()
    assert registry.password not in said
    assert registry.pull not in said
    kept = registry.node.run("stat", "--format=%U %a", "/run/rocstack/registry/server.key").stdout
    assert kept == "docker-registry 400\n"


@pytest.mark.parametrize("line", ["n2:short", "no account at all", ":an-account-without-a-name", "n2"])
def test_a_password_that_can_be_guessed_is_refused(registry: Registry, tmp_path: Path, line: str) -> None:
    (tmp_path / "accounts").write_text(f"n1:{registry.pull}\n{line}\n")
    mounts = (
        f"--volume={registry.folder / 'registry'}:/etc/rocstack/registry:ro",
        f"--volume={tmp_path}:/etc/rocstack/pulls:ro",
    )
    flags = (
        "--rm",
        "--env=ROCSTACK_SERVICE=registry",
        *mounts,
        f"--volume={registry.folder / 'password'}:/run/secrets/registry",
    )
    done = engine("run", *flags, registry.image, check=False)
    assert done.returncode == 2
    assert "is shorter than 16 characters" in done.stderr

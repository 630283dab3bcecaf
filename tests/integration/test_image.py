"""What is in the images, and above all what is not: every layer is read."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import testinfra
from image_layers import Layer, ca_line, read_layer, read_layers
from workspace import Built, Outcome, Workspace, engine, inspect

from rocstack.image.labels import OCI, OWN
from rocstack.image.render import UIDS

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def layers(built: Built, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Layer]]:
    return read_layers([built.worker, built.control], tmp_path_factory.mktemp("saved"), {})


def test_no_layer_holds_a_key(built: Built, layers: dict[str, list[Layer]]) -> None:
    assert len(layers[built.worker]) == len(inspect(built.worker)["RootFS"]["Layers"])
    assert sum(len(layer.names) for layer in layers[built.worker]) > 5000, "the whole image was read"
    assert [finding for found in layers.values() for layer in found for finding in layer.findings] == []


def test_the_scan_finds_what_it_looks_for(tmp_path: Path) -> None:
    """A test that can't fail proves nothing."""
    key = b"-----BEGIN RSA PRIVATE KEY-----\n" + b"A" * 64
    planted = {
        "etc/munge/munge.key": b"x",
        "opt/a.bin": b"\0" * (1 << 22) + key,
        "etc/plain": b"s3cret",
        "usr/ok": b"ok",
    }
    with tarfile.open(tmp_path / "layer", "w") as archive:
        for name, data in planted.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with (tmp_path / "layer").open("rb") as stream:
        layer = read_layer("layer", stream, 0, {"the password": b"s3cret"})
    assert layer.findings == [
        "the name of etc/munge/munge.key",
        "a private key in opt/a.bin",
        "the password in etc/plain",
    ]


def test_trainers_layer_is_small(built: Built, layers: dict[str, list[Layer]]) -> None:
    top = layers[built.worker][-1]
    assert any(name.endswith("rocstack_trainer/train.py") for name in top.names)
    print(f"the trainer's layer: {top.compressed / 1e3:.0f} kB compressed (limit 1000 kB)")
    assert top.compressed < 1_000_000


def test_byte_code_only_of_what_training_imports(built: Built, layers: dict[str, list[Layer]]) -> None:
    names = [name for layer in layers[built.worker] for name in layer.names]
    sources = {name for name in names if name.endswith(".py")}
    compiled = [name for name in names if name.endswith(".pyc")]
    print(f"{len(compiled)} of {len(sources)} modules are compiled")
    assert 100 < len(compiled) < 0.5 * len(sources)
    assert any("/torch/__pycache__/__init__.cpython" in name for name in compiled)
    assert len(compiled) == len(set(compiled)), "no byte code is in two layers"


def test_nothing_unpacked_that_nobody_reads(built: Built, layers: dict[str, list[Layer]]) -> None:
    """The base is not ours: a registry's holds its packages' licences."""
    base = len(inspect(built.first.json["base"])["RootFS"]["Layers"])
    files = [name for layer in layers[built.worker][base:] for name in layer.files]
    assert len(files) > 5000
    assert [name for name in files if re.match(r"usr/share/(doc|man|locale|info)/", name)] == []
    assert [name for name in files if re.match(r"var/(lib/apt/lists|cache/apt)/", name)] == []
    assert [name for name in files if name.startswith(("tmp/", "root/.cache", "run/rocstack"))] == []


@dataclass(frozen=True)
class Secretive:
    """A build from nothing on a site that has something to hide."""

    workspace: Workspace
    outcome: Outcome
    secret: str
    processes: frozenset[str]  # every command line seen while it ran
    image: str


@pytest.fixture(scope="module")
def secretive(base: str, prefix: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> Secretive:
    """no_proxy is the one site setting that can hold a secret and still let every step of the build run."""
    secret = f"hidden-{secrets.token_hex(8)}"
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    folder = tmp_path_factory.mktemp("secretive")
    value = ",".join(filter(None, [known, f"{secret}.invalid"]))
    workspace = Workspace(folder, f"{prefix}-secretive", env={"no_proxy": value, "NO_PROXY": value}, made=made)
    started = time.monotonic()
    process = workspace.start("build", "--role", "control", "--no-cache", "--base-image", base)
    seen: set[str] = set()
    while process.poll() is None:
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                seen.add(file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
            except OSError:  # it ended meanwhile
                continue
        time.sleep(0.2)
    out, err = process.communicate()
    workspace.note_images()
    assert process.returncode == 0, err
    outcome = Outcome(process.returncode, out, err, time.monotonic() - started)
    return Secretive(workspace, outcome, secret, frozenset(seen), workspace.reference("control"))


def test_sites_settings_reach_no_layer(secretive: Secretive, tmp_path: Path) -> None:
    unwanted = {"the site's setting": secretive.secret.encode(), "the site's CA": ca_line()}
    found = read_layers([secretive.image], tmp_path, unwanted)[secretive.image]
    assert [finding for layer in found for finding in layer.findings] == []


def test_sites_settings_are_in_no_history_log_or_process(secretive: Secretive) -> None:
    assert any("buildx build" in line for line in secretive.processes), "processes were looked at"
    assert not [line for line in secretive.processes if secretive.secret in line]
    history = engine("history", "--no-trunc", "--format", "{{json .}}", secretive.image).stdout
    assert len(history.splitlines()) > 5
    for text in (history, json.dumps(inspect(secretive.image)), secretive.outcome.out, secretive.outcome.err):
        assert secretive.secret not in text
        assert not re.search(r"(https?|no|all)_proxy=", text, re.IGNORECASE)
    for file in (secretive.workspace.folder / ".rocstack").rglob("*"):
        assert not file.is_file() or secretive.secret.encode() not in file.read_bytes(), file


def test_progress_without_a_terminal_is_a_line_a_step(secretive: Secretive) -> None:
    assert "\x1b" not in secretive.outcome.err
    assert "\r" not in secretive.outcome.err
    lines = secretive.outcome.err.splitlines()
    for stage in ("index", "shared", "control-base", "smoke-control", "check-control"):
        assert any(re.match(rf" *\d+\.\d s  {stage} +\S", line) for line in lines), stage
    log = (secretive.workspace.folder / ".rocstack/debian-13-tcp/logs/control.log").read_text()
    assert re.search(r"^\[shared\] .*Setting up munge", log, re.MULTILINE)
    assert re.search(r"^\[smoke-control\] \[munge\] ok: ", log, re.MULTILINE)


@pytest.mark.parametrize("role", ["worker", "control"])
def test_manifest_and_labels_tell_the_truth(built: Built, role: str) -> None:
    image = built.workspace.reference(role)
    ask = ("cat /etc/rocstack/manifest.json", "dpkg-query -W -f '${Package}\\t${Version}\\n'", "rocstack-versions")
    answers = engine("run", "--rm", image, "bash", "-c", "; echo ===; ".join(ask)).stdout
    text, packages, versions = answers.split("===\n")
    manifest = json.loads(text)
    assert manifest["packages"] == dict(line.split("\t") for line in packages.splitlines())
    assert manifest["versions"].items() >= dict(line.split("\t") for line in versions.splitlines()).items()

    labels = inspect(image)["Config"]["Labels"]
    own = {key.removeprefix(OWN): value for key, value in labels.items() if key.startswith(OWN)}
    lock = json.loads((Path(built.workspace.tree) / "images/stacks/debian-13.lock").read_text())
    assert lock["stack"] == manifest["stack"] == own["stack"] == "debian-13"
    assert manifest["lock"] == own["lock"] == built.first.json["lock"]
    assert (manifest["role"], manifest["nic"], manifest["way"]) == (own["role"], own["nic"], own["nic.way"])
    assert manifest["role"] == role
    assert ",".join(manifest["gfx"]) == own["gfx"]
    assert {k: v for k, v in own.items() if k.startswith("component.")} == {
        f"component.{name}": version for name, version in manifest["versions"].items()
    }
    assert manifest["facts"].items() <= own.items()
    assert labels[OCI + "base.name"] == built.first.json["base"]
    assert labels[OCI + "base.digest"] == own["base.digest"] == built.first.json["base_digest"]
    assert {OCI + "title", OCI + "description", OCI + "version"} <= labels.keys()


def test_wheels_are_the_locked_ones(built: Built) -> None:
    lock = json.loads((Path(built.workspace.tree) / "images/stacks/debian-13.lock").read_text())
    wanted = {wheel["name"]: wheel["version"] for wheel in lock["wheels"]}
    assert wanted
    script = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    assert json.loads(engine("run", "--rm", built.worker, "python3", "-c", script, *wanted).stdout) == wanted


@pytest.fixture(scope="module", params=["worker", "control"])
def host(request: pytest.FixtureRequest, built: Built) -> Iterator[testinfra.host.Host]:
    """The image at rest, through testinfra."""
    name = f"{built.workspace.prefix}-rest-{request.param}"
    engine(
        "run", "--detach", "--name", name, "--no-healthcheck", built.workspace.reference(request.param), "sleep", "900"
    )
    yield testinfra.get_host(f"docker://{name}")
    engine("rm", "--force", "--volumes", name)


def test_accounts_and_files(host: testinfra.host.Host) -> None:
    for name, number in UIDS.items():
        user = host.user(name)
        assert (user.uid, user.gid) == (number, number)
        assert user.shell == "/usr/sbin/nologin"
        assert host.group(name).gid == number
    for folder in ("/etc/munge", "/var/lib/munge", "/var/log/munge"):
        file = host.file(folder)
        assert (file.user, file.group, file.mode) == ("munge", "munge", 0o700)
    assert not host.file("/etc/munge/munge.key").exists
    assert not host.run("ls /etc/ssh/ssh_host_*").succeeded
    assert host.file("/usr/bin/tini").is_file
    for package in ("munge", "slurm-client", "ca-certificates"):
        assert host.package(package).is_installed
    assert not host.package("systemd").is_installed
    assert host.process.get(pid=1).comm == "tini"
    assert host.file("/etc/rocstack/manifest.json").mode == 0o644


def test_openmpi_chooses_ucx_by_its_own_settings(built: Built) -> None:
    """The image's defaults, no variable set: on TCP here, and on any device name."""
    script = "ompi_info --all --parsable | grep -E ':(pml|osc|pml_ucx_tls|pml_ucx_devices):value:'"
    found = engine("run", "--rm", built.worker, "bash", "-c", script).stdout
    values = dict(re.findall(r":param:(\w+):value:(\S+)", found))
    assert values == {"pml": "ucx", "osc": "ucx", "pml_ucx_tls": "any", "pml_ucx_devices": "any"}


@pytest.mark.parametrize("role", ["worker", "control"])
def test_entrypoint(built: Built, role: str) -> None:
    image = built.workspace.reference(role)
    bare = engine("run", "--rm", image, check=False)
    assert bare.returncode == 3
    assert f"rocstack-{role}: no MUNGE key at /run/secrets/munge.key: mount it there" in bare.stderr
    other = engine("run", "--rm", "--user", "nobody", image, check=False)
    assert other.returncode == 3
    assert "the daemons start as root" in other.stderr
    command = engine("run", "--rm", image, "bash", "-c", "echo $ROCSTACK_ROLE of $ROCSTACK_STACK; exit 7", check=False)
    assert (command.returncode, command.stdout) == (7, f"{role} of debian-13\n")


def test_dockerfile_needs_no_frontend_from_a_registry(built: Built) -> None:
    dockerfile = (built.workspace.folder / ".rocstack/debian-13-tcp/context/Dockerfile").read_text()
    assert not re.search(r"^#\s*syntax\s*=", dockerfile, re.MULTILINE)
    config = inspect(built.worker)["Config"]
    assert config["Entrypoint"] == ["/usr/bin/tini", "--", "/usr/local/bin/rocstack-entrypoint"]
    assert config["Healthcheck"]["Test"] == ["CMD", "/usr/local/bin/rocstack-health"]

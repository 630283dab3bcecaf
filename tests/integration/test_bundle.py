"""A bundle from a real registry to a fresh Debian without a network and without Python: set up, checked, installed."""

from __future__ import annotations

import base64
import json
import os
import platform
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from cosign import logged_in
from site_registry import USER, Registry, certificate, engine, running
from tiny_release import LAYERS, publish
from workspace import Outcome, Workspace

from rocstack.bundle.kit import _put_together
from rocstack.deploy.read.trusted import Kept
from rocstack.registry.registry_http import RegistryHttp, RegistryLogin
from rocstack.release.site import REQUIRED
from rocstack.trust.keys import SigningKey, write_pair
from rocstack.trust.verification import verify

pytestmark = pytest.mark.engine

SIZE = 2_000_000  # bytes of each layer
LATER = "2026-11-27T08:00:00Z"
SERVE = """\
printf 'version: 0.1\\nstorage: {filesystem: {rootdirectory: /r}}\\nhttp: {addr: "127.0.0.1:5000"}\\n' >/r.yml
docker-registry serve /r.yml >/r.log 2>&1 &
sleep 2
"""


@dataclass(frozen=True)
class Bundles:
    """`here` is the folder with release.pub, and the bundles made in it."""

    here: Workspace
    registry: Registry
    http: RegistryHttp
    key: SigningKey
    prefix: str

    @property
    def target(self) -> str:
        return f"{self.registry.host}/{self.prefix}"

    def bundle(self, name: str, *words: str) -> Outcome:
        made = self.here.run(
            "bundle", "--registry", self.target, "--key", "release.pub", "-o", name, "--json", *words
        )  # fmt: skip
        assert made.code == 0, made.err + made.out
        return made


@pytest.fixture(scope="module")
def place(base: str, prefix: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundles]:
    """A registry with a release and the next, whose trainer is another; and their bundles."""
    folder = tmp_path_factory.mktemp("bundle")
    for name in ("tls", "work"):
        (folder / name).mkdir()
    authority = certificate(folder / "tls", "IP:127.0.0.1")
    key = SigningKey.generate("release.key")
    write_pair(key, folder / "work/release.key", b"secret")
    write_pair(SigningKey.generate("other.key"), folder / "work/other.key", b"secret")
    with running(base, tls=folder / "tls") as registry:
        login = logged_in(folder / "login", registry, USER)
        here = Workspace(folder / "work", prefix, made=made).with_env(DOCKER_CONFIG=str(login))
        http = RegistryHttp(registry.host, RegistryLogin(USER, registry.password), ca=authority)
        place = Bundles(here, registry, http, key, f"t{secrets.token_hex(3)}")
        publish(http, place.prefix, [key], size=SIZE)
        place.bundle("first.bundle")
        publish(http, place.prefix, [key], "2026.48", LATER, {**LAYERS, "worker": ("base", "rocm", "trainer-2")}, SIZE)
        place.bundle("delta.bundle", "--since", "first.bundle")
        yield place
        http.close()


@pytest.fixture(scope="module")
def debian(base: str, prefix: str) -> Iterator[str]:
    """A Debian as mmdebstrap makes it, with a registry and no Python."""
    name = f"{prefix}/airgapped:1"
    line = "RUN apt-get update -qq && apt-get install -qqy --no-install-recommends docker-registry"
    check = "RUN ! command -v python3 && ! command -v docker"
    engine("build", "--quiet", "--tag", name, "-", stdin=f"FROM {base}\n{line}\n{check}\n")
    yield name
    subprocess.run(["docker", "rmi", "--force", name], capture_output=True)


def contents(bundle: Path, member: str) -> bytes:
    return subprocess.run(["tar", "-xOf", bundle, member], capture_output=True, check=True).stdout


def without_network(image: str, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """In a container whose only interface is its own loopback."""
    line = ["docker", "run", "--rm", "--network=none", f"--volume={folder}:/b:ro", image, "sh", "-euc", script]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=600)


def test_from_one_file_to_a_registry_of_releases(place: Bundles, debian: str) -> None:
    """And a rocstack that is damaged is set up again."""
    script = f"""
test -z "$(tail -n +2 /proc/net/route)"
{SERVE}
tar -xOf /b/first.bundle install | sh -s /b/first.bundle --key /b/release.pub --to-registry 127.0.0.1:5000/hpc
PATH=/opt/rocstack/bin:$PATH
rm -r /opt/rocstack/versions/*/env/lib/python3*/site-packages/typer
tar -xf /b/first.bundle install
./install /b/first.bundle --rocstack-only
rocstack --version
rocstack release verify 2026.47 --registry 127.0.0.1:5000/hpc --key /b/release.pub --layers
rocstack render --nic tcp >/Dockerfile
grep -c FROM /Dockerfile
tar -xf /b/delta.bundle install
./install /b/delta.bundle --key=/b/release.pub --to-registry=127.0.0.1:5000/hpc
rocstack release verify --registry 127.0.0.1:5000/hpc --key /b/release.pub --layers
./install /b/delta.bundle --key=/b/release.pub --to-registry=127.0.0.1:5000/hpc
"""
    done = without_network(debian, place.here.folder, script)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "release 2026.47: 2 of 2 images proved" in done.stdout
    assert "release 2026.48: 2 of 2 images proved" in done.stdout
    assert f"signed by {place.key.public.fingerprint}" in done.stdout
    assert done.stdout.count("setting up rocstack") == 2
    assert "release 2026.48 was here already: nothing to do" in done.stdout


REFUSED = {
    "without a key": ("", "bundle-without-key"),
    "by another key": ("--key /b/other.pub", "unknown-signer"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_proves_nothing_is_refused(place: Bundles, case: str) -> None:
    words, code = REFUSED[case]
    words = words.replace("/b/", f"{place.here.folder}/")
    done = place.here.run("bundle", "install", "first.bundle", "--json", *words.split())
    assert (done.code, done.json["error"]["code"]) == (2 if not words else 1, code)


def test_a_delta_without_what_it_leaves_out(place: Bundles, debian: str) -> None:
    """And a script that is stopped leaves no half."""
    script = f"""
{SERVE}
tar -xOf /b/delta.bundle install | sh -s /b/delta.bundle --to /o --rocstack-only && exit 9
tar -xf /b/first.bundle install
sh install /b/first.bundle --to /o --rocstack-only & pid=$!
while ! ls -d /o/versions/*/python/bin >/dev/null 2>&1; do sleep 0.1; done
kill -TERM $pid
wait $pid && exit 9
ls -A /o/versions | grep . && exit 9
ls -Ad /o/.new* 2>/dev/null && exit 9
sh install /b/first.bundle --to /o --rocstack-only
/o/bin/rocstack bundle install /b/delta.bundle --key /b/release.pub --to-registry 127.0.0.1:5000/x --json && exit 9
find /r -name data | grep . && exit 9
/o/bin/rocstack bundle install /b/delta.bundle --key /b/release.pub --to-registry 127.0.0.1:5000/x \\
  --with /b/first.bundle
"""
    done = without_network(debian, place.here.folder, script)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "leaves out parts of rocstack that the bundle of release 2026.47 has" in done.stderr
    assert '"bundle-needs"' in done.stdout


def test_the_same_bytes_again_and_little_beside_the_layers(place: Bundles) -> None:
    first = place.bundle("again.bundle", "--release", "2026.47").json
    assert (place.here.folder / "again.bundle").read_bytes() == (place.here.folder / "first.bundle").read_bytes()
    assert first["size"] == (place.here.folder / "again.bundle").stat().st_size
    assert first["size"] - first["kit"] <= 1.02 * first["layers"]
    assert first["layers"] == pytest.approx(4 * SIZE, rel=0.01)
    delta = (place.here.folder / "delta.bundle").stat().st_size
    assert delta < SIZE + 500_000


def test_into_the_engine_and_again(place: Bundles, prefix: str) -> None:
    names = [f"{prefix}/{role}:debian-13-tcp" for role in LAYERS]
    own = place.here.with_env(ROCSTACK_IMAGE_PREFIX=f"{prefix}-b")
    names = [name.replace(prefix, f"{prefix}-b") for name in names]
    try:
        done = own.run("bundle", "install", "first.bundle", "--key", "release.pub", "--json")
        assert done.code == 0, done.err
        assert [each["loaded"] for each in done.json["images"]] == [True, True]
        ids = {name: engine("image", "inspect", "--format={{.Id}}", name) for name in names}
        assert ids == {each["name"]: each["id"] for each in done.json["images"]}
        for image in json.loads(contents(place.here.folder / "first.bundle", "release.json"))["images"]:
            kept = Kept.read(place.here.folder / f".rocstack/trust/{image['id'][7:]}.json")
            assert kept
            assert verify(kept, image["digest"], [place.key.public], REQUIRED).attestations
        again = own.run("bundle", "install", "first.bundle", "--key", "release.pub", "--json")
        assert again.json["changed"] is False
        # The engine has the layers that the delta leaves out.
        delta = own.run("bundle", "install", "delta.bundle", "--key", "release.pub", "--json")
        assert delta.code == 0, delta.err
        worker = delta.json["images"][0]
        assert (worker["loaded"], worker["before"]) == (True, ids[names[0]])
        older = own.run("bundle", "install", "first.bundle", "--key", "release.pub", "--json")
        assert (older.code, older.json["error"]["code"]) == (1, "bundle-older")
        assert engine("image", "inspect", "--format={{.Id}}", names[0]) == worker["id"]
        back = own.run("bundle", "install", "first.bundle", "--unsigned", "--downgrade", "--json")
        assert back.code == 0, back.err
        assert "unsigned: not checked" in back.err
        assert engine("image", "inspect", "--format={{.Id}}", names[0]) == ids[names[0]]
    finally:
        tags = engine("image", "ls", "--format={{.Repository}}:{{.Tag}}", "--filter", f"reference={prefix}-b/*").split()
        subprocess.run(["docker", "rmi", "--force", *tags], capture_output=True)


def test_a_full_disk_leaves_nothing(place: Bundles, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", str(tmp_path)], check=True)
    try:
        done = place.here.run(
            "bundle", "--registry", place.target, "--key", "release.pub", "-o", str(tmp_path / "x.bundle"), "--json"
        )  # fmt: skip
        assert (done.code, done.json["error"]["code"]) == (3, "bundle-no-room")
        assert re.search(r"takes \d+ MB, and \d+ MB are free", done.json["error"]["what"])
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_ctrl_c_leaves_nothing(place: Bundles, tmp_path: Path) -> None:
    out = tmp_path / "x.bundle"
    words = ("bundle", "--registry", place.target, "--key", "release.pub", "-o", str(out))
    process = place.here.start(*words)
    try:
        for _ in range(600):
            if any(tmp_path.iterdir()) or process.poll() is not None:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in (0, 130)
    assert [file.name for file in tmp_path.iterdir()] == ([] if process.returncode else ["x.bundle"])


def test_a_release_that_was_changed_is_not_packed(place: Bundles) -> None:
    other = f"{place.prefix}x"
    publish(place.http, other, [SigningKey.generate()], size=1000)
    done = place.here.run(
        "bundle", "--registry", f"{place.registry.host}/{other}", "--key", "release.pub", "-o", "no.bundle", "--json"
    )  # fmt: skip
    assert (done.code, done.json["error"]["code"]) == (1, "unknown-signer")
    assert not (place.here.folder / "no.bundle").exists()


def test_the_script_refuses_other_machines(place: Bundles, debian: str, tmp_path: Path) -> None:
    shutil.copy(place.here.folder / "first.bundle", tmp_path)
    script = """
tar -xf /b/first.bundle install
sed -i 's/^GLIBC=.*/GLIBC=99.0/' install
./install /b/first.bundle && exit 9
sed -i 's/^ARCHITECTURE=.*/ARCHITECTURE=riscv64/' install
./install /b/first.bundle && exit 9
test ! -e /opt/rocstack
"""
    done = without_network(debian, tmp_path, script)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "needs glibc 99.0 or newer; this machine has glibc 2." in done.stderr
    assert "this bundle is for Linux on riscv64" in done.stderr


def test_its_signature_is_one_that_openssl_checks(place: Bundles, tmp_path: Path) -> None:
    (place.here.folder / "password").write_text("secret\n")
    (place.here.folder / "password").chmod(0o600)
    made = place.bundle("signed.bundle", "--sign", "release.key", "--password-file", "password").json
    mark = Path(place.here.folder / made["signature"]).read_text()
    (tmp_path / "sig").write_bytes(base64.b64decode(mark))
    for key, code in (("release.pub", 0), ("other.pub", 1)):
        line = ["openssl", "dgst", "-sha256", "-verify", key, "-signature", str(tmp_path / "sig"), "signed.bundle"]
        assert subprocess.run(line, cwd=place.here.folder, capture_output=True).returncode == code


def test_rocstack_puts_its_wheel_together_again(place: Bundles, tmp_path: Path) -> None:
    """Where it isn't a checkout: of what was installed."""
    archive = place.here.folder / "first.bundle"
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path, "--wildcards", "wheels/rocstack-*"], check=True)
    (wheel,) = (tmp_path / "wheels").iterdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "env"), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True)
    (place_of,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    (dist,) = Distribution.discover(name="rocstack", path=[str(place_of)])
    (tmp_path / "again").mkdir()
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(_put_together(dist, tmp_path / "again")) as other:
        contents = [{each: file.read(each) for each in file.namelist()} for file in (one, other)]
        modes = [{each.filename: each.external_attr & 0o111 << 16 for each in file.infolist()} for file in (one, other)]
    for each in contents:
        (record,) = (name for name in each if name.endswith("/RECORD"))
        del each[record]
    assert contents[0] == contents[1]
    assert modes[0] == modes[1]


def test_what_the_record_says_is_in_the_file(place: Bundles) -> None:
    record = json.loads(contents(place.here.folder / "first.bundle", "bundle.json"))
    assert (record["release"], record["architecture"], record["python"]) == (
        "2026.47",
        platform.machine(),
        platform.python_version(),
    )

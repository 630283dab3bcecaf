"""A real release in a bundle: into a fresh engine of a machine without a network, and on to a deployed cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from deployed_cluster import deploy
from released import Releases, entry, releases
from site_registry import engine
from workspace import REPO, STACK, Built, Workspace

from rocstack.settings.settings import Settings
from rocstack.stack import stack
from rocstack.virtual import node_image

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TAG = "2026.01"
WITH_ENGINE = """\
RUN apt-get update -qq && apt-get install -qqy --no-install-recommends docker.io docker-cli && ! command -v python3
VOLUME /var/lib/docker
"""


@pytest.fixture(scope="module")
def place(base: str, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    folder = tmp_path_factory.mktemp("release")
    (folder / "work").mkdir()
    here = Workspace(folder / "work", built.workspace.prefix, made=built.workspace.made)
    with releases(base, built, here, folder) as place:
        place.write(entry(default=True))
        place.must("--tag", TAG)
        yield place


@pytest.fixture(scope="module")
def written(place: Releases) -> dict[str, Any]:
    """What `bundle` says of the release's."""
    done = place.here.run("bundle", "-o", "site.bundle", "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json
    return found


def test_it_is_hardly_larger_than_its_layers(written: dict[str, Any]) -> None:
    assert written["size"] - written["kit"] <= 1.02 * written["layers"]
    assert written["kit"] < 80e6


def test_a_fresh_engine_without_a_network(place: Releases, written: dict[str, Any], base: str, prefix: str) -> None:
    name = f"{prefix}/airgapped:engine"
    engine("build", "--quiet", "--tag", name, "-", stdin=f"FROM {base}\n{WITH_ENGINE}")
    script = """
test -z "$(tail -n +2 /proc/net/route)"
dockerd --iptables=false --ip6tables=false --bridge=none >/log 2>&1 &
tar -xf /b/site.bundle install
sh install /b/site.bundle --rocstack-only
for try in $(seq 60); do docker version >/dev/null 2>&1 && break; sleep 0.5; done
PATH=/opt/rocstack/bin:$PATH
mkdir /small && mount -t tmpfs -o size=900m none /small
dockerd --iptables=false --ip6tables=false --bridge=none --data-root=/small --exec-root=/run/small \
  --pidfile=/run/small.pid --host=unix:///run/small.sock >/log.small 2>&1 &
for try in $(seq 60); do docker -H unix:///run/small.sock version >/dev/null 2>&1 && break; sleep 0.5; done
DOCKER_HOST=unix:///run/small.sock rocstack bundle install /b/site.bundle --key /b/release.pub && exit 9
test -z "$(docker -H unix:///run/small.sock images --all --quiet)"
rocstack bundle install /b/site.bundle --key /b/release.pub
docker run --rm --network=none --entrypoint=/bin/true rocstack/worker:debian-13-tcp
docker images --no-trunc --format '{{.Repository}}:{{.Tag}} {{.ID}}'
rocstack bundle install /b/site.bundle --key /b/release.pub
"""
    line = ["docker", "run", "--rm", "--privileged", "--network=none", f"--volume={place.here.folder}:/b:ro"]
    try:
        done = subprocess.run([*line, name, "sh", "-euc", script], capture_output=True, text=True, check=False)
    finally:
        engine("rmi", "--force", name)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "error bundle-engine-full: the engine's disk is too small: the images take about" in done.stderr
    for image in released(place):
        assert f"rocstack/{image['role']}:debian-13-tcp {image['id']}" in done.stdout.splitlines()
        assert f"rocstack/{image['role']}:debian-13-tcp-{TAG} {image['id']}" in done.stdout.splitlines()
    assert f"release {TAG} was here already: nothing to do" in done.stdout


def test_two_nodes_without_a_network(place: Releases, written: dict[str, Any], base: str, prefix: str) -> None:
    """From the file to a verified cluster, on a machine that no network leads to, with a trust policy. The nodes'
    image stands for servers that are there: it comes beside the bundle."""
    folder, client, name = place.here.folder, docker.from_env(), f"{prefix}/airgapped:cluster"
    own = Settings(image_prefix=prefix)
    node = node_image.ensure(client, stack.load(STACK), own, folder / "node-image", print)
    client.close()
    packages = WITH_ENGINE.replace("docker-cli", "docker-cli docker-buildx openssh-client iptables iproute2")
    engine("build", "--quiet", "--tag", name, "-", stdin=f"FROM {base}\n{packages}")
    engine("save", "--output", str(folder / "servers.tar"), base, node)
    script = f"""
cpu() {{
  cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null ||
    awk '/^usage_usec/ {{ print $2 "000" }}' /sys/fs/cgroup/cpu.stat
}}
spent() {{ echo "$1 after $(($(date +%s) - began)) s, $((($(cpu) - burnt) / 1000000000)) s of the processor"; }}
test -z "$(tail -n +2 /proc/net/route)"
dockerd --iptables=false --ip6tables=false --bridge=none >/log 2>&1 &
for try in $(seq 60); do docker version >/dev/null 2>&1 && break; sleep 0.5; done
docker load --quiet --input /b/servers.tar
began=$(date +%s) burnt=$(cpu)
tar -xf /b/site.bundle install
sh install /b/site.bundle --rocstack-only
spent "rocstack set up"
export PATH=/opt/rocstack/bin:$PATH ROCSTACK_IMAGE_PREFIX={prefix} ROCSTACK_REHEARSAL=1
mkdir /site
cd /site
cp /b/release.pub .
printf 'inventory: .rocstack/local/inventory.yml\ntrust: {{keys: [release.pub]}}\n' >rocstack.yml
rocstack bundle install /b/site.bundle --key release.pub
spent installed
rocstack local up --nodes 2
spent "nodes up"
rocstack deploy
spent deployed
rocstack verify --level 1
spent verified
rocstack status
grep -h . .rocstack/deploy/ansible.log | grep -c 'TASK .Trust'
rocstack local down
"""
    line = ["docker", "run", "--rm", "--privileged", "--network=none", f"--volume={folder}:/b:ro", name]
    try:
        done = subprocess.run([*line, "bash", "-euc", script], capture_output=True, text=True, check=False)
    finally:
        engine("rmi", "--force", name)
        (folder / "servers.tar").unlink()
    assert done.returncode == 0, done.stderr + done.stdout
    print(done.stdout)
    assert f"signed by {place.public.fingerprint}" in done.stdout
    assert "deployed after" in done.stdout


def released(place: Releases) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = place.must("--tag", TAG)["images"]
    return found


def test_a_change_of_the_trainer_is_a_few_mb(place: Releases, written: dict[str, Any], tmp_path: Path) -> None:
    changed = replace(place, here=place.here.with_tree(tmp_path / "tree"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "requirements.lock", "docs/man"):
        subprocess.run(["cp", "-r", "--parents", name, str(tmp_path / "tree")], cwd=REPO, check=True)
    with (tmp_path / "tree/images/trainer/rocstack_trainer/settings.py").open("a") as file:
        file.write("# changed\n")
    changed.must("--tag", "2026.02")
    done = changed.here.run("bundle", "--since", "site.bundle", "-o", "delta.bundle", "--json")
    assert done.code == 0, done.err
    assert done.json["size"] < 5e6, done.json
    assert done.json["left_out"] > 0.98 * (written["layers"] + written["kit"]) - 5e6


def test_deploy_goes_on(place: Releases, written: dict[str, Any], prefix: str, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    there = Workspace(tmp_path / "site", f"{prefix}-c")
    bundle, key = place.here.folder / "site.bundle", place.here.folder / "release.pub"
    done = there.run("bundle", "install", str(bundle), "--key", str(key), "--json")
    assert done.code == 0, done.err
    ids = {each["role"]: each["id"] for each in released(place)}
    with deploy(there) as cluster:
        status = cluster.json("status")
        assert {node["image"] for node in status["nodes"]} <= {*ids.values()}, status
        cluster.run("verify", "--level", "0")

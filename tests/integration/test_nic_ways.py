"""The slower ways to a provider, for real: the vendor's apt repository (a stand-in, served by a container) and another
rdma-core from its source."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import broadcom_standin
import pytest
import yaml
from test_nic_build import OWN, PROVIDER, Build, build, inside, nodes, vendor  # noqa: F401
from workspace import Workspace, engine, inspect

from rocstack.node.profile import NodeProfile

pytestmark = [pytest.mark.engine, pytest.mark.slow]
Nodes = dict[str, tuple[NodeProfile, Path]]

SERVER = rf"""
FROM {{base}}
RUN apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends \
    dpkg-dev gnupg python3 gcc libc6-dev make autoconf automake libtool libibverbs-dev >/dev/null
COPY *.tar.gz /src/
RUN <<'EOS' bash -euo pipefail
cd /src && tar -xf *.tar.gz && cd libbnxt_re-*/
sh autogen.sh >/dev/null && ./configure --libdir=/usr/local/lib/x86_64-linux-gnu >/dev/null && make >/dev/null
make install DESTDIR=/package >/dev/null
mkdir /package/DEBIAN
printf '%s\n' 'Package: bnxt-rocelib' 'Version: {broadcom_standin.VERSION}-1' 'Architecture: amd64' \
    'Maintainer: v <v@example.org>' 'Description: x' >/package/DEBIAN/control
export GNUPGHOME=/root/gnupg
mkdir -m 0700 "$GNUPGHOME"
gpg --quiet --batch --passphrase '' --quick-gen-key vendor@example.org ed25519 sign never
mkdir -p /repo/dists/one/main/binary-amd64 /repo/pool
dpkg-deb --build /package /repo/pool/bnxt-rocelib.deb >/dev/null
cd /repo
dpkg-scanpackages --multiversion pool >dists/one/main/binary-amd64/Packages 2>/dev/null
size=$(stat -c %s dists/one/main/binary-amd64/Packages)
sum=$(sha256sum <dists/one/main/binary-amd64/Packages | cut -d' ' -f1)
{{{{
    printf 'Origin: vendor\nSuite: one\nCodename: one\nComponents: main\nArchitectures: amd64\nDate: %s\n' "$(date -Ru)"
    printf 'SHA256:\n %s %s main/binary-amd64/Packages\n' "$sum" "$size"
}}}} >/tmp/Release
gpg --quiet --batch --clearsign --output dists/one/InRelease /tmp/Release
gpg --quiet --batch --export --armor >key.asc
EOS
CMD ["python3", "-m", "http.server", "--directory", "/repo", "80"]
"""


@pytest.fixture(scope="module")
def repository(base: str, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The setting `nic_repository` of a vendor whose package holds the stand-in."""
    image = name = f"{prefix}-nic-vendor"
    folder = tmp_path_factory.mktemp("server")
    broadcom_standin.make_tarball(folder, source=broadcom_standin.fetch_source(base))
    line = ["docker", "buildx", "build", "--load", "--quiet", "--tag", image, "-f", "-", str(folder)]
    subprocess.run(line, input=SERVER.format(base=base), text=True, check=True, stdout=subprocess.DEVNULL)
    engine("run", "--detach", "--name", name, image)
    address = engine("inspect", "--format", "{{.NetworkSettings.IPAddress}}", name).stdout.strip()
    key = engine("exec", name, "sha256sum", "/repo/key.asc").stdout.split()[0]
    uri = f"http://{address}"
    yield {
        "name": "nic-vendor", "uri": uri, "suite": "one", "key": f"{uri}/key.asc", "key_sha256": key, "origin": "vendor"
    }  # fmt: skip
    engine("rm", "--force", name)
    engine("rmi", image)


def provider(image: str) -> dict[str, object]:
    labels = inspect(image)["Config"]["Labels"]
    found: dict[str, object] = json.loads(labels["io.rocstack.nic.providers"])[0]
    return found


def test_the_vendors_package_at_the_drivers_release(
    build: Build,  # noqa: F811
    workspace: Workspace,
    repository: dict[str, str],
    nodes: Nodes,  # noqa: F811
) -> None:
    (workspace.folder / "rocstack.yml").write_text(yaml.safe_dump({"nic_repository": repository}))
    done = build("new", options=("--way", "package"))
    assert done.code == 0, done.err + done.failures()
    image = workspace.reference("worker", "broadcom")
    told = provider(image)
    assert (told["way"], told["version"], told["kernel_abi"]) == ("package", f"{broadcom_standin.VERSION}-1", [6, 6])
    assert told["path"] == f"/opt/rocstack/nic/package/{PROVIDER}"
    code, out = inside(image, nodes["new"][1], f"readlink -f {OWN}; ibv_devices; ls /etc/apt/sources.list.d")
    assert code == 0
    assert f"/usr/local/lib/x86_64-linux-gnu/{PROVIDER}" in out
    assert "bnxt_re7" in out
    assert "rocstack" not in out  # no trace of the repository


def test_another_rdma_core_lies_beside_the_distributions(
    build: Build,  # noqa: F811
    workspace: Workspace,
    base: str,
    nodes: Nodes,  # noqa: F811
) -> None:
    archive = workspace.folder / f"rdma-core-{broadcom_standin.RDMA_CORE}.tar.gz"
    archive.write_bytes(broadcom_standin.fetch_source(base).read_bytes())
    done = build("old", options=("--way", "newer", "--nic-source", str(archive)))
    assert done.code == 0, done.err + done.failures()
    image = workspace.reference("worker", "broadcom")
    told = provider(image)
    assert (told["way"], told["version"], told["kernel_abi"]) == ("newer", broadcom_standin.RDMA_CORE, [1, 1])
    assert str(told["path"]).startswith("/opt/rdma-core/lib/libibverbs/")
    code, out = inside(image, nodes["old"][1], "LD_DEBUG=libs ibv_devices; ldd $(command -v ib_write_bw)")
    assert code == 0
    assert "calling init: /opt/rdma-core/lib/libibverbs.so.1" in out
    assert f"calling init: {told['path']}" in out
    assert "bnxt_re7" in out
    assert "libibverbs.so.1 => /opt/rdma-core/lib/libibverbs.so.1" in out
    log = (workspace.folder / ".rocstack/debian-13-broadcom/logs/worker.log").read_text()
    assert "tested again, since the NIC's layer changes files below it: " in log
    assert {"torch all-reduces on mpi", "munge encodes and unmunge decodes"} <= {
        text.partition(" ok: ")[2] for text in log.splitlines() if text.startswith("[smoke-worker] ")
    }

"""A foreign apt repository, as AMD's is used: signed, pinned over the distribution's own packages, and gone from the
image. A stand-in repository is served by a container."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from workspace import REPO, STACK, engine

from rocstack.image import pinning, render
from rocstack.image.base_image import BaseImage
from rocstack.settings.site import Site
from rocstack.stack import component, lock, overlay, resolve, stack

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# One package under a name that the distribution has too, at a lower version: only a pin makes apt take it.
SERVER = r"""
FROM {base}
RUN apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends \
    dpkg-dev gnupg python3 >/dev/null
RUN <<'EOS' bash -euo pipefail
export GNUPGHOME=/root/gnupg
mkdir -m 0700 "$GNUPGHOME"
gpg --quiet --batch --passphrase '' --quick-gen-key vendor@example.org ed25519 sign never
mkdir -p /repo/dists/one/main/binary-amd64 /repo/pool /package/DEBIAN
printf 'Package: tini\nVersion: 0.0.1\nArchitecture: amd64\nMaintainer: v <v@example.org>\nDescription: stand-in\n' \
    >/package/DEBIAN/control
mkdir -p /package/usr/bin
printf '#!/bin/sh\nshift\nexec "$@"\n' >/package/usr/bin/tini
chmod 0755 /package/usr/bin/tini
dpkg-deb --build /package /repo/pool/tini.deb >/dev/null
cd /repo
dpkg-scanpackages --multiversion pool >dists/one/main/binary-amd64/Packages 2>/dev/null
{{
    printf 'Origin: vendor\nSuite: one\nCodename: one\nComponents: main\nArchitectures: amd64\nDate: %s\nSHA256:\n' \
        "$(date -Ru)"
    cd dists/one
    sha256sum main/binary-amd64/Packages | awk '{{print " " $1, "SIZE", $2}}' |
        sed "s/SIZE/$(stat -c %s main/binary-amd64/Packages)/"
    cd /repo
}} >/tmp/Release
gpg --quiet --batch --clearsign --output dists/one/InRelease /tmp/Release
gpg --quiet --batch --export --armor >key.asc
tar -C /package -cf archive.tar usr
EOS
CMD ["python3", "-m", "http.server", "--directory", "/repo", "80"]
"""


@dataclass(frozen=True)
class Vendor:
    address: str
    key_sha256: str
    archive_sha256: str


@pytest.fixture(scope="module")
def vendor(base: str, prefix: str) -> Iterator[Vendor]:
    image = name = f"{prefix}-vendor"
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        text = SERVER.format(base=base).encode()
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    subprocess.run(["docker", "build", "--quiet", "--tag", image, "-"], input=context.getvalue(), check=True)
    engine("run", "--detach", "--name", name, image)
    found = engine("inspect", "--format", "{{.NetworkSettings.IPAddress}}", name).stdout.strip()
    sums = engine("exec", name, "sha256sum", "/repo/key.asc", "/repo/archive.tar").stdout.split()
    yield Vendor(f"http://{found}", sums[0], sums[2])
    engine("rm", "--force", name)


def resolved(base: str, vendor: Vendor, key_sha256: str | None, archive: bool = False) -> resolve.Resolved:
    chosen = stack.load(STACK)
    repository = stack.AptRepository(
        name="vendor", uri=vendor.address, suite="one", key=f"{vendor.address}/key.asc", key_sha256=key_sha256,
        origin="vendor",
    )  # fmt: skip
    source = stack.ComponentChoice(method="source", version="1", url=f"{vendor.address}/archive.tar")
    components = {**chosen.components, **({"pmix": source} if archive else {})}
    chosen = chosen.model_copy(update={"repositories": (repository,), "components": components})
    value = resolve.resolve(chosen, "tcp", component.library("components"), component.library("nic"), overlay.Overlay())
    return value.model_copy(update={"base": base})


def build_shared(value: resolve.Resolved, image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Builds what both roles share; returns what a failed build said, empty when it succeeded."""
    folder = tmp_path_factory.mktemp("context") / "context"
    libraries = component.library("components"), component.library("nic")
    render.render(value, lock.read(stack.names()[STACK].with_suffix(".lock")), *libraries).write(folder)
    command = ["buildx", "build", "--progress=plain", "--target", "shared", "--tag", image, str(folder)]
    done = engine(*command, check=False)
    return "" if done.returncode == 0 else done.stderr


def test_it_is_preferred_and_leaves_no_trace(
    base: str, vendor: Vendor, prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    image = f"{prefix}-shared"
    assert build_shared(resolved(base, vendor, vendor.key_sha256), image, tmp_path_factory) == ""
    query = "dpkg-query -W -f '${Version}' tini; find /etc/apt -name 'rocstack*'; ls /etc/apt/keyrings"
    assert engine("run", "--rm", image, "bash", "-c", query).stdout.strip() == "0.0.1"


def test_another_key_is_refused(
    base: str, vendor: Vendor, prefix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    said = build_shared(resolved(base, vendor, "0" * 64), f"{prefix}-none", tmp_path_factory)
    assert "sha256sum: WARNING: 1 computed checksum did NOT match" in said
    said = build_shared(resolved(base, vendor, None), f"{prefix}-none", tmp_path_factory)
    assert f"no sha256 is known for {vendor.address}/key.asc, the key of repository vendor" in said


def test_a_lock_notes_the_key_that_it_finds(base: str, vendor: Vendor) -> None:
    value = resolved(base, vendor, None)
    answer = pinning.ask_apt(pinning.script(value, Site()), BaseImage(reference=base, digest="", how="given"))
    (key,) = pinning.parse_keys(answer, value.stack)
    assert (key.repository, key.url, key.sha256) == ("vendor", f"{vendor.address}/key.asc", vendor.key_sha256)


def test_a_lock_sees_it_and_hashes_archives(base: str, vendor: Vendor) -> None:
    value = resolved(base, vendor, vendor.key_sha256, archive=True)
    answer = pinning.ask_apt(pinning.script(value, Site()), BaseImage(reference=base, digest="", how="given"))
    assert ("tini", "0.0.1") in [(p.name, p.version) for p in pinning.parse_packages(answer)]
    (pmix,) = pinning.parse_sources(answer, value)
    assert (pmix.component, pmix.url, pmix.sha256) == ("pmix", f"{vendor.address}/archive.tar", vendor.archive_sha256)


@pytest.mark.parametrize(
    ("sha256", "said"),
    [
        ("-", "no sha256 is known for"),
        ("0" * 64, "sha256 mismatch: "),
        ("right", ""),
    ],
    ids=["unknown", "wrong", "right"],
)
def test_an_archive_is_unpacked_only_with_its_sha256(base: str, vendor: Vendor, sha256: str, said: str) -> None:
    expected = vendor.archive_sha256 if sha256 == "right" else sha256
    command = f"/run/rocstack/build/fetch-source {vendor.address}/archive.tar {expected} /src archive.tar; ls /src"
    scripts = f"{REPO}/images/build:/run/rocstack/build:ro"
    done = engine("run", "--rm", "--volume", scripts, base, "bash", "-e", "-c", command, check=False)
    assert said in done.stderr
    assert (done.returncode == 0) == (not said)
    assert done.stdout.endswith("\nbin\n") == (not said)


@pytest.mark.parametrize("right", [True, False])
def test_an_archive_of_the_builds_own_folder_is_not_downloaded(base: str, right: bool, tmp_path: Path) -> None:
    """What `rocstack build --sources` mounts; its sha256 counts as well."""
    folder = tmp_path / "sources"
    folder.mkdir()
    archive, url = folder / "a-1.tar", "https://example.invalid/archive/v1.tar"
    with tarfile.open(archive, "w") as out:
        out.add(__file__, "a-1/file")
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest() if right else "0" * 64
    scripts = (
        f"COPY build /run/rocstack/build\nRUN /run/rocstack/build/fetch-source {url} {sha256} /src a-1.tar && ls /src"
    )
    text = f"FROM scratch AS sources\nFROM {base}\n{scripts}\n".replace(
        "RUN ", "RUN --mount=type=bind,from=sources,target=/run/rocstack/sources "
    )
    context = tmp_path / "context"
    shutil.copytree(REPO / "images/build", context / "build")
    (context / "Dockerfile").write_text(text)
    build = ["buildx", "build", "--progress=plain", "--output", "type=cacheonly", "--build-context"]
    done = engine(*build, f"sources={folder}", str(context), check=False)
    assert (done.returncode == 0) == right, done.stderr
    assert ("sha256 mismatch" in done.stderr) == (not right)


def test_a_source_package_at_another_version_is_refused(base: str) -> None:
    command = "/run/rocstack/build/apt-update --source >/dev/null; /run/rocstack/build/fetch-source --dsc munge 0.5"
    scripts = f"{REPO}/images/build:/run/rocstack/build:ro"
    done = engine("run", "--rm", "--volume", scripts, base, "bash", "-e", "-c", command, check=False)
    assert done.returncode != 0
    assert "no source of munge 0.5 in the package index; it has: 0.5." in done.stderr

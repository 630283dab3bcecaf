"""Distributions' own providers: what is read from the file, what rdma-core's source says, and what libibverbs says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from workspace import Built, engine

from rocstack.nic.elf import ANY_ABI, LibraryAbi, read_libibverbs, read_provider

pytestmark = pytest.mark.engine

# provider: (driver's name, kernel-ABI range, where rdma-core says so: the same in 44, 56 and 65)
SOURCE: dict[str, tuple[str, tuple[int, int], str]] = {
    "bnxt_re": ("bnxt_re", (1, 1), "providers/bnxt_re/main.c, kernel-headers/rdma/bnxt_re-abi.h"),
    "cxgb4": ("cxgb4", (0, ANY_ABI), "providers/cxgb4/dev.c"),
    "efa": ("efa", (1, 1), "providers/efa/efa.c, providers/efa/efa-abi.h"),
    "erdma": ("erdma", (0, 1), "providers/erdma/erdma.c, kernel-headers/rdma/erdma-abi.h"),
    "hfi1verbs": ("hfi1verbs", (0, ANY_ABI), "providers/hfi1verbs/hfiverbs.c"),
    "hns": ("hns", (0, ANY_ABI), "providers/hns/hns_roce_u.c"),
    "ionic": ("ionic", (1, 1), "providers/ionic/ionic.c, kernel-headers/rdma/ionic-abi.h"),
    "ipathverbs": ("ipathverbs", (0, ANY_ABI), "providers/ipathverbs/ipathverbs.c"),
    "irdma": ("irdma", (0, 5), "providers/irdma/umain.c, providers/irdma/abi.h"),
    "mana": ("mana", (1, 1), "providers/mana/mana.c, kernel-headers/rdma/mana-abi.h"),
    "mlx4": ("mlx4", (2, 4), "providers/mlx4/mlx4.c, providers/mlx4/mlx4-abi.h"),
    "mlx5": ("mlx5", (1, 1), "providers/mlx5/mlx5.c, providers/mlx5/mlx5-abi.h"),
    "mthca": ("mthca", (0, 1), "providers/mthca/mthca.c, kernel-headers/rdma/mthca-abi.h"),
    "ocrdma": ("ocrdma", (2, 2), "providers/ocrdma/ocrdma_main.c, providers/ocrdma/ocrdma_abi.h"),
    "qedr": ("qedr", (8, 8), "providers/qedr/qelr_main.c, providers/qedr/qelr_abi.h"),
    "rxe": ("rxe", (1, 2), "providers/rxe/rxe.c (64 bit)"),
    "siw": ("siw", (1, 1), "providers/siw/siw.c, kernel-headers/rdma/siw-abi.h"),
    "vmw_pvrdma": ("pvrdma", (3, 3), "providers/vmw_pvrdma/pvrdma_main.c, kernel-headers/rdma/vmw_pvrdma-abi.h"),
}
# A virtual device per driver that knows one by PCI id or name, all of a kernel ABI that nobody supports.
TREE = r"""
set -e
tree=/tmp/tree number=0
mkdir -p "$tree/class/infiniband_verbs" /dev/infiniband
echo 6 > "$tree/class/infiniband_verbs/abi_version"
while read -r device modalias; do
    verbs=$tree/class/infiniband_verbs/uverbs$number ib=$tree/class/infiniband/$device
    mkdir -p "$verbs" "$ib/device"
    echo "$device" > "$verbs/ibdev"
    echo 999 > "$verbs/abi_version"
    echo "231:$((192 + number))" > "$verbs/dev"
    mknod "/dev/infiniband/uverbs$number" c 231 $((192 + number))
    echo "1: CA" > "$ib/node_type"
    echo "$modalias" > "$ib/device/modalias"
    number=$((number + 1))
done << END
bnxt_re0 pci:v000014E4d00001750sv0sd0bc02sc00i00
mlx5_0 pci:v000015B3d00001017sv0sd0bc02sc00i00
mlx4_0 pci:v000015B3d00001003sv0sd0bc02sc00i00
efa_0 pci:v00001D0Fd0000EFA0sv0sd0bc02sc00i00
erdma_0 pci:v00001DEDd0000107Fsv0sd0bc02sc00i00
ocrdma0 pci:v000010DFd0000E220sv0sd0bc02sc00i00
qedr0 pci:v00001077d00001656sv0sd0bc02sc00i00
pvrdma0 pci:v000015ADd00000820sv0sd0bc02sc00i00
mthca0 pci:v000015B3d00006274sv0sd0bc02sc00i00
irdma0 pci:v00008086d00001592sv0sd0bc02sc00i00
rxe0 none
END
SYSFS_PATH=$tree ibv_devices
"""


def libraries(folder: Path) -> tuple[dict[str, LibraryAbi], LibraryAbi]:
    """Every provider in the tree by name, and its libibverbs."""
    (library,) = folder.rglob("libibverbs.so.1")
    files = sorted(folder.rglob("libibverbs/lib*-rdmav*.so"))
    found = {re.sub(r"^lib|-rdmav.*", "", file.name): read_provider(file.read_bytes()) for file in files}
    return found, read_libibverbs(library.read_bytes())


def check(folder: Path, private_abi: int | None = None) -> set[str]:
    """The names of the providers in the tree, each of which must be what its source says."""
    found, library = libraries(folder)
    for name, abi in found.items():
        driver, kernel_abi, source = SOURCE[name]
        assert (abi.driver, abi.kernel_abi) == (driver, kernel_abi), f"{name}, {source}: {abi.reasons}"
        assert abi.private_abi == library.private_abi
        assert abi.build_id
        assert abi.glibc
    assert library.private_abi is not None
    assert private_abi in (None, library.private_abi)
    return set(found)


@pytest.fixture(scope="module")
def image_libraries(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    copy = "cd /usr/lib/*-linux-gnu; cp -rL libibverbs libibverbs.so.1 /out; chmod -R a+rwX /out"
    engine("run", "--rm", "--volume", f"{folder}:/out", "--entrypoint", "sh", built.worker, "-c", copy)
    return folder


def test_every_provider_of_the_image(image_libraries: Path) -> None:
    names = check(image_libraries)
    assert names >= {"bnxt_re", "mlx5", "mlx4", "irdma", "efa", "rxe", "siw"}


def test_libibverbs_says_the_same(built: Built, image_libraries: Path) -> None:
    said = engine("run", "--rm", "--entrypoint", "sh", built.worker, "-c", TREE).stderr
    ranges = {
        driver: (int(lowest), int(highest))
        for driver, lowest, highest in re.findall(
            r"Driver (\w+) does not support the kernel ABI of 999 \(supports (\d+) to (\d+)\)", said
        )
    }
    found, _ = libraries(image_libraries)
    read = {abi.driver: abi.kernel_abi for abi in found.values()}
    assert len(ranges) == 11, said
    assert ranges == {driver: read[driver] for driver in ranges}


KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class Debian:
    """Packages of any Debian release and processor, by an apt whose settings and lists all lie in one folder."""

    def __init__(self, folder: Path, releases: tuple[str, ...], processors: tuple[str, ...]) -> None:
        known = ("apt-get", "indextargets", "--format", "$(ORIGIN)|$(REPO_URI)", "Created-By: Packages")
        if not shutil.which("apt-get") or not KEYRING.is_file():
            pytest.skip("no Debian")
        lines = subprocess.run(known, capture_output=True, text=True, check=True).stdout.splitlines()
        archives = [line.split("|")[1] for line in lines if line.startswith("Debian|")]
        if not archives:
            pytest.skip("no Debian archive in this machine's settings")
        for part in ("etc/sources.list.d", "etc/preferences.d", "state/lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        shutil.copytree("/etc/apt/apt.conf.d", folder / "etc/apt.conf.d")  # how to reach the archive from here
        entry = (
            f"Types: deb\nURIs: {archives[0]}\nSuites: {' '.join(releases)}\nComponents: main\nSigned-By: {KEYRING}\n"
        )
        (folder / "etc/sources.list.d/test.sources").write_text(entry)
        (folder / "state/status").touch()
        places = {"Etc": "etc", "State": "state", "State::status": "state/status", "Cache": "cache"}
        self.options = [f"-oDir::{name}={folder / place}" for name, place in places.items()]
        self.options += [f"-oAPT::Architectures::={processor}" for processor in processors]
        self.options += ["-oAPT::Sandbox::User=root", "-oAcquire::Languages=none", "-qq"]
        self.apt("update", cwd=folder)

    def apt(self, *args: str, cwd: Path) -> None:
        done = subprocess.run(["apt-get", *self.options, *args], cwd=cwd, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def unpack(self, folder: Path, *packages: str) -> Path:
        folder.mkdir(parents=True)
        self.apt("download", *packages, cwd=folder)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        return folder


@pytest.mark.slow
def test_other_processors_and_releases(tmp_path: Path) -> None:
    """aarch64, and private ABIs that no stack of ours has yet."""
    debian = Debian(tmp_path / "apt", ("trixie", "sid"), ("amd64", "arm64"))
    for release, private_abi, name in (("trixie", 34, "mlx5"), ("sid", None, "ionic")):
        for processor in ("amd64", "arm64"):
            packages = [f"{package}:{processor}/{release}" for package in ("ibverbs-providers", "libibverbs1")]
            assert name in check(debian.unpack(tmp_path / release / processor, *packages), private_abi)

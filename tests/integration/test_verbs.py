"""Which provider libibverbs takes, and what it says when it takes none: the real library and real providers in a
container of the worker, a node's /sys made of ten files that SYSFS_PATH points to, and a stand-in for the vendor's
library. The devices are virtual; nothing can be opened on them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import broadcom_standin
import pytest
from workspace import REPO, Built, engine

from rocstack.nic import elf, vendor_release
from rocstack.settings import site
from rocstack.settings.settings import Settings

pytestmark = pytest.mark.engine

COMPILER = "gcc libc6-dev make autoconf automake libtool libibverbs-dev"
DOCKERFILE = f"""
FROM {{base}}
RUN --mount=type=bind,source=build,target=/run/rocstack/build \\
    --mount=type=secret,id=site-env,target=/run/rocstack/site.env \\
    --mount=type=secret,id=site-ca,target=/run/rocstack/ca.pem \\
    /run/rocstack/build/apt-update && /run/rocstack/build/apt-install {COMPILER}
"""
TOP = f"libbnxt_re-{broadcom_standin.VERSION}"
OURS = "/usr/lib/x86_64-linux-gnu/libibverbs/libbnxt_re-rdmav34.so"
THEIRS = "/usr/local/lib/libbnxt_re-rdmav34.so"
MOVED = f"mv {OURS} {OURS}.inbox"
VENDOR = "cp -a /made/vendor/. /; ldconfig"  # what `make install` did, and the ldconfig of its documentation
ALONE = f"{VENDOR}; {MOVED}"
NO_DRIVER_FILE = "rm /etc/libibverbs.d/bnxt_re.driver"
NAMED = "=/usr/local/lib/libbnxt_re"
SHOW = "IBV_SHOW_WARNINGS=1"

UNFIT = (
    "libibverbs: Warning: Driver bnxt_re does not support the kernel ABI of {} (supports {} to {}) "
    "for device /node/class/infiniband/bnxt_re0"
)
NOT_LOADED = (
    "libibverbs: Warning: couldn't load driver 'libbnxt_re-rdmav34.so': "
    "libbnxt_re-rdmav34.so: cannot open shared object file: No such file or directory"
)
WRONG_INSIDE = (
    "libibverbs: Warning: couldn't load driver 'libbnxt_re-rdmav34.so': "
    f"{THEIRS}: undefined symbol: verbs_register_driver_59"
)
NONE_FOUND = "libibverbs: Warning: no userspace device-specific driver found for bnxt_re0"


Tried = Callable[[Path, str], subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Row:
    """A node's kernel ABI and PCI device, what was done in the image, and what `ibv_devices` then does.

    Without a netlink driver id, which no tree can give, a device is known by its PCI id; rdma-core's table lacks
    Thor2's (0x1760), so rows with rdma-core's own provider have a Thor (0x1750).
    """

    abi: int
    image: str = ""
    env: str = ""
    pci: str = "0x1750"
    lists: bool = False
    says: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()


ROWS = {
    # The kernel ABI decides.
    "inbox fits": Row(1, lists=True, loads=(OURS,)),
    "inbox, vendor's driver": Row(6, says=(UNFIT.format(6, 1, 1),), loads=(OURS,)),
    "vendor fits": Row(6, ALONE, lists=True, loads=(THEIRS,)),
    "vendor fits Thor2": Row(6, ALONE, pci="0x1760", lists=True, loads=(THEIRS,)),
    "vendor, kernel's own driver": Row(1, ALONE, says=(UNFIT.format(1, 6, 6),), loads=(THEIRS,)),
    "vendor, newer driver": Row(8, ALONE, says=(UNFIT.format(8, 6, 6),), loads=(THEIRS,)),
    "unfit with all warnings": Row(6, env=SHOW, says=(UNFIT.format(6, 1, 1), NONE_FOUND), loads=(OURS,)),
    # Which of two is taken.
    "both: libibverbs' own folder wins": Row(6, VENDOR, says=(UNFIT.format(6, 1, 1),), loads=(OURS,)),
    "both, kernel's own driver": Row(1, VENDOR, lists=True, loads=(OURS,)),
    "both, RDMAV_DRIVERS": Row(6, VENDOR, "RDMAV_DRIVERS" + NAMED, lists=True, loads=(THEIRS, OURS)),
    "both, IBV_DRIVERS": Row(6, VENDOR, "IBV_DRIVERS" + NAMED, lists=True, loads=(THEIRS, OURS)),
    "both, LD_PRELOAD": Row(6, VENDOR, f"LD_PRELOAD={THEIRS}", lists=True, loads=(THEIRS,)),
    "both, another .driver file": Row(
        6, f"{VENDOR}; echo 'driver /usr/local/lib/libbnxt_re' >/etc/libibverbs.d/a.driver", lists=True,
        loads=(THEIRS, OURS),
    ),
    "vendor's file over the inbox file": Row(6, f"cp /made/vendor{THEIRS} {OURS}", lists=True, loads=(OURS,)),
    # Half of an installation.
    "no .driver file": Row(1, NO_DRIVER_FILE),
    "no .driver file, all warnings": Row(1, NO_DRIVER_FILE, SHOW, says=(NONE_FOUND,)),
    "the vendor's .driver file isn't read": Row(6, f"{ALONE}; {NO_DRIVER_FILE}", SHOW, says=(NONE_FOUND,)),
    "neither .driver file nor library": Row(6, f"{MOVED}; {NO_DRIVER_FILE}"),
    "inbox moved, nothing instead": Row(6, MOVED, says=(NOT_LOADED,)),
    "inbox moved, all warnings": Row(6, MOVED, SHOW, says=(NOT_LOADED, NONE_FOUND)),
    "ldconfig forgotten": Row(6, f"cp -a /made/vendor/. /; {MOVED}", says=(NOT_LOADED,)),
    "empty file": Row(1, f": >{OURS}", says=(NOT_LOADED,)),
    # The private ABI. Mostly the message is that of a file that isn't there.
    "wrong suffix": Row(6, f"{MOVED}; cp /made/other-59.so {THEIRS.replace('34', '59')}; ldconfig", says=(NOT_LOADED,)),
    "wrong suffix, renamed": Row(6, f"{MOVED}; cp /made/other-59.so {THEIRS}; ldconfig", says=(NOT_LOADED,)),
    "wrong inside": Row(6, f"{MOVED}; cp /made/other-34.so {THEIRS}; ldconfig", says=(WRONG_INSIDE,)),
    "wrong inside, in libibverbs' own folder": Row(6, f"cp /made/other-34.so {OURS}", says=(NOT_LOADED,)),
    # The device.
    "inbox doesn't know Thor2's PCI id": Row(1, pci="0x1760", loads=(OURS,)),
    "the same, all warnings": Row(1, env=SHOW, pci="0x1760", says=(NONE_FOUND,), loads=(OURS,)),
    "no /dev/infiniband/uverbs0": Row(1, "rm /dev/infiniband/uverbs0", SHOW),
}  # fmt: skip


@pytest.fixture(scope="module")
def builder(base: str, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """A container that has a compiler and no network."""
    image = name = f"{prefix}-standin"
    here = site.of(Settings())
    secrets = ["--secret", "id=site-env,env=ROCSTACK_SITE_ENV"]
    secrets += ["--secret", f"id=site-ca,src={here.ca}"] if here.ca else []
    subprocess.run(
        ["docker", "buildx", "build", "--load", "--quiet", "--tag", image, "-f", "-", *secrets, str(REPO / "images")],
        input=DOCKERFILE.format(base=base).encode(), check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "ROCSTACK_SITE_ENV": here.env_file()},
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("standin")
    broadcom_standin.make_tarball(folder, source=broadcom_standin.fetch_source(base))
    engine("run", "--detach", "--name", name, "--network", "none", "--volume", f"{folder}:/made", image, "sleep", "inf")
    yield Builder(name, folder)
    engine("rm", "--force", name)
    engine("rmi", image)


@dataclass(frozen=True)
class Builder:
    """`folder` of this machine is /made in the container; the sources lie in /src."""

    name: str
    folder: Path

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return engine("exec", self.name, "bash", "-c", f"exec 2>&1; {script}", check=False)


@pytest.fixture(scope="module")
def vendor(builder: Builder) -> Path:
    """What the documented steps install; it lies on this machine."""
    unpack = f"mkdir -p /src /made/vendor && cd /src && tar -xf /made/{TOP}.tar.gz && cd {TOP}"
    steps = "sh autogen.sh && ./configure && make && make install all"
    done = builder.run(f"export DESTDIR=/made/vendor; {unpack} && {steps}")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "warning:" not in done.stdout.replace("libtool: warning: remember to run", "")
    return builder.folder / "vendor"


@pytest.fixture(scope="module")
def libraries(builder: Builder, vendor: Path) -> Path:
    """The folder of it, and of the same library made for a libibverbs of private ABI 59, under two names."""
    remake = (
        "rm -f src/main.lo src/libbnxt_re.la && make -o config.h && cp -L src/.libs/libbnxt_re.so /made/other-{}.so"
    )
    done = builder.run(
        f"cp -a /src/{TOP} /src/other && cd /src/other && sed -i 's/PABI_VERSION 34/PABI_VERSION 59/' config.h && "
        f"{remake.format(34)} && sed -i 's/rdmav34/rdmav59/' Makefile && {remake.format(59)}"
    )
    assert done.returncode == 0, done.stdout[-2000:]
    return builder.folder


def node(folder: Path, abi: int, pci: str) -> Path:
    """/sys of a virtual node, as far as libibverbs reads it."""
    files = {
        "class/infiniband_verbs/abi_version": "6",
        "class/infiniband_verbs/uverbs0/ibdev": "bnxt_re0",
        "class/infiniband_verbs/uverbs0/abi_version": str(abi),
        "class/infiniband_verbs/uverbs0/dev": "231:192",
        "class/infiniband/bnxt_re0/node_type": "1: CA",
        "class/infiniband/bnxt_re0/node_guid": "be97:e1ff:fe00:0001",
        "class/infiniband/bnxt_re0/device/vendor": "0x14e4",
        "class/infiniband/bnxt_re0/device/device": pci,
        "class/infiniband/bnxt_re0/device/modalias": f"pci:v000014E4d0000{pci[2:]}sv000014E4sd0000D124bc02sc00i00",
    }
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return folder


@pytest.fixture(scope="module")
def tried(built: Built, libraries: Path) -> Tried:
    def run(sys: Path, script: str) -> subprocess.CompletedProcess[str]:
        """`script` in a fresh container of the worker on a node whose /sys is the folder `sys`."""
        device = "mkdir -p /dev/infiniband; mknod /dev/infiniband/uverbs0 c 231 192; export SYSFS_PATH=/node"
        options = ["--network=none", "--entrypoint=bash", f"--volume={sys}:/node:ro", f"--volume={libraries}:/made:ro"]
        return engine("run", "--rm", *options, built.worker, "-e", "-c", f"{device}; {script}", check=False)

    return run


@pytest.mark.parametrize("name", ROWS)
def test_provider(name: str, tried: Tried, tmp_path: Path) -> None:
    row = ROWS[name]
    loader = "LD_DEBUG=libs LD_DEBUG_OUTPUT=/tmp/loader"
    loaded = r"sed -n 's/.*calling init: \(.*bnxt_re.*\)/loaded \1/p' /tmp/loader.*"
    done = tried(node(tmp_path, row.abi, row.pci), f"{row.image or ':'}; {loader} {row.env} ibv_devices; {loaded}")
    assert done.returncode == 0, "it ends well whatever happened: only the list counts"
    lines = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [line for line in lines if line[0] != "loaded"] == [["bnxt_re0", "be97e1fffe000001"]] * row.lists
    assert tuple(done.stderr.splitlines()) == row.says
    assert tuple(line[1] for line in lines if line[0] == "loaded") == row.loads


def test_two_devices_of_which_one_fits(tried: Tried, tmp_path: Path) -> None:
    """Each device has its own kernel ABI."""
    sys = node(tmp_path, 6, "0x1750")
    for path in [*sys.rglob("*")]:
        if path.is_file():
            name = str(path.relative_to(sys)).replace("bnxt_re0", "bnxt_re1").replace("uverbs0", "uverbs1")
            file = sys / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(path.read_text().replace("bnxt_re0", "bnxt_re1").replace("231:192", "231:193"))
    (sys / "class/infiniband_verbs/uverbs1/abi_version").write_text("1\n")
    done = tried(sys, "mknod /dev/infiniband/uverbs1 c 231 193; ibv_devices")
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["bnxt_re1"]
    assert done.stderr.splitlines() == [UNFIT.format(6, 1, 1)]


def test_listed_is_not_opened(tried: Tried, tmp_path: Path) -> None:
    """A virtual device ends here: nothing in this file claims more than the choice of a provider."""
    done = tried(node(tmp_path, 1, "0x1750"), "ibv_devinfo || echo failed")
    assert done.stdout.strip() == "failed"
    assert "Failed to open device" in done.stderr


def test_no_device_fits(tried: Tried, tmp_path: Path) -> None:
    done = tried(node(tmp_path, 6, "0x1750"), "ibv_devinfo || true")
    assert done.stderr.splitlines() == [UNFIT.format(6, 1, 1), "No IB devices found"]


def test_the_true_reason_of_a_wrong_private_abi(tried: Tried, tmp_path: Path) -> None:
    """libibverbs shows the error of its second attempt only; the dynamic linker knows the first."""
    done = tried(node(tmp_path, 6, "0x1750"), f"cp /made/other-34.so {OURS}; ldd -r {OURS} 2>&1")
    assert f"undefined symbol: verbs_register_driver_59\t({OURS})" in done.stdout


def test_a_damaged_library_kills_the_process(tried: Tried, tmp_path: Path) -> None:
    """Cut off behind its headers, it is mapped farther than it reaches."""
    done = tried(node(tmp_path, 6, "0x1750"), f"head -c 3000 /made/vendor{THEIRS} >{OURS}; ibv_devices")
    assert done.returncode == 128 + 7
    assert done.stdout == ""


# The build


def test_the_stand_in_is_found_and_picked(builder: Builder, tmp_path: Path) -> None:
    """By the same code that reads a vendor's bundle; the same arguments give the same bytes."""
    source = broadcom_standin.fetch_source()
    made = [broadcom_standin.make_tarball(tmp_path / str(abi), kernel_abi=abi, source=source) for abi in (6, 7)]
    assert made[0].read_bytes() == (builder.folder / made[0].name).read_bytes()
    assert [vendor_release.find(path)[0].kernel_abi for path in made] == [6, 7]
    found = vendor_release.find(broadcom_standin.make_bundle(made[0], tmp_path))
    assert vendor_release.pick(found, broadcom_standin.VERSION).data == made[0].read_bytes()


def test_installed_names(vendor: Path) -> None:
    lib = vendor / "usr/local/lib"
    assert os.readlink(lib / f"{TOP}.so") == "libbnxt_re.so"
    assert os.readlink(lib / "libbnxt_re.so") == "libbnxt_re-rdmav34.so"
    assert (vendor / "usr/local/etc/libibverbs.d/bnxt_re.driver").read_text() == "driver bnxt_re\n"


def test_read_statically_as_the_loader_takes_it(libraries: Path) -> None:
    fits = elf.read_provider((libraries / f"vendor{THEIRS}").read_bytes())
    assert (fits.private_abi, fits.kernel_abi, fits.driver) == (34, (6, 6), "bnxt_re")
    for name in ("other-34.so", "other-59.so"):
        assert elf.read_provider((libraries / name).read_bytes()).kernel_abi is None


CONFIGURE = f"cd /src/{TOP}; ./configure >/tmp/log 2>&1; rc=$?; {{}}tail -n 1 /tmp/log; exit $rc"
HEADER, LINKED = "/usr/include/infiniband/verbs.h", "/usr/lib/x86_64-linux-gnu/libibverbs.so"
NO_HEADER = "configure: error: <infiniband/verbs.h> not found. libbnxt_re requires libibverbs."
BROKEN = {
    "cut off": (
        f"mkdir -p /tmp/cut; cd /tmp/cut; head -c 40000 /made/{TOP}.tar.gz | tar -xz && sh {TOP}/autogen.sh",
        "gzip: stdin: unexpected end of file",
    ),
    "no archive": ("head -c 9999 /dev/urandom | tar -xz", "gzip: stdin: not in gzip format"),
    "no libibverbs-dev": (
        f"mv {HEADER} /tmp; " + CONFIGURE.format(f"mv /tmp/verbs.h {HEADER}; "), NO_HEADER
    ),
    "a PREFIX in the environment": ("export PREFIX=/opt/rocm; " + CONFIGURE.format(""), NO_HEADER),
    "nothing to link with": (
        f"mv {LINKED} /tmp; " + CONFIGURE.format(f"mv /tmp/libibverbs.so {LINKED}; "),
        "configure: error: ibv_get_device_list() not found. libbnxt_re requires libibverbs.",
    ),
    "no autotools": (
        f"cd /src/{TOP}; PATH=/bin-without; /bin/sh autogen.sh", "not found"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_build_fails_clearly(name: str, builder: Builder, vendor: Path) -> None:
    script, message = BROKEN[name]
    done = builder.run(script)
    assert done.returncode != 0
    assert message in done.stdout

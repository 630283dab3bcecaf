"""The stack for AMD's own packages on Debian 13, built to the last line of its Dockerfile with its smoke tests. AMD's
repository and PyTorch's index are stand-ins, made of Debian's ROCm 7.2.4 (tests/support/amd_standin.py): names,
dependencies and paths are AMD's, the files are not. RVS is left out, since Debian has none. UCX, OpenMPI and the other
tools are compiled from source: half an hour on two idle cores. ROCSTACK_SOURCES names the folder of their archives."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import amd_standin
import pytest
import yaml
from workspace import REPO, Outcome, Workspace, engine, inspect

from rocstack.settings import site
from rocstack.settings.settings import Settings

pytestmark = [pytest.mark.engine, pytest.mark.slow]
FOLDER = os.environ.get("ROCSTACK_SOURCES")
STACK = "rocm-7.2-debian-13"
NAME = f"standin-{STACK}"
# What Debian's PyTorch needs, which the stand-in for the wheel is made of.
NEEDED = [
    "libtorch2.6",
    "libopenblas0-pthread",
    "libpthreadpool0",
    "libtensorpipe0",
    "python3-filelock",
    "python3-fsspec",
    "python3-jinja2",
    "python3-networkx",
    "python3-numpy",
    "python3-packaging",
    "python3-psutil",
    "python3-sympy",
    "python3-typing-extensions",
    "python3-yaml",
]
SERVE = """
for suite in unstable experimental; do /run/rocstack/build/apt-suite $suite main 1; done
touch /etc/apt/no-valid-until
/run/rocstack/build/apt-update
/run/rocstack/build/apt-install dpkg-dev gnupg python3 patchelf
cd /tmp
python3 /run/rocstack/amd_standin.py /repo
exec python3 -m http.server --directory /repo 80
"""


@pytest.fixture(scope="module")
def standin(base: str, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a container that serves what is used in AMD's place."""
    if not FOLDER:
        pytest.skip("ROCSTACK_SOURCES names no folder with the archives")
    name, folder, network = f"{prefix}-amd-standin", tmp_path_factory.mktemp("standin"), site.of(Settings())
    (folder / "site.env").write_text(network.env_file())
    mounts = {REPO / "images/build": "build", amd_standin.__file__: "amd_standin.py", folder / "site.env": "site.env"}
    if network.ca:
        mounts[network.ca] = "ca.pem"
    volumes = [f"--volume={path}:/run/rocstack/{place}:ro" for path, place in mounts.items()]
    engine("run", "--detach", "--name", name, *volumes, base, "bash", "-euo", "pipefail", "-c", SERVE)
    address = f"http://{engine('inspect', '--format', '{{.NetworkSettings.IPAddress}}', name).stdout.strip()}"
    while True:
        state = engine("inspect", "--format", "{{.State.Running}}", name).stdout.strip()
        assert state == "true", engine("logs", "--tail=20", name).stderr
        try:
            urllib.request.urlopen(f"{address}/whl/torch/", timeout=10).close()
            break
        except URLError:
            time.sleep(2)
    yield address
    engine("rm", "--force", name)


def stack_on(standin: str, folder: Path) -> Path:
    """The stack with the stand-ins in place of AMD's repository and PyTorch's index, and no sha256 of an archive."""
    data = yaml.safe_load((REPO / f"images/stacks/{STACK}.yml").read_text())
    components = data["components"]
    components["rocm"]["version"] = amd_standin.RELEASE
    del components["rvs"]
    data["layers"] = [[name for name in layer if name != "rvs"] for layer in data["layers"]]
    url = "https://github.com/ROCm/TransferBench/archive/refs/tags/v1.52.tar.gz"
    components["transferbench"] |= {"version": "1.52", "url": url, "archive": "TransferBench-1.52.tar.gz"}
    for choice in components.values():
        choice.pop("sha256", None)
    components["pytorch"] = {
        "method": "wheel",
        "version": amd_standin.TORCH,
        "index": f"{standin}/whl/",
        "packages": NEEDED,
    }
    data["about"] = f"{data['about']}; stand-ins for what is AMD's and PyTorch's"
    data["repositories"] = [
        {"name": "standin", "uri": standin, "suite": "noble", "key": f"{standin}/key.asc", "origin": "stand-in"}
    ]
    # Newer ones ask for modules that Debian's PyTorch lacks.
    data["wheels"]["transformers"] = "5.0.0"
    data["disk_mb"] = 30_000
    data["provided"] = ["numpy", "packaging", "pyyaml", "filelock", "fsspec"]
    file = folder / f"{NAME}.yml"
    file.write_text(yaml.safe_dump(data))
    return file


@pytest.fixture(scope="module")
def built(standin: str, prefix: str, base: str, made: set[str], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Both images; their smoke tests have passed, or there would be none."""
    folder = tmp_path_factory.mktemp("amd")
    workspace = Workspace(folder, prefix, env={"PIP_TRUSTED_HOST": standin.removeprefix("http://")}, made=made)
    file = stack_on(standin, folder)
    arguments = ["--stack", str(file), "--gfx", "gfx942", "--base-image", base, "--sources", str(FOLDER)]
    done = workspace.run("build", "--json", *arguments, timeout=5400)
    assert done.code == 0, done.err + done.failures()
    return done


def inside(built: Outcome, script: str) -> str:
    image = built.image("worker")["reference"]
    return engine("run", "--rm", "--entrypoint=bash", image, "-euo", "pipefail", "-c", script).stdout


def test_rocm_lies_where_amd_has_it(built: Outcome) -> None:
    assert inside(built, "readlink -f /opt/rocm").strip() == f"/{amd_standin.HOME}"
    assert inside(built, "readlink -f $(command -v rocminfo)").startswith(f"/{amd_standin.HOME}/bin/")
    packages = inside(built, "dpkg-query -W -f '${Package} ${Version} ${binary:Summary}\\n' rccl hip-runtime-amd")
    assert packages.count("stand-in for AMD's") == 2
    assert packages.count("-standin") == 2


def test_the_labels_say_it(built: Outcome) -> None:
    labels = inspect(built.image("worker")["reference"])["Config"]["Labels"]
    own = {name.removeprefix("io.rocstack."): text for name, text in labels.items()}
    assert own["stack"] == NAME
    assert own["rocm.method"] == "amd"
    assert own["component.rocm"] == amd_standin.RELEASE
    assert own["component.pytorch"] == amd_standin.TORCH
    assert own["framework.rocm"] == "7.2"


def test_one_rocm(built: Outcome) -> None:
    """UCX and OpenMPI were compiled against it, and no library of another release is loaded beside it."""
    assert "with-rocm=/opt/rocm" in inside(built, "ucx_info -v")
    assert "mca:accelerator:rocm:" in inside(built, "ompi_info --parsable")
    loaded = inside(built, "ldd /opt/ucx/lib/ucx/libuct_rocm.so /opt/rccl-tests/bin/all_reduce_perf")
    runtimes = {line.split()[2] for line in loaded.splitlines() if "libhsa-runtime64" in line or "libamdhip64" in line}
    assert runtimes
    assert all(path.startswith("/opt/rocm") for path in runtimes), runtimes


def test_what_only_builds_is_not_shipped(built: Outcome) -> None:
    """Headers that AMD's packages for programs have, as that of ROCm SMI, stay."""
    headers = "find /opt -path '/opt/rocm-*' -prune -o -name '*.h' -print"
    assert inside(built, f"command -v hipcc g++ cmake || true; find /etc/apt -name 'rocstack*'; {headers}") == ""

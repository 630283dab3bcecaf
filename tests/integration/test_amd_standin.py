"""The stacks for AMD's own packages on Debian 13, built to the last line of their Dockerfile with their smoke tests.
AMD's repositories and the wheel indexes are stand-ins, made of Debian's ROCm 7.2.4 (tests/support/amd_standin.py, and
rocm10_standin.py for ROCm 10): names, dependencies and paths are AMD's, the files are not. RVS is left out, since
Debian has none. UCX, OpenMPI and the other tools are compiled from source: half an hour on two idle cores for each
stack. ROCSTACK_SOURCES names the folder of their archives."""

from __future__ import annotations

import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import URLError

import amd_standin
import pytest
import rocm10_standin
import yaml
from workspace import REPO, Outcome, Workspace, engine, inspect

from rocstack.settings import site
from rocstack.settings.settings import Settings

pytestmark = [pytest.mark.engine, pytest.mark.slow]
FOLDER = os.environ.get("ROCSTACK_SOURCES")
AMD = "https://stable.repo.amd.com"  # whose folders the stand-in for ROCm 10 has
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
python3 /run/rocstack/SCRIPT /repo
rm -r /tmp/work
exec python3 -m http.server --directory /repo 80
"""


@dataclass(frozen=True)
class StandinCase:
    """A stack, the program that makes what is used in AMD's place, and where its container has the last of it."""

    stack: str
    made_by: ModuleType
    last: str
    method: str
    rocm: str  # that torch names

    @property
    def name(self) -> str:
        return f"standin-{self.stack}"


CASES = {
    "7.2": StandinCase("rocm-7.2-debian-13", amd_standin, "whl/torch/", "amd", "7.2"),
    "10.0": StandinCase("rocm-10.0-debian-13", rocm10_standin, "rocm/whl-next/torch/", "amdrocm", "10.0.0"),
}


@dataclass(frozen=True)
class StandinImages:
    """Both images; their smoke tests have passed, or there would be none."""

    case: StandinCase
    outcome: Outcome

    @property
    def worker(self) -> str:
        return str(self.outcome.image("worker")["reference"])

    def inside(self, script: str) -> str:
        return engine("run", "--rm", "--entrypoint=bash", self.worker, "-euo", "pipefail", "-c", script).stdout


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> StandinCase:
    return CASES[request.param]


@pytest.fixture(scope="module")
def standin(case: StandinCase, base: str, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a container that serves what is used in AMD's place."""
    if not FOLDER:
        pytest.skip("ROCSTACK_SOURCES names no folder with the archives")
    name, folder, network = f"{prefix}-{case.name}", tmp_path_factory.mktemp("standin"), site.of(Settings())
    (folder / "site.env").write_text(network.env_file())
    mounts = {REPO / "images/build": "build", folder / "site.env": "site.env"}
    mounts |= {Path(str(each.__file__)): Path(str(each.__file__)).name for each in (amd_standin, rocm10_standin)}
    if network.ca:
        mounts[Path(network.ca)] = "ca.pem"
    volumes = [f"--volume={path}:/run/rocstack/{place}:ro" for path, place in mounts.items()]
    script = SERVE.replace("SCRIPT", Path(str(case.made_by.__file__)).name)
    engine("run", "--detach", "--name", name, *volumes, base, "bash", "-euo", "pipefail", "-c", script)
    address = f"http://{engine('inspect', '--format', '{{.NetworkSettings.IPAddress}}', name).stdout.strip()}"
    while True:
        state = engine("inspect", "--format", "{{.State.Running}}", name).stdout.strip()
        assert state == "true", engine("logs", "--tail=20", name).stderr
        try:
            urllib.request.urlopen(f"{address}/{case.last}", timeout=10).close()
            break
        except URLError:
            time.sleep(2)
    yield address
    engine("rm", "--force", name)


def stack_on(standin: str, case: StandinCase, folder: Path) -> Path:
    """The stack with the stand-ins in place of AMD's repository and the wheel index, and no sha256 of an archive."""
    data: dict[str, Any] = yaml.safe_load((REPO / f"images/stacks/{case.stack}.yml").read_text().replace(AMD, standin))
    components = data["components"]
    components["rocm"]["version"] = case.made_by.RELEASE
    components.pop("rvs", None)
    data["layers"] = [[name for name in layer if name != "rvs"] for layer in data["layers"]]
    url = "https://github.com/ROCm/TransferBench/archive/refs/tags/v1.52.tar.gz"
    components["transferbench"] |= {"version": "1.52", "url": url, "archive": "TransferBench-1.52.tar.gz"}
    for choice in components.values():
        choice.pop("sha256", None)
    components["pytorch"] |= {"version": case.made_by.TORCH, "packages": NEEDED}
    if case.made_by is amd_standin:
        components["pytorch"]["index"] = f"{standin}/whl/"
        data["repositories"] = [{"name": "standin", "uri": standin, "suite": "trixie", "key": f"{standin}/key.asc"}]
    data["repositories"][0]["origin"] = case.made_by.LAYOUT.origin
    data["about"] = f"{data['about']}; stand-ins for what is AMD's and PyTorch's"
    # Newer ones ask for modules that Debian's PyTorch lacks.
    data["wheels"]["transformers"] = "5.0.0"
    data["disk_mb"] = 30_000
    data["provided"] = ["numpy", "packaging", "pyyaml", "filelock", "fsspec"]
    file = folder / f"{case.name}.yml"
    file.write_text(yaml.safe_dump(data))
    return file


def archives(standin: str, case: StandinCase, folder: Path) -> Path:
    """The folder of archives, with the source package of AMD's index where the stack has it."""
    if case.made_by is amd_standin:
        return Path(str(FOLDER))
    own = folder / "archives"
    shutil.copytree(str(FOLDER), own)
    own.chmod(0o755)
    name = f"rocm-{rocm10_standin.RELEASE}.tar.gz"
    with urllib.request.urlopen(f"{standin}/rocm/core/whl-next/rocm/{name}", timeout=60) as answer:
        (own / name).write_bytes(answer.read())
    return own


@pytest.fixture(scope="module")
def built(
    standin: str, case: StandinCase, prefix: str, base: str, made: set[str], tmp_path_factory: pytest.TempPathFactory
) -> StandinImages:
    folder = tmp_path_factory.mktemp("amd")
    workspace = Workspace(folder, prefix, env={"PIP_TRUSTED_HOST": standin.removeprefix("http://")}, made=made)
    file, sources = stack_on(standin, case, folder), archives(standin, case, folder)
    arguments = ["--stack", str(file), "--gfx", "gfx942", "--base-image", base, "--sources", str(sources)]
    done = workspace.run("build", "--json", *arguments, timeout=5400)
    assert done.code == 0, done.err + done.failures()
    return StandinImages(case, done)


def test_rocm_lies_where_amd_has_it(built: StandinImages) -> None:
    home = built.case.made_by.LAYOUT.home
    assert built.inside("readlink -f $(command -v rocminfo)").startswith(f"/{home}/bin/")
    assert built.inside("readlink -f /opt/rocm/lib").strip() == f"/{home}/lib"
    every = built.inside("dpkg-query -W -f '${Package} ${Version} ${binary:Summary}\\n'").splitlines()
    own = {line.split()[0]: line for line in every if "stand-in for AMD's" in line}
    assert own
    assert all("-standin" in line.split()[1] for line in own.values())


def test_the_labels_say_it(built: StandinImages) -> None:
    labels = inspect(built.worker)["Config"]["Labels"]
    own = {name.removeprefix("io.rocstack."): text for name, text in labels.items()}
    assert own["stack"] == built.case.name
    assert own["rocm.method"] == built.case.method
    assert own["component.rocm"] == built.case.made_by.RELEASE
    assert own["component.pytorch"] == built.case.made_by.TORCH
    assert own["framework.rocm"] == built.case.rocm
    assert own["gfx"] == "gfx942"


def test_one_rocm(built: StandinImages) -> None:
    """UCX and OpenMPI were compiled against it, and no library of another release is loaded beside it."""
    assert "with-rocm=/opt/rocm" in built.inside("ucx_info -v")
    assert "mca:accelerator:rocm:" in built.inside("ompi_info --parsable")
    loaded = built.inside("ldd /opt/ucx/lib/ucx/libuct_rocm.so /opt/rccl-tests/bin/all_reduce_perf")
    runtimes = {line.split()[2] for line in loaded.splitlines() if "libhsa-runtime64" in line or "libamdhip64" in line}
    assert runtimes
    assert all(path.startswith("/opt/rocm") for path in runtimes), runtimes


def test_what_only_builds_is_not_shipped(built: StandinImages) -> None:
    """Headers that AMD's packages for programs have, as that of ROCm SMI, stay."""
    headers = "find /opt -path '/opt/rocm*' -prune -o -name '*.h' -print"
    assert built.inside(f"command -v hipcc g++ cmake || true; find /etc/apt -name 'rocstack*'; {headers}") == ""


LOADED = """
import ctypes, re
import torch
ctypes.CDLL("/opt/ucx/lib/ucx/libuct_rocm.so")
print(*sorted(set(re.findall(r"/\\S*/lib(?:amdhip64|hsa-runtime64)[.]so\\S*", open("/proc/self/maps").read()))))
"""


def test_rocm_10_has_one_target_and_no_rocm_smi(built: StandinImages) -> None:
    if built.case.made_by is not rocm10_standin:
        pytest.skip("ROCm 7 has ROCm SMI, and the kernels of all targets in its libraries")
    packages = built.inside("dpkg-query -W -f '${Package}\\n'").split()
    assert [each for each in packages if "-gfx" in each] == ["amdrocm-rccl10.0-gfx942"]
    assert not {"slurm-wlm-rsmi-plugin", "librocm-smi64-1"} & {*packages}
    kernels = built.inside("find / -xdev -name '*.kpack' -type f").split()
    assert kernels
    assert all("gfx942" in each for each in kernels), kernels
    assert built.inside("command -v rocm-smi || true") == ""
    assert built.inside("readlink -f $(command -v amd-smi)").endswith("/amdsmi_cli.py\n")


def test_torch_first_and_there_is_one_hip(built: StandinImages) -> None:
    """PyTorch loads the HIP of its wheels; UCX takes that one then, though it was compiled against the packages'."""
    if built.case.made_by is not rocm10_standin:
        pytest.skip("Debian's PyTorch stands for a wheel with HIP in it, and has none")
    loaded = built.inside(f"python3 - <<'PY'\n{LOADED}\nPY").split()
    assert {path.rpartition("/")[2].partition(".")[0] for path in loaded} == {"libamdhip64", "libhsa-runtime64"}
    assert len(loaded) == 2
    assert all("_rocm_sdk_core" in path for path in loaded)

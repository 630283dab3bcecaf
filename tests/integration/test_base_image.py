"""A NIC's layer on somebody else's image: what of the image stays, what is said of it, and which images are refused."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from workspace import Workspace, engine, inspect

from rocstack.image.buildkit import Buildkit, BuildkitRequest
from rocstack.node.profile import NodeProfile
from rocstack.probe import profiles, recordings
from rocstack.settings import settings, site
from rocstack.virtual import faults, machine, model
from rocstack.virtual.tree import record

pytestmark = pytest.mark.engine
OWN = "/usr/lib/x86_64-linux-gnu/libibverbs/libbnxt_re-rdmav34.so"
TORCH = "/usr/lib/python3/dist-packages/torch/version.py"
# As AMD's image is: ROCm in /opt, kernels for some targets, PyTorch for ROCm, a user of its own who starts something.
ROCM = f"""
RUN mkdir -p /opt/rocm/.info /opt/rocm/include/rccl /opt/rocm/lib/rocblas/library {Path(TORCH).parent} \\
 && echo 7.2.4-90 >/opt/rocm/.info/version \\
 && printf '#define NCCL_%s\\n' 'MAJOR 2' 'MINOR 27' 'PATCH 7' >/opt/rocm/include/rccl/rccl.h \\
 && touch /opt/rocm/lib/librccl.so.1.0 /opt/rocm/lib/rocblas/library/TensileLibrary_lazy_gfx90a.dat \\
    /opt/rocm/lib/rocblas/library/Kernels.so-000-gfx942.hsaco \\
 && printf "__version__ = '2.10.0+git45c90ad'\\ncuda: Optional[str] = None\\nhip: Optional[str] = '7.2.53211-158'\\n" \\
    >{TORCH} \\
 && useradd --create-home person
ENV PYTORCH_ROCM_ARCH=gfx942;gfx950
USER person
WORKDIR /home/person
ENTRYPOINT ["/usr/bin/env", "WORD=its own"]
CMD ["bash", "-c", "echo $WORD; id -un; pwd; echo NCCL_NET=$NCCL_NET"]
"""


def dockerfile(name: str, text: str) -> str:
    done = subprocess.run(
        ["docker", "build", "--quiet", "--tag", name, "-"], input=text, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return name


def imported(name: str, files: dict[str, str], *changes: str) -> str:
    """An image of nothing but these files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))
    own = [f"--change={change}" for change in changes]
    done = subprocess.run(
        ["docker", "import", *own, "-", name], input=data.getvalue(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return name


@pytest.fixture(scope="module")
def plain(base: str, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with Python: a stage of the default stack, which is mostly in the builder's cache."""
    folder = tmp_path_factory.mktemp("plain")
    assert Workspace(folder, prefix).run("render", "--to", "context", "--base-image", base).code == 0
    year, week, _ = datetime.now(UTC).isocalendar()
    chosen = settings.load({}, {}, folder)[0]
    name = f"{prefix}-plain:1"
    request = BuildkitRequest(folder / "context", "tools", f"{year}.{week:02d}", site.of(chosen), tags=(name,))
    code, progress = Buildkit().run(request, lambda event: None)
    assert code == 0, progress
    return name


@pytest.fixture(scope="module")
def rocm(plain: str, prefix: str) -> str:
    return dockerfile(f"{prefix}-rocm:7.2", f"FROM {plain}\n{ROCM}")


def node(abi: int, folder: Path) -> NodeProfile:
    """A virtual node, whose /sys is below `folder`."""
    virtual = faults.apply(machine.expand(model.load("mi300x-thor2")), [faults.parse(f"abi={abi}")])
    recording = record(virtual)
    recording.write_tree(folder)
    return replace(recordings.profiles([recording])[0], name=f"n{abi}")


def test_a_nics_layer_and_nothing_else(rocm: str, workspace: Workspace) -> None:
    sys = workspace.folder / "sys"
    profiles.write_profiles(workspace.folder / "nodes.json", [node(1, sys)])
    done = workspace.build("--from", rocm, "--nic", "broadcom", "--profiles", "nodes.json")
    assert "rocm 7.2.4; rccl 2.27.7; pytorch 2.10.0+rocm7.2; no libibverbs; GPU code for gfx942" in done.err
    report = done.image("worker")
    assert [row["result"] for row in report["gate"]] == ["fits"]
    assert report["drift"] == []
    image = report["reference"]
    assert image.startswith(f"{workspace.prefix}/job:")
    before, after = inspect(rocm)["Config"], inspect(image)["Config"]
    own = {key.removeprefix("io.rocstack."): text for key, text in after["Labels"].items()}
    expected = {
        "role": "job", "gfx": "gfx942", "rocm.method": "amd", "torch.hip": "7.2.53211", "nic.kernel-abi": "1-1",
        "component.rocm": "7.2.4", "component.pytorch": "2.10.0+rocm7.2", "verbs.private-abi": "34",
    }  # fmt: skip
    assert expected.items() <= own.items()
    assert [after[key] for key in ("User", "WorkingDir", "Cmd")] == [
        before[key] for key in ("User", "WorkingDir", "Cmd")
    ]
    assert after["Entrypoint"] == ["/usr/local/bin/rocstack-entrypoint", *before["Entrypoint"]]
    assert set(before["Env"]) <= set(after["Env"])
    look = ("run", "--rm", "--network=none", "--entrypoint=sh")
    script = "cat /etc/passwd; ls /tmp /etc/apt /etc/dpkg/dpkg.cfg.d; find /usr -xdev -perm /6000"
    assert engine(*look, image, "-c", script).stdout == engine(*look, rocm, "-c", script).stdout
    # It starts what it started, as the same user; on a node, with its fabric around it.
    anywhere = engine("run", "--rm", "--network=none", image)
    assert anywhere.stdout.splitlines() == ["its own", "person", "/home/person", "NCCL_NET="], anywhere.stderr
    assert "doesn't fit: " in anywhere.stderr
    devices = "mkdir /dev/infiniband; for i in {0..7}; do mknod /dev/infiniband/uverbs$i c 231 $((192 + i)); done"
    script = f"{devices}; exec rocstack-entrypoint sh -c 'echo NCCL_NET=$NCCL_NET'"
    options = ("--rm", "--network=none", f"--volume={sys}:/sys:ro", "--user=root", "--entrypoint=bash")
    on_node = engine("run", *options, image, "-c", script)
    assert on_node.stdout == "NCCL_NET=IB\n", on_node.stderr
    assert "doesn't fit: " not in on_node.stderr
    # It is no worker: deploy has no use for it, and another layer goes on the image that it was made from.
    again = workspace.run("build", "--json", "--from", image, "--nic", "broadcom")
    assert again.json["error"]["what"].endswith("has labels of rocstack's own")


def test_a_node_that_it_would_not_fit(rocm: str, workspace: Workspace) -> None:
    profiles.write_profiles(workspace.folder / "nodes.json", [node(6, workspace.folder / "sys")])
    done = workspace.run(
        "build", "--json", "--from", rocm, "--nic", "broadcom", "--profiles", "nodes.json", "--way", "inbox"
    )
    assert (done.code, done.json["error"]["code"]) == (1, "unfit")
    assert not (workspace.folder / ".rocstack").exists()


KEPT = ("User", "WorkingDir", "Cmd")
GLIBC = {"lib64/ld-linux-x86-64.so.2": ""}
APT = {**GLIBC, "usr/bin/apt-get": "", "usr/bin/dpkg": ""}


@pytest.mark.parametrize(
    ("files", "change", "says"),
    [
        ({"bin/sh": ""}, None, "has no glibc"),
        ({"lib/ld-musl-x86_64.so.1": "", "sbin/apk": ""}, None, "has musl instead of glibc"),
        (GLIBC, None, "has no package manager"),
        ({**GLIBC, "usr/bin/dnf": ""}, None, "has dnf, not apt"),
        (APT, None, "has no /usr/bin/python3"),
        ({**APT, "usr/bin/python3": "no program"}, None, "can't be read: "),
        (APT, "LABEL io.rocstack.nic.kernel-abi=1-9", "has labels of rocstack's own"),
        (APT, "ONBUILD RUN reboot", "has ONBUILD instructions"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_image_that_can_be_no_base(
    files: dict[str, str], change: str | None, says: str, prefix: str, workspace: Workspace
) -> None:
    name = imported(f"{prefix}-small:1", files, *filter(None, [change]))
    done = workspace.run("build", "--json", "--from", name, "--nic", "broadcom")
    assert (done.code, done.json["error"]["code"]) == (2, "base-unfit")
    assert says in done.json["error"]["what"]
    assert not (workspace.folder / ".rocstack").exists()


CUDA = f"RUN printf \"__version__ = '2.9.1+cu128'\\ncuda = '12.8'\\nhip = None\\n\" >{TORCH}"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (CUDA, "base-cuda", "is built for CUDA 12.8"),
        ("RUN printf '#!/bin/sh\\nexit 3\\n' >/usr/bin/python3", "base-unfit", "it prints nothing"),
        ("RUN printf '#!/bin/sh\\nyes' >/usr/bin/python3", "base-unfit", "no end of what its Python prints"),
        ("RUN cp /bin/true /usr/local/lib/libibverbs.so.1 && ldconfig", "base-verbs", "can't be read"),
    ],
    ids=["cuda", "broken", "endless", "libibverbs"],
)
def test_an_image_that_says_what_can_not_be_used(
    text: str, code: str, says: str, rocm: str, prefix: str, workspace: Workspace
) -> None:
    name = dockerfile(f"{prefix}-odd:1", f"FROM {rocm}\nUSER root\n{text}\n")
    done = workspace.run("build", "--json", "--from", name, "--nic", "broadcom")
    assert done.json["error"]["code"] == code, done.out
    assert says in done.json["error"]["what"]
    assert not (workspace.folder / ".rocstack").exists()
    left = engine("ps", "--all", "--quiet", "--filter", f"ancestor={name}").stdout
    assert left == "", "what read it is gone"

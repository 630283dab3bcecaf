"""`rocstack build --nic slingshot --nic-plugin`: a stand-in for aws-ofi-nccl (900.1, so that nobody takes it for a
release), as its archive is laid out, is compiled against the image's libfabric and ROCm, loaded, and told of; and
the host's libfabric takes the place of the image's. With aws-ofi-nccl-1.21.1.tar.gz in the folder ROCSTACK_SOURCES
the real one is compiled too, in a minute on two idle cores."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from workspace import Workspace, engine, inspect

pytestmark = [pytest.mark.engine, pytest.mark.slow]
VERSION = "900.1"
REAL = "aws-ofi-nccl-1.21.1.tar.gz"
PLUGIN = "/opt/rocstack/nic/plugin/librccl-net.so"
CONFIGURE = """#!/bin/sh
set -eu
for option; do
    case $option in
    --with-rocm=*) rocm=${option#*=} ;;
    LDFLAGS=*) flags=${option#*=} ;;
    --with-libfabric | --with-hwloc | --disable-*) ;;
    *) echo "unknown option $option" >&2; exit 1 ;;
    esac
done
cat >Makefile <<MAKE
librccl-net.so: plugin.c
\tgcc -shared -fPIC -D__HIP_PLATFORM_AMD__ -I$rocm/include $flags -o \\$@ plugin.c -lfabric -lhwloc -lamdhip64
install:
\tinstall -D librccl-net.so \\$(DESTDIR)/usr/local/lib/librccl-net.so
MAKE
"""
SOURCE = """
#include <hip/hip_runtime_api.h>
#include <hwloc.h>
#include <rdma/fabric.h>
struct { const char *name; void *functions[40]; } SYMBOL = { "stand-in" };
int probe(void) {
    struct fi_info *found;
    hwloc_topology_t topology;
    int count;
    hipGetDeviceCount(&count);
    return fi_getinfo(FI_VERSION(1, 18), 0, 0, 0, 0, &found) + hwloc_topology_init(&topology);
}
"""


def archive(folder: Path, symbol: str) -> Path:
    top = f"aws-ofi-nccl-{VERSION}"
    files = {
        "RELEASENOTES.md": f"# Release notes\n\n# v{VERSION}\n",
        "autogen.sh": "#!/bin/sh\ntest -s .release_version\nmv configure.in configure\n",
        "configure.in": CONFIGURE,
        "include/nccl_ofi_rocm.h": "",
        "plugin.c": SOURCE.replace("SYMBOL", symbol),
    }
    path = folder / f"{top}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size, info.mode = len(text), 0o755
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def build(source: Path) -> tuple[str, ...]:
    return ("build", "--json", "--nic", "slingshot", "--role", "worker", "--nic-plugin", str(source))


def run(image: str, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    line = ("run", "--rm", "--network=none", *options, "--entrypoint=bash", image)
    return engine(*line, "-c", f"exec 2>&1; {command}", check=False)


def test_the_plugin_is_compiled_and_the_hosts_libfabric_taken(workspace: Workspace) -> None:
    done = workspace.run(*build(archive(workspace.folder, "ncclNetPlugin_v6")))
    assert done.code == 0, done.err + done.failures()
    assert f"RCCL's plugin: aws-ofi-nccl {VERSION}, compiled in the image" in done.err
    report = done.image("worker")
    assert report["versions"]["plugin"] == VERSION
    assert [text for text in report["smoke"]["plugin"] if "takes its interface v6" in text]
    image = workspace.reference("worker", "slingshot")
    labels = {k.removeprefix("io.rocstack."): v for k, v in inspect(image)["Config"]["Labels"].items()}
    assert (labels["nic.plugin"], labels["nic.plugin-version"]) == ("aws-ofi-nccl", VERSION)
    assert labels["nic.plugin-fabric"] == "1.8"  # of Debian 13's libfabric 2.1
    assert labels["nic.plugin-sha256"] == run(image, f"sha256sum <{PLUGIN}").stdout.split()[0]
    # RCCL of Debian 13 finds it by its name.
    asked = "import ctypes; ctypes.CDLL('librccl.so.1').ncclGetUniqueId(ctypes.create_string_buffer(128))"
    said = run(image, f'NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=lo python3 -c "{asked}"').stdout
    assert "Failed to find ncclCollNetPlugin" in said, (
        said
    )  # it has opened the plugin, and looks for what else is in it
    assert "No plugin found" not in said
    assert "RCCL's plugin for slingshot" not in run(image, "rocstack-node env").stdout
    # A library mounted as `rocstack run` mounts the host's is the one that programs get, and the plugin too.
    hosts = workspace.folder / "libfabric.so.1.26.0"
    hosts.write_text("the host's")
    mounts = [f"--volume={hosts}:/usr/lib/x86_64-linux-gnu/{name}:ro" for name in ("libfabric.so.1", "libcxi.so.1")]
    for name in (PLUGIN, "libfabric.so.1", "libcxi.so.1"):
        assert "file too short" in run(image, f"python3 -c 'import ctypes; ctypes.CDLL(\"{name}\")'", *mounts).stdout


def test_what_is_no_plugin_ends_the_build(workspace: Workspace) -> None:
    failure = workspace.run(*build(archive(workspace.folder, "somethingElse"))).failure("worker")
    assert "exports no ncclNetPlugin" in str(failure), failure


def test_an_interface_that_rccl_does_not_take_ends_the_build(workspace: Workspace) -> None:
    failure = workspace.run(*build(archive(workspace.folder, "ncclNetPlugin_v11"))).failure("worker")
    assert "takes versions 4, 5, 6 of a plugin's interface" in str(failure), failure


def test_the_real_one(workspace: Workspace) -> None:
    source = Path(os.environ.get("ROCSTACK_SOURCES", "")) / REAL
    if not source.is_file():
        pytest.skip(f"the folder ROCSTACK_SOURCES has no {REAL}")
    done = workspace.run(*build(source), timeout=1800)
    assert done.code == 0, done.err + done.failures()
    report = done.image("worker")
    assert report["versions"]["plugin"] == "1.21.1"
    assert [text for text in report["smoke"]["plugin"] if "takes its interface v6" in text]
    image = workspace.reference("worker", "slingshot")
    asked = "import ctypes; ctypes.CDLL('librccl.so.1').ncclGetUniqueId(ctypes.create_string_buffer(128))"
    said = run(image, f'NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=lo python3 -c "{asked}"').stdout
    assert "Failed to find ncclCollNetPlugin" in said, said  # without a GPU it goes no further
    assert "No plugin found" not in said

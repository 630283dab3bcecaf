"""What a NIC's layer adds to the layers below it and what it changes of them, and so what is tested above it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from resolved_stack import join

from rocstack.base import paths

CHECK = paths.images() / "check"
BELOW = {
    "usr/lib/libibverbs.so.1": "1",
    "usr/lib/libibverbs/libmlx5-rdmav57.so": "provider",
    "etc/libibverbs.d/mlx5.driver": "driver mlx5",
    "etc/openmpi/openmpi-mca-params.conf": "of the package",
    "etc/ld.so.cache": "a",
    "var/lib/dpkg/status": "a",
    "usr/lib/odd\nname.so": "1",
}


class Trees:
    """A tree and the one below it, which share the files that are the same, as layers do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in BELOW.items():
            self.put("below", name, text)
            tree = folder / "tree" / name
            tree.parent.mkdir(parents=True, exist_ok=True)
            os.link(folder / "below" / name, tree)
        self.put("rootfs", "worker/etc/openmpi/openmpi-mca-params.conf", "ours")

    def put(self, which: str, name: str, text: str) -> None:
        file = self.folder / which / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(text)

    def beyond(self) -> tuple[set[str], set[str]]:
        """What is new, and what is changed."""
        out = self.folder / "out"
        out.mkdir(exist_ok=True)
        line = [
            "bash",
            str(CHECK / "beyond"),
            *(f"{self.folder}/{name}" for name in ("tree", "below", "rootfs", "out")),
        ]
        subprocess.run(line, check=True)
        new, changed = ((out / name).read_bytes().decode().split("\0") for name in ("new", "changed"))
        return {*new} - {""}, {*changed} - {""}


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)


def test_a_layer_that_only_adds(trees: Trees) -> None:
    assert trees.beyond() == (set(), set())
    trees.put("tree", "usr/lib/libfabric.so.1", "new")
    trees.put("tree", "etc/ld.so.cache", "b")
    trees.put("tree", "var/lib/dpkg/status", "b")
    trees.put("tree", "usr/lib/libibverbs/libmlx5-rdmav57.so", "the vendor's")
    trees.put("tree", "etc/openmpi/openmpi-mca-params.conf", "ours")
    new, changed = trees.beyond()
    assert changed == set()
    assert {"/usr/lib/libfabric.so.1", "/usr/lib/libibverbs/libmlx5-rdmav57.so"} <= new
    assert "/usr/lib/libibverbs.so.1" not in new


@pytest.mark.parametrize("how", ["another", "the same bytes in another file", "another mode", "a link", "gone"])
@pytest.mark.parametrize("name", ["usr/lib/libibverbs.so.1", "usr/lib/odd\nname.so"])
def test_a_layer_that_changes_what_is_below(trees: Trees, name: str, how: str) -> None:
    file = trees.folder / "tree" / name
    if how in ("another", "the same bytes in another file"):
        trees.put("tree", name, "2" if how == "another" else "1")
    elif how == "another mode":
        trees.put("tree", name, "1")
        file.chmod(0o600)
    else:
        file.unlink()
        if how == "a link":
            file.symlink_to("/opt/rdma-core/lib/libibverbs.so.1")
    new, changed = trees.beyond()
    assert changed == {f"/{name}"}
    assert (f"/{name}" in new) == (how != "gone")


def test_what_is_below_is_tested_there_or_again() -> None:
    """The scripts of both stages: together all, and only those that may know the NIC are made for each of them."""
    context = join(nic="mellanox").render()
    own, below = (
        {path.rpartition("/")[2][3:] for path in context.files if path.startswith(f"smoke/{stage}/")}
        for stage in ("worker", "worker-below")
    )
    assert own == {"libraries.sh", "system.sh", "rccl.sh", "rdma.sh", "ucx.sh", "openmpi.sh", "nic.sh"}
    assert below == {"libraries.sh", "munge.sh", "slurm.sh", "rocm.sh", "pmix.sh", "pytorch.sh"}
    text = context.files["Dockerfile"].data.decode()
    (stage,) = re.findall(r"(?ms)^FROM worker-base AS smoke-worker$(.*?)^EOS", text)
    assert "from=worker-below,target=/run/rocstack/below" in stage
    assert "source=smoke/worker-below,target=/run/rocstack/smoke-below" in stage

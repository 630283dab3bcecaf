"""What is compiled from its project's archive, for real, from the folder ROCSTACK_SOURCES: the acceptance tools by
hipcc for MI300X, started where there is no GPU; UCX against ROCm 7.2, and PMIx. Each installs Debian's ROCm first:
minutes on two idle cores, for RVS ten."""

from __future__ import annotations

import os
from pathlib import Path

import docker
import pytest
import yaml
from workspace import REPO, engine

from rocstack.image import base_image, render, sources
from rocstack.settings.settings import Settings
from rocstack.stack import component, overlay, resolve, stack

pytestmark = [pytest.mark.engine, pytest.mark.slow]

STACK = "rocm-7.2-debian"
FOLDER = os.environ.get("ROCSTACK_SOURCES")
NO_DEVICE = "no ROCm-capable device is detected"
# Component -> program, and what it says in a build, without a GPU.
SOURCES = {
    "rccl-tests": ("all_reduce_perf", NO_DEVICE),
    # The engine allows a build no NUMA calls.
    "transferbench": ("TransferBench a2a", "NUMA library not supported"),
    "babelstream": ("hip-stream", NO_DEVICE),
    "rvs": ("rvs -g", "No supported GPUs available"),
    "ucx": ("ucx_info -v", "Library version: 1.20.1"),
    "pmix": ("pmix_info --parsable", "pmix:version:full:5.0.7"),
}


def resolved(name: str, prefix: str, folder: Path) -> resolve.Resolved:
    """The stack with packages for what else it has from source, where there are any; the component's archives are
    pinned to what the folder has."""
    if not FOLDER:
        pytest.skip("ROCSTACK_SOURCES names no folder with the archives")
    libraries = component.library("components"), component.library("nic")
    data = yaml.safe_load((REPO / f"images/stacks/{STACK}.yml").read_text())
    for other, choice in list(data["components"].items()):
        if other == name:
            for archive in (choice, *choice.get("beside", ())):
                del archive["sha256"]
        elif choice["method"] == "source" and "apt" in libraries[0].get(other).head.data["methods"]:
            data["components"][other] = {"method": "apt", "version": choice["version"]}
    file = folder / "archives.yml"
    file.write_text(yaml.safe_dump(data))
    value = resolve.resolve(stack.load(str(file)), "tcp", *libraries, overlay.Overlay())
    base = base_image.ensure(docker.from_env(), value.stack, Settings(image_prefix=prefix), print)
    return sources.pinned(value.model_copy(update={"base": base.reference}), Path(FOLDER))


@pytest.mark.parametrize("name", list(SOURCES))
def test_it_is_compiled_and_starts(name: str, prefix: str, tmp_path: Path) -> None:
    command, says = SOURCES[name]
    made = resolved(name, prefix, tmp_path)
    libraries = component.library("components"), component.library("nic")
    render.render(made, None, *libraries).write(tmp_path / "context")
    dockerfile = tmp_path / "context/Dockerfile"
    home = f"/out/opt/{name}"
    program = f"LD_LIBRARY_PATH={home}/lib {home}/bin/{command}"
    dockerfile.write_text(
        f"{dockerfile.read_text()}\nFROM build-{name} AS started\nRUN {program} >/words 2>&1 || true\n"
        "FROM scratch AS words\nCOPY --from=started /words /words\n"
    )
    files = [Path(str(FOLDER)) / each.file for each in made.part(name).choice.archives]
    given = sources.place(tuple(files), tmp_path / "sources")
    out = tmp_path / "out"
    build = ["buildx", "build", "--progress=plain", "--target=words", f"--build-context=sources={given}"]
    done = engine(*build, f"--output=type=local,dest={out}", str(tmp_path / "context"), check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert says in (out / "words").read_text()

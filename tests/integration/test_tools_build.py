"""The acceptance tools, compiled for real by hipcc for MI300X from the archives in the folder ROCSTACK_TEST_SOURCES,
and started where there is no GPU. Each installs Debian's HIP compiler first: minutes on two idle cores."""

from __future__ import annotations

import os
from pathlib import Path

import docker
import pytest
import yaml
from workspace import REPO, STACK, engine

from rocstack.image import base_image, render, sources
from rocstack.settings.settings import Settings
from rocstack.stack import component, overlay, resolve, stack

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FOLDER = os.environ.get("ROCSTACK_TEST_SOURCES")
NO_DEVICE = "no ROCm-capable device is detected"
# Component -> version, archive, program, and what it says without a GPU.
TOOLS = {
    "rccl-tests": ("2024.09", "rccl-tests-2024.09.tar.gz", "all_reduce_perf", NO_DEVICE),
    # The engine allows a build no NUMA calls.
    "transferbench": ("1.52", "TransferBench-1.52.tar.gz", "TransferBench a2a", "NUMA library not supported"),
    "babelstream": ("5.0", "BabelStream-5.0.tar.gz", "hip-stream", NO_DEVICE),
}
ROCM = (
    "liboam*",
    "libamdhip64*",
    "libamd-comgr*",
    "libhip*",
    "hipcc*",
    "hipify*",
    "libhsa-runtime*",
    "librccl*",
    "libroc*",
    "rocm-*",
)
SUITES = [{"suite": "unstable"}, {"suite": "experimental", "priority": 990, "packages": list(ROCM)}]


@pytest.fixture(scope="module")
def made(prefix: str, tmp_path_factory: pytest.TempPathFactory) -> resolve.Resolved:
    """A stack with the tools and what they need, on the suites of Debian that have ROCm 7.2; every archive is pinned to
    what the folder has."""
    if not FOLDER:
        pytest.skip("ROCSTACK_TEST_SOURCES names no folder with the tools' archives")
    data = yaml.safe_load((REPO / f"images/stacks/{STACK}.yml").read_text())
    del data["alternatives"]
    data |= {"gfx": ["gfx942"], "wheels": {}}
    data["base"] = {"image": "debian:forky-slim", "os": "debian-14", "bootstrap": {"suite": "forky"}, "suites": SUITES}
    data["base"]["check_valid_until"] = False
    for name, (version, archive, *_) in TOOLS.items():
        url = f"https://example.invalid/{archive}"
        data["components"][name] = {"method": "source", "version": version, "url": url}
    data["layers"].append(list(TOOLS))
    file = tmp_path_factory.mktemp("stack") / "tools.yml"
    file.write_text(yaml.safe_dump(data))
    libraries = component.library("components"), component.library("nic")
    value = resolve.resolve(stack.load(str(file)), "tcp", *libraries, overlay.Overlay())
    base = base_image.ensure(docker.from_env(), value.stack, Settings(image_prefix=prefix), print)
    return sources.pinned(value.model_copy(update={"base": base.reference}), Path(FOLDER))


@pytest.mark.parametrize("name", list(TOOLS))
def test_a_tool_is_compiled_and_starts(made: resolve.Resolved, name: str, tmp_path: Path) -> None:
    _, archive, command, words = TOOLS[name]
    libraries = component.library("components"), component.library("nic")
    render.render(made, None, *libraries).write(tmp_path / "context")
    dockerfile = tmp_path / "context/Dockerfile"
    program = f"/out/opt/{name}/bin/{command}"
    dockerfile.write_text(
        f"{dockerfile.read_text()}\nFROM build-{name} AS started\nRUN {program} >/words 2>&1 || true\n"
        "FROM scratch AS words\nCOPY --from=started /words /words\n"
    )
    given = sources.place((Path(str(FOLDER)) / archive,), tmp_path / "sources")
    out = tmp_path / "out"
    build = ["buildx", "build", "--progress=plain", "--target=words", f"--build-context=sources={given}"]
    done = engine(*build, f"--output=type=local,dest={out}", str(tmp_path / "context"), check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert words in (out / "words").read_text()

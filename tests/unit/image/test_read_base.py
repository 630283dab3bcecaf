"""The program that reads a base from inside it, on folders that are laid out as AMD's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocstack.base import paths


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Its functions; the program itself is not run."""
    for name in ("ROCM_PATH", "PYTORCH_ROCM_ARCH"):
        monkeypatch.delenv(name, raising=False)
    source = (paths.images() / "check/read_base.py").read_text()
    assert source.endswith("\nmain()\n")
    out: dict[str, Any] = {}
    exec(compile(source.removesuffix("main()\n"), "read_base.py", "exec"), out)
    return out


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("10.0.0\n")


# TheRock, docs/packaging: rocm-sdk-core, rocm-sdk-libraries and a rocm-sdk-device package for each target
WHEELS = (
    "_rocm_sdk_core/.info/version",
    "_rocm_sdk_libraries/lib/librccl.so.1",
    "_rocm_sdk_libraries/.kpack/blas_lib_gfx942.kpack",
    "_rocm_sdk_libraries/.kpack/rccl_lib_gfx950.kpack",
    "_rocm_sdk_libraries/lib/hipblaslt/library/gfx950/TensileLibrary_gfx950.co",
    "torch/lib/libtorch.so",
)


def test_rocm_of_python_packages(program: dict[str, Any], tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    files(site, *WHEELS)
    found = program["rocm"]({}, ["/nowhere", str(site)])
    assert found == {"version": "10.0.0", "origin": "wheel", "prefix": f"{site}/_rocm_sdk_core"}
    torch = f"{site}/torch"
    assert program["rccl"](found["prefix"], torch, {}) == {"version": None, "origin": "wheel"}
    assert program["targets"]([f"{torch}/lib", program["sdk_libraries"](torch)]) == ["gfx942", "gfx950"]


def test_kernels_of_packages_in_opt(program: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """amdrocm's: /opt/rocm/lib is a link, and its kernels lie beside what it leads to."""
    files(tmp_path, "core-10.0/.kpack/blas_lib_gfx90a.kpack", "core-10.0/.info/version", "core-10.0/lib/librccl.so.1")
    (tmp_path / "lib").symlink_to("core-10.0/lib")
    assert program["targets"]([f"{tmp_path}/lib"]) == ["gfx90a"]
    monkeypatch.setenv("ROCM_PATH", f"{tmp_path}/core-10.0")
    found = program["rocm"]({"rocminfo": "7.2.4"}, [])
    assert (found["version"], found["origin"]) == ("10.0.0", "amd")
    assert program["rccl"](found["prefix"], None, {})["origin"] == "amd"


def test_rocm_10_where_no_variable_says_its_folder(program: dict[str, Any], tmp_path: Path) -> None:
    files(tmp_path, "core-10.0/.info/version")
    (tmp_path / "core").symlink_to("core-10.0")
    program["ROCM"] = str(tmp_path)
    assert program["rocm"]({}, []) == {"version": "10.0.0", "origin": "amd", "prefix": f"{tmp_path}/core"}


def test_nothing_there(program: dict[str, Any], tmp_path: Path) -> None:
    assert program["rocm"]({}, [str(tmp_path)]) is None
    assert program["rccl"]("/nowhere", f"{tmp_path}/torch", {}) is None
    assert program["targets"]([str(tmp_path), None]) == []

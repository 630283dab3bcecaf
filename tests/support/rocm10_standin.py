"""Makes a stand-in of AMD's repository and wheel index for ROCm 10: a program for a Debian 13 container, with the
suites of Debian that have ROCm 7.2.4, whose files it repacks as `amd_standin.py` does, which lies beside it.

    python3 rocm10_standin.py FOLDER

FOLDER is laid out as AMD's site: rocm/core/packages/debian13 with suite `stable`, rocm/gpg/packages.gpg, the wheels
below rocm/whl-next, and the source package `rocm` in rocm/core/whl-next/rocm. Names, dependencies and paths are those
that ROCm/TheRock's packaging makes (branch release/therock-10.0: package.json and packaging_utils.py in
build_tools/packaging/linux, docs/packaging/python_packaging.md): the release and the target in the names, the kernels
in packages and .kpack files of their own. The kernels here are none. RCCL is 7.2.4's, so its ROCm SMI lies beside it,
which ROCm 10 has no more.
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

import amd_standin
from amd_standin import CLANG, Layout, Package, packed

RELEASE, SERIES = "10.0.0", "10.0"
HOME = f"opt/rocm/core-{SERIES}"
TARGETS = ("gfx90a", "gfx942", "gfx950")
TORCH = "2.13.0+rocm10.0.0.standin"  # the release that the stack has; it is Debian's 2.6
HIP = "7.15.26333"  # what torch.version.hip says
ANY = "py3-none-linux_x86_64"


def package(name: str, *made_of: str, depends: tuple[str, ...] = ()) -> tuple[str, Package]:
    """With the release in the names of AMD's, its own and those that it depends on."""
    named = tuple(f"{each}{SERIES}" if each.startswith("amdrocm-") else each for each in depends)
    return f"{name}{SERIES}", Package("10.0.0-4", made_of, named)


PACKAGES = dict(
    [
        package("amdrocm-sysdeps", depends=("libdrm-amdgpu1", "libelf1t64", "libnuma1", "libzstd1")),
        package("amdrocm-base", "rocminfo", depends=("python3", "kmod", "pciutils", "amdrocm-runtime")),
        package("amdrocm-llvm", "hipcc", depends=(*CLANG, "amdrocm-sysdeps", "amdrocm-runtime")),
        package("amdrocm-llvm-dev", "rocm-device-libs-22", depends=("python3", "amdrocm-sysdeps", "amdrocm-llvm")),
        package("amdrocm-runtime", "libhsa-runtime64-1", "libamdhip64-7", "libhiprtc7", "libhiprtc-builtins7",
                "libamd-comgr3", depends=("libllvm22", "libclang-common-22-dev", "amdrocm-sysdeps", "amdrocm-base",
                                          "amdrocm-llvm")),
        package("amdrocm-runtime-dev", "libamdhip64-dev", "libhsa-runtime-dev", "libamd-comgr-dev",
                depends=("amdrocm-sysdeps", "amdrocm-runtime", "amdrocm-llvm-dev")),
        package("amdrocm-amdsmi", "amd-smi", "libamd-smi27", "libe-smi64-1",
                depends=("python3", "python3-yaml", "python3-argcomplete", "libnl-3-200", "libnl-genl-3-200",
                         "libmnl0", "amdrocm-sysdeps")),
        package("amdrocm-hipify", "hipify-perl"),
        package("amdrocm-profiler-base", depends=("amdrocm-runtime", "amdrocm-sysdeps")),
        package("amdrocm-rccl-host", "librccl1", "librocm-smi64-7",
                depends=("amdrocm-base", "amdrocm-amdsmi", "amdrocm-profiler-base")),
        package("amdrocm-rccl-dev", "librccl-dev", depends=("python3", "amdrocm-rccl-host")),
    ]
)  # fmt: skip
PACKAGES |= {
    f"amdrocm-rccl{SERIES}-{gfx}": Package(
        "10.0.0-4", (), (f"amdrocm-rccl-host{SERIES}",), (f".kpack/rccl_lib_{gfx}.kpack",)
    )
    for gfx in TARGETS
}
CORE, LLVM = f"amdrocm-base{SERIES}", f"amdrocm-llvm{SERIES}"
LAYOUT = Layout(RELEASE, HOME, CORE, LLVM, PACKAGES, suite="stable", origin="AMD ROCm stand-in")
# The source package, in as few lines as do the same: which wheel has which library, and to load them before torch does.
SETUP = f"""
import os
from setuptools import setup
targets = {TARGETS!r}
assert os.environ["ROCM_SDK_TARGET_FAMILY"] in targets
extras = {{"libraries": ["rocm-sdk-libraries=={RELEASE}"]}}
extras |= {{f"device-{{gfx}}": [f"rocm-sdk-device-{{gfx}}=={RELEASE}"] for gfx in targets}}
setup(name="rocm", version="{RELEASE}", packages=["rocm_sdk"], package_dir={{"": "src"}},
      install_requires=["rocm-sdk-core=={RELEASE}"], extras_require=extras,
      entry_points={{"console_scripts": ["rocm-sdk = rocm_sdk.__main__:main"]}})
"""
MODULE = f"""
import ctypes
import importlib
from pathlib import Path

__version__ = "{RELEASE}"
_HOLDS = {{"amd_comgr": "core", "amdhip64": "core", "hiprtc": "core", "rccl": "libraries"}}
_LOADED = {{}}


def find_libraries(*names):
    folders = [Path(importlib.import_module(f"_rocm_sdk_{{_HOLDS[name]}}").__file__).parent / "lib" for name in names]
    return [sorted(folder.glob(f"lib{{name}}.so*"))[0] for folder, name in zip(folders, names)]


def initialize_process(*, preload_shortnames=(), check_version=None):
    for name, path in zip(preload_shortnames, find_libraries(*preload_shortnames)):
        _LOADED[name] = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    assert check_version in (None, __version__)
"""
COMMAND = """
import sys
import rocm_sdk


def main():
    print(rocm_sdk.__version__ if sys.argv[1:] == ["version"] else "")


if __name__ == "__main__":
    main()
"""
INITIALIZE = f"""
def initialize():
    import rocm_sdk
    names = ["amd_comgr", "amdhip64", "hiprtc", "rccl"]
    rocm_sdk.initialize_process(preload_shortnames=names, check_version="{RELEASE}")
"""


def source_package(folder: Path) -> None:
    folder.mkdir(parents=True)
    files = {"setup.py": SETUP, "src/rocm_sdk/__init__.py": MODULE, "src/rocm_sdk/__main__.py": COMMAND}
    with tarfile.open(folder / f"rocm-{RELEASE}.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"rocm-{RELEASE}/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


def libraries(work: Path, owner: str, names: tuple[str, ...]) -> dict[str, bytes]:
    """Libraries of a package, under their SONAMEs alone, as wheels can't have links."""
    found = {}
    for path in sorted((work / f"{owner}{SERIES}" / HOME / "lib").glob("*.so.*")):
        soname = amd_standin.run("patchelf", "--print-soname", path).strip()
        if path.is_file() and not path.is_symlink() and soname.startswith(names):
            found[f"lib/{soname}"] = path.read_bytes()
    assert len(found) == len(names), (found.keys(), names)
    return found


def wheels(index: Path, work: Path) -> None:
    core = libraries(work, "amdrocm-runtime", ("libamdhip64", "libhsa-runtime64", "libamd_comgr", "libhiprtc.",
                                               "libhiprtc-builtins"))  # fmt: skip
    core |= {"__init__.py": b"", ".info/version": RELEASE.encode()}
    packed(index, "rocm_sdk_core", RELEASE, ANY, {f"_rocm_sdk_core/{name}": data for name, data in core.items()})
    rccl = {"__init__.py": b"", **libraries(work, "amdrocm-rccl-host", ("librccl", "librocm_smi64"))}
    packed(index, "rocm_sdk_libraries", RELEASE, ANY, {f"_rocm_sdk_libraries/{n}": data for n, data in rccl.items()})
    packed(index, "rocm_bootstrap", "0.1.0", "py3-none-any", {"rocm_bootstrap/__init__.py": b""})
    kernels = b"a stand-in for kernels"
    needs = [f"rocm[libraries]=={RELEASE}", "rocm-bootstrap"]
    for gfx in TARGETS:
        own = {f"_rocm_sdk_libraries/.kpack/rccl_lib_{gfx}.kpack": kernels}
        packed(index, f"rocm_sdk_device_{gfx}", RELEASE, ANY, own, [f"rocm-sdk-libraries=={RELEASE}"])
        own = {f"torch/.kpack/torch_{gfx}.kpack": kernels}
        tag = "cp313-cp313-linux_x86_64"
        packed(index, f"amd_torch_device_{gfx}", TORCH, tag, own, [f"rocm-sdk-device-{gfx}=={RELEASE}"])
        needs.append(f"amd-torch-device-{gfx}=={TORCH}; extra == 'device-{gfx}'")
    debs = amd_standin.fetched(("python3-torch", "libtorch2.6"), work / "torch-debs")
    files = amd_standin.torch(debs, work, TORCH, HIP)
    files["torch/_rocm_init.py"] = INITIALIZE.encode()
    first = (
        files["torch/__init__.py"]
        .decode()
        .replace("\nimport builtins\n", "\nimport builtins\nfrom torch import _rocm_init\n_rocm_init.initialize()\n", 1)
    )
    assert "_rocm_init" in first
    files["torch/__init__.py"] = first.encode()
    packed(index, "torch", TORCH, "cp313-cp313-linux_x86_64", files, needs)


def main(site: Path) -> None:
    work, folder = Path("/tmp/work"), site / "rocm/core/packages/debian13"
    amd_standin.packages(LAYOUT, folder, work)
    amd_standin.repository(folder, LAYOUT, site / "rocm/gpg/packages.gpg")
    source_package(site / "rocm/core/whl-next/rocm")
    wheels(site / "rocm/whl-next", work)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

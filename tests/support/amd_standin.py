"""Makes a stand-in of AMD's apt repository and of PyTorch's wheel index for ROCm: a program for a Debian 13 container,
with the suites of Debian that have ROCm 7.2.4. It repacks Debian's packages under AMD's names, with AMD's dependencies
and paths, and calls each of them a stand-in.

    python3 amd_standin.py FOLDER

FOLDER/ is the repository, with suite `trixie` and key.asc; FOLDER/whl the index. Names, dependencies and paths are
those of AMD's packages as ROCm/ROCm-docker's Dockerfiles and the ROCm documentation (package manager integration, file
system reorganization) give them: everything in /opt/rocm-RELEASE, and /opt/rocm a link. What AMD's own libraries have
in addition (a RUNPATH of $ORIGIN) they get too.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RELEASE = "7.2.4"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
TORCH = "2.11.0+rocm7.2.standin"  # the release that the stack has; it is Debian's 2.6
HIP = "7.2.53211"  # what torch.version.hip says
TAG = "cp313-cp313-manylinux_2_39_x86_64"


@dataclass(frozen=True)
class Package:
    """A package of AMD's."""

    version: str
    made_of: tuple[str, ...] = ()  # Debian's
    depends: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # below the release's folder: kernels that are none


@dataclass(frozen=True)
class Layout:
    """How AMD packages a release. Packages by what is special of them: which has the release's number, and which
    the compiler."""

    release: str
    home: str
    core: str
    llvm: str
    packages: dict[str, Package]
    links: str = ""  # shell that `core` runs when it is installed
    suite: str = "trixie"
    origin: str = "stand-in"


CLANG = ("clang-22", "clang-tools-22", "lld-22", "llvm-22", "libclang-rt-22-dev", "libstdc++-14-dev")
PACKAGES = {
    "rocm-core": Package(RELEASE),
    "rocm-llvm": Package("22.0.0", (), ("rocm-core", *CLANG)),
    "rocm-device-libs": Package("1.0.0", ("rocm-device-libs-22",), ("rocm-core",)),
    "comgr": Package("3.0.0", ("libamd-comgr3", "libamd-comgr-dev"),
                     ("rocm-core", "libllvm22", "libclang-common-22-dev", "libzstd1")),
    "hsa-rocr": Package("1.18.0", ("libhsa-runtime64-1",), ("rocm-core", "libdrm-amdgpu1", "libelf1t64", "libnuma1")),
    "hsa-rocr-dev": Package("1.18.0", ("libhsa-runtime-dev",), ("rocm-core", "hsa-rocr")),
    "rocminfo": Package("1.0.0", ("rocminfo",), ("rocm-core", "hsa-rocr", "kmod", "pciutils", "python3")),
    "hip-runtime-amd": Package(HIP, ("libamdhip64-7", "libhiprtc7", "libhiprtc-builtins7"),
                               ("rocm-core", "comgr", "hsa-rocr", "rocminfo", "rocm-llvm")),
    "hip-dev": Package(HIP, ("libamdhip64-dev",), ("rocm-core", "hip-runtime-amd", "hsa-rocr-dev", "comgr")),
    "hipcc": Package("1.1.1", ("hipcc",), ("rocm-core", "rocm-llvm")),
    "hipify-clang": Package("22.0.0", ("hipify-perl",), ("rocm-core", "perl")),
    "rocm-hip-runtime-dev": Package(RELEASE, (), ("rocm-core", "hip-dev", "hipcc", "hipify-clang", "rocm-device-libs",
                                                  "rocm-llvm", "hsa-rocr-dev")),
    "rocm-smi-lib": Package("7.8.0", ("librocm-smi64-7", "librocm-smi-dev", "liboam-dev", "rocm-smi"),
                            ("rocm-core", "python3")),
    "amd-smi-lib": Package("26.2.2", ("amd-smi", "libamd-smi27", "libe-smi64-1"),
                           ("rocm-core", "python3", "python3-yaml", "python3-argcomplete", "libdrm-amdgpu1",
                            "libnl-3-200", "libnl-genl-3-200", "libmnl0")),
    "rccl": Package("2.27.7", ("librccl1",), ("rocm-core", "hip-runtime-amd", "rocm-smi-lib")),
    "rccl-dev": Package("2.27.7", ("librccl-dev",), ("rocm-core", "rccl", "hip-dev")),
}  # fmt: skip
HOME = f"opt/rocm-{RELEASE}"
LAYOUT = Layout(
    RELEASE, HOME, "rocm-core", "rocm-llvm", PACKAGES,
    f"ln -sfn /{HOME} /etc/alternatives/rocm\nln -sfn /etc/alternatives/rocm /opt/rocm",
)  # fmt: skip


def run(*command: str | Path, **options: object) -> str:
    return subprocess.run([*map(str, command)], check=True, text=True, stdout=subprocess.PIPE, **options).stdout  # type: ignore[call-overload, no-any-return]


def fetched(names: tuple[str, ...], folder: Path) -> dict[str, Path]:
    """Debian's packages, newest first, by apt's own client."""
    folder.mkdir()
    suites = {name: "trixie" if "torch" in name else "experimental" for name in names}
    for name in names:
        try:
            run("apt-get", "-qq", "download", f"{name}/{suites[name]}", cwd=folder, stderr=subprocess.DEVNULL)
        except subprocess.CalledProcessError:
            run("apt-get", "-qq", "download", f"{name}/unstable", cwd=folder)
    return {file.name.partition("_")[0]: file for file in folder.glob("*.deb")}


def moved(path: str, home: str) -> str:
    """Where AMD has a file of Debian's."""
    for old, new in (
        ("usr/lib/llvm-22/lib/clang/22/amdgcn", f"{home}/amdgcn"),
        ("usr/lib/python3/", "usr/lib/python3/"),  # where pip puts amdsmi in AMD's case
        (f"{LIBRARIES}/", f"{home}/lib/"),
        ("usr/", f"{home}/"),
    ):
        if path.startswith(old):
            return new + path.removeprefix(old)
    return path


def for_glibc_of_debian_13(path: Path) -> None:
    """RCCL was linked where two functions have variants that check a size, since glibc 2.42: it gets the plain ones,
    which take the same arguments but the last, and no longer asks for that glibc."""
    data = bytearray(path.read_bytes())
    head = struct.unpack_from("<16sHHIQQQI6H", data)
    tables = [struct.unpack_from("<IIQQQQIIQQ", data, head[6] + i * head[11]) for i in range(head[12])]
    kinds = {table[1]: table for table in tables}
    symbols, versions, needs = kinds[11], kinds[0x6FFFFFFF], kinds[0x6FFFFFFE]
    strings = tables[symbols[6]]

    def text(at: int) -> bytes:
        start = strings[4] + at
        return bytes(data[start : data.index(0, start)])

    old: dict[int, int] = {}  # number of a version -> where it is asked for
    base, oldest, at = 0, 0, needs[4]
    while True:
        _, count, file, aux, further = struct.unpack_from("<HHIII", data, at)
        each = at + aux
        for _ in range(count):
            _, _, number, name, after = struct.unpack_from("<IHHII", data, each)
            if text(file) == b"libc.so.6" and text(name) == b"GLIBC_2.2.5":
                base, oldest = number, each
            found = re.fullmatch(rb"GLIBC_2\.(\d+)", text(name))
            if found and int(found[1]) > 41:
                old[number] = each
            each += after
        if not further:
            break
        at += further
    for each in old.values():  # asked for as the oldest, which every glibc has: the hash, and the name
        data[each : each + 4] = data[oldest : oldest + 4]
        data[each + 8 : each + 12] = data[oldest + 8 : oldest + 12]
    for index in range(symbols[5] // 24):
        (version,) = struct.unpack_from("<H", data, versions[4] + 2 * index)
        if version not in old:
            continue
        (name_at,) = struct.unpack_from("<I", data, symbols[4] + 24 * index)
        plain = {b"__inet_ntop_chk": b"inet_ntop", b"__inet_pton_chk": b"inet_pton"}[text(name_at)]
        data[strings[4] + name_at : strings[4] + name_at + len(text(name_at))] = plain.ljust(len(text(name_at)), b"\0")
        struct.pack_into("<H", data, versions[4] + 2 * index, base)
    path.write_bytes(data)


def tree(name: str, layout: Layout, debs: dict[str, Path], work: Path) -> Path:
    """The files of a package, as AMD lays them out."""
    root, plain, package = work / name, work / f"{name}.plain", layout.packages[name]
    home = root / layout.home
    home.mkdir(parents=True)
    plain.mkdir()
    for each in package.made_of:
        run("dpkg-deb", "-x", debs[each], plain)
    for path in sorted(plain.rglob("*")):
        inside = str(path.relative_to(plain))
        if inside.startswith(("usr/share/doc", "usr/share/lintian", "usr/share/man")) or (
            path.is_dir() and not path.is_symlink()
        ):
            continue
        place = root / moved(inside, layout.home)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() and inside.startswith("usr/lib/python3/"):
            shutil.copyfile(path.resolve(), place)  # it leads out of its folder
        else:
            shutil.move(path, place, copy_function=shutil.copy2)
    for own in package.files:
        (home / own).parent.mkdir(parents=True, exist_ok=True)
        (home / own).write_text("a stand-in for kernels\n")
    # dpkg takes a package without a file of its own for one that others have replaced.
    (home / f"share/doc/{name}").mkdir(parents=True, exist_ok=True)
    (home / f"share/doc/{name}/README").write_text(f"a stand-in for AMD's {name}\n")
    if name == layout.core:
        (home / ".info").mkdir()
        (home / ".info/version").write_text(f"{layout.release}-standin\n")
    if name == layout.llvm:
        (home / "lib").mkdir(exist_ok=True)
        for link in ("llvm", "lib/llvm", "lib/llvm-22"):
            (home / link).symlink_to("/usr/lib/llvm-22")
    for path in home.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
            if path.name.startswith("librccl.so"):
                for_glibc_of_debian_13(path)
            run("patchelf", "--set-rpath", "$ORIGIN" if ".so" in path.name else "$ORIGIN/../lib", path)
    return root


def deb(name: str, layout: Layout, root: Path, pool: Path) -> None:
    (root / "DEBIAN").mkdir()
    package = layout.packages[name]
    digits = "".join(f"{int(each):02d}" for each in layout.release.split("."))
    fields = {
        "Package": name,
        "Version": f"{package.version}.{digits.lstrip('0')}-standin",
        "Architecture": "amd64",
        "Maintainer": "a stand-in for AMD's package <standin@example.org>",
        "Depends": ", ".join(package.depends),
        "Description": f"stand-in for AMD's {name}, made of {', '.join(package.made_of) or 'nothing'} of Debian",
    }
    text = "".join(f"{key}: {value}\n" for key, value in fields.items() if value)
    (root / "DEBIAN/control").write_text(text)
    if name == layout.core and layout.links:
        script = root / "DEBIAN/postinst"
        script.write_text(f"#!/bin/sh\n{layout.links}\n")
        script.chmod(0o755)
    run("dpkg-deb", "-Zzstd", "-z1", "--root-owner-group", "--build", root, pool)


def repository(folder: Path, layout: Layout, key: Path) -> None:
    """Signed, as any."""
    lists = folder / f"dists/{layout.suite}/main/binary-amd64"
    lists.mkdir(parents=True)
    packages = run("dpkg-scanpackages", "--multiversion", "pool", cwd=folder, stderr=subprocess.DEVNULL)
    (lists / "Packages").write_text(packages)
    index = f"{hashlib.sha256(packages.encode()).hexdigest()} {len(packages.encode())} main/binary-amd64/Packages"
    release = folder / f"dists/{layout.suite}/Release"
    release.write_text(
        f"Origin: {layout.origin}\nLabel: stand-in of AMD's repository\nSuite: {layout.suite}\n"
        f"Codename: {layout.suite}\nComponents: main\nArchitectures: amd64\nDate: {run('date', '-Ru').strip()}\n"
        f"SHA256:\n {index}\n"
    )
    os.environ["GNUPGHOME"] = "/root/gnupg"
    Path("/root/gnupg").mkdir(mode=0o700)
    gpg = ("gpg", "--quiet", "--batch")
    run(*gpg, "--passphrase", "", "--quick-gen-key", "standin@example.org", "ed25519", "sign", "never")
    run(*gpg, "--clearsign", "--output", release.with_name("InRelease"), release)
    key.parent.mkdir(parents=True, exist_ok=True)
    run(*gpg, "--armor", "--output", key, "--export")


def packed(index: Path, name: str, version: str, tag: str, files: dict[str, bytes], needs: Sequence[str] = ()) -> None:
    """A wheel of these files, on the page of the index that names it."""
    extras = dict.fromkeys(each.split("'")[1] for each in needs if "extra ==" in each)
    info = f"{name}-{version}.dist-info"
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "Summary: stand-in",
            *(f"Provides-Extra: {each}" for each in extras), *(f"Requires-Dist: {each}" for each in needs)]  # fmt: skip
    wheel = f"Wheel-Version: 1.0\nGenerator: stand-in\nRoot-Is-Purelib: false\nTag: {tag}\n"
    metadata = "".join(f"{line}\n" for line in head).encode()
    files = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel.encode()}
    folder = index / name.replace("_", "-")
    folder.mkdir(parents=True)
    file = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        rows = []
        for path, data in files.items():
            archive.writestr(path, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            rows.append(f"{path},sha256={digest},{len(data)}\n")
        archive.writestr(f"{info}/RECORD", "".join(rows) + f"{info}/RECORD,,\n")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / "index.html").write_text(f'<a href="{file.name.replace("+", "%2B")}#sha256={digest}">{file.name}</a>\n')


def torch(debs: dict[str, Path], work: Path, version: str, hip: str) -> dict[str, bytes]:
    """Debian's PyTorch, which is for processors, as the files of a wheel that says HIP; its libraries stay Debian's
    packages."""
    for each in debs.values():
        run("dpkg-deb", "-x", each, work / "torch")
    modules = work / "torch/usr/lib/python3/dist-packages"
    said = modules / "torch/version.py"
    text = re.sub(r"^hip(: [^=]*)?=.*$", f"hip = {hip!r}", said.read_text(), flags=re.MULTILINE)
    said.write_text(re.sub(r"^__version__ = .*$", f"__version__ = {version!r}", text, flags=re.MULTILINE))
    files = {}
    for top in ("torch", "functorch", "torchgen"):
        for path in sorted((modules / top).rglob("*")):
            # Of the libraries that it links to, torch opens this one by its path.
            own = not path.is_symlink() or path.name == "libtorch_global_deps.so"
            if own and path.is_file() and "/include/" not in str(path):
                files[str(path.relative_to(modules))] = path.read_bytes()
    return files


def packages(layout: Layout, folder: Path, work: Path) -> None:
    """All packages of a layout, in the repository's pool."""
    pool = folder / "pool"
    pool.mkdir(parents=True)
    work.mkdir(exist_ok=True)
    debs = fetched(tuple(each for package in layout.packages.values() for each in package.made_of), work / "debs")
    for name in layout.packages:
        deb(name, layout, tree(name, layout, debs, work), pool)


def main(folder: Path) -> None:
    work = Path("/tmp/work")
    packages(LAYOUT, folder, work)
    repository(folder, LAYOUT, folder / "key.asc")
    files = torch(fetched(("python3-torch", "libtorch2.6"), work / "torch-debs"), work, TORCH, HIP)
    packed(folder / "whl", "torch", TORCH, TAG, files)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

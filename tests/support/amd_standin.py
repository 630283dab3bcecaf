"""Makes a stand-in of AMD's apt repository and of PyTorch's wheel index for ROCm: a program for a Debian 13 container,
with the suites of Debian that have ROCm 7.2.4. It repacks Debian's packages under AMD's names, with AMD's dependencies
and paths, and calls each of them a stand-in.

    python3 amd_standin.py FOLDER

FOLDER/ is the repository, with suite `noble` and key.asc; FOLDER/whl the index. Names, dependencies and paths are those
of AMD's packages as ROCm/ROCm-docker's Dockerfiles and the ROCm documentation (package manager integration, file system
reorganization) give them: everything in /opt/rocm-RELEASE, and /opt/rocm a link. What AMD's own libraries have in
addition (a RUNPATH of $ORIGIN) they get too.
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
from dataclasses import dataclass
from pathlib import Path

RELEASE = "7.2.4"
HOME = f"opt/rocm-{RELEASE}"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
TORCH = "2.11.0+rocm7.2.standin"  # the release that the stack has; it is Debian's 2.6
HIP = "7.2.53211"  # what torch.version.hip says


@dataclass(frozen=True)
class Package:
    """A package of AMD's."""

    version: str
    made_of: tuple[str, ...] = ()  # Debian's
    depends: tuple[str, ...] = ()


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


def moved(path: str) -> str:
    """Where AMD has a file of Debian's."""
    for old, new in (
        ("usr/lib/llvm-22/lib/clang/22/amdgcn", f"{HOME}/amdgcn"),
        ("usr/lib/python3/", "usr/lib/python3/"),  # where pip puts amdsmi in AMD's case
        (f"{LIBRARIES}/", f"{HOME}/lib/"),
        ("usr/", f"{HOME}/"),
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


def tree(name: str, package: Package, debs: dict[str, Path], work: Path) -> Path:
    """The files of a package, as AMD lays them out."""
    root, plain = work / name, work / f"{name}.plain"
    (root / HOME).mkdir(parents=True)
    plain.mkdir()
    for each in package.made_of:
        run("dpkg-deb", "-x", debs[each], plain)
    for path in sorted(plain.rglob("*")):
        inside = str(path.relative_to(plain))
        if inside.startswith(("usr/share/doc", "usr/share/lintian", "usr/share/man")) or (
            path.is_dir() and not path.is_symlink()
        ):
            continue
        place = root / moved(inside)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() and inside.startswith("usr/lib/python3/"):
            shutil.copyfile(path.resolve(), place)  # it leads out of its folder
        else:
            shutil.move(path, place, copy_function=shutil.copy2)
    home = root / HOME
    # dpkg takes a package without a file of its own for one that others have replaced.
    (home / f"share/doc/{name}").mkdir(parents=True, exist_ok=True)
    (home / f"share/doc/{name}/README").write_text(f"a stand-in for AMD's {name}\n")
    if name == "rocm-core":
        (home / ".info").mkdir()
        (home / ".info/version").write_text(f"{RELEASE}-standin\n")
    if name == "rocm-llvm":
        (home / "lib").mkdir()
        for link in ("llvm", "lib/llvm", "lib/llvm-22"):
            (home / link).symlink_to("/usr/lib/llvm-22")
    for path in home.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
            if name == "rccl":
                for_glibc_of_debian_13(path)
            run("patchelf", "--set-rpath", "$ORIGIN" if ".so" in path.name else "$ORIGIN/../lib", path)
    return root


def deb(name: str, package: Package, root: Path, pool: Path) -> None:
    (root / "DEBIAN").mkdir()
    digits = "".join(f"{int(each):02d}" for each in RELEASE.split("."))
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
    if name == "rocm-core":
        script = root / "DEBIAN/postinst"
        script.write_text(
            f"#!/bin/sh\nln -sfn /{HOME} /etc/alternatives/rocm\nln -sfn /etc/alternatives/rocm /opt/rocm\n"
        )
        script.chmod(0o755)
    run("dpkg-deb", "-Zzstd", "-z1", "--root-owner-group", "--build", root, pool)


def repository(folder: Path) -> None:
    """Signed, as any."""
    lists = folder / "dists/noble/main/binary-amd64"
    lists.mkdir(parents=True)
    packages = run("dpkg-scanpackages", "--multiversion", "pool", cwd=folder, stderr=subprocess.DEVNULL)
    (lists / "Packages").write_text(packages)
    index = f"{hashlib.sha256(packages.encode()).hexdigest()} {len(packages.encode())} main/binary-amd64/Packages"
    release = folder / "dists/noble/Release"
    release.write_text(
        "Origin: stand-in\nLabel: stand-in of repo.radeon.com\nSuite: noble\nCodename: noble\nComponents: main\n"
        f"Architectures: amd64\nDate: {run('date', '-Ru').strip()}\nSHA256:\n {index}\n"
    )
    os.environ["GNUPGHOME"] = "/root/gnupg"
    Path("/root/gnupg").mkdir(mode=0o700)
    gpg = ("gpg", "--quiet", "--batch")
    run(*gpg, "--passphrase", "", "--quick-gen-key", "standin@example.org", "ed25519", "sign", "never")
    run(*gpg, "--clearsign", "--output", release.with_name("InRelease"), release)
    run(*gpg, "--armor", "--output", folder / "key.asc", "--export")


def wheel(debs: dict[str, Path], index: Path, work: Path) -> None:
    """Debian's PyTorch, which is for processors, as a wheel that says HIP; its libraries stay Debian's packages."""
    for each in debs.values():
        run("dpkg-deb", "-x", each, work / "torch")
    modules = work / "torch/usr/lib/python3/dist-packages"
    said = modules / "torch/version.py"
    text = re.sub(r"^hip(: [^=]*)?=.*$", f"hip = {HIP!r}", said.read_text(), flags=re.MULTILINE)
    said.write_text(re.sub(r"^__version__ = .*$", f"__version__ = {TORCH!r}", text, flags=re.MULTILINE))
    info = modules / f"torch-{TORCH}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH}\nSummary: stand-in: Debian's 2.6, without ROCm\n"
    )
    tag = "cp313-cp313-manylinux_2_39_x86_64"
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: stand-in\nRoot-Is-Purelib: false\nTag: {tag}\n")
    rows = []
    folder = index / "torch"
    folder.mkdir(parents=True)
    file = folder / f"torch-{TORCH}-{tag}.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for top in ("torch", "functorch", "torchgen", info.name):
            for path in sorted((modules / top).rglob("*")):
                # Of the libraries that it links to, torch opens this one by its path.
                own = not path.is_symlink() or path.name == "libtorch_global_deps.so"
                if own and path.is_file() and "/include/" not in str(path):
                    name, data = str(path.relative_to(modules)), path.read_bytes()
                    archive.writestr(name, data)
                    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                    rows.append(f"{name},sha256={digest},{len(data)}\n")
        archive.writestr(f"{info.name}/RECORD", "".join(rows) + f"{info.name}/RECORD,,\n")
    name, digest = file.name, hashlib.sha256(file.read_bytes()).hexdigest()
    (folder / "index.html").write_text(f'<a href="{name.replace("+", "%2B")}#sha256={digest}">{name}</a>\n')


def main(folder: Path) -> None:
    work, pool = Path("/tmp/work"), folder / "pool"
    pool.mkdir(parents=True)
    work.mkdir()
    debs = fetched(tuple(each for package in PACKAGES.values() for each in package.made_of), work / "debs")
    for name, package in PACKAGES.items():
        deb(name, package, tree(name, package, debs, work), pool)
    repository(folder)
    wheel(fetched(("python3-torch", "libtorch2.6"), work / "torch-debs"), folder / "whl", work)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

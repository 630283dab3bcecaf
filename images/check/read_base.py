"""Reads an image that is to be a base, from inside it, and prints one JSON object. rocstack starts it in a container
without network, rights or a file to write, and checks what it prints. Files are read; nothing of the image runs but
ldconfig and the Python that a command in it gets."""

import glob
import json
import os
import re
import subprocess
import sys

ROCM = "/opt/rocm"
GFX = re.compile(r"gfx(?:[6-9]|1[0-9])[0-9][0-9a-f](?![0-9a-f])")
OWN = """
import json, sys, sysconfig
print(json.dumps(["%d.%d" % sys.version_info[:2], sysconfig.get_path("purelib"), sys.path]))
"""


def text(path, size=1 << 20):
    try:
        with open(path, errors="replace") as file:
            return file.read(size)
    except OSError:
        return ""


def first(pattern, *texts):
    for each in texts:
        found = re.search(pattern, each, re.MULTILINE)
        if found:
            return found.group(1)
    return None


def packages():
    """Installed package -> upstream version."""
    out = {}
    for block in text("/var/lib/dpkg/status", 64 << 20).split("\n\n"):
        name, version = first(r"^Package: (\S+)$", block), first(r"^Version: (?:\d+:)?(\S+)$", block)
        if name and version and first(r"^Status: .* (installed)$", block):
            out[name] = (version.rsplit("-", 1)[0] if "-" in version else version).partition("+")[0]
    return out


def system():
    words = dict(re.findall(r'^(ID|VERSION_ID|VERSION_CODENAME)="?([^"\n]*)"?$', text("/etc/os-release"), re.MULTILINE))
    return f"{words.get('ID')}-{words.get('VERSION_ID') or words.get('VERSION_CODENAME')}"


def python():
    """Version, folder of pip's packages and search path, of the first python3 of the PATH."""
    for folder in os.environ.get("PATH", "").split(":"):
        path = os.path.join(folder, "python3")
        if os.path.isabs(path) and os.access(path, os.X_OK):
            break
    else:
        path = sys.executable
    done = subprocess.run([path, "-c", OWN], stdout=subprocess.PIPE, timeout=20, check=True, cwd="/")
    version, site, search = json.loads(done.stdout.decode())
    if path.startswith("/usr/bin/"):
        site = f"/usr/local/lib/python{version}/dist-packages"  # as Debian's and Ubuntu's own looks for them
    return version, site, [folder for folder in search if folder.startswith("/")]


def torch(search, installed):
    """The component, what its version.py says of HIP and CUDA, and its folder."""
    for folder in search:
        said = text(os.path.join(folder, "torch/version.py"))
        if said:
            value = r"^%s(?:: [^=\n]*)? = '([^'\n]+)'"
            version = first(value % "__version__", said)
            apt = "python3-torch" in installed and folder == "/usr/lib/python3/dist-packages"
            plain = (version or "").replace("+debian", "")
            found = {"version": plain or None, "origin": "apt" if apt else "wheel"}
            hip, cuda = first(value % "hip", said), first(value % "cuda", said)
            return found, hip and hip.partition("-")[0], cuda, os.path.join(folder, "torch")
    return None, None, None, None


def rocm(installed, search):
    # Since ROCm 10 AMD's packages are in /opt/rocm/core-10.0, to which /opt/rocm/core leads.
    for prefix in [os.environ.get("ROCM_PATH") or ROCM, ROCM, ROCM + "/core"]:
        version = first(r"^(\d+(?:\.\d+)+)", text(prefix + "/.info/version"))
        if version:
            return {"version": version, "origin": "amd", "prefix": os.path.normpath(prefix)}
    # Since ROCm 7.9 its libraries may be Python packages: rocm-sdk-core and others.
    for folder in search:
        prefix = folder + "/_rocm_sdk_core"
        version = first(r"^(\d+(?:\.\d+)+)", text(prefix + "/.info/version"))
        if version:
            return {"version": version, "origin": "wheel", "prefix": os.path.normpath(prefix)}
    for name in ("rocminfo", "libamdhip64-7", "libamdhip64-6", "libamdhip64-5"):
        if name in installed:
            return {"version": installed[name], "origin": "apt", "prefix": "/usr"}
    return None


def rccl(prefix, torch_folder, installed):
    header = text(f"{prefix}/include/rccl/rccl.h")
    numbers = [first(rf"^#define NCCL_{part} (\d+)", header) for part in ("MAJOR", "MINOR", "PATCH")]
    version = ".".join(numbers) if all(numbers) else None
    if torch_folder and glob.glob(torch_folder + "/lib/librccl.so*"):
        return {"version": None, "origin": "wheel"}  # its own, which a training run loads
    if torch_folder and glob.glob(sdk_libraries(torch_folder) + "/librccl.so*"):
        return {"version": None, "origin": "wheel"}
    if glob.glob(f"{prefix}/lib/librccl.so.*"):
        packaged = first(r"^(\d+\.\d+\.\d+)", installed.get("rccl", ""))
        return {"version": version or packaged, "origin": "amd" if prefix != "/usr" else "source"}
    return {"version": None, "origin": "apt"} if "librccl1" in installed else None


def sdk_libraries(torch_folder):
    """Where the libraries of ROCm's Python packages are, beside torch."""
    return os.path.dirname(torch_folder) + "/_rocm_sdk_libraries/lib"


def targets(folders):
    """Of which targets there are kernel files: rocBLAS' and hipBLASLt's have them in their names."""
    for folder in filter(None, folders):
        names = glob.glob(folder + "/rocblas/library/*") + glob.glob(folder + "/hipblaslt/library/**", recursive=True)
        names += glob.glob(folder + "/rocblas/*/library/*")
        names += glob.glob(os.path.dirname(os.path.realpath(folder)) + "/.kpack/*.kpack")  # since ROCm 7.13
        found = {gfx for name in names for gfx in GFX.findall(os.path.basename(name))}
        if found:
            built = set(GFX.findall(os.environ.get("PYTORCH_ROCM_ARCH", "")))  # torch may have fewer
            return sorted(found & built if found & built else found)
    return []


def verbs(installed):
    """Where the loader finds libibverbs, and whether that is the distribution's."""
    done = subprocess.run(["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, timeout=20, check=False)
    cache = done.stdout.decode("ascii", "replace")
    path = first(r"libibverbs\.so\.1 \(.*\) => (/\S+)$", cache)
    if not path:
        return None
    real = os.path.realpath(path)
    owned = any(
        line in (real, real.replace("/usr/lib/", "/lib/"))
        for file in glob.glob("/var/lib/dpkg/info/libibverbs1*.list")
        for line in text(file).splitlines()
    )
    return {"path": real, "package": installed.get("libibverbs1") if owned else None}


def main():
    installed = packages()
    version, site, search = python()
    found, hip, cuda, folder = torch(search, installed)
    rocm_found = rocm(installed, search)
    prefix = rocm_found["prefix"] if rocm_found else ROCM
    lib = glob.glob("/usr/lib/*-linux-gnu") if prefix == "/usr" else [prefix + "/lib"]
    ibverbs = verbs(installed)
    components = {
        "rocm": rocm_found,
        "rccl": rccl(prefix, folder, installed),
        "pytorch": found,
        "rdma": {"version": ibverbs["package"], "origin": "apt"} if ibverbs else None,
    }
    sys.stdout.write(
        json.dumps(
            {
                "os": system(),
                "glibc": os.confstr("CS_GNU_LIBC_VERSION").split()[-1],
                "python": version,
                "site": site,
                "hip": hip,
                "cuda": cuda,
                "gfx": targets([folder and folder + "/lib", folder and sdk_libraries(folder), *lib]),
                "components": {name: each for name, each in components.items() if each},
                "verbs": ibverbs,
            }
        )
    )


main()

"""In each worker's container, as root: whether the image fits this node, and whether its parts load there.

The parts are loaded and started as the suite's user, also where only their version is asked: libraries share files in
/dev/shm with whoever made them first (rocm_smi: a lock of the threads library, whose memory that user can write to).

Arguments: names of nodes, to be resolved. One JSON value.
"""

import concurrent.futures
import functools
import glob
import importlib.util
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys

USER = "rocstack-verify"
LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
UNIQUE = """import ctypes, sys
lib, unique = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(128)
code = lib.ncclGetUniqueId(unique)
# Newer ones look for a GPU first; 100: HIP, which it is linked with, has none either.
none = code == 1 and hasattr(lib, "hipGetDeviceCount") and lib.hipGetDeviceCount(ctypes.byref(ctypes.c_int())) == 100
sys.exit(f"ncclGetUniqueId: {code}" if code and not none else 0)"""
COUNT = """import ctypes, sys
code = ctypes.CDLL(sys.argv[1]).hipGetDeviceCount(ctypes.byref(ctypes.c_int()))
sys.exit(0 if code in (0, 100) else f"hipGetDeviceCount: {code}")"""  # 100: no device
# Component -> its libraries, with what is asked of each, and its programs, which may lack their hardware.
PARTS = {
    "rccl": ([("librccl.so.1", UNIQUE)], []),
    "rocm": (
        [("libhsa-runtime64.so.1", LOAD), ("libamdhip64.so.*", COUNT)],
        ["rocminfo", "rocm-smi", "amd-smi version"],
    ),
    "rdma": ([("libibverbs.so.1", LOAD)], ["ibv_devices", "ib_write_bw --version"]),
    "ucx": ([("libucp.so.0", LOAD)], ["ucx_info -v"]),
    "openmpi": ([("libmpi.so.40", LOAD)], ["ompi_info --version"]),
    "pmix": ([("libpmix.so.2", LOAD)], ["pmix_info --version"]),
    "pytorch": ([("libtorch.so", LOAD)], []),
    "slurm": ([], ["slurmd -V", "srun --version"]),
    "munge": ([("libmunge.so.2", LOAD)], ["munge --version"]),
}
FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/opt/rocm*/lib", "/opt/*/lib", "/usr/local/lib")


def said(*command, seconds=30, **options):
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, (done.stdout + done.stderr).strip()


@functools.lru_cache(None)
def plain():
    """The suite's user, as subprocess has it; nothing where somebody else than root asks."""
    if os.geteuid():
        return {}
    try:
        user = pwd.getpwnam(USER)
    except KeyError:  # accounts could not be made there; other checks say so
        user = pwd.getpwnam("nobody")
    own = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    devices = [number for number in os.getgroups() if number]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": devices, "env": {**os.environ, **own}}


def asked(*command):
    return said(*command, **plain())


@functools.lru_cache(None)
def known():
    return said("ldconfig", "-p")[1].splitlines()


def library(name):
    """Its path, by the loader's own table first."""
    for line in known():
        if re.match(re.escape(name).replace(r"\*", ".*") + r" ", line.strip()):
            return line.rpartition("=> ")[2]
    found = importlib.util.find_spec("torch") if name.startswith("libtorch") else None
    folders = [f"{path}/lib" for path in (found.submodule_search_locations if found else ())] + list(FOLDERS)
    return next((path for folder in folders for path in sorted(glob.glob(f"{folder}/{name}"))), "")


def loads(name, program):
    """Why not; "" where it does."""
    path = library(name)
    if not path:
        return f"no {name}"
    code, text = asked(sys.executable, "-c", program, path)
    return "" if code == 0 else f"{name}: {(text.splitlines() or [f'exit status {code}'])[-1]}"


def starts(line):
    words = line.split()
    if not shutil.which(words[0]):
        return f"no {words[0]}"
    code, text = asked(*words)
    broken = re.search(r"Traceback|error while loading shared.*", text)
    if code < 0 or 126 <= code < 255 or broken:
        return f"{line}: {broken[0] if broken else f'exit status {code}'}"
    return ""


def linked(file):
    """The PMIx library that it loads: is linked with, or opens in a folder that it knows."""
    if not file:
        return ""
    found = re.search(r"libpmix\.so\.2 => (\S+)", asked("ldd", file)[1])
    if found:
        return os.path.realpath(found[1])
    with open(file, "rb") as plugin:
        folders = [path.decode() for path in re.findall(rb"(/[\w./+-]+)\0", plugin.read())]
    paths = (f"{folder}/libpmix.so.2" for folder in folders)
    return os.path.realpath(next((path for path in paths if os.path.exists(path)), "") or library("libpmix.so.2"))


def pmix():
    plugins = sorted(
        each for top in ("/usr/lib*", "/opt") for each in glob.glob(f"{top}/**/mpi_pmix_v*.so", recursive=True)
    )
    major = re.search(r"pmix:version:full:(\d+)", asked("pmix_info", "--parsable")[1])
    return {
        "offers": sorted(set(re.findall(r"pmix_v\d+", asked("srun", "--mpi=list")[1]))),
        "major": major[1] if major else "",
        "slurm": linked(plugins[-1]) if plugins else "",
        "openmpi": linked(library("libmpi.so.40")) or linked(shutil.which("prte") or ""),
    }


def address(name):
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        return f"! {error}"


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    gate = pool.submit(said, "rocstack-node", "gate")
    versions = pool.submit(asked, "rocstack-versions")
    match = pool.submit(pmix)
    parts = {
        component: [
            *(pool.submit(loads, *each) for each in libraries),
            *(pool.submit(starts, line) for line in programs),
        ]
        for component, (libraries, programs) in PARTS.items()
    }
    rows = (line.split("\t") for line in versions.result()[1].splitlines())
    answer = {
        "gate": {"code": gate.result()[0], "said": gate.result()[1]},
        "versions": {row[0]: row[1] for row in rows if len(row) == 2},
        "parts": {name: [why for each in tried if (why := each.result())] for name, tried in parts.items()},
        "pmix": match.result(),
        "names": {name: address(name) for name in sys.argv[1:]},
    }
print(json.dumps(answer))

"""Asks the machine itself: programs for their versions, and the kernel for what no file tells.

What a tool would be asked for but the kernel answers just as well is kept under that tool's name and in its words
(`ip -o -4 addr`, `ethtool -i eth0`, `getconf GNU_LIBC_VERSION`), so a node needs none of these tools.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Mapping
from typing import Any

TIMEOUT_S = 3.0  # seconds for one command
# The command that says its version, and the packages that hold it; the first that is installed counts.
TOOLS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "slurm": ("slurmd -V", ("slurmd", "slurm-slurmd")),
    "munge": ("munged --version", ("munge",)),
    "pmix": ("pmix_info --version", ("libpmix2t64", "libpmix2", "pmix")),
    "docker": ("docker --version", ()),
    "podman": ("podman --version", ()),
    "apptainer": ("apptainer --version", ()),
    "ofed": ("ofed_info -s", ()),
    "niccli": ("niccli --version", ()),
    "nicctl": ("nicctl version", ()),
    "rdma-core": ("", ("rdma-core", "libibverbs1", "libibverbs")),
    "bnxt-rocelib": ("", ("bnxt-rocelib", "libbnxt_re")),
    "libionic": ("", ("libionic1", "libionic")),
}
COMMANDS = (
    *(command for command, _ in TOOLS.values() if command),
    "dpkg-query -W libibverbs1 ibverbs-providers rdma-core bnxt-rocelib libionic1 munge slurmd libpmix2 libpmix2t64",
    "rpm -q --qf %{NAME}\\t%{VERSION}-%{RELEASE}\\n libibverbs rdma-core libbnxt_re libionic munge slurm-slurmd pmix",
)
PROGRAM_FOLDERS = (  # the second one since ROCm 10
    "/opt/rocm/bin:/opt/rocm/core/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/niccli"
)


def run_command(line: str) -> tuple[dict[str, Any] | None, str]:
    """The answer ({"code", "out"}), or why there is none; neither: there is no such program."""
    words = line.split()
    program = shutil.which(words[0], path=PROGRAM_FOLDERS)
    if program is None:
        return None, ""
    try:
        done = subprocess.run(
            [program, *words[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S, env={"PATH": PROGRAM_FOLDERS, "LC_ALL": "C", "HOME": "/"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"no answer within {TIMEOUT_S:g} s"
    except OSError as error:
        return None, error.strerror or str(error)
    return {"code": done.returncode, "out": done.stdout.decode("utf-8", "replace")}, ""


def ask_kernel(netdevs: list[str]) -> dict[str, str]:
    """What the kernel and the C library tell without a program, by command line."""
    answers = {
        "uname -m": os.uname().machine,
        "getconf _NPROCESSORS_ONLN": str(os.cpu_count() or ""),
        "date +%s.%N": f"{time.time():.6f}",
    }
    with contextlib.suppress(ValueError):  # not the GNU C library
        answers["getconf GNU_LIBC_VERSION"] = os.confstr("CS_GNU_LIBC_VERSION") or ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answers["ip -o -4 addr"] = _addresses(sock)
        for name in netdevs:
            answers["ethtool -i " + name] = _driver(sock, name)
    return {line: out for line, out in answers.items() if out}


def _addresses(sock: socket.socket) -> str:
    """SIOCGIFCONF, and SIOCGIFNETMASK for each; netdevice(7)."""
    size = 24 + 2 * struct.calcsize("P")  # of struct ifreq
    buffer = array.array("B", bytes(size * 1024))
    request = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
    length, _ = struct.unpack("iP", fcntl.ioctl(sock, 0x8912, request))
    lines: list[str] = []
    for start in range(0, length, size):
        row = buffer.tobytes()[start : start + size]
        try:
            mask = fcntl.ioctl(sock, 0x891B, row)[20:24]
        except OSError:  # gone in the meantime
            continue
        prefix = bin(int.from_bytes(mask, "big")).count("1")
        name = row[:16].partition(b"\0")[0].decode("utf-8", "replace").partition(":")[0]
        lines.append(f"{len(lines) + 1}: {name}    inet {socket.inet_ntoa(row[20:24])}/{prefix}\n")
    return "".join(lines)


def _driver(sock: socket.socket, name: str) -> str:
    """SIOCETHTOOL with ETHTOOL_GDRVINFO; struct ethtool_drvinfo of linux/ethtool.h."""
    info = array.array("B", struct.pack("I192x", 3))
    try:
        fcntl.ioctl(sock, 0x8946, struct.pack("16sP16x", os.fsencode(name), info.buffer_info()[0]))
    except OSError:
        return ""
    words = (info.tobytes()[at : at + 32].partition(b"\0")[0].decode("utf-8", "replace") for at in range(4, 132, 32))
    return "".join(map("{}: {}\n".format, ("driver", "version", "firmware-version", "bus-info"), words))

"""On each node, as root and beside the containers: what its kernel and its cards say. One JSON value; None is "could
not be read"."""

import contextlib
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import time

LINES = 400  # of the kernel's log
TOLD = re.compile(
    r"amdgpu|\bkfd\b|\[drm|Call Trace|NIC Link|bnxt_|mlx5_|ionic|\bcxi|pcieport|\bAER\b|mce:|EDAC|Out of memory|RAS",
    re.IGNORECASE,
)
PCIE, ACS = 0x10, 0x0D  # PCI capability, PCI Express extended capability
FATAL = 1 << 2  # of the device status register: DevSta, FatalErr


def said(*command):
    """What it printed; None where it isn't there or fails."""
    if not shutil.which(command[0]):
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def text(path):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


def number(path):
    found = text(path)
    return int(found) if found and found.isdigit() else None


def capability(config, wanted):
    """Offset in the first 256 bytes; None where the function hasn't it."""
    at, seen = config[0x34] & 0xFC if len(config) > 0x34 else 0, 0
    while 0x40 <= at < min(len(config), 256) - 1 and seen < 48:
        if config[at] == wanted:
            return at
        at, seen = config[at + 1] & 0xFC, seen + 1
    return None


def extended(config, wanted):
    at, seen = 0x100, 0
    while 0x100 <= at <= len(config) - 4 and seen < 256:
        (head,) = struct.unpack_from("<I", config, at)
        if head & 0xFFFF == wanted:
            return at
        at, seen = head >> 20, seen + 1
    return None


def function(folder):
    """The registers that matter of a PCI function. `acs` is its control register; None without the capability."""
    with open(f"{folder}/config", "rb") as file:
        config = file.read()
    pcie, acs = capability(config, PCIE), extended(config, ACS)
    status = struct.unpack_from("<H", config, pcie + 0x0A)[0] if pcie and pcie + 0x0C <= len(config) else None
    return {
        "fatal": None if status is None else bool(status & FATAL),
        "acs": struct.unpack_from("<H", config, acs + 6)[0] if acs and acs + 8 <= len(config) else None,
        "bytes": len(config),  # 256: the extended ones are not there, or not for this user
    }


def functions():
    """Bridges, network controllers, displays and accelerators, by address."""
    found = {}
    for folder in glob.glob("/sys/bus/pci/devices/*"):
        if (text(f"{folder}/class") or "")[:4] in ("0x02", "0x03", "0x06", "0x12"):
            with contextlib.suppress(OSError):
                found[os.path.basename(folder)] = function(folder)
    return found


def log():
    """Of the kernel, since it started."""
    lines = said("dmesg", "--time-format=iso") or said("dmesg") or said("journalctl", "-kqo", "short-iso")
    return None if lines is None else [line[:400] for line in lines.splitlines() if TOLD.search(line)][-LINES:]


def firewall():
    """Tool -> what of it is in the way of packets that come in; empty where nothing is."""
    found = {}
    status = said("ufw", "status")
    if status is not None:
        found["ufw"] = "active" if "Status: active" in status else ""
    state = said("firewall-cmd", "--state")
    if shutil.which("firewall-cmd"):
        found["firewalld"] = "running" if state else ""
    chains = said("iptables", "-S", "INPUT")
    if chains is not None:
        refusing = re.findall(r"^(?:-P INPUT (?:DROP|REJECT)|-A INPUT .*-j (?:DROP|REJECT).*)$", chains, re.MULTILINE)
        found["iptables"] = "; ".join(refusing[:3])
    rules = said("nft", "list", "ruleset")
    if rules is not None:
        dropping = re.findall(r"type filter hook input [^\n]*policy drop", rules)
        for chain in re.findall(r"type filter hook input [^\n]*\n([^}]*)\}", rules):
            whole = r"^\s*((?:counter(?: packets \d+ bytes \d+)? )?(?:reject|drop)\b.*)$"  # without a condition
            dropping += re.findall(whole, chain, re.MULTILINE)
        found["nftables"] = "; ".join(dropping[:3])
    return found


def memory():
    """Bytes of GPU memory in use, by PCI address."""
    files = glob.glob("/sys/bus/pci/devices/*/mem_info_vram_used")
    return {os.path.basename(os.path.dirname(file)): number(file) for file in files}


def processes():
    """Programs that have the GPUs open: pid -> name. None where the driver lists none."""
    folder = "/sys/class/kfd/kfd/proc"
    if not os.path.isdir(folder):
        return None
    return {pid: text(f"/proc/{pid}/comm") or "" for pid in os.listdir(folder)}


print(
    json.dumps(
        {
            "pci": functions(),
            "log": log(),
            "now": time.time(),
            "firewall": firewall(),
            "vram": memory(),
            "processes": processes(),
        }
    )
)

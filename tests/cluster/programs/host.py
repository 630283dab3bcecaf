"""On each node, as root and beside the containers: what its kernel and its cards say. One JSON value; None is "could
not be read". Arguments: patterns of what matters in the kernel's log."""

import contextlib
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time

LINES = 200  # of the kernel's log, of each pattern
ENDS = ("ACCEPT", "DROP", "REJECT", "RETURN")  # of iptables' targets
RULE = r"(.*?)\b((?:accept|drop|reject|return|jump|goto)\b(?: with \S+(?: type)? \S+| [^\s\"]+)?).*"  # of nft
# What a rule may say and still be about new connections over TCP, whatever their port.
NEUTRAL = re.compile(
    "|".join(
        (
            r"-p tcp |-m tcp |-m (?:conntrack|state) --(?:ct)?state \S*NEW\S* ",
            r"(?:meta l4proto|ip protocol) tcp |ct state (?:new|\{[^}]*new[^}]*\}) ",
            r'-m comment --comment (?:"[^"]*"|\S+) |comment "[^"]*"|log prefix "[^"]*" ',
            r"counter packets \d+ bytes \d+ ?",
        )
    )
)
# Conditions that other nodes' packets may meet: where they come from, or a range of ports.
OF_NODES = re.compile(
    "(?:"
    + "|".join(
        (
            r'(?:-i|iif|iifname) (?!"?(?:lo\b|docker|br-|virbr|cni|podman|veth))(?:\{[^}]*\}|[^\s!]+) ?',
            r"(?:-[sd]|ip [sd]addr) (?!127\.|22[4-9]\.|23\d\.)(?:\{[^}]*\}|[^\s!]+) ?|-m set --match-set \S+ src ?",
            r"(?:-m multiport )?--dports? \S*\d:\d\S* ?|tcp dport \d+-\d+ ?",
        )
    )
    + ")+"
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
        "errors": errors(folder),
        "acs": struct.unpack_from("<H", config, acs + 6)[0] if acs and acs + 8 <= len(config) else None,
        "bytes": len(config),  # 256: the extended ones are not there, or not for this user
    }


def errors(folder):
    """What the kernel counts (AER); None where it counts nothing."""
    found = {}
    for kind, total in (("correctable", "COR"), ("nonfatal", "NONFATAL"), ("fatal", "FATAL")):
        row = re.search(rf"TOTAL_ERR_{total} (\d+)", text(f"{folder}/aer_dev_{kind}") or "")
        if row:
            found[kind] = int(row[1])
    return found or None


def functions():
    """Bridges, network controllers, displays and accelerators, by address."""
    found = {}
    for folder in glob.glob("/sys/bus/pci/devices/*"):
        if (text(f"{folder}/class") or "")[:4] in ("0x02", "0x03", "0x06", "0x12"):
            with contextlib.suppress(OSError):
                found[os.path.basename(folder)] = function(folder)
    return found


def log(patterns):
    """Of the kernel, since it started: the last lines of each pattern, in their order. Of a healthy start nothing is
    kept: amdgpu alone says more than a thousand lines."""
    lines = said("dmesg", "--time-format=iso") or said("dmesg") or said("journalctl", "-kqo", "short-iso")
    if lines is None:
        return None
    rows, kept = [line[:400] for line in lines.splitlines()], set()
    for pattern in patterns:
        told = re.compile(pattern, re.IGNORECASE)
        kept |= set([number for number, row in enumerate(rows) if told.search(row)][-LINES:])
    return [rows[number] for number in sorted(kept)]


def iptables():
    """Chain -> its rules, (condition, what is done): as `verdict` takes them. None where they can't be read."""
    text = said("iptables", "-S")
    if text is None:
        return None
    chains, names = {}, set(re.findall(r"^-A (\S+) ", text, re.MULTILINE))
    for chain, rule in re.findall(r"^-A (\S+) (.*)$", text, re.MULTILINE):
        found = re.fullmatch(r"(.*?)-([jg]) ((\S+).*)", NEUTRAL.sub("", rule))
        if found and (found[4] in names or found[4] in ENDS):
            then = f"{'goto' if found[2] == 'g' else 'jump'} {found[4]}" if found[4] in names else found[3]
            chains.setdefault(chain, []).append((found[1].strip(), then))
    for policy in re.findall(r"^-P INPUT (\w+)$", text, re.MULTILINE):
        chains.setdefault("INPUT", []).append(("", policy if policy == "ACCEPT" else f"policy {policy}"))
    return [(chains, "INPUT")]


def nftables():
    """Of each chain through which IPv4 comes in: the chains of its table, as `iptables` gives them, and its name."""
    text, found = said("nft", "list", "ruleset"), []
    if text is None:
        return None
    for table in re.findall(r"^table (?:ip|inet) (.*?)^\}", text, re.MULTILINE | re.DOTALL):
        bodies = dict(re.findall(r"^\s*chain (\S+) \{\n(.*?)^\s*\}$", table, re.MULTILINE | re.DOTALL))
        chains = {}
        for name, body in bodies.items():
            rows = (re.fullmatch(RULE, NEUTRAL.sub("", line.strip())) for line in body.splitlines())
            chains[name] = [(row[1].strip(), row[2].strip()) for row in rows if row]
            if base := re.search(r"type filter hook input [^\n]*?(?:policy (\w+)|$)", body, re.MULTILINE):
                chains[name].append(("", f"policy {base[1]}" if base[1] == "drop" else "accept"))
                found.append((chains, name))
    return found


def verdict(chains, name, lets):
    """What becomes of a packet from another node that no rule for a port, a protocol or a state is about; "" where the
    chain leaves that to the next. Conditions on which such packets are let in all the same are added to `lets`."""
    for where, then in chains.get(name, ()):
        verb, _, target = then.partition(" ")
        end = verdict(chains, target, lets) if verb in ("jump", "goto") else then
        if where:
            if end.lower() == "accept" and OF_NODES.fullmatch(where):
                lets.append(where)
        elif verb.lower() == "return":
            return ""
        elif end or verb == "goto":
            return end
    return ""


def firewall():
    """Tool -> what of it keeps other nodes' packets out, "" where nothing does; and, of tools that are on, but let some
    or all of them in, tool -> what says so."""
    refuses, lets = {}, {}
    status, state = said("ufw", "status"), said("firewall-cmd", "--state")
    if status is not None:
        refuses["ufw"] = ""
    if "Status: active" in (status or ""):
        lets["ufw"] = "active"
    if shutil.which("firewall-cmd"):
        refuses["firewalld"] = ""
    if state:
        lets["firewalld"] = "running"
    for tool, bases in (("iptables", iptables()), ("nftables", nftables())):
        for chains, name in bases or ():
            end = verdict(chains, name, some := [])
            if end and end.lower() != "accept":
                known, text = (lets, f"{end}, but not of {', '.join(some[:3])}") if some else (refuses, end)
                known[tool] = "; ".join(filter(None, (known.get(tool), text)))
        if bases is not None:
            refuses.setdefault(tool, "")
    return refuses, lets


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


def queues():
    """pid -> how many queues it has on the GPUs: who only asks the driver about them has none."""
    folder = "/sys/class/kfd/kfd/proc"
    found = {}
    for pid in pids():
        try:
            found[pid] = len(os.listdir(f"{folder}/{pid}/queues"))
        except OSError:
            found[pid] = None
    return found


def held():
    """pid -> bytes of GPU memory."""
    found = {}
    for pid in pids():
        sizes = [number(file) for file in glob.glob(f"/sys/class/kfd/kfd/proc/{pid}/vram_*")]
        found[pid] = sum(sizes) if sizes and None not in sizes else None
    return found


def pids():
    with contextlib.suppress(OSError):
        return os.listdir("/sys/class/kfd/kfd/proc")
    return []


def iommu():
    """PCI address -> the type of its IOMMU group, of those that are in one. None where the kernel can't say."""
    if not os.path.isdir("/sys/bus/pci/devices"):
        return None
    found = {}
    for folder in glob.glob("/sys/bus/pci/devices/*"):
        if os.path.isdir(f"{folder}/iommu_group"):
            found[os.path.basename(folder)] = text(f"{folder}/iommu_group/type")
    return found


def partitions():
    files = glob.glob("/sys/bus/pci/devices/*/current_compute_partition")
    return {os.path.basename(os.path.dirname(file)): text(file) for file in files}


def boards():
    """RDMA device -> the board that it is on (PSID)."""
    files = glob.glob("/sys/class/infiniband/*/board_id")
    return {os.path.basename(os.path.dirname(file)): text(file) for file in files}


def neighbours():
    """Network device -> (chassis, its name, port) of each that it hears by LLDP; None where no lldpd tells."""
    text, found = said("lldpctl", "-f", "keyvalue"), {}
    for line in (text or "").splitlines():
        key, _, value = line.partition("=")
        row = re.fullmatch(r"lldp\.(.+)\.(?:(via)|(chassis|port)\.(mac|local|ifname|ifalias|ip|name))", key)
        if row and row[2]:
            found.setdefault(row[1], []).append(["", "", ""])
        elif row and row[1] in found:
            at = 2 if row[3] == "port" else 1 if row[4] == "name" else 0
            found[row[1]][-1][at] = value[:100]
    return None if text is None else found


def uptime():
    words = (text("/proc/uptime") or "").split()
    return float(words[0]) if words else None


def guest():
    flags = re.search(r"^flags\s*:(.*)$", text("/proc/cpuinfo") or "", re.MULTILINE)
    return "hypervisor" in flags[1].split() if flags else None


refused, let = firewall()
print(
    json.dumps(
        {
            "pci": functions(),
            "log": log(sys.argv[1:]),
            "now": time.time(),
            "firewall": refused,
            "filters": let,
            "vram": memory(),
            "processes": processes(),
            "queues": queues(),
            "held": held(),
            "iommu": iommu(),
            "partitions": partitions(),
            "uptime": uptime(),
            "boards": boards(),
            "neighbours": neighbours(),
            "guest": guest(),
        }
    )
)

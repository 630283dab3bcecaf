"""On each node, as root and beside the containers: what its RDMA devices and their network devices count of pauses,
marks, losses and failures. Argument: a pattern of the names that matter. One JSON value: device -> name -> number."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys


def numbers(folder):
    found = {}
    for file in glob.glob(f"{folder}/*"):
        try:
            with open(file) as text:
                found[os.path.basename(file)] = int(text.read())
        except (OSError, ValueError):
            continue
    return found


def statistics(netdev):
    """As its driver names them; PFC's are nowhere else."""
    if not shutil.which("ethtool"):
        return {}
    try:
        done = subprocess.run(["ethtool", "-S", netdev], capture_output=True, text=True, errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {name: int(number) for name, number in re.findall(r"^\s*([\w.]+): (\d+)$", done.stdout, re.MULTILINE)}


def counted(root, pattern):
    """Of all ports of a device together."""
    found, wanted = {}, re.compile(pattern)
    for device in sorted(glob.glob(f"{root}/sys/class/infiniband/*")):
        sums = {}
        parts = [numbers(folder) for folder in [*glob.glob(f"{device}/ports/*/*counters"), f"{device}/hw_counters"]]
        parts += [statistics(os.path.basename(netdev)) for netdev in glob.glob(f"{device}/device/net/*")]
        for part in parts:
            for name, number in part.items():
                if wanted.fullmatch(name):
                    sums[name] = sums.get(name, 0) + number
        found[os.path.basename(device)] = sums
    return found


if __name__ == "__main__":
    print(json.dumps(counted("", sys.argv[1])))

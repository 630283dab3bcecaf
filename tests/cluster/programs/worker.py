"""On each worker, as an ordinary user's task: what it is, has and may. One line of JSON behind the mark.

Arguments: the variables of the environment that it says. No others: they may hold secrets.
"""

import grp
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time

TOOLS = (
    "all_reduce_perf", "ib_write_bw", "ibv_rc_pingpong", "rvs", "TransferBench", "hip-stream", "rocblas-bench",
    "amd-smi", "rocm-smi", "rocminfo", "lspci", "ibv_devices", "rocstack-train",
)  # fmt: skip


def said(*command):
    """What a command printed, or why it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"code": -1, "out": "", "err": str(error)}
    return {"code": done.returncode, "out": done.stdout[-8000:], "err": done.stderr[-2000:]}


def group(number):
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
shm = os.statvfs("/dev/shm")
answer = {
    "node": os.environ.get("SLURMD_NODENAME", platform.node()),
    "uid": os.getuid(),
    "groups": sorted(group(number) for number in os.getgroups()),
    "memlock": soft,
    "shm": shm.f_blocks * shm.f_frsize,
    "clock": time.time(),
    "tools": [name for name in TOOLS if shutil.which(name)],
    "munge": said("sh", "-c", "munge -n | unmunge"),
    "env": {name: os.environ[name] for name in sys.argv[1:] if name in os.environ},
}
print("@rocstack " + json.dumps(answer), flush=True)

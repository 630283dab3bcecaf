"""In a job with GPUs, as an ordinary user's task: which it got, whether it may open them, and what ROCm's own tools
and lspci see. With the argument `env` only which it got and may open. One line of JSON behind the mark."""

import errno
import glob
import json
import os
import platform
import re
import subprocess
import sys
import time

HIP_CHECK = "/usr/local/lib/rocstack/hip-check"  # compiled with the image
CHOOSING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


def said(*command, seconds=60, complaints=False):
    """What it printed, or else, if they are wanted, its complaints; None where it is not in the image, and "" where it
    failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds)
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout or (done.stderr if complaints else "")


def opened(path):
    """Why it can't be opened; "" where it can. A device of a virtual node has no driver behind it: there what counts
    is the permission."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return ""


def smi():
    """Device ids by card, the links between cards, and how many seconds it took; None without the tool."""
    began = time.time()
    text = said("rocm-smi", "--showid", "--showtopotype", "--json")
    found = {"cards": {}, "links": {}, "seconds": time.time() - began}
    if text is None:
        return None
    try:
        begin = re.search(r"^\{", text, re.MULTILINE)  # warnings may come first, and last
        answer = json.JSONDecoder().raw_decode(text[begin.start() if begin else 0 :])[0]
        found["cards"] = {card: about["Device ID"] for card, about in answer.items() if card.startswith("card")}
        for key, kind in answer.get("system", {}).items():
            pair = re.findall(r"\d+", key)
            if len(pair) == 2:
                found["links"]["-".join(pair)] = kind
    except (ValueError, KeyError, AttributeError):
        pass
    return found


def amd_smi():
    """In its own words, without what indents them; None without the tool."""
    asked = ("firmware", "list", "topology")
    texts = {what: said("amd-smi", what, "--json", seconds=10, complaints=True) for what in asked}
    return {what: text and "\n".join(line.strip() for line in text.splitlines()) for what, text in texts.items()}


answer = {
    "node": os.environ.get("SLURMD_NODENAME", platform.node()),
    "env": {name: os.environ[name] for name in CHOOSING if name in os.environ},
    "devices": {path: opened(path) for path in ["/dev/kfd", *glob.glob("/dev/dri/renderD*")] if os.path.exists(path)},
}
if "env" not in sys.argv:
    info = said("rocminfo")
    listed = said("lspci", "-D", "-n", "-d", "1002:")
    rdma = said("ibv_devices")
    answer |= {
        "smi": smi(),
        "amd_smi": amd_smi(),
        "agents": None if info is None else len(re.findall(r"^\s*Name:\s+gfx\w+\s*$", info, re.MULTILINE)),
        "lspci": None if listed is None else re.findall(r"^(\S+) (?:03|12)\w\w:", listed, re.MULTILINE),
        "hip": said(HIP_CHECK, complaints=True),
        "rdma": None if rdma is None else [line.split()[0] for line in rdma.splitlines()[2:] if line.split()],
    }
print("@rocstack " + json.dumps(answer), flush=True)

"""Runs a module of ROCm Validation Suite with the configuration of the node's GPUs, and says what that asks for and
what RVS says of it. Arguments: the GPUs' model, the module, how many GPUs there are, the most seconds that it may take.

RVS has a folder of configurations for each model and some for all, beside its own bin: TheRock isn't in /opt/rocm.
Those for all have targets that any GPU meets (4 to 16 TFLOPS, 50 to 180 W), so where there are targets only the model's
own configuration counts. A model's are those of whole GPUs: for divided ones there is a folder of each mode in it, or
none. Boards of more power have a folder beside the model's."""

import collections
import glob
import os
import re
import shutil
import subprocess
import sys
import threading

WITH_TARGETS = {"gst_single": ("gst_single",), "iet_single": ("iet_single", "iet_stress")}
ONE_BY_ONE = ("gst", "iet")  # modules whose `duration` is that of each GPU
START = 2  # seconds of an action on a GPU before it begins
LEAST = 1200  # seconds, also where a configuration has no times, as that of mem
KEPT = re.compile(
    r"\[RESULT.*(met: |pass: |mem +T|=+ ?Test \d|peers: ?|GBps|not measured|check error)|ERROR|FAIL |cannot|denied"
    r"|^Memory access fault|^HW Exception|^terminate called"
)
POWER = re.compile(r"(\[[^\]]+\] \[GPU::[^\]]*\]) Power\(W\) (?:(0(?:\.0+)?|\d{5}\S*|-?[ni]\w+)$|\d)")
LINES = 40  # of the end, where there is no result
UNTOLD = 3  # exit code without a configuration
PCI = "/sys/bus/pci/devices/*/"
MORE_POWER = ("0x74a8", "0x74a9")  # MI308X-HF, MI300X-HF
WHOLE = "SPX"


def said_by_gpus(name):
    """What they say in their files of this name, each once."""
    found = set()
    for path in glob.glob(PCI + name):
        try:
            with open(path) as file:
                found.add(file.read().strip())
        except OSError:
            continue
    return found


def divided():
    """How the memory and the GPUs are divided, as in "NPS4/CPX"; "" where they are whole, or nothing tells."""
    compute, memory = said_by_gpus("current_compute_partition") - {"", WHOLE}, said_by_gpus("current_memory_partition")
    return "/".join("+".join(sorted(found)) for found in (memory, compute)) if compute else ""


def configuration(folder, model, module, mode=""):
    """The file; None where the model has no targets.

    Raises:
        OSError: there should be one, and isn't.
    """
    folders = [model + "-HF", model] if said_by_gpus("device") & {*MORE_POWER} else [model]
    inner = mode if module in WITH_TARGETS else ""
    names = [name + ".conf" for name in WITH_TARGETS.get(module, (module,)) if model]
    own = [os.path.join(folder, each, inner, name) for each in folders for name in names]
    for_all = [] if module in WITH_TARGETS else [os.path.join(folder, module + ".conf")]
    found = next((path for path in own + for_all if os.path.exists(path)), None)
    if found is None and module not in WITH_TARGETS:
        raise OSError(f"no configuration {module}.conf for {model} in {folder}")
    return found


def actions(text):
    """The keys of each action. RVS' files are YAML of one level."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*(-\s+)?(\w+)\s*:\s*(.*?)\s*$", line.partition("#")[0])
        if match and match[1]:
            found.append({})
        if match and found:
            found[-1][match[2]] = match[3]
    return found


def seconds(asked, gpus):
    """That the actions take, all told."""
    total = 0.0
    for action in asked:
        times = [float(action.get(name) or 0) / 1000 for name in ("duration", "ramp_interval", "wait")]
        each = action.get("module") in ONE_BY_ONE and action.get("parallel", "false").lower() != "true"
        total += (sum(times) + START) * (gpus if each else 1) * int(action.get("count") or 1)
    return total


def run(rvs, path, limit):
    """Its exit code; what matters of its words is printed, or their end, where it has no result."""
    kept, last, powers = [], collections.deque(maxlen=LINES), set()
    process = subprocess.Popen(
        [rvs, "-c", path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    )  # fmt: skip
    late = threading.Event()
    timer = threading.Timer(limit, lambda: (late.set(), process.kill()))
    timer.start()
    for line in process.stdout:
        last.append(line.rstrip("\n"))
        power = POWER.search(last[-1])  # of thousands, one that was read and one that wasn't
        if KEPT.search(line) or (power and power.groups() not in powers):
            kept.append(last[-1])
            powers |= {power.groups()} if power else set()
    code = process.wait()
    timer.cancel()
    if not any("RESULT" in line for line in kept):
        kept = [*(line for line in kept if line not in last), *last]
    print("\n".join(kept))
    if late.is_set():
        print(f"[ERROR ] stopped after {limit:.0f} s, half as long again as its configuration takes")
    return code


def main(model, module, gpus, most):
    rvs = os.path.realpath(shutil.which("rvs") or "rvs")
    folder = os.path.join(os.path.dirname(os.path.dirname(rvs)), "share/rocm-validation-suite/conf")
    mode = divided()
    try:
        path = configuration(folder, model, module, mode)
    except OSError as error:
        print(f"[ERROR ] {error}")
        return UNTOLD
    if path is None:
        print("# rocstack: no targets for " + (model or "a GPU without a model's name") + (mode and " in " + mode))
        return 0
    with open(path, errors="replace") as file:
        asked = actions(file.read())
    limit = min(most, max(LEAST, 1.5 * seconds(asked, gpus) + 300))
    print(f"# rocstack: configuration {os.path.relpath(path, folder)}, at most {limit:.0f} s")
    for action in asked:
        print(f"# rocstack: action {action.get('name', '')}")
    sys.stdout.flush()
    return run(rvs, path, limit)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])) & 255)

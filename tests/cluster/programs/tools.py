"""Runs tools on the node as an ordinary user's task and says what they printed. Argument, JSON: {"batches": [{name:
command}], "seconds": of each, "keep": a pattern of the lines to say}; a batch runs at once, one batch after another."""

import json
import os
import platform
import re
import subprocess
import sys

LINES = 40  # of the end, where none is as asked for


def kept(text, pattern):
    lines = text.splitlines()
    found = [line for line in lines if re.search(pattern, line)] if pattern else lines
    return "\n".join(found or lines[-LINES:]) + "\n"


def start(command):
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/tmp"
        )
    except OSError as error:
        return error


def end(process, seconds):
    if isinstance(process, OSError):
        return -1, str(process), ""
    try:
        out, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        return -1, out, f"stopped after {seconds} s\n"
    return process.returncode, out, ""


asked = json.loads(sys.argv[1])
said = {}
for batch in asked["batches"]:
    running = {name: start(command) for name, command in batch.items()}
    for name, process in running.items():
        code, out, why = end(process, asked["seconds"])
        said[name] = {"code": code, "out": kept(out, asked.get("keep")) + why}
node = os.environ.get("SLURMD_NODENAME", platform.node())
print("@rocstack " + json.dumps({"node": node, "said": said}), flush=True)

"""Runs tools on the node as an ordinary user's task and says what they printed. Argument, JSON: {"batches": [{name:
command}], "seconds": of each, "keep": a pattern of the lines to say}; a batch runs at once, one batch after another.

Tools start in a folder of their own: they write files there, and what they read there (UCX: ucx.conf) nobody else put
there."""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile

LINES = 40  # of the end, where none is as asked for


def kept(text, pattern):
    lines = text.splitlines()
    found = [line for line in lines if re.search(pattern, line)] if pattern else lines
    return "\n".join(found or lines[-LINES:]) + "\n"


def start(command, folder):
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", cwd=folder,
        )  # fmt: skip
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
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        running = {name: start(command, folder) for name, command in batch.items()}
        for name, process in running.items():
            code, out, why = end(process, asked["seconds"])
            said[name] = {"code": code, "out": kept(out, asked.get("keep")) + why}
node = os.environ.get("SLURMD_NODENAME", platform.node())
print("@rocstack " + json.dumps({"node": node, "said": said}), flush=True)

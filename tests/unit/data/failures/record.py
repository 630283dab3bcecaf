"""Builds cases for real and keeps what the builder says as their stream.txt, without the names of hosts.

    python record.py BASE_IMAGE PYTHON_IMAGE CASE...

BASE_IMAGE is a minimal Debian with nothing in its package index, PYTHON_IMAGE one with python3.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pip
from cases import HERE, context

from rocstack.base import paths

KEEP = re.compile(r"127\.0\.0\.1|[a-z0-9.-]+\.(invalid|example)")
HOST = re.compile(r"\b(?:(?:[a-z0-9-]+\.)+(?:org|com|net|io|dev)|\d+\.\d+\.\d+\.\d+)\b(?!/library)")


def scrub(text: str) -> str:
    """Without the names of hosts, and of the images it was recorded with."""
    for name, plain in zip(sys.argv[1:3], ("minimal:1", "python:1"), strict=True):
        text = text.replace(name, plain)
    return HOST.sub(lambda found: found[0] if KEEP.search(found[0]) else "mirror.example", text)


def record(base: str, python: str, case: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "context"
        context(case).write(target)
        for name in ("build", "check"):
            shutil.copytree(paths.images() / name, target / name)
        command = ["docker", "buildx", "build", "--builder", "default", "--progress", "rawjson", "--no-cache"]
        command += [
            "--build-context",
            f"minimal=docker-image://{base}",
            "--build-context",
            f"python=docker-image://{python}",
        ]
        command += ["--build-context", f"pip={Path(pip.__file__).parent}", "--output", f"type=local,dest={folder}/out"]
        ran = subprocess.run([*command, str(target)], capture_output=True, text=True, check=False)
    assert ran.returncode != 0, f"{case} did not fail"
    out = ""
    text = ran.stderr
    decoder = json.JSONDecoder()
    while text:
        text = text.lstrip("\n")
        if not text.startswith("{"):
            break
        value, end = decoder.raw_decode(text)
        text = text[end:]
        value.pop("statuses", None)
        for log in value.get("logs") or []:
            log["data"] = base64.b64encode(scrub(base64.b64decode(log["data"]).decode()).encode()).decode()
        if value:
            out += scrub(json.dumps(value)) + "\n"
    (HERE / case / "stream.txt").write_text(out + scrub(text))


if __name__ == "__main__":
    for name in sys.argv[3:]:
        record(sys.argv[1], sys.argv[2], name)

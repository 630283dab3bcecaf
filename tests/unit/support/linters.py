"""The linters of Dockerfiles and of the shell scripts in them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

IGNORED = {
    "DL3003": "cd inside a heredoc script is not a change of the image's folder",
    "DL4006": "the base stage's SHELL sets pipefail; hadolint doesn't carry it into the stages built on it",
    "SC2164": "the same SHELL sets -e, so a failed cd ends the script",
    "SC3009": "hadolint takes a RUN with --mount for sh; shellcheck reads these scripts as bash below",
    "SC3047": "as SC3009",
}


def tool(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert found, f"{name} is not installed; it is one of the package's dev requirements"
    return found


def hadolint(dockerfile: bytes, folder: Path) -> list[str]:
    file = folder / "Dockerfile"
    file.write_bytes(dockerfile)
    ignored = [f"--ignore={rule}" for rule in IGNORED]
    ran = subprocess.run(
        [tool("hadolint"), "--no-fail", "--format=json", *ignored, str(file)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [f"{hit['line']}: {hit['code']} {hit['message']}" for hit in json.loads(ran.stdout)]


def shellcheck(script: str, folder: Path) -> list[str]:
    file = folder / "script.sh"
    file.write_text(script)
    # SC1091: a file that only the image has. SC2154: set by the script that sources this one.
    ran = subprocess.run(
        [tool("shellcheck"), "--shell=bash", "--exclude=SC1091,SC2154", "--format=gcc", str(file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.stdout.splitlines()


def scripts(dockerfile: str) -> list[str]:
    """Every RUN's heredoc, under the flags that the base stage's SHELL gives it."""
    return [
        f"set -euo pipefail\n{text}"
        for text in re.findall(r"<<'EOS'\n(.*?)^EOS$", dockerfile, re.DOTALL | re.MULTILINE)
    ]

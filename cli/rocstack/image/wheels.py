"""Resolves a stack's wheels to exact versions and hashes, with pip itself."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rocstack.base.errors import CheckFailed
from rocstack.settings.site import Site
from rocstack.stack.lock import LockedWheel, wheel_of
from rocstack.stack.stack import Stack

PLATFORMS = ("manylinux_2_39_x86_64", "manylinux_2_35_x86_64", "manylinux_2_28_x86_64", "manylinux_2_27_x86_64",
             "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")  # fmt: skip


def resolve(stack: Stack, site: Site) -> tuple[LockedWheel, ...]:
    """Every wheel the stack needs, dependencies included, less those that come as system packages.

    Raises:
        CheckFailed: pip can't resolve them (no such version, a conflict, no network).
    """
    requirements = [f"{name}=={version}" for name, version in stack.wheels.items()]
    indexes = []
    for name, choice in stack.components.items():
        if choice.method == "wheel":
            requirements.append(f"{wheel_of(name)}=={choice.version}")
            indexes += ["--extra-index-url", choice.index] if choice.index else []
    if not requirements:
        return ()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            "--dry-run",
        ]
        command += ["--ignore-installed", "--only-binary", ":all:", "--implementation", "cp"]
        command += ["--python-version", stack.python, "--abi", f"cp{stack.python.replace('.', '')}"]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        command += ["--target", folder, "--report", str(report), *indexes]
        command += ["--cert", site.ca] if site.ca else []
        env = {"PATH": "/usr/bin:/bin", **_pip_env(), **site.env}
        ran = subprocess.run([*command, *requirements], capture_output=True, text=True, env=env, check=False)
        if ran.returncode != 0:
            errors = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")] or ran.stderr.splitlines()
            raise CheckFailed(
                f"pip can't resolve the stack's wheels: {errors[-1] if errors else 'no message'}",
                code="wheels-unresolved",
                cause="a version that does not exist (any more), a conflict between two of them, or no network",
                next_step="correct `wheels:` in the stack",
            )
        return parse_report(json.loads(report.read_text()), stack.provided)


def parse_report(report: dict[str, Any], provided: tuple[str, ...]) -> tuple[LockedWheel, ...]:
    """pip's installation report (pip documentation, Installation Report) as locked wheels. Pure."""
    wheels = []
    for item in report["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if name not in provided:
            sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
            wheels.append(LockedWheel(name=name, version=item["metadata"]["version"], sha256=(sha256,)))
    return tuple(sorted(wheels, key=lambda wheel: wheel.name))


def _pip_env() -> dict[str, str]:
    import os

    return {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "HOME", "LANG", "SSL_"))}

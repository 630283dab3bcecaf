"""What verify asks in a worker's container, and as whom."""

import os
import pwd
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from rocstack.verify.suite import checks


def test_no_library_that_jobs_share_files_with_is_loaded_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """rocm_smi trusts a lock in /dev/shm that any user can have made."""
    text = (checks() / "programs/container.py").read_text(encoding="utf-8")
    program: dict[str, Any] = {}
    exec(compile(text.partition("\nwith concurrent")[0], "container.py", "exec"), program)
    started: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def run(command: tuple[str, ...], **options: Any) -> SimpleNamespace:
        started.append((command, options))
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    verify = SimpleNamespace(pw_uid=64001, pw_gid=64002, pw_dir="/home/rocstack-verify", pw_name="rocstack-verify")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "getgroups", lambda: [0, 992])
    monkeypatch.setattr(pwd, "getpwnam", {"rocstack-verify": verify}.__getitem__)
    program["shutil"] = SimpleNamespace(which=lambda name: f"/usr/bin/{name}")
    program["library"] = lambda name: f"/usr/lib/{name}"
    for libraries, programs in program["PARTS"].values():
        for each in libraries:
            assert program["loads"](*each) == ""
        for line in programs:
            assert program["starts"](line) == ""
    program["glob"] = SimpleNamespace(glob=lambda *_, **__: [])
    program["library"] = program["shutil"].which = lambda name: "/bin/sh"
    program["pmix"]()
    assert ("amd-smi", "version") in [tuple(command) for command, _ in started]
    for _, options in started:
        assert (options["user"], options["group"], options["extra_groups"]) == (64001, 64002, [992])
        assert options["env"]["HOME"] == "/home/rocstack-verify"
    root = [line for line in text.splitlines() if "said(" in line or "(said" in line]
    assert [line for line in root if '"rocstack-node", "gate"' not in line and '"ldconfig"' not in line] == [
        "def said(*command, seconds=30, **options):",
        "    return said(*command, **plain())",
    ]

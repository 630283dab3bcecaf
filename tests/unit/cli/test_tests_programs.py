"""tests/programs.sh: when it installs a program, and which. That it works is proved by every run of `make test`."""

import os
import re
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
SCRIPT = TESTS / "programs.sh"
NONE = {"type": ":"}
USER = {"id": "echo 1000", "sudo": "false"}
DEBIAN = "ID=debian" in Path("/etc/os-release").read_text().splitlines()


def called(path: str = "", **functions: str) -> subprocess.CompletedProcess[str]:
    """`functions` stand for programs and builtins of their names."""
    env = os.environ | {
        f"BASH_FUNC_{name.replace('_', '-')}%%": f"() {{ {body}; }}" for name, body in functions.items()
    }
    env["PATH"] = path + env["PATH"]
    return subprocess.run([SCRIPT], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=env)


def test_it_knows_the_browsers_that_the_tests_look_for() -> None:
    listed = re.search(r"browsers=\((.*?)\)", SCRIPT.read_text())
    known = re.search(r"BROWSERS = \((.*?)\)", (TESTS / "integration/test_verify_report.py").read_text())
    assert listed
    assert known
    assert listed[1].split() == re.findall(r'"(.*?)"', known[1])


def test_where_the_programs_are_it_does_nothing(tmp_path: Path) -> None:
    for name in ("chrome", "mksquashfs"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    found = called(f"{tmp_path}:", apt_get="echo called", **USER)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_without_root_it_says_that_tests_will_be_skipped() -> None:
    found = called(**NONE, **USER)
    assert found.returncode == 0
    assert len(found.stdout.splitlines()) == 2
    assert "the tests that need a browser will be skipped" in found.stdout
    assert found.stderr == ""


@pytest.mark.skipif(not DEBIAN, reason="elsewhere it installs nothing")
@pytest.mark.parametrize(
    ("known", "works", "package"),
    [("true", "true", "chromium-headless-shell"), ("false", "true", "chromium"), ("true", "false", "")],
)
def test_it_installs_the_smallest_that_is_known(tmp_path: Path, known: str, works: str, package: str) -> None:
    said = tmp_path / "said"
    apt = {"apt_get": f'echo "${{@: -2}}" >>{said}; {works}', "apt_cache": known, "dpkg": "true", "dpkg_query": ":"}
    found = called(**NONE, id="echo 0", **apt)
    assert found.returncode == 0
    if package:
        installed = [line for line in said.read_text().splitlines() if line.startswith("--no-install")]
        assert installed == [f"--no-install-recommends {name}" for name in (package, "squashfs-tools")]
    else:
        assert [line.rpartition(" need ")[2] for line in found.stdout.splitlines() if "skipped" in line] == [
            "a browser will be skipped",
            "mksquashfs will be skipped",
        ]

"""cli/setup.sh: its pure parts, by sourcing it. What it installs is proved by every run of `make test`."""

import os
import re
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[3] / "cli" / "setup.sh"


def bash(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script that has the functions of setup.sh."""
    command = ["bash", "-c", f'source "$1"\n{script}', "test", str(SETUP)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=os.environ | env
    )


ONE_LINE = """\
deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib
# deb http://mirror.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb http://mirror.example/debian bookworm-updates main
"""
STANZAS = """\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-backports
Components: main
Signed-By: /k.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""
STANZA_OF_TRIXIE = """\
Types: deb
URIs: http://mirror.example/debian
Suites: trixie
Components: main
Signed-By: /k.gpg
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sources.list", ONE_LINE, "deb [signed-by=/k.gpg] http://mirror.example/debian trixie main contrib"),
        ("debian.sources", STANZAS, STANZA_OF_TRIXIE.strip()),
        ("other.sources", STANZAS.replace("bookworm", "noble"), ""),
    ],
)
def test_trixie_is_derived_from_the_machines_own_source(tmp_path: Path, name: str, text: str, expected: str) -> None:
    source = tmp_path / name
    source.write_text(text)
    result = bash('as_trixie "$SOURCE"', SOURCE=str(source))
    assert (result.returncode, result.stdout.strip()) == (0, expected)


def test_borrowed_settings_stay_in_one_folder(tmp_path: Path) -> None:
    etc, borrowed = tmp_path / "etc", tmp_path / "borrowed"
    (etc / "sources.list.d").mkdir(parents=True)
    (etc / "sources.list").write_text(ONE_LINE)
    (etc / "sources.list.d" / "debian.sources").write_text(STANZAS)
    result = bash('APT_DIR=$ETC; borrow_from_trixie "$TO"; printf "%s\\n" "${APT[@]}"', ETC=str(etc), TO=str(borrowed))
    assert result.returncode == 0, result.stderr
    assert {path.name for path in etc.rglob("*") if path.is_file()} == {"debian.sources", "sources.list"}
    for copy in (borrowed / "sources" / "sources.list", borrowed / "sources" / "debian.sources"):
        assert "bookworm-" in copy.read_text()
        assert "trixie" in copy.read_text()
    assert "Package: *\nPin: release n=trixie\nPin-Priority: -1\n" in (borrowed / "preferences").read_text()
    settings = [line for line in result.stdout.splitlines() if line.startswith("Dir::")]
    assert {setting.split("=")[0] for setting in settings if str(borrowed) in setting} == {
        "Dir::Etc::sourceparts",
        "Dir::Etc::preferences",
        "Dir::State::Lists",
        "Dir::Cache",
    }


def test_unknown_distribution_says_what_to_install_by_hand() -> None:
    result = bash("DISTRO=fedora-41; install_engine")
    assert result.returncode == 3
    assert "fedora-41" in result.stderr
    assert "next: install Docker Engine" in result.stderr


@pytest.mark.parametrize(("name", "alive"), [("bash", True), ("dockerd", False)])
def test_a_pid_file_that_names_a_stranger_is_stale(tmp_path: Path, name: str, alive: bool) -> None:
    script = 'echo $$ >"$FILE"; if alive "$FILE" "$NAME"; then echo alive; fi; drop_stale_pid "$FILE" "$NAME"'
    file = tmp_path / "docker.pid"
    result = bash(script, FILE=str(file), NAME=name)
    assert (result.stdout.strip() == "alive", file.exists()) == (alive, alive), result.stderr


def test_an_unreachable_docker_host_is_not_replaced_by_an_engine_here() -> None:
    result = bash("install_engine() { echo installed; }; setup_engine", DOCKER_HOST="tcp://127.0.0.1:1")
    assert result.returncode == 3
    assert "DOCKER_HOST=tcp://127.0.0.1:1" in result.stderr
    assert "installed" not in result.stdout


def test_output_is_shown_only_on_failure() -> None:
    assert bash('TMP=$(mktemp -d); quietly echo noise; rm -r "$TMP"').stdout == ""
    result = bash("TMP=$(mktemp -d); quietly sh -c 'echo cause; exit 1' || rm -r \"$TMP\"; exit 7")
    assert (result.returncode, result.stderr) == (7, "cause\n")


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("nonsense", 2)])
def test_usage(argument: str, code: int) -> None:
    result = subprocess.run([SETUP, argument], capture_output=True, text=True, check=False)
    assert result.returncode == code
    assert "usage: cli/setup.sh [python|engine]" in result.stdout + result.stderr


def test_no_module_comes_from_the_folder_where_it_is_started(tmp_path: Path) -> None:
    for name in ("venv", "ensurepip"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')\n")
    result = bash('cd "$FOLDER" && find_python', FOLDER=str(tmp_path))
    assert (result.returncode, (tmp_path / "ran").exists()) == (0, False)
    started = [line for line in SETUP.read_text().splitlines() if re.search(r"bin/python\" |\$python\" ", line)]
    assert all(" -I -m " in line or " -V" in line for line in started), started

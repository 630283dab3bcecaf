"""The command line without an engine: help, usage, refusals and their exit codes, and that nothing is left behind."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from cli_run import Cli, listing

import rocstack
from rocstack.base import paths
from rocstack.cli import completion
from rocstack.edge import engine

COMMANDS = ["init", "probe", "doctor", "build", "render", "stacks", "explain", "lock", "outdated", "release", "bundle"]
COMMANDS += [
    "rebuild",
    "export",
    "run",
    "shell",
    "deploy",
    "rollback",
    "verify",
    "report",
    "first-light",
    "replay",
    "size",
    "recipes",
    "submit",
    "jobs",
    "job",
    "scale",
    "token",
    "status",
    "logs",
    "down",
    "backup",
    "restore",
    "rotate-keys",
    "demo",
]
COMMANDS += ["serve", "config", "local"]
ALONE = [name for name in COMMANDS if name not in ("local", "job", "release", "bundle")]  # those are groups of commands
ENV = {**os.environ, "PYTHONPATH": str(Path(rocstack.__file__).parents[1])}


def test_help(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.partition("Commands:")[2].splitlines() if line.strip()] == COMMANDS
    assert cli("-h").out == ran.out
    assert "Exit codes" in ran.out


@pytest.mark.parametrize(
    "command", [*ALONE, "local up", "local down", "local status", "local models", "job show", "job logs", "job cancel"]
)
def test_help_of_commands(command: str, cli: Cli) -> None:
    ran = cli(*command.split(), "--help")
    assert ran.code == 0
    assert re.search(rf"Example: .*rocstack {command}", ran.out)
    if command not in ("shell", "logs", "job logs"):
        assert "--json" in ran.out
    options = re.findall(r"^  (--[a-z-]+)[ ,A-Z\[]*(.*)$", ran.out, re.MULTILINE)
    assert options
    assert [name for name, text in options if not text.strip()] == []


def test_no_command(cli: Cli) -> None:
    ran = cli()
    assert ran.code == 2
    assert "Usage: rocstack" in ran.out + ran.err


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"rocstack {rocstack.__version__}\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("biuld",), "No such command 'biuld'"),
        (("build", "--nick", "tcp"), "No such option"),
        (("build", "extra"), "unexpected extra argument"),
        (("build", "--nic"), "requires an argument"),
        (("demo", "--steps", "many"), "valid integer"),
    ],
)
def test_usage(args: tuple[str, ...], says: str, cli: Cli, tmp_path: Path) -> None:
    ran = cli(*args)
    assert ran.code == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
    as_json = cli(args[0], "--json", *args[1:])
    assert (as_json.code, as_json.json()["error"]["code"], as_json.json()["error"]["exit_code"]) == (2, "usage", 2)
    assert says in as_json.json()["error"]["what"]
    assert listing(tmp_path) == {}


REFUSALS = [
    # arguments, code, part of the message
    (("build", "--stack", "debian13"), "unknown-stack", "did you mean 'debian-13'"),
    (("build", "--stack", "none.yml"), "unknown-stack", "No such file"),
    (("build", "--nic", "melanox"), "unknown-nic", "did you mean 'mellanox'"),
    (("build", "--nic", "x y"), "bad-setting", "is not a name"),
    (("build", "--nic", "x;reboot"), "bad-setting", "is not a name"),
    (("build", "--way", "inbx"), "unknown-way", "did you mean 'inbox'"),
    (("build", "--with", "openmpi"), "bad-with", "COMPONENT=METHOD"),
    (("build", "--with", "opnmpi=source"), "unknown-component", "did you mean 'openmpi'"),
    (("build", "--with", "openmpi=sorce"), "unknown-method", "did you mean 'source'"),
    (("build", "--role", "workers"), "unknown-role", "did you mean 'worker'"),
    (("build", "--gfx", "mi300x"), "bad-gfx", "gfx942"),
    (("build", "--gfx", "gfx90a,gfx942\nRUN"), "bad-gfx", "gfx942"),
    (("build", "--base", "registy"), "bad-setting", "did you mean 'registry'?"),
    (("build", "--base-image", "a b"), "bad-setting", "is not an image reference"),
    (("build", "--overlay", "none"), "no-overlay", "no overlay folder"),
    (("build", "--lock", "none.lock"), "no-lock", "no lock file none.lock"),
    (("build", "--ca-bundle", "none.pem"), "bad-setting", "no file none.pem"),
    (("build", "--push", "https://registry.example"), "bad-setting", "without http:// or https://"),
    (("build", "--push", "registry.example:5000", "--tag", "a b"), "bad-setting", "is not a tag"),
    (("render", "--stack", "debian13"), "unknown-stack", "did you mean 'debian-13'"),
    (("render", "--nic", "tpc"), "unknown-nic", "did you mean 'tcp'"),
    (("render", "--base-image", "a\nRUN reboot"), "bad-setting", "is not an image reference"),
    (("render", "--gfx", ""), None, ""),
    (("render", "--diff"), "no-build", "no earlier build"),
    (("lock", "--stack", "debian13"), "unknown-stack", "did you mean 'debian-13'"),
    (("lock", "--to", "none/rocstack.lock"), "no-folder", "can't be written there"),
    (("explain", "--nic", "tpc"), "unknown-nic", "did you mean 'tcp'"),
    (("explain", "--stack", "debian13"), "unknown-stack", "did you mean 'debian-13'"),
    (("explain", "--gfx", "x"), "bad-gfx", "gfx942"),
    (("stacks", "--overlay", "none"), "no-overlay", "no overlay folder"),
    (("run", "--role", "x"), "unknown-role", "worker, control"),
    (("run", "--gpus", "x"), "bad-gpus", ""),
    (("run", "--mount", "/none:/x"), "bad-mount", ""),
    (("run", "--env", "1A=b"), "bad-env", "not a valid variable name"),
]


VENDOR = """\
nic_repository:
  name: v
  uri: https://a.example/x
  suite: jammy
  key: https://a.example/k
  origin: v
"""


def test_a_vendors_repository_needs_the_sha256_of_its_key(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "rocstack.yml").write_text(VENDOR)
    package = ("render", "--nic", "broadcom", "--way", "package", "--nic-accept", "1.2.3.4")
    error = cli(package[0], "--json", *package[1:]).json()["error"]
    assert (error["code"], "has no key_sha256" in error["what"]) == ("no-repository", True)
    assert "curl -fsSL https://a.example/k | sha256sum" in error["next"]
    (tmp_path / "rocstack.yml").write_text(f"{VENDOR}  key_sha256: {'ab' * 32}\n")
    assert cli(*package).code == 0


def test_frozen_needs_a_lock(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocstack.steps.image_plan.lock_of", lambda own, file, chosen: None)
    monkeypatch.setattr("rocstack.image.render.unpinned", lambda chosen, lock: ())
    error = cli("build", "--json", "--frozen").json()["error"]
    assert (error["code"], error["exit_code"]) == ("no-lock", 2)
    assert "which --frozen compares with" in error["what"]


@pytest.mark.parametrize(("args", "code", "says"), REFUSALS, ids=[" ".join(refusal[0]) for refusal in REFUSALS])
def test_refused(args: tuple[str, ...], code: str | None, says: str, cli: Cli, tmp_path: Path) -> None:
    """Before any engine is asked: none answers here, and exit code 3 would say so."""
    ran = cli(args[0], "--json", *args[1:])
    if code is None:
        assert ran.code == 0
        return
    error = ran.json()["error"]
    assert says in error["what"]
    assert (ran.code, error["code"], error["exit_code"]) == (2, code, 2)
    assert ran.err == ""
    plain = cli(*args)
    assert plain.code == 2
    assert plain.out == ""
    assert plain.err.startswith("error ")
    assert error["what"].splitlines()[0] in plain.err
    assert "Traceback" not in plain.err
    assert listing(tmp_path) == {}


def test_debug_shows_where_it_came_from(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rocstack.cli.main", "--debug", "render", "--nic", "tpc"]
    ran = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "Traceback" in ran.stderr
    assert "no NIC profile 'tpc'" in ran.stderr


BROKEN = [
    # file, bytes, line, code
    ("rocstack.yml", b"nic: caf\xe9\n", 1, "not-utf8"),
    ("rocstack.yml", b"a: " + b"x" * 10_000_000, None, "too-large"),
    ("rocstack.yml", b"nic: tcp\nnci: tcp\n", 2, "unknown-key"),
    ("rocstack.yml", b"nic: [\n", 1, "bad-yaml"),
    ("rocstack.yml", b"a: " + b"[" * 500_000, 1, "bad-yaml"),
    ("rocstack.yml", b"a: &a [x]\nb: [*a, *a]\n", 2, "bad-yaml"),
    ("rocstack.yml", b"nic: tcp\nnic: tcp\n", 2, "duplicate-key"),
    ("mine/overlay.yml", b"slurm_packages_append: [a\xff]\n", 1, "not-utf8"),
    ("mine/overlay.yml", b"#" * 10_000_000, None, "too-large"),
    ("mine/overlay.yml", b"slrum_packages_append: [a]\n", 1, "override-unmatched"),
    ("mine/overlay.yml", b"\nucx_worker_packages_remove: [gone]\n", 2, "override-unmatched"),
    ("mine/overlay.yml", b"ucx_worker_packages_append: ['a; reboot']\n", 1, "bad-value"),
    ("mine/components/ucx.j2", b"{% block smoke %}\n{{ nope }}\n{% endblock %}\n", 2, "bad-template"),
    ("mine/components/ucxx.j2", b"{% block smoke %}\n{% endblock %}\n", 1, "override-unmatched"),
    ("mine/components/ucx.j2", b"{% block smoek %}\n{% endblock %}\n", 1, "override-unmatched"),
    ("mine/components/ucx.j2", b"---\nabout: \xff\n---\n", 2, "not-utf8"),
    ("mine/nic/tcp.j2", b"---\nabout: x\nways: {inbox: {}}\nenvs: {}\n---\n", 4, "unknown-key"),
    ("mine/stacks/debian-13.yml", b"about: \xff\n", 1, "not-utf8"),
    ("mine/stacks/debian-13.yml", b"x: " + b"y" * 10_000_000, None, "too-large"),
    ("mine/stacks/debian-13.yml", b"about: x\npyton: '3.13'\n", 2, "unknown-key"),
    ("rocstack.lock", b"{}", None, "bad-lock"),
    ("rocstack.lock", b"\xff\xfe", None, "bad-lock"),
]


@pytest.mark.parametrize(("path", "data", "line", "code"), BROKEN, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("command", ["build", "render"])
def test_broken_files(
    command: str, path: str, data: bytes, line: int | None, code: str, cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    before = listing(tmp_path)
    overlay = ("--overlay", "mine") if path.startswith("mine") else ()
    to = ("--to", "out") if command == "render" else ()
    ran = cli(command, "--json", *overlay, *to)
    error = ran.json()["error"]
    assert (ran.code, error["code"]) == (2, code)
    shown = f"{path}:{line}" if line else path
    assert error["where"].removeprefix(f"{tmp_path}/") == shown
    assert listing(tmp_path) == before


def test_a_rule_broken_is_told_with_its_reason(cli: Cli, tmp_path: Path) -> None:
    text = (paths.images() / "stacks/debian-13.yml").read_text()
    (tmp_path / "mine.yml").write_text(re.sub(r"^gfx: .*$", "gfx: [gfx942]", text, flags=re.MULTILINE))
    before = listing(tmp_path)
    rules = yaml.safe_load((paths.images() / "findings/rules.yml").read_text())
    for args in (("build",), ("render", "--to", "out")):
        ran = cli(*args, "--stack", "mine.yml", "--json")
        error = ran.json()["error"]
        assert (ran.code, error["code"]) == (2, "rule-broken")
        rule = next(rule for name, rule in rules.items() if name in error["what"])
        assert rule["cause"] in error["cause"]
        assert rule["source"] in error["cause"]
        assert "rocstack explain" in error["next"]
    ran = cli("explain", "--stack", "mine.yml", "--json")
    assert ran.code == 1
    assert ran.json()["allowed"] is False
    assert listing(tmp_path) == before


def test_explain(cli: Cli) -> None:
    ran = cli("explain", "--json")
    assert ran.code == 0
    assert ran.json()["allowed"] is True
    assert ran.json()["facts"]["nic"] == "tcp"
    text = cli("explain").out
    assert "  source  " in text
    assert text.splitlines()[-1].startswith("allowed: 0 broken")


def test_stacks(cli: Cli) -> None:
    found = cli("stacks", "--json").json()
    assert {"debian-13", "rocm-7.2-ubuntu-24.04"} <= {each["name"] for each in found["stacks"]}
    assert {"tcp", "mellanox", "broadcom"} <= {each["name"] for each in found["nics"]}
    assert cli("stacks").out.splitlines()[0].split() == ["STACK", "OS", "GFX", "TRAINS", "WITH", "ABOUT"]


@pytest.mark.parametrize("args", [("build",), ("demo",), ("lock",), ("run", "--", "true")], ids=lambda args: args[0])
def test_no_engine(args: tuple[str, ...], cli: Cli, tmp_path: Path, buildx: str) -> None:
    ran = cli(args[0], "--json", *args[1:], env={"PATH": buildx})
    error = ran.json()["error"]
    assert (ran.code, error["code"], error["exit_code"]) == (3, "no-engine", 3)
    assert "unix:///nonexistent/engine.sock" in error["what"]
    assert "install" in error["next"]
    assert listing(tmp_path) == {}


@pytest.fixture
def buildx() -> Iterator[str]:
    """A PATH on which the engine's client is there and has buildx."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        client = Path(folder) / "docker"
        client.write_text("#!/bin/sh\nexit 0\n")
        client.chmod(0o755)
        yield f"{folder}:/usr/bin:/bin"


def test_no_client(cli: Cli, tmp_path: Path) -> None:
    ran = cli("build", "--json", env={"PATH": str(tmp_path)})
    assert (ran.code, ran.json()["error"]["code"]) == (3, "no-engine")
    assert listing(tmp_path) == {}


def test_no_buildx(cli: Cli, buildx: str, tmp_path: Path) -> None:
    client = Path(buildx.split(":")[0]) / "docker"
    client.write_text("#!/bin/sh\necho \"docker: 'buildx' is not a docker command.\" >&2\nexit 1\n")
    ran = cli("build", "--json", env={"PATH": buildx})
    error = ran.json()["error"]
    assert (ran.code, error["code"]) == (3, "no-buildx")
    assert "docker-buildx" in error["next"]
    assert listing(tmp_path) == {}


def obey_modes() -> None:
    """Takes from root what lets it pass over file modes (PR_CAPBSET_DROP of CAP_DAC_OVERRIDE and _READ_SEARCH)."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability)


@pytest.mark.parametrize(
    ("version", "code"), [("v0.12.1", "old-buildx"), ("v0.13.0", "no-engine"), ("0.30", "no-engine")]
)
def test_old_buildx(version: str, code: str, cli: Cli, buildx: str) -> None:
    client = Path(buildx.split(":")[0]) / "docker"
    client.write_text(f"#!/bin/sh\necho github.com/docker/buildx {version} 0123456789abcdef\n")
    ran = cli("build", "--json", env={"PATH": buildx})
    assert (ran.code, ran.json()["error"]["code"]) == (3, code)


def test_no_permission_on_the_socket(buildx: str, tmp_path: Path) -> None:
    path = Path(buildx.split(":")[0]) / "engine.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0)
        ran = subprocess.run(
            [sys.executable, "-m", "rocstack.cli.main", "build", "--json"],
            cwd=tmp_path,
            env={**ENV, "PATH": buildx, "DOCKER_HOST": f"unix://{path}"},
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=obey_modes,
        )
    assert ran.returncode == 3, ran.stderr
    error = json.loads(ran.stdout)["error"]
    assert error["code"] == "no-permission"
    assert "usermod -aG docker" in error["next"]
    assert str(path) in error["what"]
    assert listing(tmp_path) == {}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("render", "--to", "/proc/nothing/here"), "/proc/nothing"),
        (("init", "file/below"), "file"),
        (("render", "--to", "file"), "holds other files"),
        (("config",), None),
    ],
)
def test_paths_that_can_t_be_used(args: tuple[str, ...], says: str | None, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    before = listing(tmp_path)
    ran = cli(*args)
    assert ran.code == (2 if says else 0)
    if says:
        assert says in ran.err
        assert "next    " in ran.err
        assert "defect" not in ran.err
    assert listing(tmp_path) == before


def test_a_project_with_its_own_dockerfile_is_not_replaced(cli: Cli, tmp_path: Path) -> None:
    for path in ("project/Dockerfile", "project/src/main.c"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("FROM debian\n")
    before = listing(tmp_path)
    for where, cwd in (("project", tmp_path), (".", tmp_path / "project")):
        ran = cli("render", "--to", where, "--json", cwd=cwd)
        assert (ran.code, ran.json()["error"]["code"]) == (2, "not-empty")
    assert listing(tmp_path) == before


def test_options_of_another_command_are_not_ours(cli: Cli, buildx: str) -> None:
    ran = cli("run", "--", "tool", "--json", "--debug", env={"PATH": buildx})
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("error no-engine: no container engine answers")


PRINT = ("run", "--print", "--json", "--gpus", "none")


def test_run_trainer_is_short_for_its_command(cli: Cli) -> None:
    training = ["--config", "tiny", "--train.lr=1e-3", "--steps", "2", "-h", "--json"]
    line = cli(*PRINT, "trainer", *training).json()["args"]
    assert line[-len(training) - 1 :] == ["rocstack-train", *training]
    assert cli(*PRINT, "--", "rocstack-train", *training).json()["args"] == line
    assert cli(*PRINT, "--", "trainer", *training).json()["args"] == line
    assert cli(*PRINT, "echo", "trainer").json()["args"][-2:] == ["echo", "trainer"]
    plain = cli("run", "--gpus", "none", "trainer", "--json")
    assert (plain.code, plain.out) == (3, ""), "--json is the trainer's"


def test_what_a_training_run_writes_is_the_persons(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getegid", lambda: 5432)
    for uid, flags in ((4321, ["--user=4321:5432", "--env=HOME=/tmp"]), (0, [])):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        line = cli(*PRINT, "trainer").json()["args"]
        assert [flag for flag in line if "--user" in flag or "HOME" in flag] == flags
        assert not [flag for flag in cli(*PRINT, "id").json()["args"] if "--user" in flag], "the image's own"
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setattr(engine, "connect", lambda: SimpleNamespace(info=lambda: {"SecurityOptions": ["name=rootless"]}))
    monkeypatch.setattr(engine, "find_image", lambda *_: None)
    assert not [flag for flag in cli(*PRINT, "trainer").json()["args"] if "--user" in flag], "root there is the person"


@pytest.mark.parametrize("trained", [True, False])
def test_demo(trained: bool, cli: Cli, buildx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One JSON document, also where the trainer fails."""
    monkeypatch.setattr(engine, "connect", lambda: None)
    monkeypatch.setattr(engine, "find_image", lambda *_: object())
    client = Path(buildx.split(":")[0]) / "docker"
    versions = r'case "$*" in *rocstack-versions) printf "slurm\t24.11.5\n"; exit;; esac'
    client.write_text(f"#!/bin/sh\n{versions}\necho step=1\nexit {int(not trained)}\n")
    ran = cli("demo", "--json", env={"PATH": buildx})
    told = ran.json()
    assert (ran.code, told["ok"]) == (int(not trained), trained)
    assert (told["versions"], told["training"]) == ({"slurm": "24.11.5"}, ["step=1"])
    shown = cli("demo", env={"PATH": buildx})
    assert "24.11.5" in shown.out
    assert shown.code == ran.code
    assert ("demo-failed" in shown.err) is not trained


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, tmp_path: Path) -> None:
    def complete(**env: str) -> str:
        command = [
            sys.executable,
            "-c",
            "import sys; sys.argv = ['rocstack']; from rocstack.cli.main import main; main()",
        ]
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env={**ENV, **env},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert ran.returncode in (0, 1), ran.stderr
        assert "Traceback" not in ran.stderr
        return ran.stdout

    assert "_ROCSTACK_COMPLETE" in complete(_ROCSTACK_COMPLETE=f"source_{shell}")
    if shell == "bash":
        found = complete(_ROCSTACK_COMPLETE="complete_bash", COMP_WORDS="rocstack ren", COMP_CWORD="1")
        assert found.split() == ["render"]
        found = complete(_ROCSTACK_COMPLETE="complete_bash", COMP_WORDS="rocstack build --n", COMP_CWORD="2")
        of_nic = {"--nic", "--nic-source", "--nic-accept", "--nic-plugin", "--nic-release", "--nic-variants"}
        assert set(found.split()) == {*of_nic, "--no-cache"}
        (tmp_path / "site/nic").mkdir(parents=True)
        (tmp_path / "site/nic/mine.j2").write_text("---\nabout: ours\n---\n")
        found = complete(
            _ROCSTACK_COMPLETE="complete_bash", COMP_WORDS="rocstack build --overlay site --nic m", COMP_CWORD="5"
        )
        assert found.split() == ["mellanox", "mine"]


def test_completion_of_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks/debian-site.yml").touch()
    assert completion.values("stack", {}, "debian") == ["debian-13"]
    assert completion.values("stack", {"overlay": "."}, "debian") == ["debian-13", "debian-site"]
    assert completion.values("nic", {}, "mel") == ["mellanox"]
    assert "mi300x-thor2" in completion.values("model", {}, "mi300x")
    assert completion.values("service", {}, "w") == ["worker"]
    assert completion.values("role", {}, "") == ["worker", "control", "service"]
    assert completion.values("trained", {}, "mixtral-8x7") == ["mixtral-8x7b"]
    assert "trainer" in completion.values("recipe", {}, "tr")
    assert completion.values("method", {}, "") == ["openmpi=source"]
    assert completion.values("method", {"stack": "rocm-7.2-debian"}, "") == []
    assert completion.values("component", {"stack": "rocm-7.2-debian"}, "jax-") == [
        "jax-rocm7-plugin",
        "jax-rocm7-pjrt",
    ]
    assert completion.values("component", {"stack": "no-such"}, "") == []
    (tmp_path / "rocstack.yml").write_text("no: [such\n")
    assert completion.values("stack", {}, "debian") == ["debian-13"], "a wrong setting is told by the command itself"
    assert completion.of_option("out") is None


def test_a_folder_that_was_removed_is_told(tmp_path: Path) -> None:
    command = f"mkdir here; cd here; rmdir ../here; {sys.executable} -m rocstack.cli.main config"
    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, "the folder that you are in was removed" in ran.stderr) == (2, True), ran.stderr


def test_a_closed_pipe_is_no_defect(tmp_path: Path) -> None:
    command = f"{sys.executable} -m rocstack.cli.main render --json | head -c 10"
    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
    assert ran.stdout == '{\n "schema'
    assert ran.stderr == ""


@pytest.mark.parametrize(
    "args", [("stacks",), ("stacks", "--json"), ("init", "--json"), ("render", "--print", "--json")]
)
def test_a_full_disk_is_told_once(args: tuple[str, ...], tmp_path: Path) -> None:
    """Also where it is the standard output itself that takes no more."""
    command = f"{sys.executable} -m rocstack.cli.main {' '.join(args)} > /dev/full"
    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.splitlines() == [
        "error no-access: No space left on device",
        "  next    check the path, its permissions and the free space",
    ]


@pytest.mark.parametrize("args", ["stacks", "stacks --json", "init"])
def test_a_closed_output_is_no_defect(args: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m rocstack.cli.main {args} >&-"
    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("where", [">/dev/full", ">&-"])
@pytest.mark.parametrize("args", ["stack", "render --nic tpc", "config --chekc"])
def test_bad_input_keeps_its_exit_code_where_nobody_hears_of_it(args: str, where: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m rocstack.cli.main {args} 2{where}"
    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")


def test_no_terminal_no_colour(tmp_path: Path) -> None:
    for args in (["stacks"], ["render", "--nic", "tpc"]):
        command = [sys.executable, "-m", "rocstack.cli.main", *args]
        ran = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, text=True, check=False)
        assert "\x1b" not in ran.stdout + ran.stderr


def modules(cwd: Path, code: str) -> set[str]:
    """What Python has loaded when `code` has run."""
    show = "import atexit, sys; atexit.register(lambda: sys.stderr.write(' '.join(sys.modules)))\n"
    ran = subprocess.run(
        [sys.executable, "-c", show + code], cwd=cwd, env=ENV, capture_output=True, text=True, check=False
    )
    return set(ran.stderr.split())


def test_start_up(tmp_path: Path) -> None:
    """`--help` loads little more than typer; a command loads its own module and nothing that it does without."""
    start = "import sys; sys.argv = ['rocstack', *{}]; from rocstack.cli.main import main; main()"
    helping = modules(tmp_path, start.format(["--help"]))
    base, command_line = ("errors", "findings", "paths", "text"), ("main", "ui")
    own = {"rocstack", "rocstack.base", "rocstack.cli"}
    own |= {f"rocstack.base.{name}" for name in base} | {f"rocstack.cli.{name}" for name in command_line}
    assert {name for name in helping if name.startswith("rocstack")} == own
    assert len(helping - own - modules(tmp_path, "import typer, typer.main, typer.core")) < 20
    rendering = modules(tmp_path, start.format(["render"]))
    assert not rendering & {"docker", "requests", "rich", "ansible", "ansible_runner", "cryptography", "pytest"}
    commands = {name for name in rendering if name.startswith("rocstack.cli.")}
    assert commands == {f"rocstack.cli.{name}" for name in (*command_line, "images", "command", "completion")}


def test_ctrl_c_while_loading_shows_no_traceback(tmp_path: Path) -> None:
    """A module that is slow to load, interrupted in the middle of it."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code = "from rocstack.cli import start; start()"
    env = {**ENV, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ENV['PYTHONPATH']}"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize(("group", "name"), [("bundle", "install"), ("release", "verify"), ("release", "promote")])
def test_a_file_of_a_commands_name_does_not_hide_it(
    group: str, name: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("")
    assert f"Usage: rocstack {group} {name}" in cli(group, name, "--help").out

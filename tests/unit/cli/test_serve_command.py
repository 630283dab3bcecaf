"""`rocstack serve`: what is checked before anything starts, and what would start."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_adapters as tiny
from cli_run import Cli

from rocstack.edge import ssh
from rocstack.edge.ssh import SshHost
from rocstack.jobs import remote


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny.adapter(tmp_path / "adapters/poet", "tiny")
    return tiny.base(tmp_path / "tiny")


def test_what_would_run(cli: Cli, model: Path, tmp_path: Path) -> None:
    words = ("--adapters", "adapters", "--print", "--json", "--nic", "tcp")
    ran = cli("serve", "tiny", *words, "--", "--max-model-len=512")
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    assert said["adapters"] == 1
    assert said["settings"]["sources"] == [{"folder": str(tmp_path / "adapters")}]
    assert said["settings"]["engine"] == {"arguments": ["--max-model-len=512"]}
    assert said["args"][-2:] == ["rocstack-serve", str(tmp_path / ".rocstack/serve/tiny.json")]
    assert f"--volume={model}:{model}:ro" in said["args"]
    assert "rocstack/worker:vllm-cpu-tcp" in said["args"]
    assert not (tmp_path / ".rocstack").exists()


def test_a_registry_of_adapters(cli: Cli, model: Path, tmp_path: Path) -> None:
    (login := tmp_path / "login").write_text("ada:secret")
    words = ("--repository", "https://example.com/adapters/tiny", "--repository-login", "login", "--print", "--json")
    ran = cli("serve", "tiny", *words, "--nic", "tcp")
    assert ran.code == 0, ran.err
    said = json.loads(ran.out)
    known = {"repository": "https://example.com/adapters/tiny", "login": str(login)}
    assert said["settings"]["repositories"] == [known]
    assert f"--volume={login}:{login}:ro" in said["args"]
    assert "secret" not in ran.out
    ran = cli("serve", "tiny", *words, "--repository", "https://example.org/adapters", "--nic", "tcp")
    assert ran.code == 2, "its password is for one registry"
    assert "--repository-login goes to one registry" in ran.out + ran.err


def test_on_this_machine(cli: Cli, model: Path) -> None:
    ran = cli("serve", "tiny", "--here", "--print", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["args"][2:4] == ["-m", "rocstack.serve"]


def test_on_this_machine_nothing_of_the_working_folder_is_imported(cli: Cli, model: Path, tmp_path: Path) -> None:
    """It may be a folder that others write to, or one that was copied."""
    line = json.loads(cli("serve", "tiny", "--here", "--print", "--json").out)["args"]
    (tmp_path / "json.py").write_text("open('ran', 'w')\n")
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert not (tmp_path / "ran").exists(), done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("words", [["--here"], ["--nic", "tcp"]])
def test_a_copied_folder_has_nothing_written_where_its_link_leads(
    words: list[str], cli: Cli, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "home/tiny.json").write_text("mine")
    (work := tmp_path / "work").mkdir()
    (work / ".rocstack").mkdir()
    (work / ".rocstack/serve").symlink_to("../../home")
    ran = cli("serve", str(model), "--json", *words, cwd=work)
    assert json.loads(ran.out or ran.err)["error"]["code"] == "out-leads-out"
    assert (tmp_path / "home/tiny.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nowhere"], "no-such-folder"),
        (["adapters"], "no-base-model"),
        (["tiny", "--adapters", "nowhere"], "no-such-folder"),
        (["tiny", "--tokens", "nowhere"], "no-file"),
        (["tiny", "--listen", "0.0.0.0:80"], "serve-settings"),
        (["tiny", "--listen", "nonsense"], "serve-settings"),
        (["tiny", "--max-rank", "7"], "serve-settings"),
        (["tiny", "--repository", "http://example.com/adapters"], "serve-settings"),
        (["tiny", "--repository", "example.com/adapters"], "serve-settings"),
        (["tiny", "--", "--port=1"], "engine-argument"),
        (["tiny", "--time", "8h"], "bad-value"),
    ],
)
def test_what_is_refused(cli: Cli, model: Path, words: list[str], code: str) -> None:
    ran = cli("serve", "--print", "--json", "--here", *words)
    assert ran.code == 2
    assert json.loads(ran.out or ran.err)["error"]["code"] == code


def test_without_vllm(cli: Cli, model: Path) -> None:
    ran = cli("serve", "tiny", "--here", "--json", env={"PATH": "/nonexistent"})
    assert ran.code == 3
    assert json.loads(ran.out or ran.err)["error"]["code"] in ("no-vllm", "no-serve-extra")


REFUSED = json.dumps({"status": 400, "text": json.dumps({"error": {"message": "no\x1b[1m"}})})


@dataclass
class ServedSite:
    """A cluster whose service answers `said`."""

    said: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)

    def run(self, ssh_host: Any, line: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
        assert "good" not in shlex.join(line), "a token in a process list"
        self.asked.append(json.loads(text))
        return subprocess.CompletedProcess(line, 0, self.said, "Error: no such container")

    def answer(self, status: int, found: Any) -> None:
        self.said = json.dumps({"status": status, "text": json.dumps(found)})


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServedSite:
    (tmp_path / "rocstack.yml").write_text(
        "inventory: inventory.yml\ncluster:\n  mounts: [/shared]\n  service: on\n  users: {alice: {uid: 2000}}\n"
    )
    (tmp_path / "inventory.yml").write_text("control: {hosts: {n1: }}\nworkers: {hosts: {n1: }}\n")
    found = ServedSite()
    node = SimpleNamespace(inventory=SimpleNamespace(control=SimpleNamespace(host="10.0.0.1")), ssh_host=SshHost("n1"))
    node.token = lambda user, seconds: f"good-{user}"
    monkeypatch.setattr(remote, "controller", lambda path: node)
    monkeypatch.setattr(ssh, "run", found.run)
    return found


def test_replicas_are_jobs_of_the_service(cli: Cli, served: ServedSite) -> None:
    row = {"id": "job-1", "object": "server", "model": "org/tiny", "status": "queued", "why": "\x1b[31mPriority"}
    served.answer(200, {"object": "list", "data": [row, row | {"id": "job-2"}]})
    words = ("serve", "/shared/models/org/tiny", "--replicas", "2", "--time", "8h", "--", "--max-model-len=512")
    ran = cli(*words)
    assert ran.code == 0, ran.err
    assert "\x1b" not in ran.out + ran.err
    assert "job-2" in ran.out
    assert "https://10.0.0.1:8443/v1" in ran.err
    body = {"model": "org/tiny", "replicas": 2, "max_rank": 64, "resident": 32, "arguments": ["--max-model-len=512"]}
    call = {"token": "good-alice", "method": "POST", "path": "/v1/servers", "body": body | {"time": "8h"}}
    assert served.asked == [call]
    assert json.loads(cli(*words[:4], "--json").out)["servers"][1]["id"] == "job-2"


def test_on_named_nodes(cli: Cli, served: ServedSite) -> None:
    served.answer(200, {"object": "list", "data": []})
    assert cli("serve", "org/tiny", "--node", "n2", "--node", "n1").code == 0
    body = served.asked[0]["body"]
    assert (body["nodes"], body.get("replicas")) == (["n2", "n1"], None)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["org/tiny", "--node", "n1"], "bad-value"),
        (["org/tiny", "--here"], "bad-value"),
        (["org/tiny", "--adapters", "adapters"], "bad-value"),
        (["org/tiny", "--print"], "bad-value"),
        (["/elsewhere/tiny"], "not-among-models"),
        (["/shared/models"], "not-among-models"),
        (["org/tiny", "--max-rank", "7"], "serve-settings"),
        (["org/tiny", "--user", "eve"], "unknown-user"),
        (["org/tiny", "--", "--port=1"], "engine-argument"),
    ],
)
def test_what_is_refused_of_replicas(cli: Cli, served: ServedSite, words: list[str], code: str) -> None:
    ran = cli("serve", "--replicas", "2", "--json", *words)
    assert ran.code == 2
    assert json.loads(ran.out or ran.err)["error"]["code"] == code
    assert served.asked == []


def test_without_a_service_there_are_no_replicas(cli: Cli, tmp_path: Path) -> None:
    ran = cli("serve", "tiny", "--replicas", "2", "--json")
    assert ran.code == 2
    assert json.loads(ran.out or ran.err)["error"]["code"] == "no-service-for-replicas"


@pytest.mark.parametrize(
    ("said", "exit_code", "code", "why"),
    [
        (REFUSED, 2, "service-refuses", "no\\x1b[1m"),
        (REFUSED.replace("400", "503"), 1, "service-failed", "no\\x1b[1m"),
        ('{"status": 200, "text": "<html>"}', 1, "service-silent", "no such container"),
        ("", 1, "service-silent", "no such container"),
        ("[" * 10_000, 1, "service-silent", "no such container"),
    ],
    ids=["refused", "failed", "no answer of ours", "nothing", "deep"],
)
def test_a_service_that_says_no_or_nothing(
    cli: Cli, served: ServedSite, said: str, exit_code: int, code: str, why: str
) -> None:
    served.said = said
    ran = cli("serve", "org/tiny", "--replicas", "2", "--json")
    error = json.loads(ran.out or ran.err)["error"]
    assert (ran.code, error["code"]) == (exit_code, code)
    assert why in error["what"]

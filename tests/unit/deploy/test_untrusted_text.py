"""What nodes say never becomes a template: the real playbooks under the real Ansible hand our modules each text as it
is. The modules are replaced by one that answers with what it was given."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import hostile as support
import pytest

from rocstack.base import paths
from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns
from rocstack.edge import ansible

PLAYBOOKS = paths.playbooks()


def hostile(place: Path) -> list[str]:
    """Texts that run a command, read a file or break the task where they are taken for a template; but the long ones:
    variables stand on a command line."""
    return support.texts(place / "ran")[: len(support.DATA["texts"])]


def whole(value: Any) -> Any:
    """Half characters are no text, and arrive as "?"."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


@pytest.fixture
def echoed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with our playbooks and modules that only answer; the working folder."""
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    shutil.copytree(PLAYBOOKS, tmp_path / "playbooks", ignore=shutil.ignore_patterns("library", "__pycache__"))
    library = tmp_path / "playbooks/library"
    library.mkdir()
    for file in PLAYBOOKS.glob("library/*.py"):
        (library / file.name).write_text(
            "#!/usr/bin/python\n# WANT_JSON\nimport json, sys\n"
            "given = json.load(open(sys.argv[1], encoding='utf-8'))\n"
            "print(json.dumps({'changed': False, 'given': json.dumps(given)}))\n"
        )
    local = f"n1 ansible_connection=local ansible_python_interpreter={sys.executable}\n"
    (tmp_path / "inv").write_text(f"[control]\n{local}[workers]\nn1\n")
    monkeypatch.setattr(paths, "playbooks", lambda: tmp_path / "playbooks")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def nested(value: Any) -> set[str]:
    """All texts in a value."""
    if isinstance(value, dict):
        return set().union(*map(nested, value.values()), value.keys())
    if isinstance(value, list):
        return set().union(*map(nested, value))
    return {value} if isinstance(value, str) else set()


def given(run: ansible.HostRun) -> dict[str, Any]:
    assert run.state == "ok", run.reason
    return {task: json.loads(result["given"]) for task, result in run.results.items() if "given" in result}


@pytest.mark.parametrize(
    ("playbook", "key"),
    [
        ("slurm.yml", "steps"),
        ("down.yml", "volumes"),
        ("down.yml", "files"),
        ("facts.yml", "names"),
        ("facts.yml", "users"),
        ("facts.yml", "reach"),
        ("probe.yml", "tree"),
    ],
)
def test_variables_arrive_as_they_are(echoed: Path, playbook: str, key: str) -> None:
    texts = hostile(echoed)
    value: Any = {"steps": [{"do": "drain", "reason": text} for text in texts], "reach": {"n1": texts}}.get(key, texts)
    (run,) = ansible.run(playbook, Path("inv"), variables={"timeout": 60, key: value})
    (arrived,) = (row for task, row in given(run).items() if task != "How Ansible reaches it")
    if "ask" in arrived:  # packed as it was, for the module to unpack
        asked = arrived["ask"]
        arrived = json.loads(base64.b64decode(asked["input"]))
        assert (asked["host"], float(asked["asked"]) > 0) == ("n1", True)
    assert arrived[key] == whole(value)
    assert not (echoed / "ran").exists()


def specs(texts: list[str]) -> dict[str, Any]:
    """A row with every text in every place that a playbook reads."""
    rows = [{"service": "control", "name": text, "path": text, text: text} for text in texts]
    lists = dict.fromkeys(("files", "images", "containers", "copies", "logins"), rows)
    commands = [["rocstack-control", text] for text in texts]
    return {
        **lists,
        "exec": commands,
        "remove": texts,
        "absent": texts,
        "keep": texts,
        "state": {"x": texts},
        "registry": {"ca": texts[0]},
        "image": texts[0],
        "munge": rows[0],
        "database": texts[0],
        "keys": dict.fromkeys(texts, "x"),
        "services": True,
    }


@pytest.mark.parametrize("playbook", ["start.yml", "ship.yml", "registry-copy.yml", "rotate-keys.yml", "trust.yml"])
def test_specifications_arrive_as_they_are(echoed: Path, playbook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ansible.HostRun] = []
    real = ansible.run
    monkeypatch.setattr(ansible, "run", lambda *args, **more: seen.extend(real(*args, **more)) or tuple(seen))
    texts = hostile(echoed)
    row = specs(texts)
    NodeRuns(Path("inv"), echoed / "log", DeployEvents()).send(playbook, {"n1": row})
    answers = given(seen[0])
    assert answers
    for task, arrived in answers.items():
        for name in set(row) & set(arrived):
            assert arrived[name] == whole(row[name]), f"{task}: {name}"
    assert set(whole(texts)) <= nested(answers)
    assert not (echoed / "ran").exists()


def test_every_playbook_that_takes_data_is_tried() -> None:
    taking = {file.name for file in PLAYBOOKS.glob("*.yml") if "rocstack_input" in file.read_text()}
    of_specs = {"start.yml", "ship.yml", "registry-copy.yml", "rotate-keys.yml", "trust.yml"}
    assert taking == {"slurm.yml", "down.yml", "facts.yml", "probe.yml", *of_specs}

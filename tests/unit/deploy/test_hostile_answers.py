"""A node can put into its answer whatever Ansible itself reads there; the other nodes' runs go on. Ansible is real, the
modules are replaced by what each node says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from rocstack.base import paths
from rocstack.deploy.nodes.answers import DownAnswer
from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns

HONEST = {"changed": False, "containers": ["c"]}
DEEP: Any = 1
for _ in range(300):
    DEEP = [DEEP]
SAID: list[Any] = [
    *({"ansible_stats": value} for value in (None, 5, "x", [], {"data": "x"}, {"data": 5, "per_host": False})),
    {"ansible_stats": {"data": {"x": {"y": 1}}, "aggregate": True, "per_host": False}},
    *({"ansible_facts": value} for value in (None, 5, "x", [], {"x": DEEP}, {"ansible_connection": "none"})),
    {"add_host": {"host_name": "honest", "host_vars": {"ansible_connection": "none"}}, "changed": True},
    *({"add_host": value} for value in (None, 5, "x", {"host_name": 5, "groups": 5})),
    {"add_group": "control", "parent_groups": ["workers"]},
    {"_ansible_notify": ["x"], "changed": True},
    {"_ansible_delegated_vars": {"ansible_host": "honest"}, "_ansible_facts_cacheable": True},
    *({key: value} for key in ("warnings", "deprecations", "exception", "diff", "results") for value in (5, [5], {})),
    {"deprecations": [{"msg": 1, "version": {}}]},
    {"skipped": "x", "unreachable": "y"},
    {"failed": {"x": 1}, "msg": {"y": 2}},
    {"msg": DEEP},
    [1],
    5,
]


def test_what_a_node_says_to_ansible_ends_no_other_nodes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    shutil.copytree(paths.playbooks(), tmp_path / "playbooks", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(paths, "playbooks", lambda: tmp_path / "playbooks")
    monkeypatch.chdir(tmp_path)
    said = {f"n{number}": {**HONEST, **row} if isinstance(row, dict) else row for number, row in enumerate(SAID)}
    said["honest"] = HONEST
    rows = []
    for name, row in said.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(row))
        python = tmp_path / f"{name}.sh"
        # It stands in for Python on the node: whatever module comes, this is the answer.
        python.write_text(f"#!/bin/sh\ncat >/dev/null\ncat {shlex.quote(str(tmp_path / name))}.json\n")
        python.chmod(0o755)
        rows.append(f"{name} ansible_connection=local ansible_python_interpreter={python}")
    known = f"ansible_connection=local ansible_python_interpreter={sys.executable}"
    (tmp_path / "inv").write_text("\n".join(["[workers]", *rows, "[control]", f"control {known}", ""]))
    runs = NodeRuns(Path("inv"), tmp_path / "log", DeployEvents()).send("down.yml", {name: {} for name in said})
    assert runs.keys() == said.keys()
    honest = runs["honest"]
    assert (honest.state, honest.reason) == ("ok", "")
    assert honest.answer("Down", DownAnswer) == DownAnswer(containers=("c",))


@pytest.mark.parametrize("stream", [1, 2])
def test_an_answer_without_an_end_fails_for_its_node_alone(
    stream: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible would keep all of it."""
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    programs = {
        "ssh": '[ "$1" = -V ] && exit\nfor last; do :; done\nexec sh -c "$last"',
        "endless": f"cat >/dev/null; head -c {1 << 30} /dev/zero >&{stream} && touch {tmp_path}/end",
        "honest": f"cat >/dev/null\necho {shlex.quote(json.dumps(HONEST))}",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    here = f"ansible_connection=ssh ansible_ssh_executable={tmp_path}/ssh ansible_python_interpreter={tmp_path}"
    known = f"ansible_connection=local ansible_python_interpreter={sys.executable}"
    rows = [f"{name} ansible_host={name}.invalid {here}/{name}" for name in ("endless", "honest")]
    (tmp_path / "inv").write_text("\n".join(["[workers]", *rows, "[control]", f"control {known}", ""]))
    runs = NodeRuns(Path("inv"), tmp_path / "log", DeployEvents()).send("down.yml", {"endless": {}, "honest": {}})
    assert (runs["honest"].state, runs["honest"].reason) == ("ok", "")
    assert runs["endless"].reason == "it answered with more than 64 MB"
    assert not (tmp_path / "end").exists()

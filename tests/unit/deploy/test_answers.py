"""What nodes answer: every field is checked in one place, and a node whose answer can't be read has failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocstack.deploy.nodes.answers import TASKS, ApplyAnswer, PullAnswer, parse
from rocstack.deploy.nodes.node_spec import NodeSpec
from rocstack.deploy.nodes.runs import DeployEvents, NodeRun, NodeRuns
from rocstack.edge import ansible
from rocstack.edge.ansible import HostRun
from rocstack.node.containers import ContainerResult
from rocstack.node.pull import Pulled

APPLY: dict[str, Any] = {
    "files": ["/etc/x"],
    "containers": {
        "rocstack-worker": ContainerResult("rocstack-worker", "created", "healthy", 1.5, ["note"]).to_dict()
    },
    "removed": [],
    "exec": [["rocstack-worker", "rocstack-users"]],
    "pruned": ["sha256:a"],
}
PULL: dict[str, Any] = {
    "images": [Pulled("w", "sha256:a", changed=True, attempts=2, seconds=3, bytes=4_000_000).to_dict()]
}
OF_ANSIBLE = {"changed": True, "invocation": {"module_args": {}}, "_ansible_no_log": False}


def run(*ends: HostRun, monkeypatch: pytest.MonkeyPatch) -> dict[str, NodeRun]:
    monkeypatch.setattr(ansible, "run", lambda *_, **__: ends)
    return NodeRuns(Path("i.yml"), Path("log"), DeployEvents()).run("start.yml", {"n1": NodeSpec(), "n2": NodeSpec()})


def test_what_modules_answer_is_read() -> None:
    answer = parse(ApplyAnswer, {**APPLY, **OF_ANSIBLE})
    assert answer.containers["rocstack-worker"].notes == ("note",)
    assert str(answer) == "worker created (1.5 s)"
    assert str(parse(PullAnswer, {**PULL, **OF_ANSIBLE})) == "pulled 4.0 MB in 3.0 s, 2 attempts"
    assert str(parse(ApplyAnswer, {**APPLY, "containers": {}})) == "files written"


@pytest.mark.parametrize("value", [None, 1, "x", True, {"a": 1}, [1], [[]], [{}], {"rocstack-worker": None}])
@pytest.mark.parametrize(
    ("task", "field"), [("Containers", each) for each in APPLY] + [("Pull", "images"), ("Slurm", "steps")]
)
def test_a_field_of_another_kind_is_named(task: str, field: str, value: object) -> None:
    _, model = TASKS[task]
    whole = {"Containers": APPLY, "Pull": PULL, "Slurm": {"steps": []}}[task]
    if (field, value) in (("steps", [{}]), ("exec", [[]])):
        pytest.skip("fits: a step's row is checked by its kind")
    with pytest.raises(ValueError, match=f"^{field}"):
        parse(model, {**whole, field: value})
    with pytest.raises(ValueError, match=f"^{field}: Field required"):
        parse(model, {key: value for key, value in whole.items() if key != field})


def test_a_node_whose_answer_cant_be_read_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = HostRun("n1", "ok", "", {"Containers": APPLY}), HostRun("n2", "ok", "", {"Containers": {"files": 7}})
    found = run(good, bad, monkeypatch=monkeypatch)
    assert found["n1"].answer("Containers", ApplyAnswer)
    assert (found["n2"].state, found["n2"].answers) == ("failed", {})
    assert found["n2"].reason.startswith("its answer can't be read: Containers: files: ")


def test_a_module_that_failed_says_what_it_did_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = HostRun("n1", "failed", "not healthy", {"Containers": {**APPLY, "cause": "bad flag"}})
    found = run(failed, monkeypatch=monkeypatch)
    assert found["n1"].reason == "not healthy (bad flag)"
    assert found["n1"].answer("Containers", ApplyAnswer)
    assert found["n2"] == NodeRun("n2", "unreachable", "Ansible reported nothing for it")
    crashed = run(HostRun("n1", "failed", "Traceback", {"Containers": {"msg": "Traceback"}}), monkeypatch=monkeypatch)
    assert "Containers" in crashed["n1"].answers
    assert crashed["n1"].answer("Containers", ApplyAnswer) is None

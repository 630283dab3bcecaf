"""A rotation of keys in the secrets file: begun, interrupted, gone on with, ended; and which node gets which key."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_desired import HOSTS, keys, wanted

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.deploy.nodes.answers import SwapAnswer
from rocstack.deploy.nodes.runs import DeployEvents, NodeRun, NodeRuns
from rocstack.deploy.plan import key_rotation, secrets, services
from rocstack.deploy.plan.key_rotation import ROTATED
from rocstack.deploy.plan.secrets import NAMES
from rocstack.deploy.read import journal
from rocstack.deploy.work import rotation
from rocstack.edge.ansible import packed
from rocstack.edge.ssh import SshHost


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / secrets.FILE
    secrets.save(path, dataclasses.replace(keys(), new=NAMES))
    return path


def test_new_keys_are_in_the_file_before_they_go_out_and_the_same_after_a_kill(file: Path) -> None:
    begun = key_rotation.load(file)
    assert (begun.begun, secrets.read(file)) == (False, begun.old)
    begun.begin()
    assert file.stat().st_mode & 0o777 == 0o600
    again = key_rotation.load(file)
    assert (again.begun, again.old, again.new) == (True, begun.old, begun.new)
    with pytest.raises(BadInput) as caught:
        secrets.read(file)
    assert caught.value.code == "rotation-unfinished"
    written = file.read_bytes()
    again.begin()
    assert file.read_bytes() == written
    again.finish()
    after = secrets.read(file)
    assert after == begun.new
    assert {name for name in NAMES if getattr(after, name) != getattr(begun.old, name)} == set(ROTATED)
    assert not key_rotation.load(file).begun


def test_a_cluster_may_have_old_and_new_keys_but_no_others(file: Path) -> None:
    begun = key_rotation.load(file)
    old, new = begun.old.fingerprints(), begun.new.fingerprints()
    for there in ({}, old, new, {**old, "jwt_key": new["jwt_key"]}):
        begun.check(there)
    with pytest.raises(BadInput, match="munge_key") as caught:
        begun.check({**old, "munge_key": "0" * 12})
    assert caught.value.code == "other-secrets"


def test_a_file_that_changed_meanwhile_is_left_alone(file: Path) -> None:
    mine, other = key_rotation.load(file), key_rotation.load(file)
    other.begin()
    other.finish()
    with pytest.raises(CheckFailed) as caught:
        mine.begin()
    assert caught.value.code == "secrets-changed"
    assert secrets.read(file) == other.new


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda text: "$ANSIBLE_VAULT;1.1;AES256\n3132\n", "locked-secrets"),
        (lambda text: text.replace("jwt_key", "jwt_kay"), "bad-secrets"),
        (lambda text: "".join(line for line in text.splitlines(True) if "jwt_key" not in line), "rotation-nothing"),
        (lambda text: text + "next: {munge_key: c2hvcnQ=}\n", "bad-secrets"),
        (lambda text: text + "next: {registry_password: 0123456789abcdef}\n", "rotation-nothing"),
    ],
)
def test_what_can_not_be_rotated_is_refused_and_left_as_it_is(file: Path, damage: Any, code: str) -> None:
    file.write_text(damage(file.read_text()))
    before = file.read_bytes()
    with pytest.raises(BadInput) as caught:
        key_rotation.load(file)
    assert caught.value.code == code
    assert file.read_bytes() == before


def test_a_vault_names_the_way_out(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = secrets.stored(file)[0]
    monkeypatch.setattr(secrets, "stored", lambda path: (values, True))
    with pytest.raises(BadInput) as caught:
        key_rotation.load(file)
    assert caught.value.code == "rotation-encrypted"
    assert f"ansible-vault decrypt {file}" in str(caught.value.next_step)


def test_no_node_gets_a_key_that_it_has_no_use_for() -> None:
    """Whatever containers it says that it has: only the inventory gives a node a registry."""
    nodes: dict[str, dict[str, Any]] = {"n1": {}, "n2": {}, "n3": {}}
    desired = wanted(nodes)
    claims = SimpleNamespace(name=services.STORE)
    gathered: Any = SimpleNamespace(
        node=lambda name: SimpleNamespace(name=name, container=lambda which: claims), address=desired.facts.address
    )
    rack = dataclasses.replace(HOSTS[1], rack_registry="10.0.0.2:5443")
    for inventory, serving in (
        (desired.inventory, {"n1"}),
        (dataclasses.replace(desired.inventory, workers=(HOSTS[0], rack, HOSTS[2])), {"n1", "n2"}),
    ):
        rows = rotation.orders(inventory, gathered, keys())
        assert {name for name, row in rows.items() if row["services"]} == serving
        for name, row in rows.items():
            paths = {each["path"] for each in row["files"]}
            assert (services.REGISTRY in paths) == (name in serving)
            assert (services.JWT_KEY in paths, bool(row["database"]), bool(row["keys"])) == (name == "n1",) * 3
            assert row["munge"]["path"] == services.MUNGE_KEY
        for password in (keys().database_password, keys().registry_password):
            of_workers = json.dumps([rows["n2"], rows["n3"]])
            assert password not in of_workers
            assert base64.b64encode(password.encode()).decode() not in of_workers
        assert packed(rows)
        for name in serving:
            (file,) = (each for each in rows[name]["files"] if each["path"] == services.REGISTRY_PULL)
            accounts = dict(line.split(":") for line in base64.b64decode(file["content"]).decode().splitlines())
            assert accounts == {each: keys().pull_password(each, name) for each in accounts}
            assert set(accounts) == ({"n1", "n2", "n3"} if name == "n1" else {"n2"})


@pytest.mark.parametrize("left", [None, SimpleNamespace(keys={})])
def test_one_that_was_interrupted_ends_also_where_the_cluster_is_gone_since(
    left: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken down, or its control node replaced: deploy refuses to begin until the rotation has ended."""
    desired = wanted({"n1": {}, "n2": {}, "n3": {}})
    inventory = dataclasses.replace(desired.inventory, path=file.parent / "inventory.yml")
    node: Any = SimpleNamespace(fence=0, state=left, container=lambda name: None, engine=SimpleNamespace(problem=""))
    gathered = SimpleNamespace(
        node=lambda name: node,
        nodes=[node],
        failures=(),
        ssh_hosts={"n1": SshHost("n1")},
        address=desired.facts.address,
    )
    monkeypatch.setattr(rotation.facts, "gather", lambda *_, **__: gathered)
    lock = journal.lock(str(file.parent / "state"))
    monkeypatch.setattr(rotation.journal, "lock", lambda resume: lock)
    swapped = {"Swap": SwapAnswer(swapped=True)}
    monkeypatch.setattr(NodeRuns, "send", lambda self, playbook, rows: {n: NodeRun(n, "ok", "", swapped) for n in rows})
    runs = NodeRuns(inventory.path, file.parent / "log", DeployEvents())
    with pytest.raises(BadInput) as caught:
        rotation.rotate(inventory, runs)
    assert caught.value.code == "rotation-undeployed"
    begun = key_rotation.load(file)
    begun.begin()
    assert rotation.rotate(inventory, runs).to_dict()["resumed"]
    assert secrets.read(file) == begun.new


def test_a_container_is_the_same_with_new_keys_but_not_one_that_is_older_than_its_files() -> None:
    from rocstack.deploy.plan import plan

    nodes: dict[str, dict[str, Any]] = {"n1": {}, "n2": {}, "n3": {}}
    desired = wanted(nodes)
    other = dataclasses.replace(desired, keys=dataclasses.replace(keys(), munge_key=b"x" * 64, jwt_key=b"y" * 32))
    for name in nodes:
        assert desired.node_specs()[name].digests() == other.node_specs()[name].digests()
    spec = desired.node_specs()["n2"].containers[0]
    digest = desired.node_specs()["n2"].digests()[spec.name]
    found = desired.facts.node("n2")
    assert found is not None
    running = SimpleNamespace(spec=digest, status="running", image=spec.image)
    for now, changed, kind in ((digest, [], None), ("", [], "replace"), (digest, [services.MUNGE_KEY], "replace")):
        running.spec = now
        facts: Any = SimpleNamespace(container=lambda name: running)
        made = list(plan._of_container(spec, digest, changed, facts))
        assert [change.kind for change in made] == ([kind] if kind else [])


def test_a_registry_of_an_older_rocstack_is_deployed_anew_first(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its passwords lie where nothing would replace them. What a worker says that it runs is no reason."""
    desired = wanted({"n1": {}, "n2": {}, "n3": {}})
    inventory = dataclasses.replace(desired.inventory, path=file.parent / "inventory.yml")

    def node(name: str, files: dict[str, str]) -> Any:
        engine = SimpleNamespace(problem="")
        has = lambda which: which  # noqa: E731
        return SimpleNamespace(name=name, files=files, state=SimpleNamespace(keys={}), container=has, engine=engine)

    runs = NodeRuns(inventory.path, file.parent / "log", DeployEvents())
    # None of ours; and a deploy that was cut off before it replaced the container.
    for files in ({}, {services.REGISTRY_PULL: "sha", services.OLDER_PULL: "sha"}):
        nodes = {name: node(name, files) for name in ("n1", "n2", "n3")}
        gathered = SimpleNamespace(
            node=nodes.get, nodes=[*nodes.values()], failures=(), address=desired.facts.address, ssh_hosts={}
        )
        monkeypatch.setattr(rotation.facts, "gather", lambda *_, found=gathered, **__: found)
        with pytest.raises(CheckFailed) as caught:
            rotation.rotate(inventory, runs)
        assert caught.value.code == "rotation-registry-older"
        assert "of n1" in caught.value.what

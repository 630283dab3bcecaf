"""Inventories of every form that Ansible reads, through the real Ansible; and what is refused, with the reason."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.base.errors import BadInput
from rocstack.cli.config import example
from rocstack.deploy.read import inventory
from rocstack.deploy.read.inventory import Inventory

DATA = Path(__file__).parents[1] / "data/inventories"
CASES = sorted(file.parent.name for file in DATA.glob("*/expected.yml"))


def expected(case: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DATA / case / "expected.yml").read_text())
    return found


def source(folder: Path) -> Path:
    return next(path for path in folder.iterdir() if path.stem == "inventory")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Inventory]:
    """All at once, since each starts a program; in a place of its own, where its ansible.cfg is in force."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
            patch.delenv(name)
        found = {}
        for case in [case for case in CASES if (DATA / case / "ansible.cfg").exists()]:
            patch.chdir(DATA / case)
            found[case] = inventory.load(source(DATA / case))
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        rest = [case for case in CASES if case not in found]
        with ThreadPoolExecutor(4) as pool:
            found |= zip(rest, pool.map(lambda case: inventory.load(source(DATA / case)), rest), strict=True)
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_form(case: str, loaded: dict[str, Inventory]) -> None:
    found, wanted = loaded[case], expected(case)
    hosts = {host.name: host for host in found.nodes}
    assert found.control.name == wanted.pop("control")
    assert [host.name for host in found.workers] == wanted.pop("workers")
    assert not hosts.keys() & set(wanted.pop("others", []))
    racks = {registry: [host.name for host in members] for registry, members in found.racks.items()}
    assert racks == wanted.pop("racks", {})
    for name, variables in wanted.pop("variables", {}).items():
        assert variables.items() <= hosts[name].variables.items()
    fields = {
        "addresses": lambda host: host.address,
        "hosts": lambda host: host.host,
        "groups": lambda host: list(host.groups),
        "ports": lambda host: int(host.variables.get("ansible_port") or 22),
        "users": lambda host: host.variables.get("ansible_user"),
    }
    for plural, values in wanted.items():
        assert {name: fields[plural](hosts[name]) for name in values} == values


def test_every_case_says_what_it_checks() -> None:
    assert {path.name for path in DATA.iterdir()} == set(CASES)
    assert all({"control", "workers"} < set(expected(case)) for case in CASES)


def listing(groups: dict[str, Any], **variables: dict[str, Any]) -> dict[str, Any]:
    """As `ansible-inventory --list` says it."""
    made: dict[str, Any] = {}
    grouped: set[str] = set()
    for name, members in groups.items():
        made[name] = {"hosts": list(members)}
        grouped |= set(members) if name != "ungrouped" else set()
    made["all"] = {"children": list(groups)}
    return {**made, "_meta": {"hostvars": variables}}


def read(groups: dict[str, Any], **variables: dict[str, Any]) -> Inventory:
    return inventory.of_listing(Path("inv"), listing(groups, **variables), lambda hosts: (hosts, {}))


GOOD = {"control": ["c1"], "workers": ["w1"]}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "nobody": ({}, {}, "no-hosts", "has no hosts"),
    "no control": ({"workers": ["w1"]}, {}, "no-control", "its groups are workers"),
    "only a list": ({"ungrouped": ["n1", "n2"]}, {}, "no-control", "it has no groups"),
    "control misspelt": ({"contol": ["c1"], "workers": ["w1"]}, {}, "no-control", "did you mean 'contol'"),
    "control by another word": ({"head": ["c1"], "workers": ["w1"]}, {}, "no-control", "did you mean 'head'"),
    "control empty": ({"control": [], "workers": ["w1"]}, {}, "no-control", "'control' has no hosts"),
    "two controls": ({"control": ["c1", "c2"], "workers": ["w1"]}, {}, "several-controls", "has 2 hosts: c1, c2"),
    "no workers": ({"control": ["c1"]}, {}, "no-workers", "its groups are control"),
    "worker": ({"control": ["c1"], "worker": ["w1"]}, {}, "no-workers", "did you mean 'worker'"),
    "compute": ({"control": ["c1"], "compute": ["w1"]}, {}, "no-workers", "did you mean 'compute'"),
    "some misspelt": ({**GOOD, "wrokers": ["w2"]}, {}, "no-role", "w2 in group 'wrokers': did you mean 'workers'"),
    "in no group": ({**GOOD, "ungrouped": ["x1", "x2"]}, {}, "no-role", "x1, x2: neither in"),
    "capitals": ({"control": ["c1"], "workers": ["n1", "N1"]}, {}, "bad-node-name", "differ only in upper and"),
    "capitals across groups": ({"control": ["HEAD"], "workers": ["head"]}, {}, "bad-node-name", "'HEAD' and 'head'"),
    "an address": ({"control": ["c1"], "workers": ["192.0.2.5"]}, {}, "bad-node-name", "is an address"),
    "an IPv6 address": ({"control": ["c1"], "workers": ["2001:db8::5"]}, {}, "bad-node-name", "is an address"),
    "a word of slurm.conf": ({"control": ["c1"], "workers": ["Default"]}, {}, "bad-node-name", "'Default' can't be"),
    "an odd name": ({"control": ["c1"], "workers": ["w 1"]}, {}, "bad-node-name", "'w 1' can't be"),
    "a variable": ({"control": ["c1"], "workers": ["w1 password=it"]}, {}, "bad-node-name", "'w1 password=...' can't"),
    "a list of nodes": ({"control": ["c1"], "workers": ["w[1-2]"]}, {}, "bad-node-name", "can't be"),
    "a long name": ({"control": ["c1"], "workers": ["w" * 64]}, {}, "bad-node-name", "can't be"),
    "misspelt variable": (GOOD, {"w1": {"rocstack_adress": "x"}}, "unknown-key", "did you mean 'rocstack_address'"),
    "mirror": (GOOD, {"w1": {"rocstack_rack_registry": "https://m"}}, "bad-value", "is not a registry"),
    "one machine twice": ({"control": ["c1"], "workers": ["w1", "w2"]},
                          {"w1": {"ansible_host": "192.0.2.5"}, "w2": {"ansible_host": "192.0.2.5"}},
                          "bad-value", "'w1' and 'w2' are one machine"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    groups, variables, code, says = REFUSED[case]
    with pytest.raises(BadInput) as error:
        read(groups, **variables)
    assert error.value.code == code
    assert says in error.value.what
    assert str(error.value.where) == "inv"
    assert error.value.next_step or code in ("bad-value", "unknown-key")


def test_both_roles_and_groups_that_are_not_ours() -> None:
    found = read({"control": ["n1"], "workers": ["n1", "n2"], "storage": ["filer"], "node_exporter": ["n1"]})
    assert [node.name for node in found.nodes] == ["n1", "n2"]
    assert [found.roles(name) for name in ("n1", "n2", "filer")] == [("control", "worker"), ("worker",), ()]


@pytest.mark.parametrize("own", [{"ansible_port": 2222}, {"ansible_connection": "local"}, {"ansible_ssh_args": "-J b"}])
def test_workers_behind_one_address(own: dict[str, Any]) -> None:
    hosts = {name: {"ansible_host": "192.0.2.5", **more} for name, more in (("w1", {}), ("w2", own))}
    assert [host.name for host in read({"control": ["w1"], "workers": ["w1", "w2"]}, **hosts).workers] == ["w1", "w2"]


def test_workers_behind_gates_of_their_own() -> None:
    way = {"ansible_host": "192.0.2.5", "ansible_ssh_common_args": "-J gate-{{ inventory_hostname }}"}
    found = read({"control": ["w1"], "workers": ["w1", "w2"]}, w1=way, w2=way)
    assert [host.name for host in found.workers] == ["w1", "w2"]


def test_a_password_is_not_shown() -> None:
    found = read(GOOD, w1={"ansible_become_password": "s3cret", "ansible_host": "192.0.2.5"})
    assert "s3cret" not in repr(found)


def test_what_init_writes_is_one(tmp_path: Path) -> None:
    (tmp_path / "inventory.yml").write_text(example("inventory"))
    found = inventory.load(tmp_path / "inventory.yml")
    assert found.control.name == "head"
    assert [host.name for host in found.workers] == ["node01", "node02", "node03", "node04"]


def test_ansibles_own_complaint_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inventory.yml").write_text("control:\n  hosts:\n    c1: {a: b\n")
    with pytest.raises(BadInput) as error:
        inventory.load(tmp_path / "inventory.yml")
    assert (error.value.code, error.value.where and error.value.where.line) == ("bad-inventory", 4)
    with pytest.raises(BadInput) as error:
        inventory.load(tmp_path / "nope")
    assert error.value.code == "no-inventory"
    shutil.copytree(DATA / "vault", tmp_path / "vault")
    (tmp_path / "vault/ansible.cfg").unlink()
    monkeypatch.chdir(tmp_path / "vault")
    with pytest.raises(BadInput, match="vault") as error:
        inventory.load(Path("inventory.yml"))
    assert error.value.code == "bad-inventory"

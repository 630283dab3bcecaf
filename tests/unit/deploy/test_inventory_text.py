"""Inventories as people write them wrong: refused in the line that is meant, and nothing is lost silently."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_run import Cli
from misspelling import misspelt

from rocstack.base.errors import BadInput
from rocstack.deploy.read import facts, inventory, inventory_text, inventory_values
from rocstack.edge import ansible, complaints

GOOD = """\
control:
  hosts:
    c1: {ansible_host: 192.0.2.1}
workers:
  vars: {ansible_user: root}
  hosts:
    w1: {ansible_host: 192.0.2.2}
    w2:
      ansible_host: 192.0.2.3
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    return tmp_path


def refused(text: str, name: str = "inv.yml") -> BadInput:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    with pytest.raises(BadInput) as error:
        inventory.load(Path(name))
    return error.value


# What is changed in GOOD, and what is said.
WRONG = {
    "a group twice": (("workers:", "workers: {hosts: {w0: }}\nworkers:"), "inv.yml:5", "'workers' is there twice, fir"),
    "a host twice": (("    w2:", "    w1:"), "inv.yml:8", "'w1' is there twice, first in line 7"),
    "hosts misspelt": (("  hosts:\n    w1", "  hoss:\n    w1"), "inv.yml:6", "'hoss' in group 'workers': did you"),
    "vars misspelt": (("vars:", "vas:"), "inv.yml:5", "'vas' in group 'workers': did you mean 'vars'?"),
    "an address of ours": (("w1: {", "w1: {rocstcak_address: a, "), "inv.yml:7", "did you mean 'rocstack_address'?"),
    "a port's name": (("ansible_host: 192.0.2.3", "ansiblle_port: 3"), "inv.yml:9", "did you mean 'ansible_port'?"),
    "a variable of a group": (("ansible_user", "ansible_usr"), "inv.yml:5", "did you mean 'ansible_user'?"),
    "an address": (("192.0.2.3", "192.0.2.300"), "inv.yml:9", "'192.0.2.300' of w2 is neither an address nor a host"),
    "a short address": (("192.0.2.3", "10.1"), "inv.yml:9", "10.1 of w2 is neither an address nor a host name"),
    "a list of addresses": (("192.0.2.3", "[192.0.2.3, w2]"), "inv.yml:9", "is a list, where one text"),
    "a mirror": (("192.0.2.3", "w2\n      rocstack_rack_registry: http://m"), "inv.yml:10", "is not a registry"),
    "a group misspelt": (("workers:", "wrokers: {hosts: {w0: }}\nworkers:"), "inv.yml:4", "did you mean 'workers'?"),
    "a mirror's port": (("192.0.2.3", "w2\n      rocstack_rack_registry: m:99999"), "inv.yml:10", "is not a registry"),
    "a mirror's port 0": (("192.0.2.3", "w2\n      rocstack_rack_registry: m:0"), "inv.yml:10", "is not a registry"),
    "a truth": (("ansible_host: 192.0.2.3", "rocstack_address: true"), "inv.yml:9", "is true or false, where a text"),
    "a port of 5000 digits": (("192.0.2.2", f"192.0.2.2, ansible_port: {'9' * 5000}"), "inv.yml:7", "is too long"),
    "no space": (("{ansible_host: 192.0.2.2}", "{ansible_host:192.0.2.2}"), "inv.yml:7", "a space belongs"),
    "a range backwards": (("    w1:", "    w[5:1]:"), "inv.yml:7", "did you mean 'w[1:5]'?"),
    "a range of Slurm's": (("    w1:", "    w[1-4]:"), "inv.yml:7", "did you mean 'w[1:4]'?"),
    "a list of hosts": (("    w1: {ansible_host: 192.0.2.2}\n    w2:\n      ansible_host: 192.0.2.3", "    - w1"),
                        "inv.yml:7", "'hosts' of group 'workers' is a list"),
    "a group with a letter that is none": (("workers", "w\u043erkers"), "inv.yml:4", "did you mean 'w\u043erkers'?"),
    "nodes alike": (("w2:", "W1:"), "inv.yml:8", "differ only in upper and lower case"),
    "brackets": (("192.0.2.3", "'[2001:db8::5]'"), "inv.yml:9", "has brackets, which ssh takes for"),
    "an octal port": (("192.0.2.3", "w2\n      ansible_port: 0022"), "inv.yml:10", "0022 of w2 is another number"),
    "an octal password": (("192.0.2.3", "w2\n      ansible_password: 0123"), "inv.yml:10", "password *** of w2 is"),
    "hosts in one text": (("    w1: {ansible_host: 192.0.2.2}\n    w2:\n      ansible_host: 192.0.2.3", "    w1,w2"),
                          "inv.yml:7", "'w1,w2' can't be the name of a Slurm node"),
    "variables in a list": (("      ansible_host: 192.0.2.3", "      - ansible_host: 192.0.2.3"),
                            "inv.yml:9", "the variables of host 'w2' are a list"),
    "a node's name": (("w2:", "192.0.2.9:"), "inv.yml:8", "'192.0.2.9' is an address"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_refused_in_its_line(case: str) -> None:
    (old, new), where, says = WRONG[case]
    assert GOOD.count(old) == 1
    error = refused(GOOD.replace(old, new))
    assert (str(error.where), error.exit_code) == (where, 2)
    assert says in error.what
    assert error.next_step


INI = "[control]\nc1\n\n[workers]\nw1 ansible_host=192.0.2.2\nw2\n\n[workers:vars]\nansible_user=root\n"
WRONG_INI = {
    "a section": (("workers:vars", "workers:var"), "inv:8", "unknown section [workers:var]: did you mean 'vars'?"),
    "a variable": (("w2\n", "w2 ansible_prot=22\n"), "inv:6", "did you mean 'ansible_port'?"),
    "a variable of a group": (("ansible_user", "ansible_suer"), "inv:9", "did you mean 'ansible_user'?"),
    "a host twice": (("w2\n", "w2\nw1 ansible_port=3\n"), "inv:7", "'w1' is there twice, first in line 5"),
    "an open bracket": (("w2\n", "w2\n[rack1\n"), "inv:7", "'[rack1' is no section"),
    "spaces": (
        ("ansible_host=192.0.2.2", "ansible_host = 192.0.2.2"),
        "inv:5",
        "'ansible_host' beside w1 is no",
    ),
    "a variable as a host": (("w2\n", "ansible_user=root\n"), "inv:6", "'ansible_user=...' can't be the name"),
    "a child": (("[workers:vars]", "[big:children]\nworkes\n[workers:vars]"), "inv:9", "did you mean 'workers'?"),
    "a range": (("w2\n", "w[1-4]\n"), "inv:6", "did you mean 'w[1:4]'?"),
    "a line without a value": (("ansible_user=root", "ansible_user"), "inv:9", "'ansible_user' beside workers is no"),
    "variables of nobody": (
        ("[workers:vars]", "[wrokers:vars]"),
        "inv:8",
        "no group 'wrokers': did you mean 'workers'",
    ),
    "an address": (("192.0.2.2", "192.0.2"), "inv:5", "ansible_host '192.0.2' of w1 is neither an address"),
}


@pytest.mark.parametrize("case", WRONG_INI)
def test_refused_in_its_line_of_an_ini_file(case: str) -> None:
    (old, new), where, says = WRONG_INI[case]
    error = refused(INI.replace(old, new), "inv")
    assert str(error.where) == where
    assert says in error.what


def test_variables_beside_the_inventory_have_their_lines_too(place: Path) -> None:
    (place / "group_vars").mkdir()
    (place / "group_vars/workers.yml").write_text("---\nown: 1\nansible_prot: 2\n")
    error = refused(GOOD)
    assert str(error.where) == str(Path("group_vars/workers.yml:3"))
    (place / "group_vars/workers.yml").write_text("own: 1\nown: 2\n")
    assert "'own' is there twice" in refused(GOOD).what


UNREAD = {
    "no YAML": (b"own: 1\nother: [a\n", 2, "not valid YAML"),
    "a list": (b"# mine\n- own: 1\n", 2, "holds no variables"),
    "Latin-1": (b"own: 1\nother: \xe9\n", 2, "not UTF-8"),
}


@pytest.mark.parametrize("case", UNREAD)
def test_what_ansible_fails_with_beside_the_inventory_has_its_line(case: str, place: Path) -> None:
    content, line, says = UNREAD[case]
    (place / "host_vars").mkdir()
    (place / "host_vars/w1.yml").write_bytes(content)
    error = refused(GOOD)
    assert (str(error.where), error.exit_code) == (f"host_vars/w1.yml:{line}", 2)
    assert says in error.what


def test_groups_of_a_folder_may_be_in_another_file(place: Path) -> None:
    (place / "inv").mkdir()
    (place / "inv/a.ini").write_text("[control]\nc1\n[gpus]\nw1\n")
    (place / "inv/b.ini").write_text("[workers:children]\ngpus\n[gpus:vars]\nansible_user=root\n")
    assert [host.name for host in inventory.load(Path("inv")).workers] == ["w1"]


@pytest.mark.parametrize("text", ["[defaults\n", "[defaults]\nforks = many\n"])
def test_settings_that_ansible_can_not_use(text: str, place: Path) -> None:
    (place / "ansible.cfg").write_text(text)
    error = refused(GOOD)
    assert (str(error.where), error.exit_code) == (str(place / "ansible.cfg"), 2)
    assert "Traceback" not in error.what


def test_a_file_of_a_misspelt_group_is_refused_and_one_of_another_inventory_told(place: Path) -> None:
    (place / "group_vars").mkdir()
    (place / "group_vars/worker.yml").write_text("own: 1\n")
    error = refused(GOOD)
    assert (str(error.where), "did you mean 'workers'?" in error.what) == ("group_vars/worker.yml:1", True)
    (place / "group_vars/worker.yml").rename(place / "group_vars/database.yml")
    (place / "host_vars").mkdir()
    (place / "host_vars/w10.yml").write_text("own: 1\n")  # of a node that was taken out, maybe
    said = inventory.load(Path("inv.yml")).warnings
    assert [text.rpartition("called ")[2] for text in said] == ["'database'", "'w10'"]


DOUBTFUL = {
    "undefined": ("ansible_user: '{{ nosuchthing }}'", "'nosuchthing' is undefined"),
    "a mapping": ("ansible_user: {a: b}", "ansible_user {'a': 'b'} of w2 is a mapping, where one text belongs"),
    "a list": ("ansible_ssh_common_args: [-v]", "ansible_ssh_common_args ['-v'] of w2 is a list, where one text"),
    "a password's list": ("ansible_become_password: [hush]", "ansible_become_password *** of w2 is a list"),
    "a port": ("ansible_port: ssh", "ansible_port 'ssh' of w2 is not a port"),
    "a list of ports": ("ansible_port: [22]", "is a list, where one text"),
    "become": ("ansible_become: maybe", "'maybe' of w2 is neither true nor false"),
    "connection": ("ansible_connection: shh", "'shh' of w2 is no connection that Ansible has: did you mean 'ssh'?"),
    "a container's": ("ansible_connection: docker", "is no connection that Ansible has"),
    "time": ("ansible_timeout: ten", "'ten' of w2 is not a whole number"),
    "a key": ("ansible_private_key_file: /nosuch/key", "'/nosuch/key' of w2 is not there"),
    "a key beside us": ("ansible_private_key_file: nosuch/key", "'nosuch/key' of w2 is not there"),
    "a key of nobody": ("ansible_private_key_file: ~nobodyhere/key", "'~nobodyhere/key' of w2 is not there"),
    "a way to become": (
        "ansible_become_method: suod",
        "'suod' of w2 is no method that Ansible has: did you mean 'sudo'",
    ),
    "a shell": ("ansible_shell_type: powershel", "is no shell that Ansible has: did you mean 'powershell'?"),
    "a user of two lines": ('ansible_user: "a\\nb"', "is not the name of a user"),
    "a user that is an option": ("ansible_user: -oProxyCommand=x", "is not the name of a user"),
    "a user that is a number": ("ansible_user: 0", "is not the name of a user"),
    "a quote": ("ansible_ssh_common_args: '-o \"A=b'", "of w2 has an open quote"),
}


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, inventory.Inventory]:
    """Each case on a host of its own; the folder that has the inventory."""
    hosts = [f"    {name}:\n      {line}\n" for name, (line, _) in zip(NAMES, DOUBTFUL.values(), strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("doubtful"))
        Path("inv.yml").write_text(GOOD + "".join(hosts))
        return folder, inventory.load(Path("inv.yml"))


NAMES = [f"d{number}" for number in range(len(DOUBTFUL))]


@pytest.mark.parametrize(("name", "case"), zip(NAMES, DOUBTFUL, strict=True))
def test_what_one_host_would_fail_with_is_told_by_the_check(
    name: str, case: str, doubtful: tuple[Path, inventory.Inventory], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found = doubtful
    monkeypatch.chdir(folder)
    (host,) = (each for each in found.workers if each.name == name)
    with pytest.raises(BadInput) as error:
        inventory.refuse_doubtful(replace(found, workers=(host,)))
    at = GOOD.count("\n") + 2 + 2 * NAMES.index(name)
    says = DOUBTFUL[case][1].replace("w2", name)
    assert (str(error.value.where), says in error.value.what) == (f"inv.yml:{at}", True), error.value.what


@pytest.mark.parametrize("word", [*inventory_values.OURS, *inventory_values.ANSIBLE])
def test_every_misspelt_variable_is_caught(word: str) -> None:
    known = {*inventory_values.OURS, *inventory_values.ANSIBLE}
    for typo in sorted(misspelt(word) - known)[len(word) % 4 :: 4]:  # in which letter matters little
        assert f"'{word}'" in (inventory_values.misspelt(typo, "x") or ""), typo


@pytest.mark.parametrize(("variable", "meant"), inventory_values._OTHER_WORDS.items())
def test_other_words_for_them(variable: str, meant: str) -> None:
    assert inventory_values.misspelt(variable, "x") == f"did you mean '{meant}'?"
    assert "'ansible_python_interpreter'" in (inventory_values.misspelt("ansible_python_interperator", "x") or "")


OWN = ["ntp_server", "ansible_users", "rack", "slurm_partition", "ansible_distribution", "ansible_playbook_branch",
       "my_ansible_host", "http_proxy", "rockets", "ansible_env", "possible", "host", "port", "users"]  # fmt: skip


@pytest.mark.parametrize("word", OWN)
def test_variables_of_the_persons_own_are_theirs(word: str) -> None:
    assert inventory_values.misspelt(word, ["a"] if word.endswith("s") else "a") is None


GOOD_VALUES: list[tuple[str, Any]] = [
    ("ansible_host", "node-1.example.com"), ("ansible_host", "fe80::1%eth0"), ("ansible_host", "2001:db8::5"),
    ("ansible_host", "my_node"), ("ansible_host", "{{ ip }}"), ("ansible_host", {"__ansible_vault": "x"}),
    ("ansible_port", "2222"), ("ansible_port", 22), ("ansible_port", None), ("ansible_user", 1000), ("x", ["a"]),
]  # fmt: skip


@pytest.mark.parametrize(("variable", "value"), GOOD_VALUES)
def test_good_values(variable: str, value: Any) -> None:
    assert inventory_values.wrong(variable, value) is None


def test_odd_files_are_ansibles_to_judge(place: Path) -> None:
    for content in (
        b"\xff\xfe",
        b"a: &a [*a]",
        b"a: {children: &x {b: {children: *x}}}",
        b"[" * 5000,
        b"plugin: x\nhoss: 1",
        b"a\n- b",
    ):
        (place / "inv.yml").write_bytes(content)
        inventory_text.read(place / "inv.yml").refuse_lost()


def test_a_program_that_fails(place: Path) -> None:
    script = place / "inv.sh"
    script.write_text("#!/bin/sh\necho 'no credentials for the cloud' >&2\nexit 3\n")
    with pytest.raises(BadInput, match="can't be executed") as error:
        inventory.load(script)
    assert f"chmod +x {script}" in str(error.value.next_step)
    script.chmod(0o755)
    with pytest.raises(BadInput, match="ended with exit code 3: no credentials for the cloud"):
        inventory.load(script)
    script.write_text("#!/bin/sh\necho '{'\n")
    with pytest.raises(BadInput, match="printed no inventory") as error:
        inventory.load(script)
    assert f"{script} --list" in str(error.value.next_step)


def test_a_home_that_can_not_be_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/nobody")
    error = refused(GOOD)
    assert "can't write to /proc/nobody/.ansible" in error.what
    assert "ANSIBLE_HOME" in str(error.next_step)


def test_an_undefined_variable_is_that_hosts_problem(place: Path) -> None:
    (place / "inv.yml").write_text(GOOD.replace("192.0.2.3", "'{{ nobody }}'"))
    found = inventory.load(Path("inv.yml"))
    assert list(found.problems) == ["w2"]
    assert "'nobody' is undefined" in found.problems["w2"]
    assert [host.host for host in found.workers] == ["192.0.2.2", "w2"]


@pytest.mark.parametrize("connection", ["", "      ansible_connection: local\n"])
def test_a_value_that_can_not_be_is_that_hosts_problem(connection: str, place: Path) -> None:
    """In our words, whether Ansible would have stopped at it or not."""
    (place / "inv.yml").write_text(GOOD + connection + "      ansible_user: {a: b}\n      ansible_become: maybe\n")
    found = inventory.load(Path("inv.yml"))
    assert list(found.wrong) == list(found.doubtful) == ["w2"]
    line = 11 if connection else 10
    said = found.complaint("w2", failed=False)
    assert (str(said and said.where), said and said.code) == (f"inv.yml:{line}", "bad-value")
    assert found.complaint("w1", failed=True) is None


def test_a_groups_value_is_the_problem_of_its_hosts(place: Path) -> None:
    (place / "inv.yml").write_text(GOOD.replace("root", "[root]"))
    found = inventory.load(Path("inv.yml"))
    said = {name: f"{error.where}: {error.what}" for name, error in found.wrong.items()}
    assert list(said) == ["w1", "w2"]
    assert said["w1"] == "inv.yml:5: ansible_user ['root'] of w1 is a list, where one text belongs"


def test_a_doubtful_value_is_said_where_ansible_failed(place: Path) -> None:
    (place / "inv.yml").write_text(GOOD + "      ansible_become: maybe\n")
    found = inventory.load(Path("inv.yml"))
    said = found.complaint("w2", failed=True)
    assert said
    assert said.what == "ansible_become 'maybe' of w2 is neither true nor false"
    assert found.complaint("w2", failed=False) is None


def test_what_a_node_has_wrong_is_its_finding_alone(place: Path) -> None:
    local = "ansible_connection: local"
    (place / "inv.yml").write_text(
        f"control: {{hosts: {{c1: {{{local}}}}}}}\nworkers:\n  hosts:\n    w1: {{{local}}}\n"
        f"    w2: {{{local}, ansible_remote_tmp: [a]}}\n    w3: {{ansible_become: maybe}}\n"
    )
    found = facts.gather(inventory.load(Path("inv.yml")))
    assert [node.name for node in found.nodes] == ["c1", "w1"]
    said = {failure.node: failure.reason for failure in found.failures}
    assert said == {
        "w2": "inv.yml:5: ansible_remote_tmp ['a'] of w2 is a list, where one text belongs",
        "w3": "inv.yml:6: ansible_become 'maybe' of w3 is neither true nor false",
    }
    assert {facts.code_of(failure) for failure in found.failures} == {facts.WRONG_VARIABLES}


def test_what_ansible_warns_of_is_kept(place: Path) -> None:
    said = "[WARNING]: Unable to x because\nof y\n[WARNING]: Invalid characters were found in group names but\nnot\n"
    assert ansible.warnings(said + "[ERROR]: no\n[WARNING]: Unable to x because of y\n") == (
        "Unable to x because of y",
    )
    text = GOOD.replace("192.0.2.2}", "192.0.2.2}\n    workers: {}")
    error = refused(text)
    assert "drops a part of the inventory: Found both group and host with same name: workers" in error.what
    assert str(error.where) == "inv.yml:4"


def test_a_program_ends_when_we_are_stopped(place: Path) -> None:
    script, came = place / "inv.sh", place / "came"
    script.write_text(f"#!/bin/sh\necho $$ > {came}\nexec sleep 600\n")
    script.chmod(0o755)
    code = (
        f"from pathlib import Path; from rocstack.deploy.read import inventory; inventory.load(Path({str(script)!r}))"
    )
    own = "import signal\ndef stop(*_): raise KeyboardInterrupt\nsignal.signal(signal.SIGTERM, stop)\n" + code
    process = subprocess.Popen([sys.executable, "-c", own], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (came.exists() and came.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    process.wait(30)
    asked = Path(f"/proc/{came.read_text().strip()}")
    while asked.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not asked.exists()


def test_what_is_asked_ahead_is_asked_once_and_ends_with_who_asked(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sleep` stands for an inventory that is a program, which somebody stops before it has answered."""
    Path("inv.yml").write_text(GOOD)
    asks = place / "asks"
    groups = {"all": {"children": ["control", "workers"]}, "control": {"hosts": ["c1"]}, "workers": {"hosts": ["w1"]}}
    listing = json.dumps({"_meta": {"hostvars": {"c1": {}, "w1": {}}}, **groups})
    asks.write_text(f"#!/bin/sh\necho $$ >> {place}/pids\n[ ! -e {place}/slow ] || sleep 600\necho '{listing}'\n")
    asks.chmod(0o755)
    monkeypatch.setattr(ansible, "program", lambda name: (str(asks), dict(os.environ)))
    with inventory.asked_ahead(Path("inv.yml")):
        found = inventory.load(place / "inv.yml")
    assert [host.name for host in found.nodes] == ["c1", "w1"]
    assert len((place / "pids").read_text().split()) == 1
    (place / "slow").touch()
    with inventory.asked_ahead(Path("inv.yml")):  # and nobody takes the answer: something else was wrong
        while len(pids := (place / "pids").read_text().split()) < 2:
            time.sleep(0.01)
    assert not Path(f"/proc/{pids[1]}").exists()


def test_no_port() -> None:
    """Of thousands of digits Python makes no number, and of such a number no digits."""
    for value in ("9" * 5000, 10**5000, "0" * 5000, "\u0662\u0662", 0, 65536, -1, 22.0, True, "1e3", " 22"):
        assert inventory_values.wrong("ansible_port", value) == "is not a port: a number from 1 to 65535"


@pytest.mark.parametrize("value", [22, "22", "00022", 65535])
def test_a_port(value: object) -> None:
    assert inventory_values.wrong("ansible_port", value) is None


# Told by the text alone: no Ansible is started.
LOST = {
    "a host indented too far": (
        GOOD.replace("    w2:\n      ansible_host: 192.0.2.3", "      x: 1\n      w2: {}").replace(
            "w1: {ansible_host: 192.0.2.2}", "w1:"
        ),
        "inv.yml:9",
        "w2 stands among the variables of host w1",
    ),
    "of another name": (
        GOOD.replace("w1: {ansible_host: 192.0.2.2}", "w1:\n      big-1: {ansible_host: 192.0.2.9}"),
        "inv.yml:8",
        "big-1 stands among the variables of host w1",
    ),
    "a number for a name": (GOOD.replace("w1:", "1:"), "inv.yml:7", "the host's name 1 is read as a number"),
    "a truth for a name": (GOOD.replace("w2:", "on:"), "inv.yml:8", "the host's name on is read as true or false"),
    "a list of hosts alone": ("# nodes\n- c1\n- w1\n", "inv.yml:2", "is a list, where groups belong"),
    "a byte order mark": ("\ufeff" + INI, "inv:1", "begins with a byte order mark"),
}


@pytest.mark.parametrize("case", LOST)
def test_lost_is_told_by_every_command(case: str, place: Path, cli: Cli) -> None:
    """Also by those that take any inventory."""
    text, where, says = LOST[case]
    name = where.partition(":")[0]
    (place / name).write_text(text)
    for words in (("probe", name), ("doctor", name)):
        error = cli(*words, "--json").json()["error"]
        assert (error["where"], says in error["what"], bool(error["next"])) == (where, True, True)


def test_a_mark_before_yaml_and_variables_of_ones_own_are_fine(place: Path) -> None:
    (place / "inv.yml").write_text(
        "\ufeff" + GOOD.replace("{ansible_host: 192.0.2.2}", "{w: , w9: x, rack: {height: 3}, '1': x}")
    )
    inventory_text.refuse_lost(place / "inv.yml")


@pytest.mark.parametrize(
    "w1",
    [
        "{<<: &common {ansible_user: root}, ansible_host: 192.0.2.2}",
        "{ansible_host: 192.0.2.2, bmc: {ansible_host: 192.0.2.9}}",
    ],
)
def test_merged_and_nested_variables_are_fine(w1: str, place: Path) -> None:
    more = "    <<: {w3: {ansible_host: 192.0.2.4}}\n"
    (place / "inv.yml").write_text(GOOD.replace("{ansible_host: 192.0.2.2}", w1) + more)
    inventory_text.refuse_lost(place / "inv.yml")


SAID = {  # what Ansible says, of which text: the line
    "host range must be begin:end or begin:end:step": ("[control]\nc1\n[workers] 'x'\nw1\n", 3),
    "Error parsing host definition '[workers]\"': No closing quotation": ('[control]\nc1\n[workers]"\n', 3),
    "Error parsing host definition '\"': No closing quotation": ('[control]\nc1\n\n"\n', 4),
    "Expected key=value, got: [gpu:children] &a x": ("[workers:vars]\na=b\n[gpu:children] &a x\n", 3),
    "Invalid section entry: '[a] [1, 2]'. Please make sure that there are no spaces": ("[c]\n[a] [1, 2]\n", 2),
    "Invalid host pattern ':' supplied, ending in ':' is not allowed": ("[c]\nc[1:2]\n:\n", 3),
    "Invalid data from file, expected dictionary and got: True": ("[c]\nansible_become: true\n", 2),
    "of another kind": ("[c]\n", None),
}


@pytest.mark.parametrize("said", SAID)
def test_a_complaint_without_a_line_gets_one(said: str, place: Path) -> None:
    text, line = SAID[said]
    (place / "inv").write_text(text)
    error = complaints.start_error(f"[ERROR]: Failed to parse inventory with 'ini' plugin: {said}", Path("inv"))
    assert (error.where and error.where.line, said in error.what) == (line, True)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (b"a: 1\nb: \xe9\n", "not-utf8", 2),
        (b'{"all": {\n "hosts": [', "bad-inventory", 2),
        (b"a: 1\nb: \0", "bad-inventory", 2),
    ],
)
def test_what_is_no_text_or_no_yaml_has_a_line(text: bytes, code: str, line: int, place: Path) -> None:
    (place / "inv.yml").write_bytes(text)
    error = complaints.start_error("[ERROR]: Failed to parse inventory with 'yaml' plugin: no", Path("inv.yml"))
    assert (error.code, error.where and error.where.line) == (code, line)


def test_a_pipe_is_no_inventory(place: Path, cli: Cli) -> None:
    """Nobody waits for what never comes."""
    os.mkfifo(place / "inv")
    for command in ("status", "probe", "jobs"):
        words = ("--inventory", "inv") if command == "jobs" else ("inv",)
        error = cli(command, *words, "--json").json()["error"]
        assert (error["code"], error["what"]) == ("bad-inventory", "the inventory is neither a file nor a folder")


def test_a_program_that_names_no_host_is_blamed(place: Path) -> None:
    """Ansible takes its text for an inventory of comments."""
    (place / "inv.sh").write_text("#!/no/such/program\n")
    (place / "inv.sh").chmod(0o755)
    with pytest.raises(BadInput, match="program printed no inventory: it can't be started"):
        inventory.of_listing(Path("inv.sh"), {"_meta": {"hostvars": {}}, "all": {"children": []}}, lambda _: ({}, {}))
    error = complaints.start_error("Inventory script returned non-zero exit code -9. inventory", Path("inv.sh"))
    assert "ended with exit code -9" in error.what

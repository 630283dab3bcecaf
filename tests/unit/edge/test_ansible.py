"""Playbooks on inventories, with the real Ansible and nodes that are this machine or nobody."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import ansible as ansible_core
import pytest
import yaml

from rocstack.base import paths
from rocstack.base.errors import BadInput, Missing
from rocstack.edge import ansible, ssh
from rocstack.edge.ansible import HostRun

CLI = Path(__file__).resolve().parents[3] / "cli"
LOCAL = f"ansible_connection=local ansible_python_interpreter={sys.executable}"
NOBODY = "ansible_host=127.0.0.1 ansible_port=1"
TASKS = "- hosts: all\n  gather_facts: false\n  tasks:\n"
SAYS = TASKS + "    - name: Say\n      ansible.builtin.debug:\n        msg: '{}'\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    return tmp_path


def run(place: Path, playbook: str, inventory: str, name: str = "inv") -> dict[str, HostRun]:
    (place / "play.yml").write_text(playbook)
    (place / name).write_text(inventory)
    return {host.host: host for host in ansible.run(str(place / "play.yml"), Path(name))}


REASONS = {
    "Failed to connect to the host via ssh: ssh: connect to host h port 22: No route to host": "ssh: connect to host h "
    "port 22: No route to host",
    "Task failed: Failed to connect to the host via ssh: @@@@@@\n@ WARNING: CHANGED!  @\n@@@@@@\nHost key "
    "verification failed.\n": "Host key verification failed.",
    'Data could not be sent to remote host "10.0.0.1". Make sure this host can be reached over ssh: ssh: connect to '
    "host 10.0.0.1 port 22: Connection refused": "ssh: connect to host 10.0.0.1 port 22: Connection refused",
    "Task failed: Failed to connect to the host via ssh: Authorized use only.\nLoad key '/k': invalid format\nroot@h: "
    "Permission denied (publickey).": "Load key '/k': invalid format",
    "Failed to connect to the host via ssh: kex_exchange_identification: Connection closed by remote host\nConnection "
    "closed by 10.0.0.1 port 22": "kex_exchange_identification: Connection closed by remote host",
    "The module interpreter '/bin/python' was not found.": "The module interpreter '/bin/python' was not found.",
}


@pytest.mark.parametrize("said", REASONS)
def test_reason_is_one_line(said: str) -> None:
    assert ansible.reason({"msg": said}) == REASONS[said]


def test_what_the_module_wrote_goes_before_what_ansible_made_of_it() -> None:
    said = {"msg": "MODULE FAILURE", "module_stderr": "Traceback:\n  File x\nOSError: no space"}
    assert ansible.reason(said) == "OSError: no space"
    assert ansible.reason({}) == "no reason given"


BAD = {
    "yaml": ("all:\n  hosts:\n    n1: {a: b\n", "bad-inventory", "flow mapping"),
    "ini": ("n1 ansible_connection=local\nn2 oops\n", "bad-inventory", "oops"),
    "group-without-hosts": ("all:\n  hosts: {}\n", "no-hosts", "no host"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_inventories(place: Path, case: str) -> None:
    text, code, says = BAD[case]
    with pytest.raises(BadInput, match=says) as error:
        run(place, SAYS.format(1), text, name="inv.yml" if case != "ini" else "inv")
    assert error.value.code == code
    assert "inv" in str(error.value.where)
    if case == "yaml":
        assert error.value.where is not None
        assert error.value.where.line is not None


def test_no_inventory_and_no_ansible(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"the inventory nope is not there") as bad:
        ansible.run("probe.yml", Path("nope"))
    assert bad.value.code == "no-inventory"
    (place / "inv").write_text("n1\n")
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    with pytest.raises(Missing, match="ansible-playbook") as missing:
        ansible.run("probe.yml", Path("inv"))
    assert missing.value.code == "no-ansible"


def test_each_host_ends_by_itself(place: Path) -> None:
    seen: list[tuple[str, str]] = []
    tasks = (
        "    - name: Large\n      ansible.builtin.debug:\n        msg: \"{{ 'x' * 1000000 }}\"\n"
        "    - name: Tolerated\n      ansible.builtin.command: 'false'\n      ignore_errors: true\n"
        "    - name: Last\n      ansible.builtin.fail:\n        msg: not today\n      when: inventory_hostname == 'n2'"
    )
    (place / "play.yml").write_text(TASKS + tasks)
    (place / "inv").write_text(f"n[1:2] {LOCAL}\ngone {NOBODY}\n")
    found = ansible.run(str(place / "play.yml"), Path("inv"), on_event=lambda *event: seen.append(event))
    hosts = {host.host: host for host in found}
    assert {name: host.state for name, host in hosts.items()} == {"n1": "ok", "n2": "failed", "gone": "unreachable"}
    assert len(hosts["n1"].results["Large"]["msg"]) == 1_000_000, "ansible-runner drops large results by default"
    assert hosts["n2"].reason == "not today"
    assert "refused" in hosts["gone"].reason
    assert seen[0][1] == "started"
    assert {("n2", "failed"), ("gone", "unreachable"), ("n1", "ok")} <= set(seen)


def test_the_persons_own_configuration_stays_in_force(place: Path) -> None:
    asks = SAYS.format('{{ lookup("ansible.builtin.config", "HOST_KEY_CHECKING") }} {{ secret }}')
    (place / "pass").write_text("word\n")
    vault = Path(sys.executable).parent / "ansible-vault"
    command = [str(vault), "encrypt_string", "--vault-password-file", "pass", "--name", "secret", "s3cret"]
    sealed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (place / "group_vars").mkdir()
    (place / "group_vars" / "all.yml").write_text(sealed)
    config = place / "ansible.cfg"
    config.write_text("[defaults]\nvault_password_file = pass\n")
    assert run(place, asks, f"n1 {LOCAL}\n")["n1"].results["Say"]["msg"] == "True s3cret"
    config.write_text("[defaults]\nvault_password_file = pass\nhost_key_checking = False\n")
    before = config.read_text()
    assert run(place, asks, f"n1 {LOCAL}\n")["n1"].results["Say"]["msg"] == "False s3cret"
    assert config.read_text() == before
    assert {file.name for file in place.iterdir()} == {"ansible.cfg", "group_vars", "inv", "pass", "play.yml"}


def test_no_plugin_of_the_working_folder_runs(place: Path) -> None:
    """Ansible itself takes those of `shell_plugins`. In /tmp they may be anybody's."""
    (place / "shell_plugins").mkdir()
    (place / "shell_plugins/own.py").write_text(f"open({str(place / 'ran')!r}, 'w').close()\n")
    (place / "inv").write_text(f"n1 {LOCAL}\n")
    assert [run.state for run in ansible.run("connection.yml", Path("inv"))] == ["ok"]
    assert not (place / "ran").exists()


def test_a_folder_is_an_inventory_too(place: Path) -> None:
    folder = place / "inventory"
    (folder / "group_vars").mkdir(parents=True)
    (folder / "workers.yml").write_text(
        f"workers:\n  hosts:\n    n[08:10]:\n  vars:\n    {LOCAL.split()[0]}\n".replace("=", ": ")
    )
    (folder / "more").write_text(f"m1 {LOCAL}\n")
    (place / "play.yml").write_text(SAYS.format("{{ group_names[0] }}"))
    hosts = ansible.run(str(place / "play.yml"), folder)
    assert {host.host: host.results["Say"]["msg"] for host in hosts} == {
        **dict.fromkeys(("n08", "n09", "n10"), "workers"),
        "m1": "ungrouped",
    }


def processes(text: str) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if text.encode() in file.read_bytes():
                found.append(int(file.parent.name))
        except OSError:
            continue
    return found


def marked(text: str) -> list[str]:
    found = []
    for pid in processes(text):
        with suppress(OSError):  # it has ended meanwhile
            found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return found


class Lost(Exception):
    pass


def test_what_watches_ends_a_run_and_all_its_processes(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that sleep, as on a laptop that wakes."""
    (place / "play.yml").write_text(TASKS + "    - name: Wait\n      ansible.builtin.raw: echo > begun; sleep 300\n")
    (place / "inv").write_text(f"n[1:3] {LOCAL}\n")
    (place / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place / "tmp"))
    mark = f"{place}/tmp/rocstack-"

    def watch() -> None:
        if (place / "begun").exists():
            for pid in processes(mark):
                os.kill(pid, signal.SIGSTOP)
            raise Lost

    with pytest.raises(Lost):
        ansible.run(str(place / "play.yml"), Path("inv"), watch=watch)
    assert not marked(mark)
    assert not list((place / "tmp").glob("rocstack-*/*"))
    (place / "begun").unlink()

    def lost() -> None:
        raise Lost

    with pytest.raises(Lost):
        ansible.run(str(place / "play.yml"), Path("inv"), watch=lost)
    assert not (place / "begun").exists(), "it isn't begun"


@pytest.mark.parametrize(("number", "begun"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_an_interrupt_leaves_nothing(place: Path, number: signal.Signals, begun: bool) -> None:
    (place / "play.yml").write_text(TASKS + "    - name: Wait\n      ansible.builtin.raw: echo > begun; sleep 300\n")
    (place / "inv").write_text(f"n[1:3] {LOCAL}\n")
    (place / "tmp").mkdir()
    script = (
        "import signal, sys; from pathlib import Path; from rocstack.edge import ansible\n"
        "class Stop(BaseException): pass\n"
        "def stop(*_): raise Stop\n"
        f"signal.signal({int(number)}, stop); Path('ready').touch()\n"
        "try:\n  ansible.run(str(Path('play.yml').absolute()), Path('inv'))\n"
        "except Stop: sys.exit(7)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(CLI), "TMPDIR": str(place / "tmp")}
    process = subprocess.Popen([sys.executable, "-c", script], env=env)
    wanted = place / ("begun" if begun else "ready")
    limit = time.monotonic() + 30
    while not wanted.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(15) == 7
    # Between a folder's making and the note of it that Python takes, an interrupt leaves it there, empty.
    assert not list((place / "tmp").glob("rocstack-*/*"))
    assert not marked(f"{place}/tmp/rocstack-")


def holding(text: str, *folders: Path) -> list[str]:
    """Files in which it is."""
    found = []
    for file in (file for folder in folders for file in folder.rglob("*")):
        try:
            if file.is_file() and text.encode() in file.read_bytes():
                found.append(str(file))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("moment", ["Ansible starts", "a task runs"])
def test_a_kill_leaves_no_keys_and_no_process_that_has_them(place: Path, moment: str) -> None:
    """Ansible ignores the hangup by which it would otherwise end."""
    row = {"key": secrets.token_hex(100)}
    (place / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  vars_files: ['{{ rocstack_node_specs }}']\n  tasks:\n"
        "    - name: Wait\n      ansible.builtin.raw: echo > begun; sleep 300\n"
        "      when: (node_specs[inventory_hostname] | b64decode | from_json).key | length == 200\n"
    )
    (place / "inv").write_text(f"n[1:3] {LOCAL}\n")
    (place / "tmp").mkdir()
    script = (
        "import json, sys; from pathlib import Path; from rocstack.deploy.nodes.runs import DeployEvents, NodeRuns\n"
        "row = json.loads(sys.stdin.read())\n"
        "runs = NodeRuns(Path('inv'), Path('log'), DeployEvents())\n"
        "runs.send(str(Path('play.yml').absolute()), dict.fromkeys(('n1', 'n2', 'n3'), row))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(CLI), "TMPDIR": str(place / "tmp")}
    process = subprocess.Popen([sys.executable, "-c", script], env=env, stdin=subprocess.PIPE, text=True)
    assert process.stdin
    process.stdin.write(json.dumps(row))
    process.stdin.close()
    mark, limit = f"{place}/tmp/rocstack-", time.monotonic() + 60

    def running() -> bool:
        return (place / "begun").exists() if moment == "a task runs" else bool(marked(mark))

    while not running() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)
    assert running()
    process.kill()
    process.wait()
    limit = time.monotonic() + 60
    while (marked(mark) or list((place / "tmp").iterdir())) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not marked(mark)
    assert not holding(ansible.packed(row), Path("/dev/shm"), place)
    assert not list((place / "tmp").iterdir())


def test_no_module_of_ours_is_waited_for_without_a_limit() -> None:
    tasks = {
        (file.name, task["name"]): task
        for file in paths.playbooks().glob("*.yml")
        for play in yaml.safe_load(file.read_text())
        for task in play.get("tasks", [])
        if any(word.startswith("rocstack_") for word in task)
    }
    assert len(tasks) >= 8
    assert [where for where, task in tasks.items() if not task.get("timeout")] == []


def forged(host: str, task: str, result: object) -> str:
    """An event as ansible-runner finds it in Ansible's output: of another host, with an end of its own."""
    event = {"uuid": "0" * 8 + "-0000-0000-0000-" + "0" * 12, "event": "runner_on_ok"}
    event |= {"event_data": {"host": host, "task": task, "res": result}}

    return token(json.dumps(event)) + "said\n" + token("{}")


def token(text: str) -> str:
    data = base64.b64encode(text.encode()).decode()
    return f"\x1b[K{data}\x1b[{len(data)}D\x1b[K"


@pytest.mark.parametrize("text", ["[1]", "null", '"x"', '{"uuid": "\\u0000"}', '{"uuid": [1]}', "[" * 100_000])
def test_a_node_can_not_end_the_run_by_an_odd_event(place: Path, text: str) -> None:
    (place / "answer").write_text(json.dumps({"failed": True, "msg": token(text)}))
    node = place / "python"
    node.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stdin.read()\nprint(open({str(place / 'answer')!r}).read())\n"
    )
    node.chmod(0o755)
    (place / "inv").write_text(f"n1 ansible_connection=local ansible_python_interpreter={node}\n")
    assert [(host.host, host.state) for host in ansible.run("probe.yml", Path("inv"))] == [("n1", "failed")]


@pytest.mark.parametrize("key", ["msg", "warnings", "_ansible_odd", "ansible_facts", "behind"])
def test_a_node_can_not_speak_for_another_one(place: Path, key: str) -> None:
    """Nor say how this machine reaches it, which is a command line."""
    text = forged("n2", ssh.TASK, {"msg": {"program": "/bin/sh"}})
    said = {"warnings": [text], "ansible_facts": {f"ansible_ssh_{text}": 1}}.get(key, text)
    answer = json.dumps({"failed": key == "msg", key: said}) + (f"\n{text}" if key == "behind" else "")
    node = place / "python"
    node.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.read()\nprint({answer!r})\n")
    node.chmod(0o755)
    (place / "inv").write_text(f"n1 ansible_connection=local ansible_python_interpreter={node}\n")
    found = ansible.run("probe.yml", Path("inv"), log=place / "log")
    assert [host.host for host in found] == ["n1"]
    assert set(found[0].results) == {"Collect"}
    assert "\x1b" not in (place / "log").read_text()


def options_of_plugins() -> dict[str, str]:
    """Every variable by which the plugins that reach a node over ssh and become root can be set."""
    plugins = Path(ansible_core.__file__).parent / "plugins"
    files = (
        "connection/ssh",
        "become/sudo",
        "shell/sh",
        "doc_fragments/shell_common",
        "doc_fragments/connection_pipelining",
    )
    texts = [(plugins / f"{name}.py").read_text() for name in files]
    names = {*re.findall(r"- name: (ansible_\w+)", "".join(texts)), "ansible_connection", "ansible_become"}
    assert len(names) > 40
    return dict.fromkeys(sorted(names), "/tmp/evil")


def test_a_node_does_not_steer_how_it_is_reached(place: Path) -> None:
    """Ansible makes variables of the facts in a module's answer, which outrank the inventory's; from one that its own
    list of dangerous ones lacks, ssh takes the socket of its control connection."""
    (place / "answer").write_text(json.dumps({"changed": False, "ansible_facts": options_of_plugins()}))
    log = f'[ "$1" = -V ] && exit\nprintf "%s\\n" "$*" >>{place}/contacts'
    programs = {
        "python": f"cat >>{place}/null\ncat {place}/answer",
        "ssh": f'{log}\nfor last; do :; done\nexec sh -c "$last"',
    }
    for name, text in programs.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    task = "    - name: Ask {}\n      ansible.builtin.ping:\n"
    here = f"ansible_python_interpreter={place}/python ansible_ssh_executable={place}/ssh"
    inventory = f"n1 ansible_host=n1.invalid ansible_connection=ssh {here}\n"
    found = run(place, TASKS + task.format(1) + task.format(2), inventory)
    assert found["n1"].state == "ok", found["n1"].reason
    first, second = (place / "contacts").read_text().splitlines()
    assert "ControlPath" in first
    assert second == first


def test_no_playbook_needs_facts_as_variables() -> None:
    """`ansible_os_family` and such would be undefined; what is left names connections, which an inventory sets."""
    own = {"ansible_facts", "ansible_check_mode", "ansible_version"}
    names = {*options_of_plugins(), *own, "ansible_become_method", "ansible_ssh_password", "ansible_python_interpreter"}
    for file in (each for ending in ("yml", "j2") for each in paths.playbooks().rglob(f"*.{ending}")):
        assert {*re.findall(r"\bansible_[a-z_]+", file.read_text())} <= names, file

"""Plain ssh as Ansible would call it: what Ansible itself resolves, and the command lines made of it."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.edge import ansible, ssh
from rocstack.node.engine_errors import NOT_STARTED

HOSTS = {
    "plain": "",
    "full": "ansible_host='{{ inventory_hostname }}.{{ site }}' ansible_port=2222 ansible_user=joe "
    "ansible_ssh_private_key_file='~/my key' ansible_become=yes ansible_python_interpreter=/opt/python3",
    "jump": "ansible_ssh_common_args='-J joe@{{ site }} -o \"UserKnownHostsFile=/a b\"' ansible_ssh_extra_args=-4",
    "word": "ansible_become=true ansible_become_method=ansible.builtin.sudo ansible_become_user=admin "
    "ansible_password=pass-word",
    "here": "ansible_connection=local ansible_become=1",
    "old": "ansible_ssh_host=1.2.3.4 ansible_ssh_port=23 ansible_ssh_user=me ansible_ssh_executable=/opt/ssh",
}
UNFIT = {
    "windows": "ansible_connection=winrm",
    "su": "ansible_become=true ansible_become_method=su",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    return tmp_path


def ssh_hosts(place: Path, hosts: dict[str, str]) -> dict[str, ssh.SshHost]:
    rows = "\n".join(f"{host} {variables}" for host, variables in hosts.items())
    (place / "inventory").write_text(f"[all]\n{rows}\n[all:vars]\nsite=example\n")
    return ssh.ssh_hosts(Path("inventory"))


def understood(host: ssh.SshHost) -> dict[str, str]:
    """What ssh itself makes of the options."""
    shown = subprocess.run([*host.program, "-G", host.address], capture_output=True, text=True, check=True).stdout
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in reversed(shown.splitlines())}


def test_ssh_understands_what_ansible_resolved(place: Path) -> None:
    found = ssh_hosts(place, HOSTS)
    full = understood(found["full"])
    assert (full["hostname"], full["port"], full["user"]) == ("full.example", "2222", "joe")
    assert full["identityfile"] == f"{place}/my key"
    jump = understood(found["jump"])
    assert (jump["proxyjump"], jump["userknownhostsfile"], jump["addressfamily"]) == ("joe@example", "/a b", "inet")
    assert (found["old"].program[0], found["old"].address) == ("/opt/ssh", "1.2.3.4")
    old = understood(ssh.SshHost("old", ("ssh", *found["old"].program[1:]), "1.2.3.4"))
    assert (old["port"], old["user"]) == ("23", "me")
    for ssh_host in (found["plain"], found["full"], found["jump"]):
        said = understood(ssh_host)
        assert {said.get(name, "none") for name in ("controlmaster", "controlpath", "compression")} <= {
            "false",
            "no",
            "none",
        }
        assert (said["batchmode"], said["connecttimeout"], said["stricthostkeychecking"]) == ("yes", "10", "ask")


def test_as_root_and_by_which_python(place: Path) -> None:
    found = ssh_hosts(place, HOSTS)
    assert found["plain"].argv(["echo", "a b"])[-2:] == ["plain", "echo 'a b'"]
    assert found["full"].argv(["id"], options=["-t"])[-3:] == ["-t", "full.example", "sudo -n -u root id"]
    assert found["word"].argv(["id"])[-1] == "sudo -n -u admin id"
    assert found["here"].argv(["echo", "a b"]) == ["sudo", "-n", "-u", "root", "echo", "a b"]
    assert (found["full"].python, found["plain"].python) == ("/opt/python3", "python3")
    assert [host for host, ssh_host in found.items() if ssh_host.password] == ["word"]
    assert "pass-word" not in repr(found["word"])


def test_the_persons_own_settings_count(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "ansible.cfg").write_text(
        "[defaults]\nremote_user = cfg\nhost_key_checking = False\ntimeout = 3\n"
        "[privilege_escalation]\nbecome = True\n[ssh_connection]\nssh_args = -C -o Ciphers=aes128-ctr\n"
    )
    monkeypatch.setenv("ANSIBLE_PRIVATE_KEY_FILE", "/env/key")
    monkeypatch.setenv("ANSIBLE_SSH_COMMON_ARGS", "-o HostKeyAlias=alias")
    plain = ssh_hosts(place, {"plain": ""})["plain"]
    said = understood(plain)
    names = ("user", "identityfile", "hostkeyalias", "ciphers", "connecttimeout", "stricthostkeychecking")
    assert [said[name] for name in names] == ["cfg", "/env/key", "alias", "aes128-ctr", "3", "false"]
    assert said["compression"] == "no"
    assert plain.become == ("sudo", "-n", "-u", "root")


def test_no_node_is_lent_what_is_the_persons(place: Path) -> None:
    """Its root could go on to other hosts by the agent, or read what is typed here by the display."""
    config = "Host *\nForwardAgent yes\nForwardX11 yes\nGSSAPIDelegateCredentials yes\n"
    (place / "config").write_text(config)
    own = f"ansible_ssh_common_args='-F {place}/config'"
    found = ssh_hosts(place, {"plain": own, "other": f"{own} ansible_ssh_extra_args=-4"})
    names = ("forwardagent", "forwardx11", "gssapidelegatecredentials")
    for name in ("plain", "other"):
        said = understood(found[name])
        assert [said.get(each, "no") for each in names] == ["no", "no", "no"]
    # Ansible's own ssh, whose arguments come behind these.
    line = ["ssh", *shlex.split(ansible.environment({})["ANSIBLE_SSH_EXTRA_ARGS"])]
    said = understood(ssh.SshHost("plain", (*line, "-F", f"{place}/config"), "plain"))
    assert [said.get(each, "no") for each in names] == ["no", "no", "no"]


def test_an_agent_is_lent_where_the_inventory_says_so(place: Path) -> None:
    said = understood(ssh_hosts(place, {"asked": "ansible_ssh_extra_args=-A"})["asked"])
    assert said["forwardagent"] == "yes"


@pytest.mark.parametrize("host", UNFIT)
def test_what_deploy_can_not_use(host: str, place: Path) -> None:
    with pytest.raises(BadInput, match=host) as refused:
        ssh_hosts(place, {host: UNFIT[host]})
    assert refused.value.code == "bad-connection"


def test_a_variable_that_can_not_be_resolved_is_named(place: Path) -> None:
    with pytest.raises(BadInput, match="nowhere") as refused:
        ssh_hosts(place, {"n1": "ansible_host='{{ nowhere }}'"})
    assert refused.value.code == "bad-inventory"


SAID = {
    "": "ssh gave no reason",
    "Warning: Permanently added 'x' to the list\nno route\n\n": "no route",
    "** WARNING: connection is not using a post-quantum key exchange\nsudo: a password is required": "sudo: a password "
    "is required",
}


@pytest.mark.parametrize("said", SAID)
def test_why_it_failed_is_one_line(said: str) -> None:
    error = ssh.SshHost("n1", ("ssh",), "10.0.0.1").error("no tunnel to", said)
    assert error.what == f"no tunnel to n1: {SAID[said]}"
    assert bool(error.cause) == ("sudo" in said)


def test_a_password_that_only_ansible_can_use_is_the_cause() -> None:
    error = ssh.SshHost("n1", ("ssh",), "10.0.0.1", password=True).error("no lock on", "Permission denied (publickey).")
    assert "only Ansible" in str(error.cause)


def test_a_command_reads_what_it_is_given_and_says_how_it_ended() -> None:
    done = ssh.run(ssh.SshHost("n1"), ["sh", "-c", "cat; printf '\\377' >&2; exit 3"], text="given")
    assert (done.returncode, done.stdout, done.stderr) == (3, "given", "\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("script", ["yes", "yes >&2"])
def test_an_answer_without_an_end_is_cut_off(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fill this machine's memory."""
    monkeypatch.setattr(ssh, "LONGEST", 1000)
    with pytest.raises(CheckFailed, match="no end of the answer from n1"):
        ssh.run(ssh.SshHost("n1"), ["sh", "-c", f"exec {script}"])


def test_what_the_program_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the file of the answer, and would fill the disk."""
    monkeypatch.setattr(ssh, "LONGEST", 1000)
    pid = tmp_path / "pid"
    with pytest.raises(CheckFailed, match="no end of the answer from n1"):
        ssh.run(ssh.SshHost("n1"), ["sh", "-c", 'yes & echo $! >"$0"; wait', str(pid)])
    state = Path(f"/proc/{pid.read_text().strip()}/stat")
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.05)


def test_a_tunnel_ends_though_a_connection_through_it_is_open(tmp_path: Path) -> None:
    """ssh outlives its input as long as a forwarded connection does."""
    program, ended = tmp_path / "ssh", tmp_path / "ended"
    program.write_text(f"#!/bin/sh\ntrap 'touch {ended}; exit' TERM\necho {ssh._READY}\nwhile :; do sleep 0.05; done\n")
    program.chmod(0o755)
    with ssh.tunnel(ssh.SshHost("n1", (str(program),), "10.0.0.1"), "127.0.0.1", 5000):
        assert not ended.exists()
    assert ended.exists()


def test_a_program_that_complains_without_end_fills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the ssh of a tunnel, or of the cluster's lock, for as long as a deploy takes."""
    monkeypatch.setattr(ssh, "KEPT", 1000)
    program = ssh.Program(["sh", "-c", "echo first >&2; yes | head -c 9000000 >&2; echo last >&2; echo done; cat"])
    with program.within(60):
        assert next(program.lines()) == b"done\n", "its complaints are read, or it would wait for that"
    program.end()
    said = program.complaints()
    assert len(said) == 2000
    assert (said[:6], said[-5:]) == ("first\n", "last\n")


def test_a_short_complaint_is_whole() -> None:
    program = ssh.Program(["sh", "-c", "echo no such host >&2; exit 255"])
    program.end()
    assert (program.returncode, program.complaints()) == (255, "no such host\n")


def test_lines_are_read_in_blocks() -> None:
    """Byte by byte, a node's long answer would take as many system calls."""
    program = ssh.Program(
        ["sh", "-c", "printf 'first\\nsecond\\n'; yes x | tr -d '\\n' | head -c 3000000; echo; printf end"]
    )
    reads, read = [0], program.stdout.read

    class Counted:
        close = program.stdout.close

        def read(self, size: int) -> bytes:
            reads[0] += 1
            return read(size)

    program.stdout = Counted()  # type: ignore[assignment]
    found = [program.line(5 << 20) for _ in range(5)]
    program.end()
    assert [len(line) for line in found] == [6, 7, 3000001, 3, 0]
    assert reads[0] < 3000
    assert found[:2] == [b"first\n", b"second\n"]


def test_a_longer_line_comes_in_pieces() -> None:
    program = ssh.Program(["printf", "abcdefg\\nh\\n"])
    assert list(iter(lambda: program.line(5), b"")) == [b"abcde", b"fg\n", b"h\n"]
    program.end()


@pytest.mark.parametrize(("failures", "calls"), [(2, 3), (9, 4)])
def test_what_runc_never_started_is_tried_again(failures: int, calls: int, tmp_path: Path) -> None:
    count = tmp_path / "calls"
    script = f'echo >>{count}; cat; [ "$(wc -l <{count})" -gt {failures} ] && exit; echo "$0" >&2; exit 126'
    done = ssh.run(ssh.SshHost("n1"), ["sh", "-c", script, f"exec failed: {NOT_STARTED}: EOF"], text="given")
    assert (done.returncode, done.stdout) == (0 if failures < calls else 126, "given")
    assert len(count.read_text().splitlines()) == calls
    count.unlink()
    words = ["sh", "-c", script.replace("cat; ", ""), f"exec failed: {NOT_STARTED}: EOF"]
    code, out, _ = ssh.output(ssh.SshHost("n1"), words, 1000)
    assert (code, out) == (0 if failures < calls else 126, "")
    assert len(count.read_text().splitlines()) == calls

"""The role host_nic, as far as it can be read without a host: it parses, its parts agree with each other and with
the doctor, and its programs are sound."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from rocstack.doctor import rdma_states, states

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"
ROLE = PLAYBOOKS / "roles/host_nic"
BIN = Path(sys.executable).parent


def read(name: str) -> Any:
    return yaml.safe_load((ROLE / name).read_text())


DEFAULTS = read("defaults/main.yml")


def test_ansible_can_read_it() -> None:
    command = [BIN / "ansible-playbook", "--syntax-check", "-i", "localhost,", PLAYBOOKS / "host-nic.yml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize("word", ["True", "False"])
def test_it_starts_only_where_facts_are_no_variables(word: str, tmp_path: Path) -> None:
    """Before it contacts a host: the first one would answer."""
    host = "n1 ansible_connection=local ansible_python_interpreter=/bin/false"
    (tmp_path / "inv").write_text(f"{host}\n")
    command = [BIN / "ansible-playbook", "-i", "inv", "-e", "rocstack_nic_hosts=all", PLAYBOOKS / "host-nic.yml"]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "ANSIBLE_INJECT_FACT_VARS": word}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode
    assert ("TASK [Gather facts]" in done.stdout) == (word == "False")
    assert ("inject_facts_as_vars=False in ansible.cfg" in done.stdout) == (word == "True")


def test_every_family_says_the_same_things() -> None:
    debian, redhat = read("vars/Debian.yml"), read("vars/RedHat.yml")
    assert set(debian) == set(redhat)
    assert len(debian["host_nic_packages"]) == len(set(debian["host_nic_packages"]))
    families = {path.stem for path in (ROLE / "vars").iterdir()}
    assert str(sorted(families)) in (ROLE / "tasks/main.yml").read_text()


def test_only_modules_of_ansible_itself() -> None:
    """A site has ansible-core; collections would have to be downloaded."""
    words = re.findall(r"^ +([a-z_]+(?:\.[a-z_]+)+):", "".join(map(Path.read_text, ROLE.glob("tasks/*.yml"))), re.M)
    assert len(words) > 20
    assert {word.rpartition(".")[0] for word in words} == {"ansible.builtin"}


@pytest.mark.parametrize("path", sorted((ROLE / "tasks").glob("*.yml")), ids=lambda path: path.stem)
def test_what_only_reads_runs_in_check_mode_too(path: Path) -> None:
    """Else --check would not see what the real run sees."""

    def tasks(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        inner = [tasks(item.get(key, [])) for item in items for key in ("block", "always")]
        return [*items, *(task for group in inner for task in group)]

    for task in tasks(yaml.safe_load(path.read_text())):
        reads = "ansible.builtin.command" in task or "ansible.builtin.script" in task
        if reads and task.get("changed_when") is False:
            assert task.get("check_mode") is False, task["name"]


def rendered(name: str, **values: Any) -> str:
    env = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    return env.from_string((ROLE / "templates" / name).read_text()).render(**{**DEFAULTS, **values})


def test_limits() -> None:
    lines = set(rendered("limits.conf.j2").splitlines())
    assert {"* soft memlock unlimited", "* hard memlock unlimited", "root hard nofile 1048576"} <= lines
    unit = rendered("unit.conf.j2", item="slurmd").splitlines()
    assert {"[Service]", "LimitMEMLOCK=infinity", "LimitNOFILE=1048576"} <= set(unit)
    assert "LimitMEMLOCK=1024K" in rendered("unit.conf.j2", item="x", host_nic_memlock=1024)


def test_kernel_settings() -> None:
    lines = rendered("sysctl.conf.j2").splitlines()[1:]
    assert lines == sorted(f"{name} = {value}" for name, value in DEFAULTS["host_nic_sysctl"].items())


def test_it_wants_what_the_doctor_wants() -> None:
    assert DEFAULTS["host_nic_nofile"] == states.NOFILE
    assert DEFAULTS["host_nic_mtu"] == rdma_states.MTU
    assert DEFAULTS["host_nic_sysctl"]["net.ipv4.conf.all.arp_ignore"] != 0
    assert DEFAULTS["host_nic_sysctl"]["kernel.numa_balancing"] == 0


def test_its_program_is_sound() -> None:
    done = subprocess.run([BIN / "shellcheck", ROLE / "files/look"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

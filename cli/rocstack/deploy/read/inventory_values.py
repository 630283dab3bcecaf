"""The variables of an inventory that rocstack or Ansible's way to a host goes by: their names, and what they can be."""

import ipaddress
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from rocstack.base import paths
from rocstack.base.errors import did_you_mean, hinted
from rocstack.base.text import distance

OURS = (  # that may stand in an inventory
    "rocstack_address",  # at which the other nodes reach this one; default: ansible_host
    "rocstack_rack_registry",  # the rack's registry mirror (host[:port]), from which its nodes pull
    "rocstack_nic_hosts",  # this and the rest: playbook host-nic.yml
    "rocstack_nic_bundle",
    "rocstack_nic_strict",
)
# Of Ansible: its connection plugins, become and interpreter (docs.ansible.com, "Special variables" and plugin "ssh").
ANSIBLE = (
    "ansible_become", "ansible_become_exe", "ansible_become_flags", "ansible_become_method",
    "ansible_become_pass", "ansible_become_password", "ansible_become_user", "ansible_check_mode",
    "ansible_config_file", "ansible_connection", "ansible_control_path", "ansible_control_path_dir",
    "ansible_diff_mode", "ansible_facts", "ansible_forks", "ansible_group_priority", "ansible_host",
    "ansible_host_key_checking", "ansible_hostname", "ansible_local", "ansible_password", "ansible_pipelining",
    "ansible_port", "ansible_private_key", "ansible_private_key_file", "ansible_python_interpreter",
    "ansible_remote_tmp", "ansible_scp_executable", "ansible_scp_extra_args", "ansible_sftp_executable",
    "ansible_sftp_extra_args", "ansible_shell_executable", "ansible_shell_type", "ansible_ssh_args",
    "ansible_ssh_common_args", "ansible_ssh_executable", "ansible_ssh_extra_args", "ansible_ssh_host",
    "ansible_ssh_host_key_checking", "ansible_ssh_pass", "ansible_ssh_password", "ansible_ssh_pipelining",
    "ansible_ssh_port", "ansible_ssh_private_key", "ansible_ssh_private_key_file", "ansible_ssh_retries",
    "ansible_ssh_timeout", "ansible_ssh_transfer_method", "ansible_ssh_use_tty", "ansible_ssh_user",
    "ansible_sshpass_prompt", "ansible_sudo_pass", "ansible_timeout", "ansible_user", "ansible_verbosity",
    "ansible_version",
)  # fmt: skip
_PREFIXES = ("ansible", "rocstack")
_OTHER_WORDS = {
    "ansible_address": "ansible_host", "ansible_addr": "ansible_host", "ansible_ip": "ansible_host",
    "ansible_ip_address": "ansible_host", "ansible_login": "ansible_user", "ansible_username": "ansible_user",
    "ansible_passwd": "ansible_password", "ansible_pwd": "ansible_password", "ansible_key": "ansible_private_key_file",
    "ansible_key_file": "ansible_private_key_file", "ansible_ssh_key": "ansible_private_key_file",
    "ansible_ssh_key_file": "ansible_private_key_file", "ansible_sudo": "ansible_become",
    "ansible_sudo_user": "ansible_become_user", "ansible_become_root": "ansible_become",
}  # fmt: skip
_CHOICES = {  # what ansible-core has, and community.general's ways to become somebody
    "ansible_connection": ("connection", ("ssh", "smart", "paramiko", "paramiko_ssh", "local", "psrp", "winrm")),
    "ansible_shell_type": ("shell", ("sh", "csh", "fish", "powershell", "cmd")),
    "ansible_become_method": ("method", ("sudo", "su", "runas", "doas", "dzdo", "ksu", "machinectl", "pbrun", "pfexec",
                                         "pmrun", "run0", "sesu", "sudosu")),
}  # fmt: skip
_USERS = ("ansible_user", "ansible_ssh_user", "ansible_become_user")
_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args", "ansible_become_flags",
              "ansible_scp_extra_args", "ansible_sftp_extra_args")  # fmt: skip
_TRUTH = ("yes", "no", "true", "false", "on", "off", "y", "n", "t", "f", "1", "0", "1.0", "0.0")
_NUMBERS = ("ansible_timeout", "ansible_ssh_timeout", "ansible_ssh_retries")
REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?")
# An address as it may stand in ssh's command line and in a certificate; a zone (%eth0) belongs to fe80::.
_ADDRESS = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")
_TEXTS = ("ansible_host", "ansible_ssh_host", "ansible_user", "ansible_ssh_user", "ansible_connection",
          "ansible_private_key_file", "ansible_ssh_private_key_file", "ansible_ssh_common_args",
          "ansible_ssh_extra_args", "ansible_ssh_args", "ansible_python_interpreter", "ansible_become_method",
          "ansible_become_user", "rocstack_address", "rocstack_rack_registry")  # fmt: skip
_FACTS = ("ansible_facts", "ansible_local", "ansible_version")  # of ANSIBLE, that are mappings
_ADDRESSES = ("ansible_host", "ansible_ssh_host", "rocstack_address")
_PORTS = ("ansible_port", "ansible_ssh_port")


def misspelt(variable: str, value: Any) -> str | None:
    """What is meant by a variable that is nearly one of these; None for one of the person's own."""
    known = (*OURS, *ANSIBLE)
    if variable in known:
        return None
    name, colon, _ = variable.partition(":")
    if colon and name in known:
        return f"a space belongs after the colon, as in `{name}: value`"
    if other := _OTHER_WORDS.get(variable.lower().replace("-", "_")):
        return f"did you mean '{other}'?"
    if variable.startswith("rocstack_"):
        return did_you_mean(variable, OURS) or f"known: {', '.join(OURS)}"
    near = _near(variable.lower().replace("-", "_"), known)
    if near and isinstance(value, list | Mapping) and variable.removesuffix("s") in near:
        return None  # such as `ansible_users`: a list of the person's own
    prefix = re.split("[_-]", variable.lower(), maxsplit=1)[0]
    if not near and prefix not in _PREFIXES and any(distance(prefix, each, 3) <= 2 for each in _PREFIXES):
        return did_you_mean(variable, known)
    return "did you mean " + " or ".join(f"'{name}'" for name in near[:2]) + "?" if near else None


def _near(word: str, known: Iterable[str]) -> list[str]:
    """The nearest; in a long name more letters may be wrong."""
    found = {name: distance(word, name, 4) for name in known}
    least = min(found.values())
    return [
        name for name, far in found.items() if far == least and far <= (1 if len(name) < 16 else 2 + (len(name) > 23))
    ]


def wrong(variable: str, value: Any) -> str | None:
    """Why a value can't be what its variable is; None where it can, or where only Ansible can tell (a template)."""
    if value is None or (isinstance(value, str) and "{{" in value) or _secret(value):
        return None
    if variable in (*_TEXTS, *ANSIBLE) and variable not in _FACTS and isinstance(value, list | Mapping):
        return f"is a {'list' if isinstance(value, list) else 'mapping'}, where one text belongs"
    if variable in _TEXTS and isinstance(value, bool):
        return "is true or false, where a text belongs"
    if variable in _ADDRESSES and str(value).startswith("["):
        return "has brackets, which ssh takes for a part of the name: write the address alone"
    if variable in _ADDRESSES and value and not is_host(str(value)):
        return "is neither an address nor a host name"
    if variable in _PORTS and not _is_port(value):
        return "is not a port: a number from 1 to 65535"
    if variable == "rocstack_rack_registry" and value:
        registry = str(value)
        if not REGISTRY.fullmatch(registry) or (":" in registry and not _is_port(registry.partition(":")[2])):
            return "is not a registry: write host[:port], without https://, with a port from 1 to 65535"
    return None


def is_of_its_host(variable: str) -> bool:
    """Whether it matters on the way to its host alone: by the addresses, other nodes go, too."""
    return variable in ANSIBLE and variable not in _ADDRESSES


def shown(variable: str, value: Any) -> str:
    """A value in a message; a password's is hidden."""
    said = "***" if "pass" in variable or variable.endswith("_key") else repr(value)
    return said if len(said) <= 100 else f"{said[:80]}..."


def doubtful(variable: str, value: Any) -> str | None:
    """Why Ansible would not get to the host with it, whatever the network says."""
    if value is None or (isinstance(value, str) and "{{" in value) or _secret(value):
        return None
    text = str(value)
    if variable == "ansible_become" and text.lower() not in _TRUTH:
        return "is neither true nor false"
    if variable in _NUMBERS and not re.fullmatch(r"[0-9]{1,9}", text):
        return "is not a whole number"
    if variable in _CHOICES and "." not in text:
        noun, known = _CHOICES[variable]
        return None if text in known else f"is no {noun} that Ansible has{hinted(text, known)}"
    if variable in _USERS and re.search(r"^-|^\d+$|\s|[\x00-\x1f\x7f]", text):
        return "is not the name of a user"
    if variable in _ARGUMENTS and not _splits(text):
        return "has an open quote"
    if variable in ("ansible_private_key_file", "ansible_ssh_private_key_file") and text:
        return None if paths.there(text) else "is not there"
    return None


def _splits(text: str) -> bool:
    try:
        shlex.split(text)
    except ValueError:
        return False
    return True


def _is_port(value: Any) -> bool:
    """A number or its digits; Python makes neither of the other where they are thousands."""
    if type(value) is int:
        return 0 < value < 65536
    return isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value) is not None and 0 < int(value) < 65536


def _secret(value: Any) -> bool:
    """What `ansible-inventory --list` makes of a secret of the vault, or of a text that is no template."""
    return isinstance(value, Mapping) and bool(value.keys() & {"__ansible_vault", "__ansible_unsafe"})


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_host(text: str) -> bool:
    """Whether it can be an address or a host's name. 10.0.0.300 and 10.0.0 can't, though ssh would take the last."""
    if is_address(text):
        return True
    return bool(_ADDRESS.fullmatch(text)) and not re.fullmatch(r"[0-9.]+", text)

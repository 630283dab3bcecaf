"""SSH to virtual nodes: a key of their own, host keys known beforehand, and the inventory that says so."""

import json
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from rocstack.base.errors import BadInput, Missing
from rocstack.base.text import visible

KEY = "id_ed25519"
HOST_KEY = "ssh_host_ed25519_key"
KNOWN = "known_hosts"
CONFIG = "ssh_config"
INVENTORY = "inventory.yml"


def require_ssh() -> None:
    """
    Raises:
        Missing: no ssh client.
    """
    for tool in ("ssh", "ssh-keygen"):
        if shutil.which(tool) is None:
            raise Missing.of("no-ssh", tool=tool)


def make_key(file: Path, comment: str) -> str:
    """The public key of `file`; the pair is made where it is not there yet."""
    public = file.with_name(file.name + ".pub")
    if not (file.exists() and public.exists()):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)  # ssh-keygen gives the file mode 0600
    return public.read_text().strip()


def known_hosts(keys: Mapping[str, str]) -> str:
    """One line a host, from its address and public host key."""
    return "".join(f"{address} {' '.join(key.split()[:2])}\n" for address, key in keys.items())


def ssh_config(folder: Path, hosts: Mapping[str, str]) -> str:
    """All that ssh must know of `hosts` (name -> address), so that nothing of the person's own configuration, made for
    other machines, counts."""
    rows = "".join(f"Host {name}\n    HostName {address}\n" for name, address in hosts.items())
    return (
        f'{rows}Host *\n    User root\n    IdentityFile "{_expanded(folder / KEY)}"\n'
        f'    UserKnownHostsFile "{_expanded(folder / KNOWN)}"\n'
        "    StrictHostKeyChecking yes\n    IdentitiesOnly yes\n"
    )


def inventory(folder: Path, hosts: Mapping[str, str], model: str) -> str:
    """An ordinary Ansible inventory. JSON strings are YAML strings."""
    rows = "".join(f"        {name}: {{ansible_host: {address}}}\n" for name, address in hosts.items())
    return (
        f"# Virtual nodes, model {model}: made by `rocstack local up`, gone with `rocstack local down`.\n"
        "all:\n  vars:\n    ansible_user: root\n"
        f"    ansible_ssh_private_key_file: {json.dumps(_expanded(folder / KEY))}\n"
        f"    ansible_ssh_common_args: {json.dumps(shlex.join(['-F', str(folder / CONFIG)]))}\n"
        "    ansible_python_interpreter: /usr/bin/python3\n"
        "  children:\n    control:\n      hosts:\n        n1: {}\n"
        f"    workers:\n      hosts:\n{rows}"
    )


def _expanded(path: Path) -> str:
    """A path that ssh will expand: a % of its own is written twice.

    Raises:
        BadInput: ssh would take a part of it for other settings, such as a command to start; or Ansible for a template,
            which can start one, too.
    """
    text = str(path)
    if set(text) & set('"{') or not text.isprintable():
        raise BadInput.of("odd-folder", folder=visible(text))
    return text.replace("%", "%%")


# A login costs more than waiting inside, so the node looks for its engine for two seconds, then says what it has.
_WAIT_FOR_ENGINE = (
    "i=0; while [ $i -lt {tries} ]; do i=$((i+1)); "
    "v=$(docker version --format '{{{{.Server.Version}}}}' 2>/dev/null) && echo $v && break; sleep 0.2; done"
)


def engine_version(folder: Path, host: str, seconds: float, stop: threading.Event) -> str | None:
    """What a node says for itself: the version of its engine, "" where that doesn't answer; None: no way in. Both are
    waited for, no longer than `seconds`, and not when `stop` is set."""
    until = time.monotonic() + seconds
    command = ["ssh", "-F", str(folder / CONFIG), "-o", "BatchMode=yes", "-o", "ConnectTimeout=2", host]
    command.append(_WAIT_FOR_ENGINE.format(tries=10 if seconds else 1))
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        version = done.stdout.strip() if done.returncode != 255 else None  # 255: ssh itself
        if version or time.monotonic() > until or stop.wait(0.1):
            return version

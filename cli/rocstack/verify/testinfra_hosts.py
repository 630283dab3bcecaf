"""The nodes as testinfra's hosts: over the inventory's own ssh way, or those that pytest's `--hosts` names."""

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import testinfra
from testinfra.backend import base
from testinfra.host import Host

from rocstack.base.errors import BadInput
from rocstack.deploy.plan import services
from rocstack.deploy.read.inventory_groups import is_node_name
from rocstack.deploy.state.cluster_state import ClusterState
from rocstack.edge import ansible, files, ssh
from rocstack.edge.ssh import FAILED, SshHost, bounded

AT_ONCE = 64  # connections
_SHOWN = 80  # characters of a name that can't be one
_SAID = 300  # and of a reason
_SECONDS = 60.0  # for a host to say what it is called
# A container's host name is what the node is called in the inventory that it was deployed with.
_ASK = (
    "docker ps --quiet >/dev/null || exit 1; docker inspect --type=container "
    f"--format '{{{{.Name}}}} {{{{.Config.Hostname}}}}' {services.CONTROL} {services.WORKER} 2>/dev/null; :"
)


class SshBackend(base.BaseBackend):  # type: ignore[misc]  # testinfra has no types
    """As root on a node, by plain ssh as Ansible would go there."""

    NAME = "rocstack"

    def __init__(self, ssh_host: SshHost) -> None:
        super().__init__(ssh_host.host)
        self.ssh_host = ssh_host

    def run(self, command: str, *args: str, **kwargs: Any) -> base.CommandResult:
        """A connection that fails is an exit status of 255, and ssh's words are on its error output."""
        seconds = float(kwargs.get("seconds", 60))
        line = self.get_command(command, *args)
        words = self.ssh_host.argv([*bounded(seconds), "sh", "-c", line], options=["-T"])
        return _captured(self, words, seconds, line)


def _captured(backend: base.BaseBackend, words: Sequence[str], seconds: float, line: str) -> base.CommandResult:
    """What `words` said, which run `line` on a node within `seconds`."""
    try:
        done = ssh.captured(words, seconds + 30)
    except (subprocess.TimeoutExpired, ssh.Endless) as error:
        why = f"an answer of {error}" if isinstance(error, ssh.Endless) else f"no answer within {seconds:.0f} s"
        return backend.result(FAILED, line.encode(), b"", why.encode())
    return backend.result(done.returncode, line.encode(), done.stdout, done.stderr)


def by_ssh(ssh_host: SshHost) -> Host:
    backend = SshBackend(ssh_host)
    host = Host(backend)
    backend.set_host(host)
    return host


def inventory_of(hosts: str, folder: Path, ssh_config: str | None, identity: str | None) -> Path:
    """An inventory of what `--hosts=ssh://n1,ssh://n2` names: the one with our controller is the control node. Nodes
    have the names that Slurm has for them, which their containers know; `ssh://user@n1:2222?sudo=true` is understood.

    Raises:
        BadInput: another connection than ssh, a host that isn't reached, no controller on any of them or several, or
            names that can't be: each host says itself what it is called.
    """
    specs = _specs(hosts)
    for spec in specs:
        if not spec.startswith("ssh://"):
            raise BadInput.of("hosts-not-ssh", host=spec)
    ways = {"ssh_config": _whole(ssh_config), "ssh_identity_file": _whole(identity)}
    # One by one: testinfra keeps a list of hosts in the order in which it was first asked for.
    named = [
        testinfra.get_host(spec, **ways, ssh_extra_args=f"{ansible.NOTHING_LENT} -o BatchMode=yes") for spec in specs
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        containers_of = list(pool.map(_names, specs, named))
    _check_names(specs, containers_of)
    groups: dict[str, dict[str, dict[str, Any]]] = {"control": {}, "workers": {}}
    for group, container in (("control", services.CONTROL), ("workers", services.WORKER)):
        for host, names in zip(named, containers_of, strict=True):
            if container in names:
                groups[group][names[container]] = _variables(host.backend)
        if not groups[group]:
            raise BadInput.of("hosts-without-ours", service=services.SERVICE_OF[container])
    path = folder / "hosts.json"
    files.write(path, json.dumps({group: {"hosts": nodes} for group, nodes in groups.items()}, indent=1) + "\n")
    return path


def _names(spec: str, host: Host) -> dict[str, str]:
    """Our containers there -> the node's name, whether or not they run.

    Raises:
        BadInput: the host isn't reached, or its engine doesn't answer.
    """
    way = host.backend

    def run_local(command: str, *args: str) -> base.CommandResult:
        """testinfra's own waits for ever, and keeps whatever comes."""
        line = way.quote(command, *args)
        return _captured(way, ["sh", "-c", line], _SECONDS, line)

    way.run_local = run_local
    try:
        done = host.run(shlex.join([*bounded(_SECONDS), "sh", "-c", _ASK]))
    except RuntimeError as error:  # testinfra's, where ssh ends with 255
        done = error.args[0]
    if done.rc:
        why = [f"it gave no reason (exit status {done.rc})", *done.stderr.strip().splitlines()][-1][:_SAID]
        target = spec.removeprefix("ssh://").partition("?")[0]
        raise BadInput.of("hosts-unreached", host=spec, why=why, target=target)
    said = (line[1:].partition(" ") for line in done.stdout.splitlines() if line.startswith("/"))
    return {container: name for container, _, name in said if container in (services.CONTROL, services.WORKER)}


def _check_names(specs: Sequence[str], containers_of: Sequence[Mapping[str, str]]) -> None:
    """No host takes another's place, whatever it says.

    Raises:
        BadInput: two hosts claim one name or the control node, or a name is none that a node can have.
    """
    named_by: dict[str, str] = {}
    control = ""
    for spec, names in zip(specs, containers_of, strict=True):
        for name in dict.fromkeys(names.values()):
            if not is_node_name(name):
                raise BadInput.of("hosts-bad-name", host=spec, name=name[:_SHOWN])
            other = named_by.setdefault(name.lower(), spec)
            if other != spec:
                raise BadInput.of("hosts-claimed", what=f"the node {name}", one=other, other=spec)
        if services.CONTROL in names:
            if control:
                raise BadInput.of("hosts-claimed", what="the control node", one=control, other=spec)
            control = spec


def _variables(way: Any) -> dict[str, Any]:
    """Ansible's, by which it goes to the host as testinfra's backend did."""
    known = {
        "ansible_host": way.host.name,
        "ansible_port": way.host.port and int(way.host.port),
        "ansible_user": way.host.user,
        "ansible_ssh_private_key_file": _whole(way.ssh_identity_file),
        "ansible_ssh_common_args": way.ssh_config and shlex.join(["-F", str(_whole(way.ssh_config))]),
        "ansible_become": way.sudo,
    }
    return {key: value for key, value in known.items() if value}


def _whole(path: str | None) -> str | None:
    """Ansible starts ssh in another folder."""
    return str(Path(path).expanduser().absolute()) if path else None


def limited(state: ClusterState, hosts: str) -> ClusterState:
    """With the workers only that `--hosts=ansible://PATTERN` names, a group or host each, and the control node.

    Raises:
        BadInput: another connection than Ansible's, or no worker has such a name or group.
    """
    inventory = state.inventory
    chosen: set[str] = set()
    for spec in _specs(hosts):
        if not spec.startswith("ansible://"):
            raise BadInput.of("hosts-not-ansible", host=spec, inventory=inventory.path)
        pattern = spec.removeprefix("ansible://") or "all"
        words_of = {host.name: ("all", host.name, *host.groups) for host in inventory.workers}
        named = {name for name, words in words_of.items() if any(fnmatchcase(word, pattern) for word in words)}
        if not named:
            raise BadInput.of("hosts-unknown", host=spec, inventory=inventory.path)
        chosen |= named
    inventory = replace(inventory, workers=tuple(host for host in inventory.workers if host.name in chosen))
    ours, gathered = {host.name for host in inventory.nodes}, state.gathered
    kept = replace(
        gathered,
        nodes=tuple(node for node in gathered.nodes if node.name in ours),
        failures=tuple(failure for failure in gathered.failures if failure.node in ours),
    )
    return replace(state, inventory=inventory, gathered=kept)


def _specs(hosts: str) -> list[str]:
    return list(dict.fromkeys(spec.strip() for spec in hosts.split(",") if spec.strip()))

"""The nodes as testinfra's hosts: over the inventory's own ssh way, or those that pytest's `--hosts` names."""

import json
import shlex
import subprocess
from collections.abc import Iterable, Mapping
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
from rocstack.deploy.state.cluster_state import ClusterState
from rocstack.edge.ssh import SshHost

AT_ONCE = 64
GONE = 255  # ssh's own failure
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
        bounded = ["timeout", "--kill-after=5", f"{seconds:.0f}", "sh", "-c", line]
        words = self.ssh_host.argv(bounded, options=["-T"] if self.ssh_host.program else [])
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds + 30, check=False
            )
        except subprocess.TimeoutExpired as error:
            text = f"no answer within {seconds:.0f} s".encode()
            return self.result(GONE, line.encode(), error.stdout or b"", text)
        return self.result(done.returncode, line.encode(), done.stdout, done.stderr)


def by_ssh(ssh_hosts: Mapping[str, SshHost]) -> dict[str, Host]:
    made = {}
    for name, ssh_host in ssh_hosts.items():
        backend = SshBackend(ssh_host)
        made[name] = Host(backend)
        backend.set_host(made[name])
    return made


def inventory_of(hosts: str, folder: Path, ssh_config: str | None, identity: str | None) -> Path:
    """An inventory of what `--hosts=ssh://n1,ssh://n2` names: the one with our controller is the control node. Nodes
    have the names that Slurm has for them, which their containers know; `ssh://user@n1:2222?sudo=true` is understood.

    Raises:
        BadInput: another connection than ssh, a host that isn't reached, or no controller on any of them.
    """
    specs = list(dict.fromkeys(spec.strip() for spec in hosts.split(",") if spec.strip()))
    wrong = [spec for spec in specs if not spec.startswith("ssh://")]
    if wrong:
        raise _bad(
            f"--hosts={wrong[0]}: nodes are reached by ssh",
            "--hosts=ssh://n1,ssh://n2, or --hosts=ansible://all --ansible-inventory=FILE",
        )
    ways = {"ssh_config": _whole(ssh_config), "ssh_identity_file": _whole(identity)}
    named = testinfra.get_hosts(specs, **ways, ssh_extra_args="-o BatchMode=yes")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        containers_of = list(pool.map(_names, specs, named))
    groups: dict[str, dict[str, dict[str, Any]]] = {"control": {}, "workers": {}}
    for host, names in zip(named, containers_of, strict=True):
        for container, group in ((services.CONTROL, "control"), (services.WORKER, "workers")):
            if container in names:
                groups[group][names[container]] = _variables(host.backend)
    if not groups["control"] or not groups["workers"]:
        raise _bad(
            f"no {'controller' if not groups['control'] else 'worker'} of ours is on the hosts of --hosts",
            "name the control node, too; `docker ps --all` there shows rocstack-control",
        )
    path = folder / "hosts.json"
    path.write_text(json.dumps({group: {"hosts": nodes} for group, nodes in groups.items()}, indent=1) + "\n")
    return path


def _names(spec: str, host: Host) -> dict[str, str]:
    """Our containers there -> the node's name, whether or not they run.

    Raises:
        BadInput: the host isn't reached, or its engine doesn't answer.
    """
    try:
        done = host.run(_ASK)
    except RuntimeError as error:  # testinfra's, where ssh ends with 255
        done = error.args[0]
    if done.rc:
        lines = done.stderr.strip().splitlines()
        raise _bad(
            f"--hosts={spec}: {lines[-1] if lines else f'it gave no reason (exit status {done.rc})'}",
            f"make `ssh {spec.removeprefix('ssh://').partition('?')[0]} docker ps` work, or leave that host out",
        )
    return dict(line.lstrip("/").split(" ", 1) for line in done.stdout.splitlines() if line.startswith("/"))


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
    specs = [spec.strip() for spec in hosts.split(",") if spec.strip()]
    wrong = [spec for spec in specs if not spec.startswith("ansible://")]
    if wrong:
        raise _bad(f"--hosts={wrong[0]}: the nodes are those of {inventory.path}", "--hosts=ansible://workers")
    chosen: set[str] = set()
    for spec in specs:
        pattern = spec.removeprefix("ansible://") or "all"
        named = {
            host.name
            for host in inventory.workers
            if any(fnmatchcase(word, pattern) for word in ("all", host.name, *host.groups))
        }
        if not named:
            raise _bad(
                f"--hosts={spec}: no worker of {inventory.path} has such a name or group",
                f"name a group or a host, or a pattern such as 'n*'; `ansible-inventory -i {inventory.path} --graph`",
            )
        chosen |= named
    inventory = replace(inventory, workers=tuple(host for host in inventory.workers if host.name in chosen))
    ours, gathered = {host.name for host in inventory.nodes}, state.gathered
    kept = replace(
        gathered,
        nodes=tuple(node for node in gathered.nodes if node.name in ours),
        failures=tuple(failure for failure in gathered.failures if failure.node in ours),
    )
    return replace(state, inventory=inventory, gathered=kept)


def _bad(what: str, next_step: str) -> BadInput:
    return BadInput(what, code="bad-hosts", next_step=next_step)


def everywhere(hosts: Mapping[str, Host], names: Iterable[str], command: str, **options: Any) -> dict[str, Any]:
    """The command on many nodes at once: node -> testinfra's CommandResult."""
    chosen = list(names)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = pool.map(lambda name: hosts[name].run(command, **options), chosen)
        return dict(zip(chosen, done, strict=True))

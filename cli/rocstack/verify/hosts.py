"""The nodes as testinfra's hosts: over the inventory's own ssh way, or those that pytest's `--hosts` names."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import testinfra
from testinfra.backend import base
from testinfra.host import Host

from rocstack.deploy.ssh import Reach
from rocstack.errors import BadInput

AT_ONCE = 64
_GONE = 255  # ssh's own failure


class ReachBackend(base.BaseBackend):  # type: ignore[misc]  # testinfra has no types
    """As root on a node, by plain ssh as Ansible would go there."""

    NAME = "rocstack"

    def __init__(self, reach: Reach) -> None:
        super().__init__(reach.host)
        self.reach = reach

    def run(self, command: str, *args: str, **kwargs: Any) -> base.CommandResult:
        """A connection that fails is an exit status of 255, and ssh's words are on its error output."""
        seconds = float(kwargs.get("seconds", 60))
        line = self.get_command(command, *args)
        bounded = ["timeout", "--kill-after=5", f"{seconds:.0f}", "sh", "-c", line]
        words = self.reach.argv(bounded, options=["-T"] if self.reach.program else [])
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds + 30, check=False
            )
        except subprocess.TimeoutExpired as error:
            text = f"no answer within {seconds:.0f} s".encode()
            return self.result(_GONE, line.encode(), error.stdout or b"", text)
        return self.result(done.returncode, line.encode(), done.stdout, done.stderr)


def of_reaches(reaches: Mapping[str, Reach]) -> dict[str, Host]:
    found = {}
    for name, reach in reaches.items():
        backend = ReachBackend(reach)
        found[name] = Host(backend)
        backend.set_host(found[name])
    return found


def inventory_of(hosts: str, folder: Path, ssh_config: str | None, identity: str | None) -> Path:
    """An inventory of what `--hosts=ssh://n1,ssh://n2` names: the one with our controller is the control node.

    Raises:
        BadInput: another connection than ssh, or no controller on any of them.
    """
    specs = [spec.strip() for spec in hosts.split(",") if spec.strip()]
    wrong = [spec for spec in specs if not spec.startswith("ssh://")]
    if wrong:
        raise BadInput(
            f"--hosts={wrong[0]}: nodes are reached by ssh",
            code="bad-hosts",
            next_step="--hosts=ssh://n1,ssh://n2, or --hosts=ansible://all --ansible-inventory=FILE",
        )
    found = testinfra.get_hosts(specs, ssh_config=ssh_config, ssh_identity_file=identity)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = list(pool.map(lambda host: host.run("docker ps --format '{{.Names}}'").stdout.split(), found))
    lines: dict[str, list[str]] = {"control": [], "workers": []}
    for spec, host, containers in zip(specs, found, said, strict=True):
        line = _line(spec, host, ssh_config, identity)
        if "rocstack-control" in containers:
            lines["control"].append(line)
        if "rocstack-worker" in containers:
            lines["workers"].append(line)
    if not lines["control"] or not lines["workers"]:
        raise BadInput(
            f"no {'controller' if not lines['control'] else 'worker'} of ours runs on the hosts of --hosts",
            code="bad-hosts",
            next_step="name the control node, too; `docker ps` there shows rocstack-control",
        )
    path = folder / "hosts.ini"
    path.write_text("".join(f"[{group}]\n" + "".join(rows) for group, rows in lines.items()))
    return path


def _line(spec: str, host: Host, config: str | None, identity: str | None) -> str:
    where = base.BaseBackend.parse_hostspec(spec.removeprefix("ssh://"))
    words = [where.name, f"ansible_host={where.name}"]
    words += [f"ansible_port={where.port}"] if where.port else []
    words += [f"ansible_user={where.user}"] if where.user else []
    words += [f"ansible_ssh_private_key_file={identity}"] if identity else []
    words += [f"ansible_ssh_common_args='-F {Path(config).absolute()}'"] if config else []
    return " ".join(words) + "\n"


def everywhere(hosts: Mapping[str, Host], names: Iterable[str], command: str, **options: Any) -> dict[str, Any]:
    """The command on many nodes at once: node -> testinfra's CommandResult."""
    chosen = list(names)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = pool.map(lambda name: hosts[name].run(command, **options), chosen)
        return dict(zip(chosen, done, strict=True))

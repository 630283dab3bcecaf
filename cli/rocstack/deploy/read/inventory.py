"""The inventory as a value: whatever form Ansible reads, with the person's own ansible.cfg and vault in force."""

import ipaddress
import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput, Missing, Where, did_you_mean
from rocstack.edge import ansible
from rocstack.node.recording import natural_key

CONTROL, WORKERS = "control", "workers"
VARIABLES = {  # ours, that may stand in an inventory
    "rocstack_address": "the address at which the other nodes reach this one; default: ansible_host",
    "rocstack_rack_registry": "the rack's registry mirror, from which its nodes pull (`host[:port]`)",
    "rocstack_nic_hosts": "playbook host-nic.yml",
    "rocstack_nic_bundle": "playbook host-nic.yml",
    "rocstack_nic_strict": "playbook host-nic.yml",
}
PLAYBOOK, TASK = "inventory.yml", "Values"
_ASKED = ("ansible_host", "ansible_port", "ansible_user", "rocstack_address", "rocstack_rack_registry")
# What Slurm reads as one node: slurm.conf(5), NodeName. Brackets and commas make a list of nodes.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_RESERVED = ("default", "all")
Hosts = Mapping[str, Mapping[str, Any]]
_REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?")


@dataclass(frozen=True)
class InventoryHost:
    """One host. `address` is where the other nodes reach it, `host` where this machine does (maybe over a jump host).
    `variables` are those for Ansible, as they stand in the inventory; a password may be among them."""

    name: str
    address: str
    host: str
    port: int = 22
    user: str | None = None
    rack_registry: str | None = None
    groups: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Inventory:
    """`control` may be one of `workers`. `others` are of other groups, and left alone."""

    path: Path
    control: InventoryHost
    workers: tuple[InventoryHost, ...]
    others: tuple[InventoryHost, ...] = ()

    @property
    def nodes(self) -> tuple[InventoryHost, ...]:
        """Control node and workers, each once."""
        return (*([] if self.control in self.workers else [self.control]), *self.workers)

    def roles(self, name: str) -> tuple[str, ...]:
        """`control`, `worker`, both or none."""
        works = any(worker.name == name for worker in self.workers)
        return (*(["control"] if name == self.control.name else []), *(["worker"] if works else []))

    @property
    def racks(self) -> dict[str, tuple[InventoryHost, ...]]:
        """Rack mirror -> the nodes that pull from it."""
        result: dict[str, list[InventoryHost]] = defaultdict(list)
        for node in self.nodes:
            if node.rack_registry:
                result[node.rack_registry].append(node)
        return {registry: tuple(nodes) for registry, nodes in result.items()}


def load(path: Path) -> Inventory:
    """Reads and checks an inventory; no node is touched.

    Raises:
        BadInput: it isn't there, can't be read, or doesn't describe a cluster.
        Missing: Ansible isn't installed.
    """
    return of_listing(path, _listed(path), lambda hosts: _rendered(path, hosts))


def of_listing(path: Path, listed: Mapping[str, Any], render: Callable[[Hosts], Hosts]) -> Inventory:
    """From what `ansible-inventory --list` says; `render` is asked where a value is a template or a secret.

    Raises:
        BadInput: it doesn't describe a cluster.
    """
    hosts: Hosts = listed.get("_meta", {}).get("hostvars", {})
    groups = {name: tuple(_members(listed, name)) for name in listed if name != "_meta"}
    _check(path, groups, hosts)
    ours = {name for group in (CONTROL, WORKERS) for name in groups[group]}
    unsure = [name for name in ours if any(_unsure(hosts.get(name, {}).get(key)) for key in _ASKED)]
    if unsure:
        hosts = {**hosts, **render(hosts)}
    made = {name: _host(path, name, hosts.get(name, {}), groups) for name in groups.get("all", ())}
    workers = tuple(made[name] for name in groups[WORKERS])
    others = tuple(host for name, host in made.items() if name not in ours)
    return Inventory(path, made[groups[CONTROL][0]], workers, others)


def _listed(path: Path) -> dict[str, Any]:
    """What `ansible-inventory --list` says."""
    if not path.exists():
        raise BadInput(
            f"no inventory {path}", code="no-inventory", next_step="`rocstack init` writes one to start from"
        )
    env = ansible.environment(os.environ)
    program = shutil.which("ansible-inventory", path=env["PATH"])
    if program is None:
        raise Missing("ansible-inventory is not installed", code="no-ansible", next_step="pip install ansible-core")
    command = [program, "-i", str(path.absolute()), "--list"]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ansible.start_error(done.stderr, path)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _members(listed: Mapping[str, Any], group: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The hosts of a group and of the groups below it, each once, as people count."""
    result = dict.fromkeys(listed.get(group, {}).get("hosts", ()))
    for child in listed.get(group, {}).get("children", ()):
        if child not in above:
            result |= dict.fromkeys(_members(listed, child, (*above, group)))
    yield from sorted(result, key=natural_key)


def _check(path: Path, groups: Mapping[str, tuple[str, ...]], hosts: Hosts) -> None:
    control, workers = groups.get(CONTROL, ()), groups.get(WORKERS, ())
    where = Where(str(path))
    if not groups.get("all"):
        raise BadInput("the inventory has no hosts", code="no-hosts", where=where, next_step="add the nodes to it")
    if not control:
        raise BadInput(
            _lacks(groups, CONTROL), code="no-control", where=where, next_step="put one host into a group 'control'"
        )
    if len(control) > 1:
        raise BadInput(
            f"the group 'control' has {len(control)} hosts: {', '.join(control)}",
            code="several-controls",
            where=where,
            cause="one node runs slurmctld, the database and the registry",
            next_step="keep only one of them in the group; the others may be workers",
        )
    if not workers:
        raise BadInput(
            _lacks(groups, WORKERS), code="no-workers", where=where, next_step="put the nodes into a group 'workers'"
        )
    idle = [name for name in groups.get("ungrouped", ()) if name not in (*control, *workers)]
    astray = {name: hint for name in groups if (hint := _meant(name)) and name not in (CONTROL, WORKERS)}
    for group, meant in astray.items():
        lost = [name for name in groups[group] if name not in (*control, *workers)]
        if lost:
            raise BadInput(
                f"{', '.join(lost)} in group '{group}': did you mean '{meant}'?",
                code="no-role",
                where=where,
                next_step=f"rename the group to '{meant}', or give it another name",
            )
    if idle:
        raise BadInput(
            f"{', '.join(idle)}: neither in group 'control' nor in 'workers'",
            code="no-role",
            where=where,
            next_step="put them into one of the two; rocstack ignores hosts that are only in a group of their own",
        )
    _check_names(where, tuple(dict.fromkeys((*control, *workers))))
    _check_variables(where, hosts)


def _lacks(groups: Mapping[str, tuple[str, ...]], group: str) -> str:
    own = [name for name in groups if name not in ("all", "ungrouped")]
    if group in groups:
        return f"the group '{group}' has no hosts"
    meant = next((name for name in own if _meant(name) == group), None)
    hint = f"did you mean '{meant}'?" if meant else f"its groups are {', '.join(own)}" if own else "it has no groups"
    return f"the inventory has no group '{group}': {hint}"


def _meant(group: str) -> str | None:
    """The group of ours for which another word stands."""
    word = group.lower().replace("-", "_")
    if word in ("controller", "controllers", "controls", "control_node", "head", "master", "slurmctld"):
        return CONTROL
    if word in ("worker", "compute", "computes", "compute_nodes", "nodes", "slurmd", "worker_nodes"):
        return WORKERS
    hint = did_you_mean(word, (CONTROL, WORKERS)) or ""
    return next((name for name in (CONTROL, WORKERS) if hint == f"did you mean '{name}'?"), None)


def _check_names(where: Where, names: tuple[str, ...]) -> None:
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.lower(), name)
        if other != name:
            raise BadInput(
                f"'{other}' and '{name}' differ only in upper and lower case",
                code="bad-node-name",
                where=where,
                cause="to the network they are one host, to Slurm two nodes",
                next_step="spell both the same, or rename one",
            )
        if is_address(name):
            raise BadInput(
                f"'{name}' is an address, but Slurm's nodes need names",
                code="bad-node-name",
                where=where,
                cause="slurm.conf's NodeName is also what people type and what logs show",
                next_step=f"give it a name: `node1: {{ansible_host: {name}}}`, or `node1 ansible_host={name}`",
            )
        if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
            raise BadInput(
                f"'{name}' can't be the name of a Slurm node",
                code="bad-node-name",
                where=where,
                cause="allowed are 63 letters, digits, '-', '_' and '.'; slurm.conf reserves 'default', 'all'",
                next_step=f"give it another name, and set `ansible_host: {name}`",
            )


def _check_variables(where: Where, hosts: Hosts) -> None:
    for name, variables in hosts.items():
        for variable in variables:
            if variable.startswith("rocstack_") and variable not in VARIABLES:
                hint = did_you_mean(variable, VARIABLES)
                raise BadInput(
                    f"unknown variable {variable} of {name}" + (f": {hint}" if hint else ""),
                    code="unknown-key",
                    where=where,
                    next_step=f"rocstack knows {', '.join(VARIABLES)}",
                )


def _unsure(value: object) -> bool:
    """Whether Ansible makes another value of it: a template, or a secret of the vault."""
    return isinstance(value, Mapping) or (isinstance(value, str) and "{{" in value)


def _rendered(path: Path, hosts: Hosts) -> Hosts:
    """The variables that we need, as Ansible makes them; nothing is connected to."""
    result = {}
    for run in ansible.run(PLAYBOOK, path):
        if run.state != "ok":
            raise BadInput(
                f"Ansible can't determine the address of {run.host}: {run.reason}",
                code="bad-inventory",
                where=Where(str(path)),
                next_step=f"check it with `ansible -i {path} {run.host} -m debug -a var=ansible_host`",
            )
        values = run.results[TASK]["msg"]
        result[run.host] = {**hosts.get(run.host, {}), **{key: value for key, value in values.items() if value != ""}}
    return result


def _host(path: Path, name: str, variables: Mapping[str, Any], groups: Mapping[str, Iterable[str]]) -> InventoryHost:
    host, port = str(variables.get("ansible_host") or name), str(variables.get("ansible_port") or 22)
    registry = variables.get("rocstack_rack_registry")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadInput(f"ansible_port {port!r} of {name} is not a port", code="bad-value", where=Where(str(path)))
    if registry and not _REGISTRY.fullmatch(str(registry)):
        raise BadInput(
            f"rocstack_rack_registry {registry!r} of {name} is not a registry",
            code="bad-value",
            where=Where(str(path)),
            next_step="write host[:port], without https://",
        )
    return InventoryHost(
        name=name,
        address=str(variables.get("rocstack_address") or host),
        host=host,
        port=int(port),
        user=str(variables["ansible_user"]) if variables.get("ansible_user") else None,
        rack_registry=str(registry) if registry else None,
        groups=tuple(sorted(group for group, members in groups.items() if group != "all" and name in members)),
        variables=dict(variables),
    )


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

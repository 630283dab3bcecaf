"""The inventory as a value: whatever form Ansible reads, with the person's own ansible.cfg and vault in force."""

import ipaddress
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput, did_you_mean
from rocstack.edge import ansible
from rocstack.node.recording import natural_key

CONTROL, WORKERS = "control", "workers"
VARIABLES = (  # ours, that may stand in an inventory
    "rocstack_address",  # at which the other nodes reach this one; default: ansible_host
    "rocstack_rack_registry",  # the rack's registry mirror (host[:port]), from which its nodes pull
    "rocstack_nic_hosts",  # this and the rest: playbook host-nic.yml
    "rocstack_nic_bundle",
    "rocstack_nic_strict",
)
PLAYBOOK, TASK = "inventory.yml", "Values"
_ASKED = ("ansible_host", "ansible_port", "ansible_user", "rocstack_address", "rocstack_rack_registry")
# What Slurm reads as one node: slurm.conf(5), NodeName. Brackets and commas make a list of nodes.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_RESERVED = ("default", "all")
REGISTRY = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?")
_HTTPS = 443
_OTHER_WORDS = {
    CONTROL: ("controller", "controllers", "controls", "control_node", "head", "master", "slurmctld"),
    WORKERS: ("worker", "compute", "computes", "compute_nodes", "nodes", "slurmd", "worker_nodes"),
}
Hosts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class InventoryHost:
    """One host. `address` is where the other nodes reach it, `host` where this machine does (maybe over a jump host).
    `variables` are those for Ansible, as they stand in the inventory; a password may be among them."""

    name: str
    address: str
    host: str
    rack_registry: str | None = None
    groups: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def words(self) -> tuple[str, ...]:
        """By which the person names it."""
        return (self.host, self.address, self.name)


@dataclass(frozen=True)
class RackRegistry:
    """`registry` is host[:port] as the nodes write it; `node` runs it, None: it is the site's."""

    registry: str
    node: str | None
    serves: tuple[str, ...]

    @property
    def host(self) -> str:
        return self.registry.partition(":")[0]

    @property
    def port(self) -> int:
        return registry_port(self.registry)


@dataclass(frozen=True)
class Inventory:
    """`control` may be one of `workers`. Hosts of other groups are left alone."""

    path: Path
    control: InventoryHost
    workers: tuple[InventoryHost, ...]

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
        result: dict[str, tuple[InventoryHost, ...]] = defaultdict(tuple)
        for node in self.nodes:
            if node.rack_registry:
                result[node.rack_registry] += (node,)
        return dict(result)

    def rack_registries(self, address: Callable[[InventoryHost], str]) -> tuple[RackRegistry, ...]:
        """All but one on the control node, whose registry has the images anyway. One whose address is a node's is ours:
        that node runs it beside its worker. `address` is where the others reach a node.

        Raises:
            BadInput: one node is to run two of them.
        """
        words = {word: host.name for host in self.nodes for word in host.words}
        result: list[RackRegistry] = []
        for registry, nodes in self.racks.items():
            # What a node says itself counts in its own rack alone.
            node = ({address(host): host.name for host in nodes} | words).get(registry.partition(":")[0])
            for twin in result:
                if node and twin.node == node:
                    raise BadInput.of("two-registries", self.path, node=node, one=twin.registry, other=registry)
            if node != self.control.name:
                result.append(RackRegistry(registry, node, tuple(each.name for each in nodes)))
        return tuple(result)


def registry_port(registry: str) -> int:
    return int(registry.partition(":")[2] or _HTTPS)


def load(path: Path) -> Inventory:
    """Reads and checks an inventory; no node is touched.

    Raises:
        BadInput: it isn't there, can't be read, or doesn't describe a cluster.
        Missing: Ansible isn't installed.
    """
    if not path.exists():
        raise BadInput.of("no-inventory", inventory=path)
    program, env = ansible.program("ansible-inventory")
    command = [program, "-i", str(path.absolute()), "--list"]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ansible.start_error(done.stderr, path)
    return of_listing(path, json.loads(done.stdout), lambda hosts: _rendered(path, hosts))


def of_listing(path: Path, listed: Mapping[str, Any], render: Callable[[Hosts], Hosts]) -> Inventory:
    """From what `ansible-inventory --list` says; `render` is asked where a value is a template or a secret.

    Raises:
        BadInput: it doesn't describe a cluster.
    """
    hosts: Hosts = listed.get("_meta", {}).get("hostvars", {})
    groups = {name: tuple(_members(listed, name)) for name in listed if name != "_meta"}
    _check(path, groups, hosts)
    ours = {*groups[CONTROL], *groups[WORKERS]}
    values = [hosts.get(name, {}).get(key) for name in ours for key in _ASKED]
    if any(isinstance(value, Mapping) or (isinstance(value, str) and "{{" in value) for value in values):
        hosts = {**hosts, **render(hosts)}
    made = {name: _host(path, name, hosts.get(name, {}), groups) for name in groups.get("all", ())}
    return Inventory(path, made[groups[CONTROL][0]], tuple(made[name] for name in groups[WORKERS]))


def _members(listed: Mapping[str, Any], group: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The hosts of a group and of the groups below it, each once, as people count."""
    result = dict.fromkeys(listed.get(group, {}).get("hosts", ()))
    for child in listed.get(group, {}).get("children", ()):
        if child not in above:
            result |= dict.fromkeys(_members(listed, child, (*above, group)))
    yield from sorted(result, key=natural_key)


def _check(path: Path, groups: Mapping[str, tuple[str, ...]], hosts: Hosts) -> None:
    control, workers = groups.get(CONTROL, ()), groups.get(WORKERS, ())
    if not groups.get("all"):
        raise BadInput.of("no-hosts", path)
    if not control:
        raise BadInput.of("no-control", path, lack=_lack(groups, CONTROL))
    if len(control) > 1:
        raise BadInput.of("several-controls", path, count=len(control), names=", ".join(control))
    if not workers:
        raise BadInput.of("no-workers", path, lack=_lack(groups, WORKERS))
    ours = dict.fromkeys((*control, *workers))
    for group, members in groups.items():
        lost = ", ".join(name for name in members if name not in ours)
        if lost and (meant := _meant(group)):
            raise BadInput.of("group-misspelt", path, names=lost, group=group, meant=meant)
    if idle := ", ".join(name for name in groups.get("ungrouped", ()) if name not in ours):
        raise BadInput.of("in-no-group", path, names=idle)
    folded: dict[str, str] = {}
    for name in ours:
        other = folded.setdefault(name.lower(), name)
        if other != name:
            raise BadInput.of("node-names-alike", path, one=other, other=name)
        if is_address(name):
            raise BadInput.of("node-name-address", path, name=name)
        if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
            raise BadInput.of("bad-node-name", path, name=name)
    for name, variables in hosts.items():
        for variable in variables:
            if variable.startswith("rocstack_") and variable not in VARIABLES:
                hint, known = did_you_mean(variable, VARIABLES), ", ".join(VARIABLES)
                raise BadInput.of("unknown-variable", path, variable=variable, name=name, hint=hint, known=known)


def _lack(groups: Mapping[str, tuple[str, ...]], group: str) -> str:
    if group in groups:
        return f"the group '{group}' has no hosts"
    own = [name for name in groups if name not in ("all", "ungrouped")]
    meant = next((name for name in own if _meant(name) == group), None)
    hint = f"did you mean '{meant}'?" if meant else f"its groups are {', '.join(own)}" if own else "it has no groups"
    return f"the inventory has no group '{group}': {hint}"


def _meant(group: str) -> str | None:
    """The group of ours for which another word stands."""
    word = group.lower().replace("-", "_")
    hint = did_you_mean(word, _OTHER_WORDS)
    for ours, others in _OTHER_WORDS.items():
        if word in others or hint == f"did you mean '{ours}'?":
            return ours
    return None


def _rendered(path: Path, hosts: Hosts) -> Hosts:
    """The variables that we need, as Ansible makes them; nothing is connected to."""
    result = {}
    for run in ansible.run(PLAYBOOK, path):
        if run.state != "ok":
            raise BadInput.of("address-unknown", path, inventory=path, host=run.host, reason=run.reason)
        values = run.results[TASK]["msg"]
        result[run.host] = {**hosts.get(run.host, {}), **{key: value for key, value in values.items() if value != ""}}
    return result


def _host(path: Path, name: str, variables: Mapping[str, Any], groups: Mapping[str, Iterable[str]]) -> InventoryHost:
    host, port = str(variables.get("ansible_host") or name), str(variables.get("ansible_port") or 22)
    registry = str(variables.get("rocstack_rack_registry") or "")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadInput.of("bad-port", path, port=port, name=name)
    if registry and not REGISTRY.fullmatch(registry):
        raise BadInput.of("bad-rack-registry", path, registry=variables["rocstack_rack_registry"], name=name)
    return InventoryHost(
        name=name,
        address=str(variables.get("rocstack_address") or host),
        host=host,
        rack_registry=registry or None,
        groups=tuple(sorted(group for group, members in groups.items() if group != "all" and name in members)),
        variables=dict(variables),
    )


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

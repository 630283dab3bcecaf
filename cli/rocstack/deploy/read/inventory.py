"""The inventory as a value: whatever form Ansible reads, with the person's own ansible.cfg and vault in force."""

import json
import os
import re
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput, Missing, Where
from rocstack.deploy.read import inventory_text, inventory_values
from rocstack.deploy.read.inventory_groups import CONTROL, WORKERS, check_groups, members
from rocstack.deploy.read.inventory_text import InventoryText
from rocstack.edge import ansible, complaints
from rocstack.node.recording import natural_key

PLAYBOOK, TASK = "inventory.yml", "Values"
_ASKED = ("ansible_host", "ansible_port", "ansible_user", "rocstack_address", "rocstack_rack_registry")
_WAYS = ("ansible_port", "ansible_ssh_port", "ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_HTTPS = 443
# Of what Ansible warns of: hosts or variables are not as they were written.
_LOST = re.compile(r"(?i)^skipping|duplicate|both group and host")
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
    problems: Mapping[str, str] = field(default_factory=dict)  # why Ansible can't make out a host's variables
    wrong: Mapping[str, BadInput] = field(default_factory=dict)  # by host: a variable that can't be used
    doubtful: Mapping[str, BadInput] = field(default_factory=dict)  # and one with which Ansible hardly gets there
    warnings: tuple[str, ...] = ()  # what Ansible said of it

    @property
    def nodes(self) -> tuple[InventoryHost, ...]:
        """Control node and workers, each once."""
        return (*([] if self.control in self.workers else [self.control]), *self.workers)

    def roles(self, name: str) -> tuple[str, ...]:
        """`control`, `worker`, both or none."""
        works = any(worker.name == name for worker in self.workers)
        return (*(["control"] if name == self.control.name else []), *(["worker"] if works else []))

    @property
    def worker_groups(self) -> dict[str, list[str]]:
        """Groups -> the workers in them."""
        names = sorted({group for host in self.workers for group in host.groups})
        return {name: [host.name for host in self.workers if name in host.groups] for name in names}

    @property
    def racks(self) -> dict[str, tuple[InventoryHost, ...]]:
        """Rack mirror -> the nodes that pull from it."""
        result: dict[str, tuple[InventoryHost, ...]] = defaultdict(tuple)
        for node in self.nodes:
            if node.rack_registry:
                result[node.rack_registry] += (node,)
        return dict(result)

    def complaint(self, name: str, *, failed: bool) -> BadInput | None:
        """What is wrong with a host's variables; a doubtful one is why Ansible failed, where it did."""
        return self.wrong.get(name) or (self.doubtful.get(name) if failed else None)

    def refuse_no_racks(self, method: str) -> None:
        """
        Raises:
            BadInput: images are to be shipped by racks, and there is none but the control node's own.
        """
        controls = {self.control.name, *self.control.words}
        if method == "rack" and all(registry.partition(":")[0] in controls for registry in self.racks):
            raise BadInput.of("no-racks", self.path)

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


def _number(digits: str) -> int | str:
    """JSON's numbers; Python reads none of thousands of digits."""
    return int(digits) if len(digits) < 100 else digits


def registry_port(registry: str) -> int:
    return int(registry.partition(":")[2] or _HTTPS)


_asked: dict[Path, subprocess.Popen[str]] = {}  # what Ansible reads ahead


@contextmanager
def asked_ahead(path: Path) -> Iterator[None]:
    """Ansible begins to read the inventory now, while the command that needs it is still being imported: `load` takes
    the answer, once. What is wrong with it, or that Ansible isn't installed, says `load`."""
    key, process = path.absolute(), None
    if path.is_file() or path.is_dir():
        with suppress(Missing):
            process = _asked[key] = _asking(key)
    try:
        yield
    finally:
        _asked.pop(key, None)
        if process and process.poll() is None:
            _end(process)


def load(path: Path) -> Inventory:
    """Reads and checks an inventory; no node is touched.

    Raises:
        BadInput: it isn't there, can't be read, or doesn't describe a cluster.
        Missing: Ansible isn't installed.
    """
    complaints.refuse_absent(path)
    key = path.absolute()
    done = _ended_with_us(_asked.pop(key) if key in _asked else _asking(key))
    text = inventory_text.read(path)
    text.refuse_lost()
    if done.returncode:
        text.refuse_unread()
        raise complaints.start_error(done.stderr, path)
    said = ansible.warnings(done.stderr)
    if lost := next((each for each in said if _LOST.search(each)), None):
        raise BadInput.of("inventory-lost", complaints.place(lost, path), warning=lost, inventory=path)
    listed = json.loads(done.stdout, parse_int=_number)
    found = of_listing(path, listed, lambda hosts: _rendered(path, hosts), text)
    known = (*listed, *(name for group in listed for name in members(listed, group)))
    return replace(found, warnings=(*said, *text.nobodys(known)))


def refuse_doubtful(found: Inventory) -> None:
    """What is one host's finding for commands that go on without it.

    Raises:
        BadInput: the first variable with which Ansible would not get to its host.
    """
    text = inventory_text.read(found.path)
    for host in found.nodes:
        for errors in (found.wrong, found.doubtful):
            if host.name in errors:
                raise errors[host.name]
        if why := found.problems.get(host.name):
            raise BadInput.of("unread-variable", _cause(text, host, why), name=host.name, why=why)


def _cause(text: InventoryText, host: InventoryHost, why: str) -> Where:
    """The line of the variable of which Ansible speaks, or else of the host."""
    owners = (host.name, *host.groups, "all")
    own = {key: text.variable(key, host.name, host.groups) for owner, key in text.variables if owner in owners}
    words = {*re.findall(r"\w+", why)}
    undefined = re.search(r"'(\w+)' is undefined", why)
    for variable, at in own.items():
        if variable in words or (undefined and undefined[1] in inventory_text.line(at)):
            return at
    return text.of(host.name)


def _asking(path: Path) -> subprocess.Popen[str]:
    program, env = ansible.program("ansible-inventory")
    command, pipe = [program, "-i", str(path), "--list"], subprocess.PIPE
    return subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, process_group=0
    )


def _ended_with_us(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """With all that it has started: an inventory may be a program, which asks somebody who doesn't answer."""
    try:
        said, complaints = process.communicate()
    except BaseException:
        _end(process)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, said, complaints)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def of_listing(
    path: Path,
    listed: Mapping[str, Any],
    render: Callable[[Hosts], tuple[Hosts, Mapping[str, str]]],
    text: InventoryText | None = None,
) -> Inventory:
    """From what `ansible-inventory --list` says; `render` is asked where a value is a template or a secret, and says
    for which hosts there is none, and why.

    Raises:
        BadInput: it doesn't describe a cluster.
    """
    hosts: Hosts = listed.get("_meta", {}).get("hostvars", {})
    groups = {name: tuple(members(listed, name)) for name in listed if name != "_meta"}
    text = text or InventoryText(path)
    check_groups(groups, text)
    text.refuse_nobodys((*groups, *hosts))
    ours = {*groups[CONTROL], *groups[WORKERS]}
    of_host: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for group in sorted(groups):
        for name in groups[group]:
            of_host[name] += (group,)
    for name, variables in hosts.items():
        _check_names(name, variables, of_host[name], text, ours)
    values = [hosts.get(name, {}).get(key) for name in ours for key in _ASKED]
    wrong = _bad_values(ours, hosts, of_host, text, inventory_values.wrong)
    problems: Mapping[str, str] = {}
    if any(isinstance(value, Mapping) or (isinstance(value, str) and "{{" in value) for value in values):
        rendered, problems = render(hosts)
        hosts = {**hosts, **rendered}
        wrong |= _bad_values(ours, rendered, of_host, text, inventory_values.wrong)
    made = {name: _host(name, hosts.get(name, {}), of_host[name]) for name in groups.get("all", ())}
    workers = tuple(made[name] for name in groups[WORKERS])
    _check_apart(workers, text)
    doubtful = _bad_values(ours, hosts, of_host, text, inventory_values.doubtful)
    return Inventory(path, made[groups[CONTROL][0]], workers, problems, wrong, doubtful)


def _check_apart(workers: Iterable[InventoryHost], text: InventoryText) -> None:
    """Refuses two workers on one machine. Ways through jump hosts may look alike and lead elsewhere."""
    known: dict[tuple[str, ...], str] = {}
    for host in workers:
        ways = {key: str(value) for key, value in host.variables.items() if key.startswith("ansible_")}
        way = (host.host, *(ways.get(key, "") for key in _WAYS))
        if "{{" in "".join(way) or ways.get("ansible_connection", "ssh") not in ("ssh", "smart"):
            continue
        other = known.setdefault(way, host.name)
        if other != host.name:
            raise BadInput.of("one-machine", text.of(host.name), one=other, other=host.name, address=host.host)


def _check_names(
    name: str, variables: Mapping[str, Any], groups: Iterable[str], text: InventoryText, ours: Iterable[str]
) -> None:
    for variable, value in variables.items():
        # On hosts that are none of the cluster's, Ansible's variables are not our business.
        concerned = name in ours or variable.startswith("rocstack_")
        if concerned and (hint := inventory_values.misspelt(variable, value)):
            at = text.variable(variable, name, groups)
            raise BadInput.of("unknown-variable", at, variable=variable, name=name, hint=hint)


def _bad_values(
    ours: Iterable[str],
    hosts: Hosts,
    of_host: Mapping[str, tuple[str, ...]],
    text: InventoryText,
    judge: Callable[[str, Any], str | None],
) -> dict[str, BadInput]:
    """Host -> the first of its variables of which `judge` complains.

    Raises:
        BadInput: it is one by which other nodes go.
    """
    found: dict[str, BadInput] = {}
    for name in sorted(ours, key=natural_key):
        for variable, value in hosts.get(name, {}).items():
            if why := judge(variable, value):
                at = text.variable(variable, name, of_host.get(name, ()))
                shown = inventory_values.shown(variable, value)
                error = BadInput.of("bad-variable", at, variable=variable, value=shown, name=name, why=why)
                if not inventory_values.is_of_its_host(variable):
                    raise error
                found.setdefault(name, error)
    return found


def _rendered(path: Path, hosts: Hosts) -> tuple[Hosts, Mapping[str, str]]:
    """The variables that we need, as Ansible makes them, and why it can't; nothing is connected to."""
    result, problems = {}, {}
    for run in ansible.run(PLAYBOOK, path):
        own = hosts.get(run.host, {})
        values = run.results.get(TASK, {}).get("msg")
        if run.state == "ok" and isinstance(values, Mapping):
            result[run.host] = {**own, **{key: value for key, value in values.items() if value != ""}}
        else:
            if "vault secrets" in run.reason:
                raise complaints.no_vault(path)
            result[run.host] = {key: value for key, value in own.items() if key not in _ASKED}
            problems[run.host] = run.reason
    return result, problems


def _host(name: str, variables: Mapping[str, Any], groups: Iterable[str]) -> InventoryHost:
    host = str(variables.get("ansible_host") or name)
    registry = str(variables.get("rocstack_rack_registry") or "")
    return InventoryHost(
        name=name,
        address=str(variables.get("rocstack_address") or host),
        host=host,
        rack_registry=registry or None,
        groups=tuple(group for group in groups if group != "all"),
        variables=dict(variables),
    )

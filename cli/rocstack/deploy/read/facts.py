"""What a deploy knows of each node: read in one Ansible run, checked here, and a value from then on.

The shapes of the models are those that rocstack.node.deploy_facts answers with. None means "could not be read".
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SkipValidation

from rocstack.base.errors import BadInput
from rocstack.base.words import Value
from rocstack.cluster.settings import SLURMCTLD, SLURMD, SLURMDBD, SLURMRESTD
from rocstack.cluster.slurm_node import SlurmNodeConfig
from rocstack.container import host
from rocstack.deploy.nodes.answers import Answer, parse
from rocstack.deploy.read.inventory import Inventory, InventoryHost, registry_port
from rocstack.edge import ansible, ssh
from rocstack.node.deploy_facts import SCHEMA
from rocstack.node.profile import NodeProfile
from rocstack.node.recording import Recording, natural_key
from rocstack.probe import recordings
from rocstack.probe.recordings import ProbeFailure, unpacked

PLAYBOOK, TASK = "facts.yml", "Facts"
TIMEOUT_S = 60  # seconds
UNREACHED, WRONG_VARIABLES = "node-unreached", "node-variables"
VARIABLES = "variables"  # the state of a node whose variables in the inventory can't be used
OLDER_SLURMD = 6818  # where an older rocstack's listens
PORTS = {  # by role
    "control": {SLURMCTLD: "slurmctld", SLURMDBD: "slurmdbd", SLURMRESTD: "slurmrestd"},
    "worker": {SLURMD: "slurmd"},
}


def push_port(port: int) -> int:
    """Where a registry that nodes reach on `port` takes pushes, on loopback only."""
    return port + 1


class NodeEngine(Value):
    """`problem` is empty where the engine answers, else absent, denied, silent or failed, and `error` what was said.
    Sizes are bytes; `root` is where layers lie. `limits` are those of the engine's process (-1 is none), beyond which
    a container gets nothing unless `raises_limits`."""

    name: str = ""
    version: str = ""
    root: str = ""
    free_bytes: int | None = None
    driver: str = ""
    store: Literal["graph", "containerd"] = "graph"
    cgroup: int = 0
    cgroup_driver: str = ""
    cgroup_writable: bool = False
    rootless: bool = False
    memlock: int | None = None
    limits: dict[str, int] = Field(default_factory=dict)
    raises_limits: bool = True
    problem: Literal["", "absent", "denied", "silent", "failed"] = ""
    error: str = ""


class NodeContainer(Value):
    """A container of ours (it has the label io.rocstack.service). `spec` is empty where a file that it reads was
    written after its start. `status` and `health` are the engine's words."""

    name: str
    id: str
    service: str
    image: str
    spec: str
    status: str
    health: str
    restarts: int
    started: str
    pid: int
    error: str


class NodeImage(Value):
    """An image of ours (it has the label io.rocstack.role). `layers` are diff ids; `size` is bytes."""

    id: str
    names: tuple[str, ...]
    digests: tuple[str, ...]
    layers: tuple[str, ...]
    size: int
    created: str
    role: str
    content: str
    stack: str
    nic: str


class Listener(Value):
    """Who listens on a port; `service` is ours, `program` is empty where it could not be seen."""

    program: str
    service: str


class User(Value):
    uid: int
    name: str


class DeployedState(Answer):
    """/var/lib/rocstack/node.json: what the last deploy made of the node. `machines` and `keys` (fingerprints) are the
    control node's; so is `slurm`, the version it has, and `trust`, fingerprints of the keys one of which signs what is
    deployed. `cluster` and `control` name the cluster and its control node."""

    cluster: str = ""
    control: str = ""
    images: dict[str, str] = Field(default_factory=dict)
    keys: dict[str, str] = Field(default_factory=dict)
    slurm: str = ""
    machines: dict[str, SlurmNodeConfig] = Field(default_factory=dict)
    trust: tuple[str, ...] = ()


class FactsAnswer(Value):
    """The module's answer but for the recording."""

    schema_: int = Field(alias="schema")
    engine: NodeEngine
    containers: tuple[NodeContainer, ...]
    images: tuple[NodeImage, ...]
    user: User
    state: DeployedState | None
    journal: dict[str, Any] | None  # /var/lib/rocstack/deploy.json
    unfinished: bool = False  # an order was cut off: what had to follow a change may be missing
    fence: int = 0  # the largest number of the cluster's lock of which it heard
    files: dict[str, str]  # path -> sha256, below /etc/rocstack
    ports: dict[str, Listener]
    unprivileged_ports: int = 1024  # from here on any user's
    daemons: tuple[str, ...]  # of Slurm and MUNGE, outside our containers
    passwd: dict[str, str]  # uid -> name
    ids: dict[str, int]  # name -> uid
    resolve: dict[str, tuple[str, ...]]
    reach: dict[str, str]  # "10.0.0.1:297" -> "" or why not
    machine: str
    memory: int
    cpus: int
    unread: dict[str, str]
    began: float  # the node's clock, seconds since the epoch
    ended: float


class PackedAnswer(Answer):
    """rocstack_facts, as Ansible brings it. `asked` is this machine's clock when it asked, in seconds."""

    facts: str
    asked: Annotated[float, Field(strict=False, allow_inf_nan=False)] | None = None  # a text in Ansible's older ones


class NodeFacts(FactsAnswer):
    """One node. `behind` and `ahead` bound its clock minus the controller's, in seconds."""

    name: str
    recording: SkipValidation[Recording]
    profile: SkipValidation[NodeProfile]
    behind: float
    ahead: float

    def host(self) -> host.Host:
        """What `run_line` needs to know of it."""
        limits = self.engine.limits or self.profile.limits
        return host.of_node(self.recording, self.profile, limits, self.engine.raises_limits)

    def container(self, name: str) -> NodeContainer | None:
        return next((each for each in self.containers if each.name == name), None)

    @property
    def machines(self) -> dict[str, SlurmNodeConfig]:
        """The workers as the last deploy described them, where this is the control node."""
        return self.state.machines if self.state else {}


@dataclass(frozen=True)
class Gathered:
    """Sorted by node. A node is in one of both. `ssh_hosts` says how plain ssh gets to those that were reached. `words`
    are the inventory's names and addresses, and whose they are."""

    nodes: tuple[NodeFacts, ...]
    failures: tuple[ProbeFailure, ...] = ()
    ssh_hosts: Mapping[str, ssh.SshHost] = field(default_factory=dict)
    words: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def node(self, name: str) -> NodeFacts | None:
        return next((node for node in self.nodes if node.name == name), None)

    def address(self, host: InventoryHost) -> str:
        """Where the other nodes reach it: the inventory's own word, else the address by which this machine does if the
        node has it itself (and not a gateway before it), else the node's on the network of its default route. What a
        node says is its own isn't where the inventory gives it to another one: certificates and racks follow it."""
        node = self.node(host.name)
        if node is None or host.variables.get("rocstack_address"):
            return host.address
        said = {each.address.partition("/")[0]: each.netdev for each in node.profile.addresses}
        own = {each: netdev for each, netdev in said.items() if host.name in self.words.get(each, {host.name})}
        if host.host in own:
            return host.host
        routes = [route for route in node.profile.routes if route.to == "0.0.0.0/0"]
        routes.sort(key=lambda route: route.metric)
        on_default = [address for route in routes for address, netdev in own.items() if netdev == route.netdev]
        others = [address for address in own if not address.startswith("127.")]
        return next(iter([*on_default, *others]), host.host)


def code_of(failure: ProbeFailure) -> str:
    """Of the finding that a node couldn't be read."""
    return WRONG_VARIABLES if failure.state == VARIABLES else UNREACHED


def gather(
    inventory: Inventory,
    on_event: ansible.OnEvent = lambda host, state: None,
    *,
    uids: Mapping[str, int] | None = None,
    own_ports: Iterable[int] = (),
    overlay: Path | None = None,
    forks: int = ansible.FORKS,
    timeout: int = TIMEOUT_S,
) -> Gathered:
    """Reads all nodes of both roles, in one pass that changes nothing. A node that hangs with its connection open is
    given up after `timeout` seconds.

    Raises:
        BadInput, Missing, CheckFailed: as `ansible.run`.
    """
    answered_at: dict[str, float] = {}
    failed: dict[str, str] = {}  # and why: the task after it is done in any case

    def listen(name: str, task: str, state: ansible.State, said: Mapping[str, Any]) -> None:
        if task == TASK and state != "started":
            answered_at[name] = time.time()
            if state == "failed":
                failed[name] = ansible.reason(said)
            on_event(name, state)
        elif name not in answered_at:
            on_event(name, state)

    variables = questions(inventory, uids or {}, own_ports)
    nodes, failures, ssh_hosts = [], [], {}
    for run in ansible.run(PLAYBOOK, inventory.path, forks=forks, variables=variables, timeout=timeout, on_task=listen):
        try:
            problem = inventory.problems.get(run.host, "")
            variables_of = run.results.get(ssh.TASK, {}).get("msg")
            if isinstance(variables_of, Mapping):
                ssh_hosts[run.host] = ssh.resolve(run.host, variables_of)
            elif variables_of is not None:  # Ansible's own word on why it can't make them out
                problem = problem or run.reason
        except BadInput as error:
            problem = error.what
        is_failed = bool(problem) or run.state != "ok" or run.host in failed
        if complaint := inventory.complaint(run.host, failed=is_failed):
            problem = f"{complaint.where}: {complaint.what}"
        if problem:
            failures.append(ProbeFailure(run.host, VARIABLES, problem))
            continue
        if run.state != "ok" or run.host in failed:
            state = "unreachable" if run.state == "unreachable" else "failed"
            failures.append(ProbeFailure(run.host, state, failed.get(run.host, run.reason)))
            continue
        try:
            answer = parse(PackedAnswer, run.results[TASK])
            data = unpacked(answer.facts)
            nodes.append(of_dict(run.host, data, answer.asked, answered_at[run.host], overlay))
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            failures.append(ProbeFailure(run.host, "failed", f"its answer can't be read: {error}"[:200]))
    return Gathered(
        tuple(sorted(nodes, key=lambda node: natural_key(node.name))),
        tuple(sorted(failures, key=lambda failure: natural_key(failure.node))),
        ssh_hosts,
        words_of(inventory),
    )


def words_of(inventory: Inventory) -> dict[str, frozenset[str]]:
    """Each word by which the inventory names nodes -> which."""
    words: dict[str, set[str]] = defaultdict(set)
    for each in inventory.nodes:
        for word in each.words:
            words[word].add(each.name)
    return {word: frozenset(names) for word, names in words.items()}


def questions(inventory: Inventory, uids: Mapping[str, int], own_ports: Iterable[int] = ()) -> dict[str, Any]:
    """The playbook's variables: what each node is asked of the others. `uids` are those of users in our images,
    `own_ports` are those of the control node that settings name."""
    racks = [registry_port(registry) for registry in inventory.racks]
    others = {*own_ports, *racks, *map(push_port, racks)}
    control, workers = inventory.control, inventory.workers
    others_slurmd = [f"{worker.address}:{SLURMD}" for worker in workers if worker != control]
    return {
        "names": [control.name],
        "reach": {control.name: others_slurmd},
        "reach_otherwise": [f"{control.address}:{SLURMCTLD}"],
        "ports": sorted({port for ports in PORTS.values() for port in ports} | others | {OLDER_SLURMD}),
        "uids": list(uids.values()),
        "users": list(uids),
    }


def of_dict(
    name: str, data: Any, asked: float | None = None, answered_at: float | None = None, overlay: Path | None = None
) -> NodeFacts:
    """`data` as rocstack.node.deploy_facts gives it. `answered_at` is this machine's clock when it came; without it and
    `asked` the clock is taken for right.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is damaged, too large, or of another version.
    """
    recording = replace(Recording.from_dict(data["recording"]), host=name)
    answer = data["deploy"]
    if answer.get("schema") != SCHEMA:
        raise ValueError(f"facts of schema {answer.get('schema')!r:.40}, this rocstack reads {SCHEMA}")
    checked = parse(FactsAnswer, answer)
    return NodeFacts.model_construct(
        **dict(checked),
        name=name,
        recording=recording,
        profile=recordings.profiles([recording], overlay)[0],
        behind=checked.ended - (checked.ended if answered_at is None else answered_at),
        ahead=checked.began - (checked.began if asked is None else asked),
    )

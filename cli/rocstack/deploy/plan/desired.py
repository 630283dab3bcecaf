"""What every node of a cluster is to be, from its facts and the person's settings: one order a node. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rocstack.base.image_names import name_on_node
from rocstack.cluster import cgroup, hostlist, slurm_files
from rocstack.cluster.cgroup import cgroup_flags
from rocstack.cluster.settings import ClusterSettings
from rocstack.cluster.slurm_node import SlurmNodeConfig, slurm_node
from rocstack.container.environment import Environment
from rocstack.container.mount import Mount, parse_mount
from rocstack.container.run_line import RunProfile
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.node_spec import ContainerSpec, FileSpec, NodeSpec
from rocstack.deploy.plan import services, tls
from rocstack.deploy.plan.secrets import Secrets
from rocstack.deploy.read import addresses
from rocstack.deploy.read.addresses import RackRegistry
from rocstack.deploy.read.facts import Gathered, NodeFacts
from rocstack.deploy.read.inventory import Inventory
from rocstack.nic.host_libraries import host_mounts
from rocstack.node.containers import OLD

SLURM_UID = 64030
USER = "rocstack"  # of the registry
ROLES = ("worker", "control")


@dataclass(frozen=True)
class DesiredCluster:
    """`keep` are ids of images that stay on the nodes, whatever runs."""

    inventory: Inventory
    cluster: ClusterSettings
    run: RunProfile
    keys: Secrets
    images: Mapping[str, Image]  # by role
    facts: Gathered
    now: datetime
    keep: frozenset[str] = frozenset()
    gate: str = "refuse"
    overlay: Path | None = None
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False)  # of each node's run line

    @property
    def control(self) -> NodeFacts:
        facts = self.facts.node(self.inventory.control.name)
        if facts is None:
            raise LookupError("the control node has no facts")
        return facts

    @cached_property
    def control_address(self) -> str:
        configured = self.cluster.control_address
        return configured or self.address(self.inventory.control.name)

    def address(self, name: str) -> str:
        host = next(host for host in self.inventory.nodes if host.name == name)
        facts = self.facts.node(name)
        return addresses.node_address(host.variables, name, facts.profile) if facts else host.address

    @cached_property
    def machines(self) -> dict[str, SlurmNodeConfig]:
        """The workers as slurm.conf describes them. One that can't be read now, or whose engine says nothing, is as it
        was: taking it out of slurm.conf would end its jobs, and to take it for one without cgroups would take them
        from all."""
        nodes = {}
        for host in self.inventory.workers:
            facts = self.facts.node(host.name)
            if facts and not facts.engine.problem:
                nodes[host.name] = slurm_node(
                    facts.profile,
                    name=host.name,
                    address=self.address(host.name),
                    cgroup=facts.engine.cgroup or None,
                    cgroup_writable=facts.engine.cgroup_writable,
                    offer_gpus=self.cluster.gres == "auto",
                )
            elif host.name in self.before:
                nodes[host.name] = self.before[host.name]
        return nodes

    @cached_property
    def before(self) -> dict[str, SlurmNodeConfig]:
        return known_machines(self.control)

    @property
    def worker_names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.inventory.workers)

    @property
    def absent(self) -> tuple[str, ...]:
        """Workers that Slurm doesn't know yet: nothing could ever be read of them."""
        return tuple(name for name in self.worker_names if name not in self.machines)

    @property
    def plan_notes(self) -> tuple[str, ...]:
        """What the person should know whatever happens."""
        lost = cgroup.lost(self.cluster.cgroup, self.before.values(), self.machines.values())
        return (*self.slurm.notes, *([lost] if lost else []))

    @cached_property
    def slurm(self) -> slurm_files.Files:
        """
        Raises:
            BadInput: as `slurm_files.files`.
        """
        return slurm_files.files(
            self.cluster,
            slurm_files.Control(self.inventory.control.name, self.control_address),
            tuple(self.machines.values()),
            absent=self.absent,
            groups=self.groups,
            password=self.keys.database_password,
            overlay=self.overlay,
        )

    @property
    def groups(self) -> dict[str, list[str]]:
        """The inventory's groups -> workers in them."""
        names = sorted({group for host in self.inventory.workers for group in host.groups})
        return {name: [host.name for host in self.inventory.workers if name in host.groups] for name in names}

    @property
    def registry_address(self) -> str:
        return f"{self.control_address}:{self.cluster.ship.port}"

    @cached_property
    def registries(self) -> dict[str, int]:
        """The nodes that run one -> its port."""
        own = {self.inventory.control.name: self.cluster.ship.port} if self.has_registry else {}
        return {**own, **{mirror.node: mirror.port for mirror in self.mirrors if mirror.node}}

    @cached_property
    def mirrors(self) -> tuple[RackRegistry, ...]:
        """The racks' registries, where they may be used; those that are ours run, in use or not.

        Raises:
            BadInput: as `racks.mirrors`; there is none, and the person wants to ship by them.
        """
        method = self.cluster.ship.method
        if method not in ("auto", "rack"):
            return ()
        registries = addresses.rack_registries(self.inventory, self.address)
        if method == "rack" and not registries:
            raise addresses.no_racks(self.inventory.path)
        return registries

    def ship_method(self, lacking: Collection[str]) -> tuple[str, str]:
        """How the worker image gets to the nodes that lack it, and why so."""
        ship, racks_in_use = self.cluster.ship, [each for each in self.mirrors if set(each.serves) & set(lacking)]
        if ship.method != "auto":
            return ship.method, "cluster.ship.method says so"
        if racks_in_use:
            return "rack", f"the inventory names the registries of {len(racks_in_use)} of their racks"
        return "registry", f"they pull from {ship.registry or 'the registry of the control node'}"

    def node_specs(self) -> dict[str, NodeSpec]:
        """By node, for those that could be read, and whose engine answers."""
        by_name = {host.name: self.facts.node(host.name) for host in self.inventory.nodes}
        return {name: self._node_spec(name) for name, facts in by_name.items() if facts and not facts.engine.problem}

    def _node_spec(self, name: str) -> NodeSpec:
        facts, roles = self.facts.node(name), self.inventory.roles(name)
        assert facts is not None
        containers: list[ContainerSpec] = []
        files = [
            FileSpec(services.MUNGE_KEY, self.keys.munge_key, 0o400),
            FileSpec(f"{services.CLUSTER}/users", self.cluster.user_lines().encode()),
            FileSpec(f"{services.CLUSTER}/health", b"drain\n" if self.cluster.health.drain else b"say\n"),
        ]
        if "control" in roles:
            files += self._control_files()
            containers += self._control_containers()
        if "worker" in roles:
            containers.append(self._worker(name, facts))
        mirror = next((each for each in self.mirrors if each.node == name), None)
        if mirror:
            files += self._registry_files({mirror.host, self.address(name), name})
            containers.append(services.registry(self.images["control"].id, mirror.port))
        images = tuple(self.images[role] for role in (*roles, *(["control"] if mirror else [])))
        return NodeSpec(
            files=tuple(files),
            images=images,
            containers=tuple(containers),
            commands=self._commands(roles),
            remove=tuple(sorted(_ours(facts) - {container.name for container in containers})),
            keep=_kept(self.keep | {image.id for image in images} | running(facts)),
            state=self._state(name, roles),
        )

    def _control_files(self) -> list[FileSpec]:
        secret = {"slurmdbd.conf": (0o600, SLURM_UID, SLURM_UID)}
        names = {self.control_address, self.inventory.control.name}
        return [
            FileSpec(services.JWT_KEY, self.keys.jwt_key, 0o400),
            FileSpec(services.DATABASE, self.keys.database_password.encode(), 0o400),
            *(self._registry_files(names) if self.has_registry else []),
            *(
                FileSpec(f"{services.SLURM}/{name}", text.encode(), *secret.get(name, (0o644, 0, 0)))
                for name, text in self.slurm.texts.items()
            ),
        ]

    @property
    def has_registry(self) -> bool:
        """Whether the control node runs one."""
        ship = self.cluster.ship
        return not ship.registry and ship.method != "archive"

    def _registry_files(self, names: set[str]) -> list[FileSpec]:
        """`names` are those by which nodes reach it."""
        ca, ca_key, key = self.keys.registry_ca, self.keys.registry_ca_key, self.keys.registry_key
        return [
            FileSpec(services.REGISTRY, self.keys.registry_password.encode(), 0o400),
            FileSpec(f"{services.TLS}/server.pem", tls.certificate(ca, ca_key, key, names, self.now).encode()),
            FileSpec(f"{services.TLS}/server.key", key.encode(), 0o400),
        ]

    def _control_containers(self) -> list[ContainerSpec]:
        image = self.images["control"].id
        return [
            services.database(image),
            *([services.registry(image, self.cluster.ship.port)] if self.has_registry else []),
            services.controller(self.inventory.control.name, image, self._mounts()),
        ]

    def _worker(self, name: str, facts: NodeFacts) -> ContainerSpec:
        image = self.images["worker"]
        made, notes = services.worker(
            name,
            image.id,
            facts.host(),
            control=self.control_address,
            profile=self.run,
            mounts=(*self._mounts(), *host_mounts(image.facts, facts.profile)),
            cgroup=cgroup_flags(facts.engine.cgroup, self.slurm.cgroups.used and facts.engine.cgroup_writable),
            env=self._env(),
            wait_for=[path for gres in self.machines[name].gres for path in hostlist.expand(gres.files)],
        )
        self.notes[name] = notes
        return made

    def _env(self) -> Environment:
        gate = {} if self.gate == "refuse" else {"ROCSTACK_GATE": self.gate}
        return Environment(tuple(f"--env={name}={value}" for name, value in {**gate, **self.cluster.env}.items()))

    def _mounts(self) -> list[Mount]:
        return [parse_mount(text, base=Path("/")) for text in self.cluster.mounts]

    def _commands(self, roles: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """What makes running daemons take over changed files."""
        control = ((services.CONTROL, "rocstack-users"), (services.CONTROL, "scontrol", "reconfigure"))
        worker = ((services.WORKER, "rocstack-users"),)
        return (*(control if "control" in roles else ()), *(worker if "worker" in roles else ()))

    def _state(self, name: str, roles: tuple[str, ...]) -> dict[str, Any]:
        state: dict[str, Any] = {"cluster": self.cluster.name, "images": {r: self.images[r].id for r in roles}}
        if "control" in roles:
            state["keys"] = self.keys.fingerprints()
            state["slurm"] = self.images["control"].slurm
            state["machines"] = {name: asdict(each) for name, each in self.machines.items()}
        return state


def _ours(facts: NodeFacts) -> set[str]:
    """One that waits to be replaced counts with its successor."""
    return {each.name.removesuffix(OLD) for each in facts.containers if each.service}


def _kept(ids: Iterable[str]) -> tuple[str, ...]:
    """With what a deploy calls them: containerd's store has ids of its own."""
    names = {name_on_node(role, ident) for role in ROLES for ident in ids}
    return tuple(sorted({*ids, *names}))


def running(facts: NodeFacts) -> frozenset[str]:
    """Images that the node's containers are made of."""
    return frozenset(each.image for each in facts.containers)


def known_machines(control: NodeFacts | None) -> dict[str, SlurmNodeConfig]:
    """The workers as the last deploy described them."""
    return dict(control.state.machines) if control and control.state else {}

"""What every node of a cluster is to be, from its facts and the person's settings: one order a node. Pure."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rocstack.base.errors import BadInput
from rocstack.base.image_names import name_on_node
from rocstack.cluster import cgroup, slurm_files
from rocstack.cluster import service as service_settings
from rocstack.cluster.cgroup import cgroup_flags
from rocstack.cluster.oidc import TOKENS_UID
from rocstack.cluster.service import SERVICE_UID, ClusterService
from rocstack.cluster.settings import SLURMRESTD, ClusterSettings
from rocstack.cluster.slurm_node import SlurmNodeConfig, slurm_node
from rocstack.container.environment import Environment
from rocstack.container.mount import Mount
from rocstack.container.run_line import RunProfile, run_line
from rocstack.deploy.nodes.image import Image
from rocstack.deploy.nodes.node_spec import ContainerSpec, FileSpec, NodeSpec
from rocstack.deploy.plan import services, tls
from rocstack.deploy.plan.issuer_files import IssuerFiles
from rocstack.deploy.plan.secrets import Secrets
from rocstack.deploy.read.facts import Gathered, NodeFacts, push_port
from rocstack.deploy.read.inventory import Inventory, InventoryHost, RackRegistry
from rocstack.nic.host_libraries import host_mounts
from rocstack.node import hostlist
from rocstack.node.containers import OLD

SLURM_UID = 64030
USER = "rocstack"  # the account that pushes; each node has one of its own name, that pulls


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
    trust: tuple[str, ...] = ()  # fingerprints of the keys of the trust policy
    issuer: IssuerFiles = field(default_factory=IssuerFiles)  # where people sign in

    @property
    def control(self) -> NodeFacts:
        facts = self.facts.node(self.inventory.control.name)
        if facts is None:
            raise LookupError("the control node has no facts")
        return facts

    @cached_property
    def control_address(self) -> str:
        return self.cluster.control_address or self.facts.address(self.inventory.control)

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
                    address=self.facts.address(host),
                    cgroup=facts.engine.cgroup or None,
                    cgroup_writable=facts.engine.cgroup_writable,
                    offer_gpus=self.cluster.gres == "auto",
                )
            elif host.name in self.control.machines:
                nodes[host.name] = self.control.machines[host.name]
        return nodes

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
        lost = cgroup.lost(self.cluster.cgroup, self.control.machines.values(), self.machines.values())
        rehearsal = self.images["worker"].facts.rehearsal
        marked = [f"rehearsal image: {rehearsal}"] if rehearsal else []
        return (*marked, *self.slurm.notes, *([lost] if lost else []))

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
            groups=self.inventory.worker_groups,
            password=self.keys.database_password,
            slurm=self.images["control"].label("component.slurm") or "",
            pmix=bool(self.images["worker"].label("component.pmix")) or not self.images["worker"].slurm,
            overlay=self.overlay,
        )

    @property
    def has_registry(self) -> bool:
        """Whether the control node runs one."""
        ship = self.cluster.ship
        return not ship.registry and ship.method != "archive"

    @property
    def registry_address(self) -> str:
        return f"{self.control_address}:{self.cluster.ship.port}"

    @cached_property
    def registries(self) -> dict[str, int]:
        """Node -> port of the registry that it runs from the control image."""
        own = {self.inventory.control.name: self.cluster.ship.port} if self.has_registry else {}
        return own | {mirror.node: mirror.port for mirror in self.mirrors if mirror.node}

    @cached_property
    def ports(self) -> dict[str, dict[int, str]]:
        """Node -> ports that it needs beside those of its roles, and what for."""
        control, rest = self.inventory.control.name, self.cluster.rest.port
        result = {
            name: {port: "image registry", push_port(port): "pushes to the image registry"}
            for name, port in self.registries.items()
        }
        if rest:
            result.setdefault(control, {})[rest] = "slurmrestd by https"
        if self.cluster.service:
            result.setdefault(control, {})[self.cluster.service.port] = "the service by https"
        return result

    @cached_property
    def mirrors(self) -> tuple[RackRegistry, ...]:
        """The racks' registries, where they may be used; those that are ours run, in use or not.

        Raises:
            BadInput: as `Inventory.rack_registries`; there is none, and the person wants to ship by them.
        """
        method = self.cluster.ship.method
        registries = self.inventory.rack_registries(self.facts.address) if method in ("auto", "rack") else ()
        if method == "rack" and not registries:
            raise BadInput.of("no-racks", self.inventory.path)
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
        return {
            host.name: self._node_spec(host, facts)
            for host in self.inventory.nodes
            if (facts := self.facts.node(host.name)) and not facts.engine.problem
        }

    def _node_spec(self, host: InventoryHost, facts: NodeFacts) -> NodeSpec:
        keys, roles = self.keys, self.inventory.roles(host.name)
        worker, control = self.images["worker"], self.images["control"]
        mounts = self.cluster.parsed_mounts
        images = [self.images[role] for role in roles]
        files = [
            FileSpec(services.MUNGE_KEY, keys.munge_key, 0o400),
            FileSpec(f"{services.CLUSTER}/users", self.cluster.user_lines().encode()),
            FileSpec(f"{services.CLUSTER}/health", b"drain\n" if self.cluster.health.drain else b"say\n"),
        ]
        containers: list[ContainerSpec] = []
        commands: list[tuple[str, ...]] = []  # what makes running daemons take over changed files
        state: dict[str, Any] = {
            "cluster": self.cluster.name,
            "control": self.inventory.control.name,
            "images": {role: self.images[role].id for role in roles},
        }
        if "control" in roles:
            files += self._control_files()
            if self.trust or (facts.state and facts.state.trust):  # a change of it is a change of the cluster
                files.append(FileSpec(services.TRUST, "".join(f"{each}\n" for each in self.trust).encode()))
            containers.append(services.database(control.id, serves=self.cluster.service is not None))
            if self.has_registry:
                containers.append(services.registry(control.id, self.cluster.ship.port))
                commands.append(services.TAKE_ACCOUNTS)
            containers.append(services.controller(host.name, control.id, mounts, self.cluster.rest.port, facts.memory))
            commands += [(services.CONTROL, "rocstack-users"), (services.CONTROL, "scontrol", "reconfigure")]
            if self.cluster.service:
                images.append(self.images["service"])
                containers += self._service_containers(self.cluster.service, mounts)
                commands.append(self._data_folder())
                state["images"]["service"] = self.images["service"].id
            machines = {name: asdict(each) for name, each in self.machines.items()}
            state |= {"keys": keys.fingerprints(), "slurm": control.slurm, "machines": machines}
            state |= {"trust": self.trust} if self.trust else {}
        if "worker" in roles:
            files.append(FileSpec(cgroup.SECCOMP, cgroup.seccomp_profile()))
            containers.append(self._worker(host.name, worker, mounts, facts))
            commands.append((services.WORKER, "rocstack-users"))
        for mirror in self.mirrors:
            if mirror.node == host.name:
                files += registry_files(keys, host.name, self.inventory, self.mirrors)
                files += self._server_files(host.name, {mirror.host, self.facts.address(host), host.name})
                containers.append(services.registry(control.id, mirror.port))
                commands.append(services.TAKE_ACCOUNTS)
                images.append(control)
        # One that waits to be replaced counts with its successor.
        ours = {each.name.removesuffix(OLD) for each in facts.containers if each.service} & {*services.SERVICE_OF}
        kept = {*self.keep, *(image.id for image in images), *(each.image for each in facts.containers)}
        # Also by what a deploy calls them: containerd's store has ids of its own.
        kept |= {name_on_node(role, ident) for role in self.images for ident in kept}
        used = {file.path for file in files}
        return NodeSpec(
            files=tuple(files),
            images=tuple(images),
            containers=tuple(containers),
            commands=tuple(commands),
            remove=tuple(sorted(ours - {container.name for container in containers})),
            absent=tuple(path for path in services.OPTIONAL_SECRETS if path in facts.files and path not in used),
            keep=tuple(sorted(kept)),
            state=state,
        )

    def _control_files(self) -> list[FileSpec]:
        control, serves = self.inventory.control, self.has_registry or self.cluster.rest.port
        secret = {"slurmdbd.conf": (0o600, SLURM_UID, SLURM_UID)}
        return [
            FileSpec(services.JWT_KEY, self.keys.jwt_key, 0o400),
            FileSpec(services.DATABASE, self.keys.database_password.encode(), 0o400),
            *(registry_files(self.keys, control.name, self.inventory, ()) if self.has_registry else []),
            *(self._server_files(control.name, self._control_names) if serves else []),
            *(self._service_files(self.cluster.service) if self.cluster.service else []),
            *(
                FileSpec(f"{services.SLURM}/{name}", text.encode(), *secret.get(name, (0o644, 0, 0)))
                for name, text in self.slurm.texts.items()
            ),
        ]

    def _service_files(self, service: ClusterService) -> list[FileSpec]:
        """What it reads when it starts. Its TLS key is no other server's."""
        control, keys = self.inventory.control, self.keys
        data, models = service_settings.folders(service, self.cluster.parsed_mounts)
        pem, private = services.SERVICE_TLS
        said: dict[str, Any] = {
            "cluster": self.cluster.name,
            "listen": f"0.0.0.0:{service.port}",
            "data": data,
            "models": models,
            "slurmrestd": f"http://127.0.0.1:{SLURMRESTD}",
            "database": "mysql+pymysql://service@localhost/rocstack_service?unix_socket=/run/mysqld/mysqld.sock",
            "database_password": "/run/secrets/service-database",
            "certificate": pem,
            "key": private,
            "users": {
                name: {"uid": each.uid, "gid": each.gid or each.uid} for name, each in self.cluster.users.items()
            },
            "limits": service.limits.model_dump(),
        }
        if service.servers:  # an older service image refuses a key that it doesn't know
            said["servers"] = [each.model_dump() for each in service.servers]
        said |= {"otlp": service.otlp} if service.otlp else {}
        files: list[FileSpec] = []
        if service.oidc:
            secret, ca = self.issuer.secret, self.issuer.ca
            said["oidc"] = service.oidc.known.model_dump()
            said |= {"oidc_secret": services.ISSUER_SECRET} if secret else {}
            said |= {"oidc_ca": services.ISSUER_CA} if ca else {}
            files = [tokens_key(keys)]
            files += [FileSpec(services.ISSUER_SECRET, secret, 0o400, SERVICE_UID, SERVICE_UID)] if secret else []
            files += [FileSpec(services.ISSUER_CA, ca)] if ca else []
        key = tls.host_key(keys.registry_key, f"service {control.name}")
        names = {self.control_address, control.name, control.host}
        certificate = tls.certificate(keys.registry_ca, keys.registry_ca_key, key, names, self.now)
        return [
            FileSpec(services.SERVICE_SETTINGS, (json.dumps(said, indent=1) + "\n").encode()),
            FileSpec(pem, certificate.encode()),
            FileSpec(private, key.encode(), 0o400, SERVICE_UID, SERVICE_UID),
            service_database(keys),
            *files,
        ]

    def _service_containers(self, service: ClusterService, mounts: Sequence[Mount]) -> list[ContainerSpec]:
        image = self.images["service"].id
        if service.oidc is None:
            return [services.service(image, mounts)]
        ca = bool(self.issuer.ca)
        read = [*([services.ISSUER_SECRET] if self.issuer.secret else []), *([services.ISSUER_CA] if ca else [])]
        return [services.tokens(image, ca=ca), services.service(image, mounts, oidc=read)]

    def _data_folder(self) -> tuple[str, ...]:
        """Makes it before the service starts, which may not. A shared file system may refuse root: then its own
        administrator makes it, and the service says that it isn't there."""
        assert self.cluster.service is not None
        data, _ = service_settings.folders(self.cluster.service, self.cluster.parsed_mounts)
        # Users may write beside it: what one has put there, a link too, gets no other owner.
        own = f'chown --no-dereference {SERVICE_UID}:{SERVICE_UID} "$1"'
        make = f'mkdir -p "${{1%/*}}" && mkdir -m 0711 "$1" && {own} || true'
        return (services.CONTROL, "sh", "-c", make, "sh", data)

    @property
    def _control_names(self) -> set[str]:
        """By which nodes reach the control node, and clients of slurmrestd, who may stand where this machine does."""
        control = self.inventory.control
        return {self.control_address, control.name, *([control.host] if self.cluster.rest.port else [])}

    def _server_files(self, node: str, names: set[str]) -> list[FileSpec]:
        """`names` are those by which others reach this node, which may have said one itself: never the controller's."""
        control = self.inventory.control
        if node != control.name:
            names -= {self.control_address, *control.words}
        ca, ca_key, key = self.keys.registry_ca, self.keys.registry_ca_key, tls.host_key(self.keys.registry_key, node)
        pem, private = services.SERVER
        return [
            FileSpec(pem, tls.certificate(ca, ca_key, key, names, self.now).encode()),
            FileSpec(private, key.encode(), 0o400),
        ]

    def _worker(self, name: str, image: Image, mounts: Sequence[Mount], facts: NodeFacts) -> ContainerSpec:
        gate = {} if self.gate == "refuse" else {"ROCSTACK_GATE": self.gate}
        line = run_line(
            facts.host(),
            image.id,
            profile=self.run,
            mounts=(*mounts, *host_mounts(image.facts, facts.profile)),
            env=Environment(tuple(f"--env={key}={value}" for key, value in {**gate, **self.cluster.env}.items())),
            stays=True,
        )
        engine = facts.engine
        allowed = self.slurm.cgroups.used and engine.cgroup_writable
        cgroup = cgroup_flags(name, engine.cgroup, allowed, engine=engine.name, driver=engine.cgroup_driver)
        devices = " ".join(path for gres in self.machines[name].gres for path in hostlist.expand(gres.files))
        return services.worker(name, image.id, line.flags, self.control_address, cgroup, devices)


def tokens_key(keys: Secrets) -> FileSpec:
    """Slurm's JWT key, for who makes tokens."""
    return FileSpec(services.TOKENS_JWT, keys.jwt_key, 0o400, TOKENS_UID, SERVICE_UID)


def service_database(keys: Secrets) -> FileSpec:
    """The password of the service's account at the database."""
    return FileSpec(services.SERVICE_DATABASE, keys.service_database_password.encode(), 0o400, SERVICE_UID, SERVICE_UID)


def registry_files(keys: Secrets, node: str, inventory: Inventory, racks: Iterable[RackRegistry]) -> list[FileSpec]:
    """Passwords of the accounts at the registry that `node` runs. All nodes may pull from the control node's; from a
    rack's, those of the rack and the racks' registries, which copy from one another."""
    if node == inventory.control.name:
        push, names = keys.registry_password, {host.name for host in inventory.nodes}
    else:
        ours = [each for each in racks if each.node]
        push, names = keys.rack_password(node), {str(each.node) for each in ours}
        names |= {name for each in ours if each.node == node for name in each.serves}
    pulls = "".join(f"{name}:{keys.pull_password(name, node)}\n" for name in sorted(names))
    return [
        FileSpec(services.REGISTRY, push.encode(), 0o400),
        FileSpec(services.REGISTRY_PULL, pulls.encode(), 0o400),
    ]

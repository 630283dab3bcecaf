"""`local up` and `down` at the engine: one network and one container a node, all found again by their label."""

from __future__ import annotations

import fcntl
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import docker
import docker.errors
from docker.types import IPAMConfig, IPAMPool

from rocstack.errors import CheckFailed
from rocstack.virtual import access, cluster, tree
from rocstack.virtual.access import Host
from rocstack.virtual.cluster import Wish
from rocstack.virtual.machine import Machine
from rocstack.virtual.nodeimage import LABEL as IMAGE_LABEL

LABEL = "io.rocstack.local"  # the cluster's id, on all that belongs to it
PATIENCE = 30.0  # seconds until a node must let us in
_OURS = (access.KEY, f"{access.KEY}.pub", access.KNOWN, access.CONFIG, access.INVENTORY)
_FOLDERS = ("nodes", "image")
Say = Callable[[str], None]


@dataclass(frozen=True)
class NodeState:
    """One virtual node as it is."""

    name: str
    address: str
    model: str
    state: str  # running, exited ... as the engine says
    reachable: bool
    gpus: int
    nics: int
    faults: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"virtual": True, **asdict(self)}


@dataclass
class Local:
    """The virtual cluster of one folder."""

    client: docker.DockerClient
    folder: Path
    prefix: str
    say: Say = lambda text: None
    _stop: threading.Event = field(default_factory=threading.Event)  # nobody waits for answers any more

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.id = cluster.cluster_id(self.folder)

    def up(self, wish: Wish, image: str) -> list[NodeState]:
        """Makes the cluster what is wished: what fits stays, the rest is changed, added or removed.

        Raises:
            CheckFailed: no free network, or a node that does not let us in.
        """
        with self._alone():
            keys = access.make_key(self.folder / access.KEY, "rocstack virtual cluster")
            network = self._network(wish)
            machines = wish.machines(IPv4Network(network.attrs["IPAM"]["Config"][0]["Subnet"]))
            image_id = str(self.client.images.get(image).id)
            wanted = {}
            for machine in machines:
                host_key = access.make_key(self._node(machine.host) / access.HOST_KEY, f"virtual node {machine.host}")
                wanted[machine.host] = cluster.digest(machine, image_id, keys + host_key)
            kept = self._keep(wanted)
            self._write(wish, machines, keys)
            missing = [machine for machine in machines if machine.host not in kept]
            stay = f"{len(kept)} stay as they are" if kept else ""
            make = f"{len(missing)} to make" if missing else ""
            self.say(f"virtual nodes: {', '.join(filter(None, (make, stay)))}")
            _each(lambda m: self._make(m, image, network.name, wanted[m.host]), missing)
            hosts = [_host(machine) for machine in machines]
            let_in = _each(lambda host: access.answers(self.folder, host, PATIENCE, self._stop), hosts, self._stop)
            for host, yes in zip(hosts, let_in, strict=True):
                if not yes:
                    raise self._silent(host)
            return [self._state(container, True) for container in self._containers().values()]

    def down(self) -> dict[str, int]:
        """Removes the cluster: containers, network, keys and files; says how many of what."""
        with self._alone():
            containers = self._containers()
            _each(lambda container: _remove(container), list(containers.values()))
            networks = self.client.networks.list(filters={"label": f"{LABEL}={self.id}"})
            for network in networks:
                network.remove()
            files = [path for path in (self.folder / name for name in (*_OURS, *_FOLDERS)) if path.exists()]
            for path in files:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        (self.folder / ".lock").unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()
        return {"nodes": len(containers), "networks": len(networks), "files": len(files)}

    def remove_images(self) -> int:
        """Removes the images of virtual nodes that no container uses."""
        count = 0
        for image in self.client.images.list(filters={"label": IMAGE_LABEL}):
            for tag in image.tags:
                if tag.startswith(f"{self.prefix}/node:"):
                    try:
                        self.client.images.remove(tag)
                    except docker.errors.APIError:  # in use by another cluster
                        continue
                    count += 1
        return count

    def status(self) -> list[NodeState]:
        found = self._containers()
        hosts = [Host(name, _label(found[name], "address")) for name in found]

        def reachable(host: Host) -> bool:
            return found[host.name].status == "running" and access.answers(self.folder, host, 0, self._stop)

        return [self._state(found[h.name], yes) for h, yes in zip(hosts, _each(reachable, hosts), strict=True)]

    def _state(self, container: Any, reachable: bool) -> NodeState:
        return NodeState(
            name=_label(container, "node"),
            address=_label(container, "address"),
            model=_label(container, "model"),
            state=container.status,
            reachable=reachable,
            gpus=int(_label(container, "gpus")),
            nics=int(_label(container, "nics")),
            faults=tuple(_label(container, "faults").splitlines()),
        )

    def _containers(self) -> dict[str, Any]:
        """Node name -> container, in the nodes' order."""
        found = self.client.containers.list(all=True, filters={"label": f"{LABEL}={self.id}"}, ignore_removed=True)
        named = {_label(container, "node"): container for container in found}
        return {name: named[name] for name in sorted(named, key=lambda name: int(name[1:]))}

    def _node(self, name: str) -> Path:
        return self.folder / "nodes" / name

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One command at a time in a folder; the second waits."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say(f"another command changes the virtual cluster in {self.folder}; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _network(self, wish: Wish) -> Any:
        """This cluster's network; a new one takes the first free subnet that the engine accepts."""
        found = self.client.networks.list(filters={"label": f"{LABEL}={self.id}"})
        if found:
            return found[0]
        everybody = [network.attrs["IPAM"]["Config"] or [] for network in self.client.networks.list()]
        taken = [IPv4Network(pool["Subnet"]) for pools in everybody for pool in pools if "." in pool.get("Subnet", "")]
        taken += cluster.routes(Path("/proc/net/route").read_text()) + wish.networks()
        refused = ""
        for subnet in cluster.free_networks(taken, self.id)[:8]:
            pool = IPAMPool(subnet=str(subnet), gateway=str(subnet.network_address + 1))
            try:
                made = self.client.networks.create(
                    cluster.name(self.prefix, self.id),
                    driver="bridge",
                    ipam=IPAMConfig(pool_configs=[pool]),
                    labels={LABEL: self.id},
                )
            except docker.errors.APIError as error:
                refused = str(error.explanation or error)
                if "overlap" not in refused:  # another cluster was quicker; anything else won't change
                    break
                continue
            made.reload()
            return made
        raise CheckFailed(
            f"the engine makes no network for virtual nodes: {refused}",
            code="no-subnet",
            next_step="`docker network ls` shows what is there; remove those that are not in use",
        )

    def _keep(self, wanted: dict[str, str]) -> set[str]:
        """Containers that are as wished stay (and run again where they had stopped); the others go."""
        kept: set[str] = set()
        stale = []
        for name, container in self._containers().items():
            fits = _label(container, "digest") == wanted.get(name)
            if fits and (self._node(name) / "sys/devices/virtual/rocstack/model").exists():
                kept.add(name)
                if container.status != "running":
                    container.start()
            else:
                stale.append((name, container))
        _each(lambda item: _remove(item[1]), stale)
        for name, _ in stale:
            shutil.rmtree(self._node(name) / "sys", ignore_errors=True)
            if name not in wanted:
                shutil.rmtree(self._node(name), ignore_errors=True)
        return kept

    def _write(self, wish: Wish, machines: list[Machine], keys: str) -> None:
        hosts = [_host(machine) for machine in machines]
        public = [(h, (self._node(h.name) / f"{access.HOST_KEY}.pub").read_text()) for h in hosts]
        (self.folder / access.KNOWN).write_text(access.known_hosts(public))
        (self.folder / access.CONFIG).write_text(access.ssh_config(self.folder, hosts))
        (self.folder / access.INVENTORY).write_text(access.inventory(self.folder, hosts, wish.model.name))
        for host in hosts:
            (self._node(host.name) / "authorized_keys").write_text(keys + "\n")

    def _make(self, machine: Machine, image: str, network: str, digest: str) -> None:
        """Writes the node's tree and starts its container."""
        home, own = self._node(machine.host), _host(machine)
        shutil.rmtree(home / "sys", ignore_errors=True)
        tree.record(machine, live=True).write_tree(home / "sys")
        cpus = "/sys/devices/system/cpu"  # programs run on the real ones
        says = {
            "node": machine.host,
            "address": own.address,
            "model": machine.model.name,
            "digest": digest,
            "gpus": str(len(machine.gpus)),
            "nics": str(sum(port.spec.nic is not None and not port.spec.management for port in machine.ports)),
            "faults": "\n".join(machine.faults),
        }
        container = self.client.containers.create(
            image,
            name=cluster.name(self.prefix, self.id, machine.host),
            hostname=machine.host,
            labels={LABEL: self.id, **{f"{LABEL}.{key}": value for key, value in says.items()}},
            network=network,
            networking_config={
                network: self.client.api.create_endpoint_config(ipv4_address=own.address, aliases=[machine.host])
            },
            volumes={
                str(home / "sys"): {"bind": "/sys", "mode": "ro"},
                cpus: {"bind": cpus, "mode": "ro"},
                str(home): {"bind": "/run/rocstack/node", "mode": "ro"},
            },
            cap_add=["NET_ADMIN"],  # the network device gets the model's name
            init=True,
        )
        container.start()

    def _silent(self, host: Host) -> CheckFailed:
        container = self._containers().get(host.name)
        log = container.logs(tail=3).decode("utf-8", "replace").strip() if container else "it is gone"
        return CheckFailed(
            f"virtual node {host.name} ({host.address}) does not answer over ssh within {PATIENCE:.0f} s",
            code="node-silent",
            cause=f"its last words: {log}" if log else None,
            next_step="`rocstack local status` shows all nodes; `rocstack local down`, then up, makes them anew",
        )


def _host(machine: Machine) -> Host:
    own = next(port.address for port in machine.ports if port.spec.management and port.address)
    return Host(machine.host, str(own.ip))


def _label(container: Any, key: str) -> str:
    return str(container.labels.get(f"{LABEL}.{key}", ""))


def _remove(container: Any) -> None:
    with suppress(docker.errors.NotFound):  # somebody was quicker
        container.remove(force=True, v=True)


def _each(work: Callable[[Any], Any], items: list[Any], stop: threading.Event | None = None) -> list[Any]:
    """In parallel. An error, or Ctrl-C, is raised when what has begun is finished: nothing is half made."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        jobs = [pool.submit(work, item) for item in items]
        try:
            return [job.result() for job in jobs]
        except BaseException:
            if stop:
                stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise

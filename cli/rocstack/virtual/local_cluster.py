"""`local up` and `down` at the engine: a network, a container and a volume a node, all found again by their label."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import docker
import docker.errors
from docker.types import IPAMConfig, IPAMPool

from rocstack.base.errors import BadInput, CheckFailed, Missing, hinted
from rocstack.edge import locks
from rocstack.virtual import access, cluster_layout, node
from rocstack.virtual.cluster_layout import LABEL, ClusterRequest
from rocstack.virtual.machine import Machine
from rocstack.virtual.node import NodeState
from rocstack.virtual.node_image import LABEL as IMAGE_LABEL

TIMEOUT_S = 60.0  # until a node must let us in and its engine answer
_KEYS = "rocstack-secrets.yml"  # of what was deployed there: without the nodes' disks they open nothing
_OURS = (access.KEY, f"{access.KEY}.pub", access.KNOWN, access.CONFIG, access.INVENTORY, _KEYS, "nodes", "image")


@dataclass
class LocalCluster:
    """The virtual cluster of one folder."""

    client: docker.DockerClient
    folder: Path
    prefix: str
    say: Callable[[str], None] = lambda text: None
    _stop: threading.Event = field(default_factory=threading.Event)  # nobody waits for answers any more

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.id = cluster_layout.cluster_id(self.folder)

    def up(self, wish: ClusterRequest, image: str) -> list[NodeState]:
        """Makes the cluster what is wished: what fits stays, the rest is changed, added or removed.

        Raises:
            CheckFailed: no free network, no privileged containers, or a node that does not answer.
        """
        with self._lock():
            keys = self._login()
            network = self._network(wish)
            machines = wish.machines(_subnet(network))
            image_id = str(self.client.images.get(image).id)
            wanted = {}
            for machine in machines:
                host_key = access.make_key(self._node(machine.host) / access.HOST_KEY, f"virtual node {machine.host}")
                wanted[machine.host] = cluster_layout.digest(machine, image_id, keys + host_key)
            kept = self._keep(wanted, _subnet(network))
            self._write(wish, machines, keys)
            missing = [machine for machine in machines if machine.host not in kept]
            stay = f"{len(kept)} stay as they are" if kept else ""
            make = f"{len(missing)} to make" if missing else ""
            self.say(f"virtual nodes: {', '.join(filter(None, (make, stay)))}")
            start = partial(node.make, self.client, image=image, network=network.name, cluster=self.id)
            _each(lambda m: start(m, self._node(m.host), digest=wanted[m.host]), missing)
            return self._answering(list(self._containers().values()))

    def _login(self) -> str:
        """The public key that lets us in. Keys that lie here while the engine has nothing of this cluster came with a
        copied folder: whoever made it has them, too, and would be root on nodes, which are privileged."""
        if not self._networks():
            (self.folder / access.KEY).unlink(missing_ok=True)
            shutil.rmtree(self._node(""), ignore_errors=True)
        return access.make_key(self.folder / access.KEY, "rocstack virtual cluster")

    def reboot(self, name: str) -> NodeState:
        """Restarts a node as a server would: its containers are asked to end, and its engine brings them back.

        Raises:
            BadInput: no such node.
            CheckFailed: it does not come back.
        """
        with self._lock():
            self._one(name).restart(timeout=node.GRACE)
            return self._answering([self._one(name)])[0]

    def cut(self, name: str) -> None:
        """Takes a node off the network until `heal`, a reboot or the next `up`."""
        with self._lock():
            node.cut(self._one(name))

    def heal(self, name: str) -> NodeState:
        with self._lock():
            node.heal(self._one(name), _subnet(self._networks()[0]))
            return self._answering([self._one(name)])[0]

    def down(self) -> dict[str, int]:
        """Removes the cluster: containers, their disks, network, keys and files; says how many of what."""
        with self._lock():
            containers = self._containers()
            _each(node.remove, list(containers.values()))
            disks = self.client.volumes.list(filters={"label": f"{LABEL}={self.id}"})
            _each(lambda disk: disk.remove(), disks)
            networks = self._networks()
            for network in networks:
                network.remove()
            files = [path for path in (self.folder / name for name in _OURS) if path.exists()]
            for path in files:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        (self.folder / ".lock").unlink(missing_ok=True)
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()
        return {"nodes": len(containers), "disks": len(disks), "networks": len(networks), "files": len(files)}

    def remove_images(self) -> int:
        """Removes the images of virtual nodes that no container uses."""
        count = 0
        for image in self.client.images.list(filters={"label": IMAGE_LABEL}):
            for tag in image.tags:
                if tag.startswith(f"{self.prefix}/node:"):
                    with suppress(docker.errors.APIError):  # in use by another cluster
                        self.client.images.remove(tag)
                        count += 1
        return count

    def status(self) -> list[NodeState]:
        return _each(lambda nodes: self._ask(nodes, 0), list(self._containers().values()))

    def _ask(self, container: Any, seconds: float) -> NodeState:
        said = None
        if container.status == "running":
            said = access.engine_version(self.folder, node.label(container, "node"), seconds, self._stop)
        return node.state(container, said)

    def _answering(self, containers: list[Any]) -> list[NodeState]:
        """Waits until all answer.

        Raises:
            CheckFailed: one doesn't.
        """
        states: list[NodeState] = _each(lambda answers: self._ask(answers, TIMEOUT_S), containers, self._stop)
        for state in states:
            if not state.well:
                container = self._containers().get(state.name)
                log = container.logs(tail=3).decode("utf-8", "replace").strip() if container else "it is gone"
                what = "its engine does not answer" if state.reachable else "does not answer over ssh"
                end = f"its log ends with: {log}" if log else None
                who = f"{state.name} ({state.address})"
                raise CheckFailed.of("node-silent", node=who, what=what, seconds=TIMEOUT_S, end=end)
        return states

    def _one(self, name: str) -> Any:
        container = self._containers()
        if not container:
            raise self.nothing()
        if name not in container:
            raise BadInput.of("unknown-node", name=name, hint=hinted(name, container))
        return container[name]

    def nothing(self) -> Missing:
        return Missing.of("no-cluster", folder=self.folder)

    def _networks(self) -> list[Any]:
        return list(self.client.networks.list(filters={"label": f"{LABEL}={self.id}"}))

    def _containers(self) -> dict[str, Any]:
        """Node name -> container, in the nodes' order."""
        containers = self.client.containers.list(all=True, filters={"label": f"{LABEL}={self.id}"}, ignore_removed=True)
        named = {node.label(container, "node"): container for container in containers}
        return {name: named[name] for name in sorted(named, key=lambda name: int(name[1:]))}

    def _node(self, name: str) -> Path:
        return self.folder / "nodes" / name

    def _lock(self) -> AbstractContextManager[None]:
        """One command at a time in a folder; the second waits."""
        waits = f"another command changes the virtual cluster in {self.folder}; waiting for it"
        return locks.file_lock(self.folder / ".lock", lambda: self.say(waits))

    def _network(self, wish: ClusterRequest) -> Any:
        """This cluster's network; a new one takes the first free subnet that the engine accepts."""
        found = self._networks()
        if found:
            return found[0]
        everybody = [network.attrs["IPAM"]["Config"] or [] for network in self.client.networks.list()]
        taken = [IPv4Network(pool["Subnet"]) for pools in everybody for pool in pools if "." in pool.get("Subnet", "")]
        taken += cluster_layout.routes(Path("/proc/net/route").read_text())
        taken += [IPv4Network(nics.network) for nics in wish.model.nics if nics.network]
        refused = ""
        for subnet in cluster_layout.free_networks(taken, self.id)[:8]:
            ipam = IPAMConfig(pool_configs=[IPAMPool(subnet=str(subnet), gateway=str(subnet.network_address + 1))])
            name = cluster_layout.name(self.prefix, self.id)
            try:
                made = self.client.networks.create(name, driver="bridge", ipam=ipam, labels={LABEL: self.id})
            except docker.errors.APIError as error:
                refused = str(error.explanation or error)
                if "overlap" not in refused:  # another cluster was quicker; anything else won't change
                    break
                continue
            made.reload()
            return made
        raise CheckFailed.of("no-subnet", refused=refused)

    def _keep(self, wanted: dict[str, str], network: IPv4Network) -> set[str]:
        """Containers that are as wished stay (and run again where they had stopped); the others go."""
        kept: set[str] = set()
        stale = []
        for name, container in self._containers().items():
            fits = node.label(container, "digest") == wanted.get(name)
            if fits and (self._node(name) / "sys/devices/virtual/rocstack/model").exists():
                kept.add(name)
                node.wake(container, network)
            else:
                stale.append((name, container))
        _each(lambda item: node.remove(item[1]), stale)
        for name, _ in stale:
            shutil.rmtree(self._node(name) / "sys", ignore_errors=True)
            if name not in wanted:
                shutil.rmtree(self._node(name), ignore_errors=True)
        return kept

    def _write(self, wish: ClusterRequest, machines: list[Machine], keys: str) -> None:
        hosts = {machine.host: machine.address for machine in machines}
        public = {own: (self._node(name) / f"{access.HOST_KEY}.pub").read_text() for name, own in hosts.items()}
        (self.folder / access.KNOWN).write_text(access.known_hosts(public))
        (self.folder / access.CONFIG).write_text(access.ssh_config(self.folder, hosts))
        (self.folder / access.INVENTORY).write_text(access.inventory(self.folder, hosts, wish.model.name))
        for name in hosts:
            (self._node(name) / "authorized_keys").write_text(keys + "\n")


def _subnet(network: Any) -> IPv4Network:
    return IPv4Network(network.attrs["IPAM"]["Config"][0]["Subnet"])


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

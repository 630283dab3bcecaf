"""One virtual node at the engine: a container that boots like a server, and the volume that is its disk."""

import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import docker
import docker.errors

from rocstack.base.errors import CheckFailed
from rocstack.virtual import tree
from rocstack.virtual.cluster_layout import LABEL
from rocstack.virtual.machine import Machine

GRACE = 40  # seconds for a node to go down: its engine gives its containers 15
_NETDEV = "/sys/devices/virtual/rocstack/netdev"


@dataclass(frozen=True)
class NodeState:
    """One virtual node as it is."""

    name: str
    address: str
    model: str
    state: str  # running, exited ... as the engine says
    reachable: bool
    engine: str  # version of the node's own engine, "" where it doesn't answer
    gpus: int
    nics: int
    faults: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        return self.reachable and bool(self.engine)

    def to_dict(self) -> dict[str, Any]:
        return {"virtual": True, **asdict(self)}


def state(container: Any, version: str | None) -> NodeState:
    """`version`: the node's own answer, see `access.engine_version`."""
    return NodeState(
        name=label(container, "node"),
        address=label(container, "address"),
        model=label(container, "model"),
        state=container.status,
        reachable=version is not None,
        engine=version or "",
        gpus=int(label(container, "gpus")),
        nics=int(label(container, "nics")),
        faults=tuple(label(container, "faults").splitlines()),
    )


def label(container: Any, key: str) -> str:
    return str(container.labels.get(f"{LABEL}.{key}", ""))


def make(
    client: docker.DockerClient, machine: Machine, home: Path, image: str, network: str, cluster: str, digest: str
) -> None:
    """Writes the node's tree below `home` and starts its container, named as its network with the node's name behind.

    Raises:
        CheckFailed: the engine allows no privileged container.
    """
    shutil.rmtree(home / "sys", ignore_errors=True)
    tree.record(machine, live=True).write_tree(home / "sys")
    name, mine = f"{network}-{machine.host}", {LABEL: cluster, f"{LABEL}.node": machine.host}
    cpus = "/sys/devices/system/cpu"  # programs run on the real ones
    labels = {
        "address": machine.address,
        "model": machine.model.name,
        "digest": digest,
        "gpus": str(len(machine.gpus)),
        "nics": str(sum(port.carries_data for port in machine.ports)),
        "faults": "\n".join(machine.faults),
    }
    endpoint = client.api.create_endpoint_config(ipv4_address=machine.address, aliases=[machine.host])
    client.volumes.create(name, labels=mine)  # the same again where it is there
    try:
        client.containers.create(
            image,
            name=name,
            hostname=machine.host,
            labels={**mine, **{f"{LABEL}.{key}": value for key, value in labels.items()}},
            network=network,
            networking_config={network: endpoint},
            volumes={
                str(home / "sys"): {"bind": "/sys", "mode": "ro"},
                cpus: {"bind": cpus, "mode": "ro"},
                str(home): {"bind": "/run/rocstack/node", "mode": "ro"},
                name: {"bind": "/disk", "mode": "rw"},
            },
            tmpfs={"/run": ""},  # empty after a reboot
            privileged=True,  # the node runs an engine of its own
            sysctls={"net.ipv4.ip_unprivileged_port_start": "1024"},  # a kernel's default; an engine lowers it
            userns_mode="host",
            cgroupns="private",
            shm_size=client.info()["MemTotal"] // 2,  # a kernel's default for /dev/shm
            init=True,
        ).start()
    except docker.errors.APIError as error:
        complaint = str(error.explanation or error)
        if error.status_code != 403 and "privileg" not in complaint:
            raise
        raise CheckFailed.of("no-privileged", node=machine.host, complaint=complaint) from None


def remove(container: Any) -> None:
    """The container; its disk stays."""
    with suppress(docker.errors.NotFound):  # somebody was quicker
        container.remove(force=True, v=True)


def wake(container: Any, network: IPv4Network) -> None:
    """Runs again, with its network, whatever was done to it."""
    if container.status == "running":
        heal(container, network)
    elif container.status == "paused":
        container.unpause()
        container.reload()
        heal(container, network)
    else:
        container.start()


def cut(container: Any) -> None:
    """Takes the node's network down, as a pulled cable does."""
    _inside(container, f"ip link set $(cat {_NETDEV}) down")


def heal(container: Any, network: IPv4Network) -> None:
    """The network as it was at the start, however it is now. One that still boots has it before long."""
    up = f"ip link set $dev up && ip route replace default via {network.network_address + 1}"
    _inside(container, f"dev=$(cat {_NETDEV}); [ ! -e /proc/sys/net/ipv4/conf/$dev ] || {{ {up}; }}")


def _inside(container: Any, script: str) -> None:
    """
    Raises:
        CheckFailed: the node does not run, or the script said no.
    """
    output = f"it is {container.status}"
    if container.status == "running":
        done = container.exec_run(["sh", "-c", script])
        if not done.exit_code:
            return
        output = done.output.decode("utf-8", "replace").strip()
    raise CheckFailed.of("node-refuses", node=label(container, "node"), output=output)

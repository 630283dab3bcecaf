"""The containers of a cluster: registry, database and controller of the control node, the worker of every node."""

from collections.abc import Iterable

from rocstack.container.mount import Mount
from rocstack.deploy.nodes.node_spec import ContainerSpec
from rocstack.deploy.read.facts import SLURMCTLD, SLURMRESTD

KEYS = "/etc/rocstack/keys"
MUNGE_KEY, JWT_KEY, DATABASE, REGISTRY = (f"{KEYS}/{name}" for name in ("munge.key", "jwt.key", "database", "registry"))
SLURM = "/etc/rocstack/slurm"
TLS = "/etc/rocstack/registry"
CLUSTER = "/etc/rocstack/cluster"  # who the users are
WORKER, CONTROL, DB, STORE = "rocstack-worker", "rocstack-control", "rocstack-db", "rocstack-registry"
SERVICES = {"worker": WORKER, "controller": CONTROL, "db": DB, "registry": STORE}
SERVICE_OF = {name: service for service, name in SERVICES.items()}
CONTAINERS = {"control": (DB, STORE, CONTROL), "worker": (WORKER,)}  # of a role
VOLUMES = ("rocstack-registry", "rocstack-db", "rocstack-db-run", "rocstack-slurm")  # the cluster's data
_STOP = "--stop-timeout=60"  # seconds to write down what it knows
_SOCKET = "--volume=rocstack-db-run:/run/mysqld"  # the database has no port


def registry(image: str, port: int) -> ContainerSpec:
    args = (
        "--network=host",
        "--env=ROCSTACK_SERVICE=registry",
        f"--env=ROCSTACK_REGISTRY_LISTEN=0.0.0.0:{port}",
        "--volume=rocstack-registry:/var/lib/registry",
        f"--volume={TLS}:{TLS}:ro",
        f"--volume={REGISTRY}:/run/secrets/registry:ro",
    )
    return ContainerSpec(STORE, "registry", image, args, reads=(f"{TLS}/server.pem", f"{TLS}/server.key", REGISTRY))


def database(image: str) -> ContainerSpec:
    args = (
        "--network=none",
        "--env=ROCSTACK_SERVICE=db",
        _STOP,
        "--volume=rocstack-db:/var/lib/mysql",
        _SOCKET,
        f"--volume={DATABASE}:/run/secrets/database:ro",
    )
    return ContainerSpec(DB, "db", image, args, reads=(DATABASE,))


def controller(name: str, image: str, mounts: Iterable[Mount]) -> ContainerSpec:
    """`name` is the control node's: what SlurmctldHost says."""
    args = (
        "--network=host",
        f"--hostname={name}",
        "--env=ROCSTACK_SERVICE=controller",
        _STOP,
        f"--env=ROCSTACK_RESTD=0.0.0.0:{SLURMRESTD}",
        "--volume=rocstack-slurm:/var/lib/slurm",
        _SOCKET,
        f"--volume={SLURM}:/etc/slurm:ro",
        f"--volume={CLUSTER}:/run/rocstack/cluster:ro",
        f"--volume={MUNGE_KEY}:/run/secrets/munge.key:ro",
        f"--volume={JWT_KEY}:/run/secrets/jwt.key:ro",
        *(f"--volume={mount}" for mount in mounts),
    )
    converts = 900  # seconds: a newer slurmdbd converts its database first
    return ContainerSpec(CONTROL, "controller", image, args, reads=(MUNGE_KEY, JWT_KEY), healthy_within=converts)


def worker(
    name: str, image: str, run: Iterable[str], control: str, cgroup: Iterable[str], wait_for: str
) -> ContainerSpec:
    """The worker of node `name`.

    Args:
        run: flags that `rocstack run` would start it with.
        control: the controller's address.
        cgroup: flags by which slurmd may use cgroups there.
        wait_for: device nodes without which slurmd can't start.
    """
    args = (
        *run,
        f"--hostname={name}",
        f"--env=ROCSTACK_CONTROLLER={control}:{SLURMCTLD}",
        *([f"--env=ROCSTACK_WAIT_FOR={wait_for}"] if wait_for else []),
        "--volume=/sys:/sys:ro",  # what the gate and Slurm's GPU plugin read is the node's own
        f"--volume={CLUSTER}:/run/rocstack/cluster:ro",
        f"--volume={MUNGE_KEY}:/run/secrets/munge.key:ro",
        *cgroup,
    )
    return ContainerSpec(WORKER, "worker", image, args, reads=(MUNGE_KEY,))

"""The containers of a cluster: registry, database, controller and service of the control node, the worker of every
node."""

from collections.abc import Iterable, Sequence

from rocstack.cluster.cgroup import SECCOMP
from rocstack.cluster.oidc import JWT_KEY as MAKERS_KEY
from rocstack.cluster.oidc import SOCKETS, TOKENS_UID
from rocstack.cluster.service import SERVICE_UID
from rocstack.cluster.settings import SLURMCTLD, SLURMRESTD
from rocstack.container import privileges
from rocstack.container.mount import Mount
from rocstack.deploy.nodes.node_spec import ContainerSpec
from rocstack.deploy.read.facts import push_port
from rocstack.node import containers

KEYS = "/etc/rocstack/keys"
MUNGE_KEY, JWT_KEY, DATABASE = (f"{KEYS}/{name}" for name in ("munge.key", "jwt.key", "database"))
REGISTRY = f"{KEYS}/registry"  # the password of the account that pushes
SLURM = "/etc/rocstack/slurm"
DBD_CONF = f"{SLURM}/slurmdbd.conf"  # with the database's password
TLS = "/etc/rocstack/registry"
SERVER = (f"{TLS}/server.pem", f"{TLS}/server.key")
PULLS = "/etc/rocstack/pulls"  # a folder, since a mounted file stays the one that it was
REGISTRY_PULL = f"{PULLS}/accounts"  # those of the nodes
OLDER_PULL = f"{KEYS}/registry-pull"  # of an older version: one account for all
CLUSTER = "/etc/rocstack/cluster"  # who the users are
TRUST = "/etc/rocstack/trust"  # whose images the cluster takes
SERVICE = "/etc/rocstack/service"
SERVICE_SETTINGS, SERVICE_DATABASE = f"{SERVICE}/service.json", f"{KEYS}/service-database"
SERVICE_TLS = (f"{SERVICE}/server.pem", f"{SERVICE}/server.key")
ISSUER_CA, ISSUER_SECRET = f"{SERVICE}/issuer-ca.pem", f"{SERVICE}/oidc-secret"
TOKENS_JWT = f"{KEYS}/tokens-jwt.key"  # the JWT key once more, for its own user
# Secrets that some nodes have, and those of older versions: where nothing uses one any more, it goes.
OPTIONAL_SECRETS = (
    *(JWT_KEY, DATABASE, DBD_CONF, REGISTRY, REGISTRY_PULL, OLDER_PULL, SERVER[1]),
    *(SERVICE_DATABASE, SERVICE_TLS[1], ISSUER_SECRET, ISSUER_CA, TOKENS_JWT),
)
WORKER, CONTROL = containers.WORKER, containers.CONTROLLER
DB, STORE = "rocstack-db", "rocstack-registry"
API, TOKENS = "rocstack-service", "rocstack-tokens"
SERVICES = {"worker": WORKER, "controller": CONTROL, "db": DB, "registry": STORE, "service": API, "tokens": TOKENS}
SERVICE_OF = {name: service for service, name in SERVICES.items()}
CONTAINERS = {"control": (TOKENS, API, DB, STORE, CONTROL), "worker": (WORKER,)}  # of a role
TAKE_ACCOUNTS = (STORE, "rocstack-registry-accounts")  # the registry runs on meanwhile
# The cluster's data, and sockets.
VOLUMES = ("rocstack-registry", "rocstack-db", "rocstack-db-run", "rocstack-slurm", "rocstack-tokens-run")
_PRIVILEGES = (*privileges.LEAST, *privileges.SERVICE)
SERVICE_MEMORY = "4g"  # what strangers and people make it hold ends the service, and not Slurm's controller beside it
_STOP = "--stop-timeout=60"  # seconds to write down what it knows
_SOCKET = "--volume=rocstack-db-run:/run/mysqld"  # the database has no port
_TOKENS = f"--volume=rocstack-tokens-run:{SOCKETS}"


def registry(image: str, port: int) -> ContainerSpec:
    args = (
        *_PRIVILEGES,
        "--network=host",
        "--env=ROCSTACK_SERVICE=registry",
        f"--env=ROCSTACK_REGISTRY_LISTEN=0.0.0.0:{port}",
        f"--env=ROCSTACK_REGISTRY_PUSH=127.0.0.1:{push_port(port)}",
        "--volume=rocstack-registry:/var/lib/registry",
        f"--volume={TLS}:{TLS}:ro",
        f"--volume={PULLS}:{PULLS}:ro",
        f"--volume={REGISTRY}:/run/secrets/registry:ro",
    )
    return ContainerSpec(STORE, "registry", image, args, reads=(*SERVER, REGISTRY))


def database(image: str, *, serves: bool = False) -> ContainerSpec:
    """`serves`: it has the service's data, too."""
    own = (SERVICE_DATABASE,) if serves else ()
    args = (
        *_PRIVILEGES,
        "--network=none",
        "--env=ROCSTACK_SERVICE=db",
        _STOP,
        "--volume=rocstack-db:/var/lib/mysql",
        _SOCKET,
        f"--volume={DATABASE}:/run/secrets/database:ro",
        *(f"--volume={path}:/run/secrets/service-database:ro" for path in own),
    )
    makes = 300  # seconds: the first time it makes its files, and waits for the disk at each
    return ContainerSpec(DB, "db", image, args, reads=(DATABASE, *own), healthy_within=makes)


def service(image: str, mounts: Iterable[Mount], *, oidc: Sequence[str] | None = None) -> ContainerSpec:
    """The HTTP interface. Not root, and without any capability: what it may read and write says its uid alone. `oidc`
    are its files of the site's issuer, where there is one."""
    args = (
        *privileges.LEAST,
        f"--user={SERVICE_UID}:{SERVICE_UID}",
        "--network=host",
        "--read-only",
        f"--memory={SERVICE_MEMORY}",
        f"--memory-swap={SERVICE_MEMORY}",
        "--tmpfs=/tmp:nosuid,nodev,noexec,size=1g,mode=1777",
        f"--tmpfs=/run/rocstack:nosuid,nodev,noexec,size=16m,mode=0700,uid={SERVICE_UID},gid={SERVICE_UID}",
        "--stop-timeout=45",  # seconds: it gives requests 30
        f"{_SOCKET}:ro",
        f"--volume={SERVICE}:{SERVICE}:ro",
        f"--volume={SERVICE_DATABASE}:/run/secrets/service-database:ro",
        *([f"{_TOKENS}:ro"] if oidc is not None else []),
        *(f"--volume={mount}" for mount in mounts),
    )
    converts = 300  # seconds: a newer one converts its tables first
    reads = (SERVICE_SETTINGS, *SERVICE_TLS, SERVICE_DATABASE, *(oidc or ()))
    return ContainerSpec(API, "service", image, args, reads=reads, healthy_within=converts)


def tokens(image: str, *, ca: bool) -> ContainerSpec:
    """Makes Slurm tokens for who shows one of the site's issuer. It has Slurm's JWT key, and no port; the service's
    group alone reaches its socket. It asks the issuer for its keys."""
    args = (
        *privileges.LEAST,
        f"--user={TOKENS_UID}:{SERVICE_UID}",
        "--network=host",
        "--read-only",
        "--memory=256m",
        "--memory-swap=256m",
        "--tmpfs=/tmp:nosuid,nodev,noexec,size=16m,mode=1777",
        "--entrypoint=/usr/local/bin/rocstack-tokens",
        "--health-cmd=/usr/local/bin/rocstack-tokens --well",
        _TOKENS,
        f"--volume={SERVICE_SETTINGS}:{SERVICE_SETTINGS}:ro",
        *([f"--volume={ISSUER_CA}:{ISSUER_CA}:ro"] if ca else []),
        f"--volume={TOKENS_JWT}:{MAKERS_KEY}:ro",
    )
    reads = (SERVICE_SETTINGS, TOKENS_JWT, *([ISSUER_CA] if ca else []))
    return ContainerSpec(TOKENS, "tokens", image, args, reads=reads)


def controller(name: str, image: str, mounts: Iterable[Mount], rest_port: int | None, memory: int) -> ContainerSpec:
    """`name` is the control node's: what SlurmctldHost says. slurmrestd is open to others on `rest_port`, by TLS. Of
    the node's `memory`, in bytes, Slurm gets half: to whoever reaches its ports it gives what he says that he sends."""
    tls = [f"--env=ROCSTACK_REST_TLS=0.0.0.0:{rest_port}", f"--volume={TLS}:{TLS}:ro"] if rest_port else []
    half = f"{max(2, memory >> 31)}g"
    args = (
        *_PRIVILEGES,
        *privileges.PORTS,
        f"--memory={half}",
        f"--memory-swap={half}",
        "--network=host",
        f"--hostname={name}",
        "--env=ROCSTACK_SERVICE=controller",
        _STOP,
        f"--env=ROCSTACK_RESTD=127.0.0.1:{SLURMRESTD}",
        *tls,
        "--volume=rocstack-slurm:/var/lib/slurm",
        _SOCKET,
        f"--volume={SLURM}:/etc/slurm:ro",
        f"--volume={CLUSTER}:/run/rocstack/cluster:ro",
        f"--volume={MUNGE_KEY}:/run/secrets/munge.key:ro",
        f"--volume={JWT_KEY}:/run/secrets/jwt.key:ro",
        *(f"--volume={mount}" for mount in mounts),
    )
    converts = 900  # seconds: a newer slurmdbd converts its database first
    reads = (MUNGE_KEY, JWT_KEY, *(SERVER if rest_port else ()))
    return ContainerSpec(CONTROL, "controller", image, args, reads=reads, healthy_within=converts)


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
        *privileges.PORTS,
        f"--hostname={name}",
        f"--env=ROCSTACK_CONTROLLER={control}:{SLURMCTLD}",
        *([f"--env=ROCSTACK_WAIT_FOR={wait_for}"] if wait_for else []),
        "--volume=/sys:/sys:ro",  # what the gate and Slurm's GPU plugin read is the node's own
        f"--volume={CLUSTER}:/run/rocstack/cluster:ro",
        f"--volume={MUNGE_KEY}:/run/secrets/munge.key:ro",
        *cgroup,
    )
    # Its profile counts from its creation on: a new one means a new worker.
    reads = (MUNGE_KEY, *([SECCOMP] if cgroup else []))
    return ContainerSpec(WORKER, "worker", image, args, reads=reads)

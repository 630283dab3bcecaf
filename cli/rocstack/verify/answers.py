"""The rows that nodes answer with, as models: what the programs of tests/cluster print, and what the experiments make
of it. A node that could not answer is a `NoAnswer`."""

from collections.abc import Mapping

from pydantic import Field, TypeAdapter

from rocstack.verify.evidence import EvidenceRow


class NoAnswer(EvidenceRow):
    error: str


class CommandAnswer(EvidenceRow):
    code: int | None
    out: str = ""
    err: str = ""


class GateAnswer(EvidenceRow):
    code: int
    said: str


class PmixAnswer(EvidenceRow):
    """`offers` are the plugins of srun; `slurm` and `openmpi` the libraries that each loads."""

    offers: tuple[str, ...]
    major: str
    slurm: str
    openmpi: str


class ContainerAnswer(EvidenceRow):
    """programs/container.py, in a worker's container. `parts` are libraries that don't load, by component; `names`
    addresses by node name, with "! " and the reason where there is none."""

    gate: GateAnswer
    versions: Mapping[str, str]
    parts: Mapping[str, tuple[str, ...]]
    pmix: PmixAnswer
    names: Mapping[str, str]


class JobAnswer(EvidenceRow):
    """programs/worker.py, inside a job on each worker. `memlock` and `shm` are bytes, a negative `memlock` is
    unlimited; `tools` are the programs that the image has."""

    node: str
    memlock: int | None = None
    shm: int | None = None
    tools: tuple[str, ...] = ()
    env: Mapping[str, str] = {}


class SlurmNode(EvidenceRow):
    name: str
    state: tuple[str, ...]
    reason: str | None = None
    address: str = ""
    version: str | None = None
    cpus: int
    real_memory: int  # MiB
    gres: str | None = None
    gres_used: str | None = None
    threads: int | None = None


class RestAnswer(EvidenceRow):
    """HTTP status, or why there is none, with a token and without."""

    api: str = ""
    with_token: int | str | None = Field(alias="with")
    without_token: int | str | None = Field(alias="without")


class ControllerAnswer(EvidenceRow):
    """programs/controller.py, on the control node. `own` are the nodes on which the suite's own jobs run; `qos` rows
    are as sacctmgr prints them."""

    ping: CommandAnswer
    database: CommandAnswer
    rest: RestAnswer
    nodes: tuple[SlurmNode, ...]
    own: tuple[str, ...] = ()
    settings: Mapping[str, str]
    qos: tuple[Mapping[str, str], ...] = ()


class PciAnswer(EvidenceRow):
    """A PCI function: `bytes` of its configuration space that could be read, 256 are not all of it."""

    fatal: bool | None
    acs: int | None
    bytes: int


class HostAnswer(EvidenceRow):
    """programs/host.py, as root on a node beside the containers; None is "could not be read". `log` are the kernel's
    lines; `firewall` is tool -> what it refuses; `filters` tool -> what it lets in; `vram` bytes in use by PCI address;
    `processes` pid -> name of who uses the GPUs; `now` seconds since the epoch."""

    pci: Mapping[str, PciAnswer] | None = None
    log: tuple[str, ...] | None = None
    now: float | None = None
    firewall: Mapping[str, str] | None = None
    filters: Mapping[str, str] = {}
    vram: Mapping[str, int | None] | None = None
    processes: Mapping[str, str] | None = None


class CredentialAnswer(EvidenceRow):
    """What unmunge printed: its status (0 is good, None: none), and when the credential was made and decoded, each by
    the clock of where that happened, in seconds since the epoch."""

    status: int | None = None
    encoded: int | None = None
    decoded: int | None = None
    said: str = ""


class CredentialAnswers(EvidenceRow):
    """Of one worker: `here` is the control node's credential, `there` its own at the control node, `host` that of its
    host; None where no MUNGE runs there."""

    here: CredentialAnswer = CredentialAnswer()
    there: CredentialAnswer = CredentialAnswer()
    host: CredentialAnswer | None = None


IN_CONTAINERS: TypeAdapter[dict[str, ContainerAnswer | NoAnswer]] = TypeAdapter(dict[str, ContainerAnswer | NoAnswer])
IN_JOBS: TypeAdapter[dict[str, JobAnswer]] = TypeAdapter(dict[str, JobAnswer])
ON_HOSTS: TypeAdapter[dict[str, NoAnswer | HostAnswer]] = TypeAdapter(dict[str, NoAnswer | HostAnswer])
CONTROLLER: TypeAdapter[ControllerAnswer | NoAnswer] = TypeAdapter(ControllerAnswer | NoAnswer)
CREDENTIALS: TypeAdapter[dict[str, CredentialAnswers]] = TypeAdapter(dict[str, CredentialAnswers])

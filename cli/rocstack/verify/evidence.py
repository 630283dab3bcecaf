"""What was read off the cluster, by name, as JSON values: checks judge it and fetch nothing themselves. So a run can be
judged again from its file, without the cluster: `rocstack verify --evidence FILE`.

Each kind of evidence that has a model is validated by `parse` before a check sees it: the cluster, and the rows that
nodes answer with, which the programs of tests/cluster print and the experiments make.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.edge import files
from rocstack.node.profile import NodeProfile
from rocstack.verify.result import NOT_RECORDED, Skip

FILE = "evidence.json"
LOG_LINE, LOG_LINES = 400, 2000  # characters of a line of a kernel's log, and lines: the last ones
T = TypeVar("T")


class CheckSkipped(Exception):
    """A check is skipped as a whole, for reasons of these kinds."""

    def __init__(self, why: str, *skips: Skip) -> None:
        super().__init__(why)
        self.skips = skips


class EvidenceRow(BaseModel):
    """One row of evidence; keys that this version doesn't know are left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class ImageEvidence(EvidenceRow):
    role: str
    id: str
    digest: str


class ReleaseImages(EvidenceRow):
    worker_id: str
    control_id: str
    worker_reference: str = ""
    control_reference: str = ""


class ReleaseEvidence(EvidenceRow):
    """The release that was deployed last."""

    images: ReleaseImages


class NodeEvidence(EvidenceRow):
    """A node of the inventory. `absent` is why it wasn't reached; then most of the rest is unknown. `no_jobs` is why
    Slurm starts no job there; `behind` and `ahead` bound its clock, in seconds; `memory` is in bytes."""

    name: str
    roles: tuple[str, ...]
    virtual: str | None
    absent: str
    image: str
    digest: str = ""
    health: str | None = None
    slurm: str | None = None
    reason: str | None = None
    no_jobs: str
    restarts: int = 0
    behind: float | None = None
    ahead: float | None = None
    cpus: int | None = None
    memory: int | None = None
    control_image: str = ""
    names: Mapping[str, tuple[str, ...]] = {}  # of the images that run there, by id
    profile: NodeProfile | None

    @property
    def is_worker(self) -> bool:
        return "worker" in self.roles


class ClusterEvidence(EvidenceRow):
    """What the run is about. `unnamed` are the inventory's workers that are not to be judged; `labels` those of the
    worker image; `fabric` is node -> environment."""

    cluster: str
    control: str
    unnamed: tuple[str, ...] | None = ()
    release: ReleaseEvidence | None = None
    images: tuple[ImageEvidence, ...]
    labels: Mapping[str, str] = {}
    fabric: Mapping[str, Mapping[str, str]] = {}
    nodes: tuple[NodeEvidence, ...]

    def node(self, name: str) -> NodeEvidence:
        return next(node for node in self.nodes if node.name == name)

    @property
    def reached(self) -> tuple[NodeEvidence, ...]:
        return tuple(node for node in self.nodes if not node.absent)


class NoAnswer(EvidenceRow):
    """Of a node that could not answer."""

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
    """A PCI function: `bytes` of its configuration space that could be read, 256 are not all of it. `errors` since the
    node started: how many the kernel counts as "correctable", "nonfatal" and "fatal"."""

    fatal: bool | None
    acs: int | None
    bytes: int
    errors: Mapping[str, int] | None = None


def _cut(log: tuple[str, ...]) -> tuple[str, ...]:
    """As programs/host.py cuts it, whatever a node sends in its place."""
    return tuple(line[:LOG_LINE] for line in log[-LOG_LINES:])


KernelLog = Annotated[tuple[str, ...], AfterValidator(_cut)]


class HostAnswer(EvidenceRow):
    """programs/host.py, as root on a node beside the containers; None is "could not be read". `log` are the kernel's
    lines; `firewall` is tool -> what it refuses; `filters` tool -> what it lets in; `vram` bytes in use by PCI address;
    `processes` pid -> name of who has the GPUs open, `queues` and `held` pid -> how many queues and bytes of GPU memory
    it has; `now` seconds since the epoch, `uptime` since the kernel started. `iommu`: PCI address -> how its group is
    translated ("identity" is pass-through), for those that are in one; `partitions` how a GPU is divided ("SPX");
    `guest` whether a hypervisor runs it; `boards` RDMA device -> its board (PSID); `neighbours` network device
    -> (chassis, its name, port) of each that it hears by LLDP."""

    pci: Mapping[str, PciAnswer] | None = None
    log: KernelLog | None = None
    now: float | None = None
    firewall: Mapping[str, str] | None = None
    filters: Mapping[str, str] = {}
    vram: Mapping[str, int | None] | None = None
    processes: Mapping[str, str] | None = None
    queues: Mapping[str, int | None] = {}
    held: Mapping[str, int | None] = {}
    iommu: Mapping[str, str | None] | None = None
    partitions: Mapping[str, str | None] = {}
    uptime: float | None = None
    guest: bool | None = None
    boards: Mapping[str, str | None] = {}
    neighbours: Mapping[str, tuple[tuple[str, str, str], ...]] | None = None


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


def _by_itself(value: Any, rest: ValidatorFunctionWrapHandler) -> Any:
    """One node's answer of another shape is that node's alone."""
    try:
        return rest(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:80] or "all of it"
        return NoAnswer(error=f"its answer can't be read: {place}: {first['msg']}"[:200])


def _answered(rows: dict[str, Any]) -> dict[str, Any]:
    return {node: row for node, row in rows.items() if not isinstance(row, NoAnswer)}


CLUSTER: TypeAdapter[ClusterEvidence] = TypeAdapter(ClusterEvidence)
IN_CONTAINERS: TypeAdapter[dict[str, ContainerAnswer | NoAnswer]] = TypeAdapter(
    dict[str, Annotated[ContainerAnswer | NoAnswer, WrapValidator(_by_itself)]]
)
ON_HOSTS: TypeAdapter[dict[str, NoAnswer | HostAnswer]] = TypeAdapter(
    dict[str, Annotated[NoAnswer | HostAnswer, WrapValidator(_by_itself)]]
)
CONTROLLER: TypeAdapter[ControllerAnswer | NoAnswer] = TypeAdapter(ControllerAnswer | NoAnswer)
# Those that answered.
IN_JOBS: TypeAdapter[dict[str, JobAnswer]] = TypeAdapter(
    Annotated[dict[str, Annotated[JobAnswer, WrapValidator(_by_itself)]], AfterValidator(_answered)]
)
CREDENTIALS: TypeAdapter[dict[str, CredentialAnswers]] = TypeAdapter(
    Annotated[dict[str, Annotated[CredentialAnswers, WrapValidator(_by_itself)]], AfterValidator(_answered)]
)


def parse(name: str, shape: TypeAdapter[T], value: Any) -> T:
    """
    Raises:
        CheckFailed: the value has another shape; it says where.
    """
    try:
        return shape.validate_json(json.dumps(value))  # as a strict NodeProfile wants it
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, (name, *first["loc"])))
        raise CheckFailed.of("bad-evidence", path=path, problem=first["msg"]) from None


class Evidence:
    """`recorded`: what is replayed; then nothing is fetched."""

    def __init__(self, recorded: dict[str, Any] | None = None) -> None:
        self.replayed = recorded is not None
        self._known: dict[str, Any] = dict(recorded or {})
        self._parsed: dict[str, Any] = {}
        self._failed: dict[str, Exception] = {}

    def take(self, name: str, fetch: Callable[[], Any]) -> Any:
        """The JSON value called `name`, fetched once.

        Raises:
            CheckSkipped: a file is replayed that hasn't it.
            Exception: what `fetch` raises, to everybody who asks.
        """
        if name in self._failed:
            raise self._failed[name]
        if name not in self._known:
            if self.replayed:
                raise CheckSkipped(f"{NOT_RECORDED}: {name}", Skip(kind="not-recorded"))
            try:
                self._known[name] = json.loads(json.dumps(fetch()))  # as it will be read back
            except Exception as error:
                self._failed[name] = error
                raise
        return self._known[name]

    def parsed(self, name: str, shape: TypeAdapter[T], fetch: Callable[[], Any]) -> T:
        """The evidence called `name` as a model.

        Raises:
            CheckFailed: as `parse`.
            CheckSkipped, Exception: as `take`.
        """
        if name not in self._parsed:
            self._parsed[name] = parse(name, shape, self.take(name, fetch))
        value: T = self._parsed[name]
        return value

    def write(self, path: Path) -> None:
        files.write(path, json.dumps(self._known, indent=1) + "\n")


def file_of(path: Path) -> Path:
    """The file, or that in the folder of a run."""
    return path / FILE if path.is_dir() else path


def load(path: Path) -> dict[str, Any]:
    """A recorded run's evidence; it holds at least that of the cluster.

    Raises:
        BadInput: the file isn't there, or is something else.
    """
    path = file_of(path)
    try:
        recorded: dict[str, Any] = json.loads(files.read_sent(path).decode("utf-8"))
        parse("cluster", CLUSTER, recorded["cluster"])
    except FileNotFoundError:
        raise BadInput.of("no-evidence-file", path) from None
    except (ValueError, KeyError, TypeError, RecursionError, CheckFailed):  # a report is JSON, too
        raise BadInput.of("not-evidence", path) from None
    return recorded

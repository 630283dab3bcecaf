"""What the service's own calls answer. The service's OpenAPI document is made of these, and the client's types are."""

from typing import Any, Generic, Literal, TypeVar

from typing_extensions import TypedDict  # pydantic takes no other one before Python 3.12

Row = TypeVar("Row")
JobStatus = Literal["sending", "queued", "running", "paused", "succeeded", "failed", "cancelled"]


class ListOf(TypedDict, Generic[Row]):
    """A page. `last_id` as `after` gives the next one."""

    object: Literal["list"]
    data: list[Row]
    has_more: bool
    first_id: str | None
    last_id: str | None


class ErrorAnswer(TypedDict):
    message: str
    code: str
    param: str | None


class ServiceJob(TypedDict):
    """Times are seconds since 1970. `why` says in words why it waits, `expected_start` when Slurm expects it to start;
    `slurm` is what Slurm said of it last, `model` what a fine-tuning made."""

    id: str
    object: Literal["job"]
    kind: str
    recipe: str
    name: str
    status: JobStatus
    created_at: int
    began_at: int | None
    finished_at: int | None
    run: int
    slurm_job: int | None
    why: str
    expected_start: int | None
    slurm: dict[str, Any] | None
    error: ErrorAnswer | None
    model: str | None
    asked: dict[str, Any]


class JobEventAnswer(TypedDict):
    id: str
    at: int
    level: str
    message: str


class LogAnswer(TypedDict):
    """`offset` is where the next piece begins, in bytes; `size` the log's at the moment."""

    text: str
    offset: int
    size: int


class StepsAnswer(TypedDict):
    """Each row has `step` and numbers such as loss, tokens_per_s, step_ms."""

    object: Literal["list"]
    data: list[dict[str, int | float]]
    has_more: bool


class ParameterAnswer(TypedDict):
    about: str
    type: Literal["text", "path", "integer", "number", "switch", "words"]
    default: str | int | float | bool | None
    optional: bool
    choices: list[str]
    least: float | None
    needed: bool


class RecipeAnswer(TypedDict):
    id: str
    object: Literal["recipe"]
    name: str
    about: str
    needs_gpus: bool
    needs_arguments: bool
    seen: str
    job: dict[str, Any]
    parameters: dict[str, ParameterAnswer]
    arguments: str | None


class NodeAnswer(TypedDict):
    id: str
    object: Literal["node"]
    name: str
    address: str
    state: list[str]
    reason: str
    partitions: list[str]
    cpus: int
    memory_mib: int
    gpus: int
    gpus_used: int
    version: str
    usable: bool


class QosAnswer(TypedDict):
    id: str
    object: Literal["qos"]
    name: str
    about: str
    priority: int
    preempts: list[str]
    max_minutes: int
    max_jobs: int


class ReservationAnswer(TypedDict):
    id: str
    object: Literal["reservation"]
    name: str
    nodes: str
    start: int
    end: int
    users: str
    accounts: str
    partition: str


class VerifiedNode(TypedDict):
    """`failed` are the checks that fail there; `why` says why it was not judged, or is absent."""

    name: str
    state: Literal["passing", "failing", "not judged", "absent"]
    why: str
    failed: list[str]


class VerifyReportAnswer(TypedDict):
    """`proved` is the highest level of which nothing is missing, `verdict` the run in a sentence, `failed` the checks
    that fail; a `virtual` cluster's numbers tell nothing of real hardware."""

    id: str
    object: Literal["verify_report"]
    cluster: str
    created_at: int | None
    level: int
    proved: int | None
    passed: bool
    verdict: str
    virtual: bool
    failed: list[str]
    nodes: list[VerifiedNode]


class ServerAnswer(TypedDict):
    """`status` is ready once models can be asked there."""

    id: str
    object: Literal["server"]
    model: str
    status: Literal["sending", "queued", "starting", "ready"]
    why: str
    created_at: int
    nodes: str
    slurm_job: int | None


class PersonAnswer(TypedDict):
    id: str
    object: Literal["person"]
    uid: int

"""The file of `rocstack first-light`: what real nodes are and said, without what names their site; and what follows
from it when it is judged again. Whoever reads one doesn't know who wrote it: sizes, names and types are checked."""

import json
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationError,
)

from rocstack.base.errors import BadInput, RocstackError
from rocstack.base.text import values_of
from rocstack.edge import files
from rocstack.node.recording import Recording
from rocstack.probe import recordings
from rocstack.probe.classes import traits
from rocstack.verify import evidence, suite
from rocstack.verify.result import Run
from rocstack.verify.suite import OnEvent, SuiteOptions

SCHEMA: Literal[1] = 1
PACKED, LARGEST = 64 << 20, 512 << 20  # bytes of a file, and of what it unpacks to
MOST_VALUES = 3_000_000  # a node has some 2,000
LOG = 200_000  # characters of what a program said, of which the last are kept
EVIDENCE = evidence.FILE

State = Literal["done", "failed", "skipped", "interrupted"]
Text = Annotated[str, StringConstraints(max_length=LOG)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Step(_Part):
    """`why` it failed or was skipped; `said` is what `--json` prints of such a step, `log` what its programs said."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z-]{1,20}$")]
    state: State
    seconds: Annotated[float, Field(ge=0)] = 0.0
    why: Text = ""
    said: Any = None
    log: Text = ""


def _recording(value: Any) -> Recording:
    recording = value if isinstance(value, Recording) else Recording.from_dict(value)
    if not recording.host.isascii() or not recording.host.replace("-", "").isalnum() or len(recording.host) > 63:
        raise ValueError("a recording's name is a file's, too")
    return recording


class Node(_Part):
    """`traits` is what was concluded from the recording."""

    recording: Annotated[Recording, BeforeValidator(_recording), PlainSerializer(Recording.to_dict)]
    traits: Mapping[str, str]


def _distinct(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    if len({node.recording.host.lower() for node in nodes}) < len(nodes):
        raise ValueError("two nodes have one name")
    return nodes


class FirstLight(_Part):
    """`evidence` is what `rocstack verify` saw, `report` what it concluded."""

    schema_: Literal[1] = Field(default=SCHEMA, alias="schema")
    rocstack: Annotated[str, StringConstraints(max_length=40)]
    when: Annotated[str, StringConstraints(max_length=40)]  # UTC, ISO 8601
    steps: Annotated[tuple[Step, ...], Field(max_length=20)] = ()
    nodes: Annotated[tuple[Node, ...], Field(max_length=10_000), AfterValidator(_distinct)] = ()
    evidence: dict[str, Any] | None = None
    report: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return all(step.state in ("done", "skipped") for step in self.steps)

    @property
    def virtual(self) -> bool:
        return any(node.recording.virtual for node in self.nodes)


def conclusions(recording: Recording, overlay: Path | None = None) -> dict[str, str]:
    """What the parsers make of a node, in words."""
    return traits(recordings.profiles((recording,), overlay)[0])


def write(path: Path, light: FirstLight) -> None:
    """Packed with gzip, as a whole or not at all; only this user can read it."""
    packer = zlib.compressobj(6, wbits=31)
    with files.writing(path, private=True) as file:
        file.write(packer.compress(light.model_dump_json(by_alias=True, indent=1).encode(errors="replace")))
        file.write(packer.flush())


def read(path: Path) -> FirstLight:
    """
    Raises:
        BadInput: it isn't there, is no such file, or is larger than any.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(PACKED + 1)
        unzip = zlib.decompressobj(wbits=31)
        data = unzip.decompress(packed, LARGEST)
        if len(packed) > PACKED or unzip.unconsumed_tail:
            raise ValueError(f"it is larger than {PACKED >> 20} MiB, or {LARGEST >> 20} MiB unpacked")
        if not unzip.eof:
            raise ValueError("it breaks off")
        if values_of(data) > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        return FirstLight.model_validate_json(data)
    except OSError as error:
        raise BadInput.of("no-access", path, why=error.strerror or error) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:80]
        raise BadInput.of("bad-first-light", path, why=f"{place or 'JSON'}: {first['msg'][:200]}") from None
    except (ValueError, zlib.error) as error:
        raise BadInput.of("bad-first-light", path, why=error) from None


@dataclass(frozen=True)
class ReplayDifference:
    """What was concluded then and is now, of a node (empty: the cluster)."""

    node: str
    what: str
    then: str
    now: str


@dataclass(frozen=True)
class Replayed:
    """`checks` is how many were judged again; None: the file has no evidence, or `unjudged` says why not."""

    nodes: int
    checks: int | None
    differences: tuple[ReplayDifference, ...]
    virtual: bool = False
    unjudged: str = ""

    @property
    def ok(self) -> bool:
        return not (self.differences or self.unjudged)

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def judge(light: FirstLight, overlay: Path | None = None, on_event: OnEvent = lambda event: None) -> Replayed:
    """Reads the recordings and judges the evidence again. What this version knows more of is no difference."""
    found = []
    for node in light.nodes:
        now = conclusions(node.recording, overlay)
        both = [what for what in node.traits if what in now]
        found += [
            ReplayDifference(node.recording.host, what, node.traits[what], now[what])
            for what in both
            if node.traits[what] != now[what]
        ]
        found += [
            ReplayDifference(node.recording.host, what, text, "nothing")
            for what, text in node.traits.items()
            if what not in now
        ]
    if light.evidence is None or light.report is None:
        return Replayed(len(light.nodes), None, tuple(found), light.virtual)
    try:
        then = Run.model_validate_json(_json(light.report))
        now_run = _run(light.evidence, then, on_event)
    except (ValidationError, RocstackError) as error:
        why = error.what if isinstance(error, RocstackError) else "its report is none"
        return Replayed(len(light.nodes), None, tuple(found), light.virtual, why)
    before, after = dict(_states(then)), dict(_states(now_run))
    found += [
        ReplayDifference(node, f"check {check}", state, after.get((node, check), "not there"))
        for (node, check), state in before.items()
        if after.get((node, check)) != state
    ]
    return Replayed(len(light.nodes), len(then.results), tuple(found), light.virtual)


def _run(seen: Mapping[str, Any], then: Run, on_event: OnEvent) -> Run:
    with tempfile.TemporaryDirectory(prefix="rocstack-replay-") as name:
        folder = Path(name)
        (folder / EVIDENCE).write_text(_json(seen), encoding="utf-8")
        level = min(max(then.level, 0), 4)
        return suite.run(SuiteOptions(folder, evidence=folder / EVIDENCE, level=level, only=then.only), on_event)


def _states(run: Run) -> Iterator[tuple[tuple[str, str], str]]:
    """(node, check) -> its state there, the worst of several; and of the check as a whole."""
    for result in run.results:
        yield ("", result.check.name), result.state
        nodes: dict[str, list[str]] = {}
        for measure in result.measures:
            nodes.setdefault(measure.node, []).append(measure.state)
        for node, states in nodes.items():
            if node:
                yield (node, result.check.name), ", ".join(sorted(set(states)))


def unpack(light: FirstLight, folder: Path, recorded: Callable[[Sequence[Recording], Path], object]) -> None:
    """The recordings as `probe --record` writes them, and the evidence and the report as `verify` does. `recorded`
    writes recordings."""
    folder.mkdir(parents=True, exist_ok=True)
    recorded([node.recording for node in light.nodes], folder / "nodes")
    for name, value in ((EVIDENCE, light.evidence), ("report.json", light.report)):
        if value is not None:
            files.write(folder / name, _json(value) + "\n")
    for step in light.steps:
        files.write(folder / f"{step.name}.json", step.model_dump_json(indent=1) + "\n")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1)

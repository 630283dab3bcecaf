"""What the suite found: the one value that the verdict, the report and every export are made of.

Written as report.json; `SCHEMA` grows with any change of its shape.
"""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rocstack.base.errors import BadInput
from rocstack.base.findings import Finding
from rocstack.base.levels import Level
from rocstack.base.text import visible_lines
from rocstack.base.words import Name, Value
from rocstack.edge import files

ITEMS = 18  # kinds of test that a training cluster must pass
_NEED = re.compile(
    r"gpu|rdma|real|jobs|training|nodes:[2-9]|framework:rocm|part:[a-z-]{1,40}|tool:[A-Za-z0-9_.-]{1,40}"
)
MARK = "check"  # the name of its pytest mark
REPORT, LOG = "report.json", "pytest.log"  # in the folder of a run
SCHEMA = 3
# "measured": there is a number, and nothing to judge it by; "error": the check itself could not be made.
State = Literal["passed", "failed", "skipped", "measured", "error"]
_ORDER: tuple[State, ...] = ("error", "failed", "passed", "measured", "skipped")
BAD: frozenset[State] = frozenset({"error", "failed"})
# Why something was skipped, if not for missing hardware: no job can start on the node, all workers are busy, the
# recorded evidence lacks it, the image has no program for it, a program found no GPU where the node has some.
SkipKind = Literal["", "no-jobs", "busy", "not-recorded", "no-tool", "no-gpu"]
# Those that could be judged, so the level is not proved.
MISSED: frozenset[SkipKind] = frozenset({"no-jobs", "busy", "not-recorded", "no-gpu"})
NO_JOBS, BUSY, NOT_RECORDED = "no job can start", "all workers are busy with jobs", "not recorded"
# A level is proved without the checks that lack a tool; but something must have compared what RCCL sums up on GPUs.
LAUNCH = "mpi-launch"
SUMS, SUMS_TOO = "rccl-collectives", ("training-gpus-in-node", "training-gpus-on-nodes")
NO_FLOOR = "no floor known"  # what is wanted of a number that nothing is known to judge by, on this hardware
WITHOUT_GPUS = "no GPU on node"  # why a check is skipped on a worker that has none
WITHOUT_RDMA = "no RDMA device on node"
_STEERING = re.compile("\x1b\\[[0-?]*[ -/]*[@-~]")  # colours and moves of a terminal


def plain(text: str) -> str:
    """A node's words without what would steer the terminal that shows them."""
    return visible_lines(_STEERING.sub("", text))


def _within(value: float | str | None) -> float | str | None:
    """Of a larger number than any that is measured, a tool's output may have hundreds of digits; no float holds it."""
    return max(-LARGEST, min(value, LARGEST)) if type(value) is int else value


Text = Annotated[str, AfterValidator(plain)]
LARGEST = 2**63 - 1


def _known(need: str) -> str:
    if not _NEED.fullmatch(need):
        raise ValueError(f"nothing can be called '{need}'")
    return need


# gpu: a GPU that the driver drives; rdma: an RDMA device; real: no virtual node; jobs: Slurm starts jobs there;
# nodes:N: so many workers at least; tool:NAME: a program in the worker image; part:NAME: a component of it;
# training: the trainer, or JAX; framework:rocm: what trains in it is built for ROCm.
Need = Annotated[str, AfterValidator(_known)]


class Check(Value):
    """One statement, such as "NUMA balancing is off". `cannot`: what it doesn't tell where it passed. `cause` and
    `next_step` are said where it isn't true; `source` is where the demand is from; empty, it is ours. `scope` is
    whether each node is judged or the cluster as a whole. `core`: without it, made on each node, its level is not
    proved."""

    name: Name
    title: str
    cannot: str = ""  # as runs of before have it
    level: Level
    cause: str
    next_step: str
    source: str = ""
    item: Annotated[int, Field(ge=1, le=ITEMS)] | None = None
    needs: tuple[Need, ...] = ()
    scope: Literal["node", "cluster"] = "node"
    core: bool = False

    @property
    def least_nodes(self) -> int:
        return next((int(need.partition(":")[2]) for need in self.needs if need.startswith("nodes:")), 1)


class Skip(Value):
    """One kind of reason for which a check was skipped as a whole, and the nodes that it is of."""

    kind: SkipKind
    nodes: tuple[str, ...] = ()


class Measure(Value):
    """One check on one node, on a pair of nodes, or (with an empty `node`) on the cluster."""

    state: State
    node: str = ""
    peer: str = ""
    value: Annotated[float | int | Text | bool | None, AfterValidator(_within)] = None
    unit: str = ""
    wanted: str = ""  # "at least 304 GB/s"
    source: str = ""  # of the threshold
    why: Text = ""  # it failed, or was skipped
    skip: SkipKind = ""
    evidence: Text = ""  # what was said, some lines of it
    virtual: bool = False  # of a virtual node: its hardware isn't real

    @property
    def missed(self) -> bool:
        """Not judged, though it could have been."""
        return self.state == "skipped" and self.skip in MISSED


class CheckResult(Value):
    """`seconds` include gathering its evidence, which the checks after it may share. `drawings` are values to be drawn:
    kind -> what report/drawings.py has for that kind. `skips` are the kinds of reasons for skipping it as a whole."""

    check: Check
    state: State
    seconds: float = 0.0
    measures: tuple[Measure, ...] = ()
    why: Text = ""
    skips: tuple[Skip, ...] = ()
    drawings: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def finding(self) -> Finding:
        """A failed check as a finding."""
        check = self.check
        return Finding(check.name, "error", f"expected: {check.title}", check.cause, check.next_step, check.source)

    @property
    def missed(self) -> bool:
        """Not judged, or not on each node, though it could have been."""
        return bool(MISSED & self.skip_kinds)

    def lacking(self, nodes: Collection[str]) -> set[str]:
        """Those of these nodes on which it was not shown; "" where it wasn't of the cluster. What is measured without a
        floor shows nothing."""
        well = {name for each in self.measures if each.state == "passed" for name in (each.node, each.peer)}
        unsure = {each.node for each in self.measures if each.state == "measured" and each.wanted == NO_FLOOR}
        if self.check.scope == "cluster" or "" in {each.node for each in self.measures}:
            return {""} & unsure - well
        exempt = {each.node for each in self.measures if each.state == "skipped" and each.why.startswith(WITHOUT_GPUS)}
        return {*nodes} - exempt - (well - unsure)

    @property
    def unable(self) -> bool:
        """Skipped as no node has an RDMA device; of those that should have one, rdma-devices tells."""
        reasons = re.sub(r"^\d+ nodes are needed, \d+ can take part \((.*)\)$", r"\1", self.why).split("; ")
        return self.state == "skipped" and not self.measures and all(each.startswith(WITHOUT_RDMA) for each in reasons)

    @property
    def skip_kinds(self) -> frozenset[SkipKind]:
        return frozenset({*(skip.kind for skip in self.skips), *(measure.skip for measure in self.measures)})

    @property
    def no_floor(self) -> bool:
        return any(each.state == "measured" and each.wanted == NO_FLOOR for each in self.measures)

    @property
    def no_tool(self) -> bool:
        """Skipped on nodes that have the hardware, as the image has no program to judge it with."""
        return self.state == "skipped" and "no-tool" in self.skip_kinds


class NodeSeen(Value):
    """A node of the inventory. `absent` is why it took no part; empty where it did."""

    name: str
    roles: tuple[str, ...]
    virtual: str | None = None  # the node model
    absent: Text = ""
    image: str = ""  # id of the worker's, or the controller's
    model: str = ""  # GPUs and NICs in a few words: "8 × MI300X, 8 × broadcom 400G"


class SlowNode(Value):
    """A node that is worse by a check than its like, whatever the threshold; nothing fails for it. `share` is by how
    much of `usual` it is worse: the median of all `nodes`, or the best where they are too few to tell (not `sure`)."""

    check: str
    node: str
    value: float
    usual: float
    unit: str
    share: float
    nodes: int
    sure: bool = True
    virtual: bool = False  # the node


class Run(Value):
    """One run of the suite."""

    schema_: int = Field(default=SCHEMA, alias="schema")
    rocstack: str
    id: str
    cluster: str
    control: str
    who: str
    when: str  # UTC, ISO 8601
    seconds: float
    level: int  # that was asked for
    only: str = ""  # pattern of the checks that were asked for; then no level is proved
    complete: bool = True  # False: it was interrupted
    nodes: tuple[NodeSeen, ...] = ()
    image: str = ""  # id of the worker image, the same at every engine
    digest: str = ""  # the registry's
    control_image: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict)  # of the worker image
    versions: Mapping[str, str] = Field(default_factory=dict)  # component -> version
    fabric: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)  # node -> environment
    results: tuple[CheckResult, ...] = ()
    slow_nodes: tuple[SlowNode, ...] = ()  # found by comparing nodes with each other, the worst first

    @property
    def virtual(self) -> bool:
        return any(node.virtual for node in self.nodes)

    @property
    def rehearsal(self) -> str:
        """What the worker image lacks for the nodes' GPUs, where it was built nevertheless."""
        return self.labels.get("io.rocstack.rehearsal", "")

    @property
    def failed(self) -> bool:
        return any(result.state in BAD for result in self.results)

    @property
    def busy(self) -> bool:
        """The suite got no node, which is nobody's failure: nothing that takes a job was judged."""
        return any(result.state == "skipped" and "busy" in result.skip_kinds for result in self.results)

    @property
    def passed(self) -> bool:
        some = any(result.state == "passed" for result in self.results)
        return self.complete and some and not self.failed and not self.busy

    @property
    def proved(self) -> int | None:
        """The highest level of which, and of each below, a check passed, each core check on each node, none failed and
        none was missed on a node, and for which something compared RCCL's sums on GPUs. None: none was."""
        if self.only or not self.complete:
            return None
        for level in range(self.level + 1):
            results = [result for result in self.results if result.check.level == level]
            states = {result.state for result in results}
            gaps = self.not_summed in results or any(result.missed for result in results) or self.unshown(level)
            if gaps or states & BAD or "passed" not in states:
                return level - 1 if level else None
        return self.level

    def core(self, level: int) -> tuple[CheckResult, ...]:
        """The core checks of a level that can be made on a cluster of so many nodes."""
        workers = sum("worker" in node.roles for node in self.nodes)
        results = (result for result in self.results if result.check.level == level and result.check.core)
        return tuple(result for result in results if result.check.least_nodes <= workers and not result.unable)

    def unshown(self, level: int) -> tuple[CheckResult, ...]:
        """Those of a level's core checks that didn't pass, or not on each worker that was reached and has GPUs if they
        are about those."""
        here = {node.name for node in self.nodes if "worker" in node.roles and not node.absent}
        summed = any(result.check.name in SUMS_TOO and result.state == "passed" for result in self.results)
        return tuple(
            result
            for result in self.core(level)
            if not (result.check.name == SUMS and summed) and (result.state != "passed" or result.lacking(here))
            if not (result.check.name == LAUNCH and result.no_tool and self._met(here))
        )

    def _met(self, here: Collection[str]) -> bool:
        """Whether ranks of all these nodes met in training, which stands for MPI where an image has none."""
        name = "training-on-nodes" if len(here) > 1 else "training-in-node"
        result = next((each for each in self.results if each.check.name == name and each.state == "passed"), None)
        left_out = {each.node for each in result.measures if each.state == "skipped"} if result else {*here}
        return left_out.isdisjoint(here)

    @property
    def not_summed(self) -> CheckResult | None:
        """The check of RCCL's sums on GPUs, where neither it nor training compared them for want of a tool."""
        sums = next((result for result in self.results if result.check.name == SUMS and result.no_tool), None)
        too = any(result.check.name in SUMS_TOO and result.state == "passed" for result in self.results)
        return None if too else sums

    @property
    def without_floor(self) -> tuple[str, ...]:
        """The checks with numbers that nothing is known to judge by, on this hardware."""
        unshown = {each.check.name for level in range(self.level + 1) for each in self.unshown(level)}
        some = [each for each in self.results if each.no_floor]
        return tuple(each.check.name for each in some if each.state == "measured" or each.check.name in unshown)

    @property
    def without(self) -> tuple[str, ...]:
        """The checks of the proved levels for which the image has no tool."""
        highest = -1 if self.proved is None else self.proved
        return tuple(each.check.name for each in self.results if each.no_tool and each.check.level <= highest)

    def dumps(self) -> str:
        """On one line: of many nodes, a matrix of all pairs is most of it."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), separators=(",", ":")) + "\n"


def state_of(measures: tuple[Measure, ...]) -> State:
    """Of a check, by the worst of its measures; nothing measured at all is an error."""
    states = {measure.state for measure in measures}
    return next((state for state in _ORDER if state in states), "error")


def read(path: Path) -> Run:
    """
    Raises:
        BadInput: it isn't there, or isn't a report of this version.
    """
    if path.is_dir():
        path = path / REPORT
    try:
        data = json.loads(files.read_sent(path).decode("utf-8"))
        version = data.get("schema") if isinstance(data, dict) else None
        if isinstance(version, int) and version > SCHEMA:
            raise BadInput.of("newer-report", path, version=version, known=SCHEMA)
        # Formats 1 and 2 tell the kinds of skips by words only.
        for result in data.get("results", ()) if isinstance(version, int) and version < 3 else ():
            if result.get("state") == "skipped":
                result["skips"] = [skip.model_dump() for skip in skips_in(result.get("why", ""))]
            for measure in result.get("measures", ()):
                if measure.get("state") == "skipped":
                    measure["skip"] = next((skip.kind for skip in skips_in(measure.get("why", ""))), "")
        return Run.model_validate_json(json.dumps(data))
    except FileNotFoundError:
        raise BadInput.of("no-report", file=path) from None
    except BadInput:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError):  # nothing of its shape holds
        raise BadInput.of("bad-report", path) from None


def skips_in(why: str) -> tuple[Skip, ...]:
    """The kinds that the words of format 2 tell."""
    skips: dict[SkipKind, object] = {
        "busy": "all workers are busy with jobs" in why,
        "no-jobs": "no job can start" in why,
        "not-recorded": "not recorded" in why,
        "no-tool": re.search(r"\bno(?:ne of)? [^;(]* in the image|in the image is built without", why),
    }
    nodes = {"no-jobs": tuple(re.findall(r"no job can start on (\S+):", why))}
    return tuple(Skip(kind=kind, nodes=nodes.get(kind, ())) for kind, there in skips.items() if there)

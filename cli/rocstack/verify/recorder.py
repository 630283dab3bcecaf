"""What a check writes down of each node, pair or the cluster. The state of the check follows from it."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from rocstack.base.errors import CheckFailed
from rocstack.node.gate import FRAMEWORKS
from rocstack.node.image_facts import LABEL_PREFIX, from_labels
from rocstack.verify import thresholds
from rocstack.verify.evidence import CheckSkipped, NodeEvidence
from rocstack.verify.outliers import sign
from rocstack.verify.result import (
    BUSY,
    NO_FLOOR,
    NO_JOBS,
    WITHOUT_GPUS,
    WITHOUT_RDMA,
    Measure,
    Skip,
    SkipKind,
    State,
    plain,
)
from rocstack.verify.thresholds import Quantity, Threshold

# What judging raises where a node says what no node says; all else is said in words.
STUMBLES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
LINES = 12  # of evidence
LENGTH = 1200
PART = LABEL_PREFIX + "component."
JAX = ("jax", "maxtext")  # frameworks by which programs/jax_check.py trains
Scalar = float | int | str | bool | None


@dataclass
class Recorder:
    """`nodes` are those that have what the check needs; the others are already written down as skipped, so a check
    goes through `nodes` only. `all_nodes` is what the run has of nodes at all. `hardware`: whether the check is about
    it, so that a virtual node's answer is called virtual."""

    nodes: tuple[NodeEvidence, ...]
    all_nodes: tuple[NodeEvidence, ...]
    hardware: bool = True
    measures: list[Measure] = field(default_factory=list)
    drawings: dict[str, Any] = field(default_factory=dict)
    quantities: Mapping[str, Quantity] = field(default_factory=thresholds.load)

    def run(self, check: Callable[[], object]) -> None:
        """Judges. Where that stumbles over what a node says, and not over every node's words, those nodes fail and the
        others are judged without them."""
        nodes, written = self.nodes, len(self.measures)

        def forget() -> None:
            del self.measures[written:]
            self.drawings.clear()

        def of(some: Sequence[NodeEvidence]) -> Exception | None:
            self.nodes = tuple(some)
            forget()
            try:
                check()
            except STUMBLES as error:
                return error
            return None

        error = of(nodes)
        if error is None:
            return
        wrong = {node.name: each for node in nodes if (each := of([node]))}
        rest = [node for node in nodes if node.name not in wrong]
        if not wrong or not rest or of(rest):
            forget()
            raise error
        self.nodes = nodes
        for name, each in wrong.items():
            self.failed(name, f"what it says can't be judged: {type(each).__name__}: {plain(str(each))[:200]}")

    def passed(self, node: str = "", value: Scalar = None, unit: str = "", **more: Any) -> None:
        """`more`: wanted, source, peer, evidence, as Measure has them."""
        self._add("passed", node, value, unit, **more)

    def failed(self, node: str, why: str, value: Scalar = None, unit: str = "", **more: Any) -> None:
        self._add("failed", node, value, unit, why=why, **more)

    def skipped(self, node: str, why: str, kind: SkipKind = "", **more: Any) -> None:
        self._add("skipped", node, None, "", why=why, skip=kind, **more)

    def measured(self, node: str, value: Scalar, unit: str = "", **more: Any) -> None:
        """A number that nothing is known to judge by."""
        self._add("measured", node, value, unit, **more)

    def equal(self, node: str, value: Scalar, wanted: Scalar, unit: str = "", why: str = "", **more: Any) -> None:
        """None is "could not be read", which is not as wanted."""
        more.setdefault("wanted", f"{wanted} {unit}".rstrip())
        if value == wanted and value is not None:
            self.passed(node, value, unit, **more)
        else:
            read = "could not be read" if value is None else f"{value} {unit}".rstrip()
            self.failed(node, why or f"{read}, not {more['wanted']}", value, unit, **more)

    def judge(
        self,
        node: str,
        value: float | None,
        quantity: str,
        *,
        peer: str = "",
        evidence: str = "",
        nodes: Collection[str] = (),
    ) -> None:
        """By the threshold of images/thresholds.yml for the hardware of the node, or of `nodes`, which did it together,
        where there is one. What is no number, or a rate of nothing, was not measured: without a threshold it would be
        told as a value, and an infinite one would meet any."""
        known = self.quantities[quantity]
        bound = self.bound(quantity, nodes or ([node] if node else ()))
        more: dict[str, Any] = {"peer": peer, "evidence": evidence}
        if bound:
            more |= {"wanted": bound.text(known.unit), "source": bound.source}
        if value is None or not math.isfinite(value) or (value <= 0 and sign(known.unit) > 0):
            why = "could not be measured" if value is None else f"{value:g} {known.unit} is no measured value"
            self.failed(node, why, None, known.unit, **more)
        elif bound is None:
            self.measured(node, value, known.unit, wanted=NO_FLOOR, **more)
        elif bound.holds(value):
            self.passed(node, value, known.unit, **more)
        else:
            why = f"{f'{value:.4g} {known.unit}'.rstrip()}, expected {bound.text(known.unit)}"
            self.failed(node, why, value, known.unit, **more)

    def unread(self, node: str, error: CheckFailed, evidence: str = "") -> None:
        """What a parser can't read fails, and so does a tool that found no GPU where the driver drives some; where none
        does, there was nothing to measure."""
        nodes = [each for each in self.nodes if not node or each.name == node]
        if error.code == "tool-without-gpu" and not any(map(drives_gpus, nodes)):
            self.skipped(node, error.what, "no-gpu")
        else:
            self.failed(node, error.what, evidence=evidence)

    def all_equal(self, values: Mapping[str, str | None], what: str) -> None:
        """The same on every node; those that are not as most are the ones that fail. Where as many have one value as
        another nobody knows which is right, and all of them fail; one node alone proves nothing."""
        texts = Counter(value for value in values.values() if value is not None)
        usual, times = next(iter(texts.most_common(1)), (None, 0))
        tied = sorted(text for text, number in texts.items() if number == times)
        for node, value in values.items():
            if value is None or value not in tied:
                why = f"{what} {'could not be read' if value is None else value}; most nodes have {usual}"
                self.failed(node, why, value, wanted=f"{usual}")
            elif tied[1:]:
                why = f"{what} differs, and no value is that of most nodes: {', '.join(tied[:3])}"
                self.failed(node, why, value, wanted="the same on all nodes")
            elif len(values) == 1:
                self.measured(node, value, wanted="the same on all nodes; there is one")
            else:
                self.passed(node, value, wanted=f"{usual}")

    def draw(self, kind: Literal["matrix", "curves", "topology"], value: Any) -> None:
        self.drawings[kind] = value

    @cached_property
    def _hardware(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        return {node.name: thresholds.hardware(node.profile) for node in self.all_nodes if node.profile}

    def bound(self, quantity: str, names: Collection[str] = ()) -> Threshold | None:
        """For these nodes, or for all; of several kinds of hardware the weakest, and none where one has none."""
        chosen = [self._hardware[name] for name in names or self._hardware if name in self._hardware]
        known = self.quantities[quantity]
        bounds = [known.of(*hardware, nodes=max(len(names), 1)) for hardware in dict.fromkeys(chosen)]
        if names and None in bounds:
            return None
        some = [bound for bound in bounds if bound]
        return min(some, key=lambda each: each.least if each.least is not None else -(each.most or 0), default=None)

    @cached_property
    def _virtual(self) -> frozenset[str]:
        """The nodes that are, and "" if one is."""
        names = {node.name for node in self.all_nodes if node.virtual}
        return frozenset(names | {""} if names else ())

    def _add(self, state: State, node: str, value: Scalar, unit: str, **more: Any) -> None:
        text = plain(str(more.get("evidence", "")))
        more["evidence"] = "\n".join(text.strip().splitlines()[-LINES:])[-LENGTH:]
        virtual = self.hardware and node in self._virtual
        value = round(value, 6) if isinstance(value, float) else value
        self.measures.append(Measure(state=state, node=node, value=value, unit=unit, virtual=virtual, **more))


def sort_out(
    nodes: Collection[NodeEvidence],
    needs: Collection[str],
    tools: Mapping[str, Collection[str]],
    *,
    unfit: Mapping[str, str] | None = None,
    hardware: bool = True,
) -> Recorder:
    """A recorder for the nodes that have what is needed.

    Args:
        tools: node -> programs that its worker image has, of those that said it.
        unfit: need -> why the image hasn't it, as `without` says.
        hardware: as Recorder has it.

    Raises:
        CheckSkipped: too few have.
    """
    lacking = {node.name: lack for node in nodes if (lack := _lack(node, needs, tools, unfit or {}))}
    fit = tuple(node for node in nodes if node.name not in lacking)
    least = next((int(need.partition(":")[2]) for need in needs if need.startswith("nodes:")), 1)
    if len(fit) < least:
        reasons = "; ".join(sorted({why for why, _ in lacking.values()}))
        of_kind: dict[SkipKind, list[str]] = defaultdict(list)
        for name, (_, kind) in lacking.items():
            of_kind[kind].append(name)
        skips = (Skip(kind=kind, nodes=tuple(names)) for kind, names in sorted(of_kind.items()) if kind)
        if least > 1:
            reasons = f"{least} nodes are needed, {len(fit)} can take part" + (f" ({reasons})" if reasons else "")
        raise CheckSkipped(reasons or "no node", *skips)
    recorder = Recorder(fit, tuple(nodes), hardware)
    for name, (why, kind) in lacking.items():
        recorder.skipped(name, why, kind)
    return recorder


def components(labels: Mapping[str, str]) -> frozenset[str]:
    """Those of the image with these labels; none of an image that doesn't tell."""
    return frozenset(key.removeprefix(PART) for key in labels if key.startswith(PART))


def without(labels: Mapping[str, str]) -> dict[str, str]:
    """Why the image with these labels lacks what a check needs, by the need: `framework:pytorch` where PyTorch in it
    trains on no AMD GPU, `framework:rocm` where nothing in it does. It has what they don't tell."""
    image, parts, lacks = from_labels("the worker image", labels), components(labels), dict[str, str]()
    if image.framework is not None and not (image.framework == "pytorch" and image.framework_rocm):
        other = FRAMEWORKS.get(image.framework) if image.framework != "pytorch" else None
        trains = f"; it trains with {other}" if other else ""
        lacks["framework:pytorch"] = f"PyTorch in the image is built without ROCm{trains}"
        if not (other and image.framework_rocm):
            lacks["framework:rocm"] = lacks["framework:pytorch"]
    if parts and "openmpi" not in parts:
        lacks["part:openmpi"] = "no Open MPI in the image"
    if parts and "trainer" not in parts:
        lacks["part:trainer"] = "no trainer in the image"
        if image.framework not in JAX:
            lacks["training"] = lacks["part:trainer"]
    return lacks


def drives_gpus(node: NodeEvidence) -> bool:
    """Whether its driver drives a GPU that compute jobs can use."""
    return bool(node.profile and any(gpu.kfd_node is not None for gpu in node.profile.gpus))


def _lack(
    node: NodeEvidence, needs: Collection[str], tools: Mapping[str, Collection[str]], unfit: Mapping[str, str]
) -> tuple[str, SkipKind] | None:
    """What the node lacks for a check, and the kind of that reason."""
    for need in needs:
        kind, _, what = need.partition(":")
        if kind == "real" and node.virtual:
            return f"virtual node ({node.virtual}): it computes and carries nothing", ""
        if kind == "jobs" and not node.is_worker:
            return f"{node.name} is no worker and gets no jobs", ""
        if kind == "jobs" and BUSY in node.no_jobs:
            return node.no_jobs, "busy"
        if kind == "jobs" and node.no_jobs:
            return f"{NO_JOBS} on {node.name}: {node.no_jobs}", "no-jobs"
        if kind == "gpu" and not drives_gpus(node):
            some = len(node.profile.gpus) if node.profile else 0
            driven = f"no driver drives the {some} GPUs of node {node.name}"
            return driven if some else f"{WITHOUT_GPUS} {node.name}", ""
        if kind == "rdma" and not (node.profile and node.profile.verbs):
            return f"{WITHOUT_RDMA} {node.name}", ""
        if need in unfit:
            return unfit[need], "no-tool"
        if kind == "tool" and node.name not in tools:
            return f"{node.name} gave no answer in a job, so whether its image has {what} is unknown", ""
        if kind == "tool" and what not in tools[node.name]:
            return f"no {what} in the image", "no-tool"
    return None

"""An update of workers: waves, what becomes of nodes that fail, and what a resumed one remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from rocstack.cluster.operation import RolloutSettings
from rocstack.cluster.settings import ClusterSettings
from rocstack.deploy.nodes.answers import DrainAnswer, WaitDrainedAnswer, WaitReadyAnswer
from rocstack.deploy.nodes.node_spec import NodeSpec
from rocstack.deploy.nodes.runs import NodeRun
from rocstack.deploy.plan.prepare import DeployRequest
from rocstack.deploy.read.inventory import Inventory, InventoryHost
from rocstack.deploy.read.journal import Deploy, Journal, JournalImages
from rocstack.deploy.work.rolling import Rolling

NODES = ("n1", "n2", "n3", "n4")


@dataclass
class Slurm:
    """Answers as the controller does; `busy` nodes never become empty, `slow` ones never ready."""

    busy: dict[str, str] = field(default_factory=dict)
    slow: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def empty(
        self, nodes: Sequence[str], reason: str, seconds: float, *, requeue: bool
    ) -> tuple[DrainAnswer, WaitDrainedAnswer]:
        kept = self._of(self.kept, nodes)
        return (
            DrainAnswer(drained=tuple(name for name in nodes if name not in kept), kept=kept),
            WaitDrainedAnswer(busy=self._of(self.busy, nodes), requeued=(), refused=self.refused),
        )

    def wait_ready(self, nodes: Sequence[str], seconds: float, since: float = 0) -> WaitReadyAnswer:
        return WaitReadyAnswer(waiting=self._of(self.slow, nodes))

    @staticmethod
    def _of(all_of: Mapping[str, str], nodes: Sequence[str]) -> dict[str, str]:
        return {name: why for name, why in all_of.items() if name in nodes}


@dataclass
class Case:
    """`broken` are nodes whose new container doesn't come up."""

    slurm: Slurm = field(default_factory=Slurm)
    broken: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    settings: RolloutSettings = field(default_factory=lambda: RolloutSettings(canary=1, wave=3, failures=1))
    started: list[list[str]] = field(default_factory=list)
    notes: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def roll(self) -> tuple[str, tuple[str, ...]]:
        record = SimpleNamespace(
            failed=self.failed,
            cluster_lock=SimpleNamespace(check=lambda: None),
            fail=self.failed.__setitem__,
            note=lambda names, step: self.notes.append((tuple(names), step)),
        )
        events = SimpleNamespace(say=self.said.append, step=lambda *_: None, end=lambda *_, **__: None)
        node_specs = dict.fromkeys(NODES, NodeSpec())
        node_runs = SimpleNamespace(run=self._start)
        rolling = Rolling(self.settings, node_specs, self.slurm, node_runs, record, events, 0.0, lambda *_: None)  # type: ignore[arg-type]
        return rolling.roll(NODES, {})

    def _start(self, playbook: str, node_specs: Mapping[str, NodeSpec]) -> dict[str, NodeRun]:
        self.started.append(list(node_specs))
        bad = NodeRun("", "failed", "rocstack-worker isn't healthy")
        return {name: bad if name in self.broken else NodeRun(name, "ok") for name in node_specs}


def test_a_canary_then_a_wave() -> None:
    case = Case()
    assert case.roll() == ("", ())
    assert case.started == [["n1"], ["n2", "n3", "n4"]]
    assert case.failed == {}
    assert case.notes[-1] == (("n2", "n3", "n4"), "done")


def test_a_canary_that_fails_stops_it() -> None:
    case = Case(broken=("n1",))
    assert case.roll() == ("the canary failed: n1", ("n2", "n3", "n4"))
    assert case.failed == {"n1": "rocstack-worker isn't healthy"}


def test_one_node_of_a_wave_takes_no_other_along() -> None:
    """Also where it is the control node, which Slurm is asked on."""
    case = Case(
        broken=("n2",), slurm=Slurm(slow={"n4": "is down*"}), settings=RolloutSettings(canary=1, wave=3, failures=2)
    )
    assert case.roll() == ("", ())
    assert case.failed == {"n2": "rocstack-worker isn't healthy", "n4": "after the update it is down*"}
    assert case.notes[-1] == (("n3",), "done")


def test_a_node_that_did_not_get_the_image_is_no_canary() -> None:
    case = Case(failed={"n1": "no space left on device"})
    assert case.roll() == ("", ())
    assert case.started == [["n2"], ["n3", "n4"]]


def test_a_node_that_stays_busy_stays_as_it_is() -> None:
    case = Case(slurm=Slurm(busy={"n3": "runs job 7"}, refused={"7": "Job can not be requeued"}))
    case.settings = RolloutSettings(canary=0, wave=4, requeue=True)
    assert case.roll() == ("", ())
    assert case.started == [["n1", "n2", "n4"]]
    assert case.failed["n3"].startswith("runs job 7 still after its jobs were asked to requeue")
    assert case.said == ["job 7 can't be requeued: Job can not be requeued"]


def test_what_somebody_else_drained_is_not_waited_for() -> None:
    case = Case(slurm=Slurm(kept={"n1": "bad fan"}, slow={"n1": "is idle+drain (bad fan)"}))
    assert case.roll() == ("", ())
    assert case.failed == {}


def test_a_resumed_update_goes_on_as_it_was_begun() -> None:
    host = InventoryHost("n1", "10.0.0.1", "10.0.0.1")
    inventory = Inventory(Path("i.yml"), host, (host,))
    images = JournalImages(worker_id=f"sha256:{'a' * 64}", control_id=f"sha256:{'b' * 64}")
    began = Deploy(
        id="1", who="me", started="", images=images, options={"rollout": {"canary": 0, "drain_timeout": "infinite"}}
    )
    known = Journal(current=began)
    plain = DeployRequest(inventory, ClusterSettings(), lambda journal: {})
    assert plain.rollout(known) == RolloutSettings()
    resumed = DeployRequest(inventory, ClusterSettings(), lambda journal: {}, resume=True, overrides={"wave": 2})
    assert resumed.rollout(known) == RolloutSettings(canary=0, drain_timeout="infinite", wave=2)

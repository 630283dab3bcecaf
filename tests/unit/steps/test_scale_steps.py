"""`rocstack scale` with a cluster that answers what is written here: what was measured stays, whatever happens then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstack.base.errors import CheckFailed
from rocstack.jobs import remote
from rocstack.jobs.pools import Pool
from rocstack.steps import jobs
from rocstack.steps.job_options import ScaleOptions
from rocstack.steps.scale import scale

DONE = "0: done: step 3, loss 5 -> 4 (0x1p+2), median step 1 ms, {} tokens/s\n"
OPTIONS = ScaleOptions(nodes="1,2", weak=True, set=("batch=8",), gpus_per_node=0, tasks_per_node=2)


@dataclass
class ScriptedControl:
    """`says` is the log of each job; an exception there is raised in its middle."""

    says: dict[str, Any]
    scripts: list[str] = field(default_factory=list)
    changed: list[tuple[str, ...]] = field(default_factory=list)

    def pools(self) -> list[Pool]:
        return [Pool("train", 2, "infinite", 8, True, "mi300x")]

    def submit(self, script: str, user: str) -> str:
        self.scripts.append(script)
        return str(len(self.scripts))

    def record(self, job: str) -> Any:
        said = self.says[job]
        over = isinstance(said, str)
        state = "FAILED" if over and "failed" in said else "COMPLETED" if over else "RUNNING"
        return SimpleNamespace(id=job, over=over, ok=state != "FAILED", state=state, where="n[1-2]", why="", reason="")

    def change(self, record: Any, *command: str) -> None:
        self.changed.append((*command, record.id))

    def places(self, nodes: list[str]) -> dict[str, tuple[str, str]]:
        return dict.fromkeys(nodes, ("same", ""))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ScriptedControl:
    control = ScriptedControl({"1": DONE.format(100), "2": DONE.format(150)})
    (tmp_path / "inventory.yml").write_text("{}")
    (tmp_path / "rocstack.yml").write_text("cluster: {users: {alice: {uid: 2000}}}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(remote, "controller", lambda path: control)

    def pieces(_: Any, job: str, *, follow: bool) -> Iterator[str]:
        if not isinstance(said := control.says[job], str):
            raise said
        yield said

    monkeypatch.setattr(jobs, "pieces", pieces)
    failed = SimpleNamespace(lines=("the", "reason"))
    monkeypatch.setattr(
        jobs, "view", lambda control, job: SimpleNamespace(record=(r := control.record(job)), ok=r.ok, failed=failed)
    )
    return control


def test_each_job_has_its_nodes_and_batch(cluster: ScriptedControl) -> None:
    found = list(scale("trainer", OPTIONS))
    assert [len(each.points) for each in found] == [1, 2]
    assert [(each.ranks, each.batch, each.tokens) for each in found[-1].points] == [(2, 8, 100.0), (4, 16, 150.0)]
    assert "#SBATCH --nodes=2" in cluster.scripts[1]
    assert "--train.batch=16" in cluster.scripts[1]
    assert found[-1].places is not None
    assert "2 nodes on 1 host:" in found[-1].places.says
    kept = json.loads(Path(found[-1].picture).with_suffix(".json").read_text())
    assert kept["points"][1]["efficiency"] == 0.75
    assert not cluster.changed


@pytest.mark.parametrize(("says", "why"), [("failed\n", "ended as FAILED: the; reason"), ("quiet\n", "said nothing")])
def test_a_job_that_fails_is_the_last(cluster: ScriptedControl, says: str, why: str) -> None:
    cluster.says["2"] = says
    found = list(scale("trainer", OPTIONS))[-1]
    assert len(found.points) == 1
    assert found.stopped.startswith("2 nodes: ")
    assert why in found.stopped
    assert not found.ok
    cluster.says["3"] = says
    with pytest.raises(CheckFailed, match=why):
        list(scale("trainer", OPTIONS))


def test_speeds_of_different_units_are_not_compared(cluster: ScriptedControl) -> None:
    cluster.says["2"] = "0: done: step 3, 100 TFLOPS a GPU\n"
    found = list(scale("trainer", OPTIONS))[-1]
    assert (len(found.points), "said nothing of its speed" in found.stopped) == (1, True)


class Stopped(BaseException):
    """As Ctrl-C is."""


def test_ctrl_c_ends_the_job_that_runs_and_nothing_else(cluster: ScriptedControl) -> None:
    cluster.says["2"] = Stopped()
    found = []
    with pytest.raises(Stopped):
        found.extend(scale("trainer", OPTIONS))
    assert cluster.changed == [("scancel", "2")]
    assert json.loads(Path(".rocstack/scale/trainer-weak.json").read_text())["points"][0]["tokens_per_s"] == 100.0

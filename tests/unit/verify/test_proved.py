"""What a run proves of images, what takes it back, and where it is written down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from runs_by_level import CONTROL, OTHER, WORKER, run

from rocstack.base.errors import BadInput, CheckFailed
from rocstack.deploy.read import journal, verified
from rocstack.deploy.read.journal import Deploy, Journal, JournalImages, Release, VerifiedLevel
from rocstack.edge import locks, ssh
from rocstack.verify import proved as store
from rocstack.verify.result import NodeSeen, Run, State, skips_in


def keep(found: Run, out: Path) -> str:
    return store.keep(found, Path("inventory.yml"), out).sentence


def proved(level: int, virtual: bool = False) -> VerifiedLevel:
    return VerifiedLevel(level=level, when="before", virtual=virtual, report="r")


@dataclass
class Node:
    """A control node with this journal."""

    text: str
    refuses: CheckFailed | None = None
    written: list[str] = field(default_factory=list)

    def write(self, text: str) -> None:
        self.written.append(text)
        self.text = text

    @property
    def verified(self) -> VerifiedLevel | None:
        return journal.loads(self.text).releases[-1].verified


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    images = JournalImages(worker_id=WORKER, control_id=CONTROL, worker_reference=f"r:5000/w@{OTHER}")
    found = Node(Journal(releases=(Release(images=images, when="t", who="w", healthy=True),)).dumps())

    @contextmanager
    def hold(ssh_host: Any, spec: Any) -> Iterator[Node]:
        if found.refuses:
            raise found.refuses
        yield found

    monkeypatch.setattr(locks, "cluster_lock", hold)
    monkeypatch.setattr(ssh, "ssh_hosts", lambda inventory, hosts: dict.fromkeys(hosts, "n1"))
    return found


@pytest.mark.parametrize(
    ("before", "states", "after"),
    [
        (None, ["passed", "passed"], 1),
        (None, ["passed", "passed", "skipped"], 1),
        (None, ["passed", "failed"], 0),
        (None, ["failed", "passed"], None),
        (None, ["skipped", "skipped"], None),
        (3, ["passed", "passed"], 3),  # it didn't come to level 3
        (3, ["passed", "passed", "skipped", "skipped"], 3),
        (3, ["passed", "passed", "failed", "passed"], 1),
        (3, ["passed", "skipped", "skipped", "error"], 2),
        (None, ["passed", "passed", "skipped", "passed"], 1),
        (2, ["error", "passed", "passed"], None),
        (1, ["passed", "passed", "passed"], 2),
        (1, ["passed", "passed", "failed"], 1),
    ],
)
def test_what_stays_proved(before: int | None, states: list[State], after: int | None) -> None:
    found = store.after(None if before is None else proved(before), run(*states))
    assert (found.level if found else None) == after


def test_stored_at_both_places_and_found_again(node: Node, tmp_path: Path) -> None:
    said = keep(run("passed", "passed"), tmp_path)
    wanted = VerifiedLevel(level=1, when="2026-11-21T00:00:00Z", report="20261121-000000")
    assert node.verified == wanted
    assert verified.claims(tmp_path, WORKER, CONTROL) == (wanted,)
    assert verified.claims(tmp_path, WORKER, OTHER) == verified.claims(tmp_path, OTHER, CONTROL) == ()
    assert said == f"level 1 is proved: on n1, and in {verified.file_of(tmp_path, WORKER)}"


def test_no_news_where_the_same_is_proved(node: Node, tmp_path: Path) -> None:
    said = [
        store.keep(run(*states), Path("i"), tmp_path) for states in (["passed"], ["passed"], ["failed"], ["failed"])
    ]
    assert [each.news for each in said] == [True, False, True, False]
    assert [each.sentence.partition(":")[0] for each in said] == [
        "level 0 is proved",
        "level 0 stays proved",
        "level 0 is taken back",
        "no level is proved",
    ]


def test_a_failure_takes_it_back(node: Node, tmp_path: Path) -> None:
    keep(run("passed", "passed"), tmp_path)
    assert keep(run("passed", "failed"), tmp_path).startswith("level 1 is taken back, level 0 stays")
    assert node.verified is not None
    assert node.verified.level == 0
    assert keep(run("failed", "passed"), tmp_path).startswith("level 0 is taken back: on n1")
    assert node.verified is None
    assert verified.claims(tmp_path, WORKER, CONTROL) == ()


def test_another_clusters_claim_stays(node: Node, tmp_path: Path) -> None:
    keep(run("passed", "passed", "passed", cluster="test"), tmp_path)
    keep(run("failed"), tmp_path)
    assert [each.level for each in verified.claims(tmp_path, WORKER, CONTROL)] == [2]


def test_virtual_nodes_are_said(node: Node, tmp_path: Path) -> None:
    nodes = (NodeSeen(name="n1", roles=("worker",), image=WORKER, virtual="mi300x-thor2"),)
    assert "level 2, virtual is proved" in keep(run("passed", "passed", "passed", nodes=nodes), tmp_path)
    assert node.verified is not None
    assert node.verified.virtual


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"complete": False}, "interrupted"),
        ({"only": "mpi-*"}, "only some checks"),
        ({"image": ""}, "no worker runs"),
        ({"image": f"sha256:{'../' * 22}x"}, "no worker runs"),
        ({"nodes": (NodeSeen(name="n2", roles=("worker",), image="sha256:d"),)}, "n2 runs another image"),
    ],
)
def test_what_proves_nothing_of_the_release(about: dict[str, Any], why: str, node: Node, tmp_path: Path) -> None:
    assert why in keep(run("passed", **about), tmp_path)
    assert not node.written
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_result_changes_nothing(node: Node, tmp_path: Path) -> None:
    assert keep(run("skipped"), tmp_path).startswith("nothing was stored: no check passed")
    assert not node.written


def test_a_busy_cluster_takes_nothing_back(node: Node, tmp_path: Path) -> None:
    keep(run("passed", "passed"), tmp_path)
    found = run("passed", "skipped")
    why = "2 nodes are needed, 0 can take part (all workers are busy with jobs (waited 5 min))"
    results = (found.results[0], found.results[1].model_copy(update={"why": why, "skips": skips_in(why)}))
    busy = found.model_copy(update={"results": results})
    assert keep(busy, tmp_path) == "nothing was stored: the cluster was busy"
    assert node.verified is not None
    assert node.verified.level == 1


def test_another_controller_than_the_releases(node: Node, tmp_path: Path) -> None:
    said = keep(run("passed", control_image=f"sha256:{'d' * 64}"), tmp_path)
    assert said == "nothing was stored: the controller on n1 runs another image than the newest release's"
    assert not node.written


def test_an_engine_that_calls_it_by_its_digest(node: Node, tmp_path: Path) -> None:
    nodes = (NodeSeen(name="n1", roles=("worker",), image=OTHER), NodeSeen(name="n3", roles=("worker",), absent="down"))
    keep(run("passed", image=OTHER, nodes=nodes), tmp_path)
    assert verified.claims(tmp_path, WORKER, CONTROL) != ()


def test_a_deploy_that_has_not_ended(node: Node, tmp_path: Path) -> None:
    images = journal.loads(node.text).releases[-1].images
    node.text = journal.loads(node.text).begin(Deploy(id="d", who="w", started="t", images=images)).dumps()
    assert "has not ended" in keep(run("passed"), tmp_path)
    assert not node.written


def test_while_somebody_deploys_it_is_kept_here(node: Node, tmp_path: Path) -> None:
    node.refuses = CheckFailed("another deploy of this cluster is running: bob", code="deploy-running")
    said = keep(run("passed"), tmp_path)
    assert "only, not on n1: another deploy of this cluster is running: bob" in said
    assert verified.claims(tmp_path, WORKER, CONTROL) != ()


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 9}', '{"schema": 1, "image": "sha256:x", "claims": []}', ""])
def test_a_file_that_says_something_else(text: str, tmp_path: Path) -> None:
    file = verified.file_of(tmp_path, WORKER)
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(BadInput) as refused:
        verified.claims(tmp_path, WORKER, CONTROL)
    assert refused.value.code == "bad-verified"
    assert refused.value.where
    assert refused.value.where.path == str(file)


def test_one_with_an_extra_key(node: Node, tmp_path: Path) -> None:
    keep(run("passed"), tmp_path)
    file = verified.file_of(tmp_path, WORKER)
    data = json.loads(file.read_text())
    data["claims"][0]["level"] = 4
    file.write_text(json.dumps(data))
    with pytest.raises(BadInput):
        verified.claims(tmp_path, WORKER, CONTROL)

"""Whether a deploy works with what it read before it had the lock."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstack.deploy.nodes.runs import DeployEvents
from rocstack.deploy.read import journal
from rocstack.deploy.read.journal import Journal
from rocstack.deploy.work import deploy as work
from rocstack.edge import locks
from rocstack.edge.ssh import SshHost

HERE = SshHost("n1")


class Begun(Exception):
    pass


def begins_work(path: Path, keys: object) -> None:
    raise Begun(keys)


@pytest.mark.parametrize(("others", "readings"), [(0, 1), (1, 2), (2, 2)])
def test_who_changed_the_cluster_meanwhile_makes_it_read_again(
    others: int, readings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a rotation of keys, after which its own are old."""
    spec, prepared = journal.lock(str(tmp_path)), list[Any]()
    with locks.cluster_lock(HERE, spec):
        pass

    def prepare(*_: Any) -> Any:
        known = json.loads(Path(spec.fence).read_text())["number"]
        node = SimpleNamespace(name="n1", fence=known)
        for _ in range(0 if prepared else others):
            with locks.cluster_lock(HERE, spec):
                pass
        prepared.append(
            SimpleNamespace(
                gathered=SimpleNamespace(ssh_hosts={"n1": HERE}, nodes=[node]),
                facts=lambda name: node,
                journal=Journal(),
                keys=len(prepared) + 1,
            )
        )
        return prepared[-1]

    monkeypatch.setattr(work, "prepare", prepare)
    monkeypatch.setattr(work, "_entry", lambda _: {})
    monkeypatch.setattr(work.journal, "lock", lambda: spec)
    monkeypatch.setattr(work, "refused", lambda now: "")
    monkeypatch.setattr(work.secrets, "save", begins_work)
    request: Any = SimpleNamespace(
        inventory=SimpleNamespace(control=SimpleNamespace(name="n1"), path=tmp_path / "i"), sign=locks.unsigned
    )
    with pytest.raises(Begun) as begun:
        work.deploy(request, Any, Any, DeployEvents())  # type: ignore[arg-type]
    assert (len(prepared), begun.value.args) == (readings, (readings,))

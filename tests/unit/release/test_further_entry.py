"""An image that a stack has beside the others is an entry of its own in release.yml."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocstack.base.errors import BadInput
from rocstack.release.plan import ReleaseFile
from rocstack.settings.settings import Settings
from rocstack.steps.release_plan import EntryPlan, plan_entry

TEXT = """\
registry: registry.example.com:5000/hpc
keys: [release.key]
images:
  - stack: debian-13
    nic: tcp
    roles: {roles}
"""


def planned(folder: Path, roles: str) -> EntryPlan:
    file = folder / "release.yml"
    file.write_text(TEXT.format(roles=roles))
    return plan_entry(ReleaseFile.load(file), 0, Settings(), lambda note: None)


def test_it_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = planned(tmp_path, "[service]")
    assert list(plan.inputs) == ["service"]
    assert plan.image.lock is not None
    assert plan.inputs["service"] not in planned(tmp_path, "[worker, control]").inputs.values()
    with pytest.raises(BadInput, match="the service image is an entry of its own") as refused:
        planned(tmp_path, "[worker, control, service]")
    assert str(refused.value.where) == f"{tmp_path}/release.yml:6"


def test_what_is_released_is_what_was_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package or wheel of another version than the lock's ends the build of a release, whoever asks for it."""
    monkeypatch.chdir(tmp_path)
    plan = planned(tmp_path, "[worker, control]")
    assert plan.options.frozen
    assert plan.image.lock is not None

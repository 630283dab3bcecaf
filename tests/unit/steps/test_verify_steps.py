"""What follows from a run of `rocstack verify`: whether the cluster's service gets its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_runs import run

from rocstack.steps import verify as steps
from rocstack.verify.proved import StoredProof

ON = "cluster:\n  mounts: [/shared]\n  service: on\n"


@pytest.mark.parametrize(("text", "shown"), [(ON, "n1"), ("cluster: {}\n", "")], ids=["a service", "none"])
def test_a_report_goes_to_a_service_that_is_there(
    text: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rocstack.yml").write_text(text)
    monkeypatch.chdir(tmp_path)
    found: Any = run()
    monkeypatch.setattr(steps, "_run", lambda options, on_event: (found, tmp_path / "run", tmp_path / "inventory.yml"))
    monkeypatch.setattr(steps.proved, "keep", lambda *_: StoredProof("stored"))
    monkeypatch.setattr(steps.service_report, "give", lambda made, inventory: made.control)
    assert steps.verify().shown == shown

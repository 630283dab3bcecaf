"""The control image's services, in a shell without their daemons."""

from __future__ import annotations

import subprocess
from pathlib import Path

SERVICES = Path(__file__).parents[3] / "images/rootfs"


def test_a_controller_that_goes_on_without_its_database_is_not_said_to_wait(tmp_path: Path) -> None:
    """Or it would never be healthy, whatever comes late."""
    parts = [SERVICES / role / "usr/local/lib/rocstack/service" / role for role in ("common", "control")]
    text = "\n".join(path.read_text() for path in parts).replace("/run/rocstack", str(tmp_path))
    text = "service=control\n" + text.replace("await 60", "await 2") + "\nkeep() { :; }\nset -eu\nstart_accounting\n"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert "waiting: the database does not answer" in done.stderr
    assert "going on without the database" in done.stderr
    assert "going on without slurmdbd" in done.stderr
    assert not (tmp_path / "waiting").exists()

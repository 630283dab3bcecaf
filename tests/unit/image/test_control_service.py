"""The control image's services, in a shell without their daemons."""

from __future__ import annotations

import hashlib
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


def accounts(word: str, of_service: str) -> str:
    text = (SERVICES / "control/usr/local/lib/rocstack/service/db").read_text()
    script = f'{text}\naccounts "$1" "$2"'
    done = subprocess.run(["bash", "-c", script, "db", word, of_service], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_database_has_an_account_of_the_service_where_there_is_one() -> None:
    """The hash is what MariaDB's PASSWORD() gives."""
    plain = accounts("secret-of-slurm-1", "")
    assert "service" not in plain
    assert "CREATE DATABASE IF NOT EXISTS slurm_acct_db;" in plain
    both = accounts("secret-of-slurm-1", "secret-of-service")
    assert both.startswith(plain)
    added = both.removeprefix(plain).splitlines()
    inner = hashlib.sha1(b"secret-of-service").digest()
    assert added == [
        "CREATE DATABASE IF NOT EXISTS rocstack_service CHARACTER SET utf8mb4;",
        "CREATE USER IF NOT EXISTS service@localhost;",
        f"ALTER USER service@localhost IDENTIFIED BY PASSWORD '*{hashlib.sha1(inner).hexdigest().upper()}';",
        "GRANT ALL ON rocstack_service.* TO service@localhost;",
    ]

"""The control image's services, in a shell without their daemons."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
from pathlib import Path

SERVICES = Path(__file__).parents[3] / "images/rootfs"
CONTROL = "\n".join(
    (SERVICES / role / "usr/local/lib/rocstack/service" / role).read_text() for role in ("common", "control")
)


def test_a_controller_that_goes_on_without_its_database_is_not_said_to_wait(tmp_path: Path) -> None:
    """Or it would never be healthy, whatever comes late."""
    text = CONTROL.replace("/run/rocstack", str(tmp_path))
    text = "service=control\n" + text.replace("await 60", "await 2") + "\nkeep() { :; }\nset -eu\nstart_accounting\n"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert "waiting: the database does not answer" in done.stderr
    assert "going on without the database" in done.stderr
    assert "going on without slurmdbd" in done.stderr
    assert not (tmp_path / "waiting").exists()


def test_slurmrestd_is_well_while_its_port_is_open() -> None:
    text = f"service=control\nset -euo pipefail\n{CONTROL}\ncheck_rest\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        env = {**os.environ, "ROCSTACK_RESTD": f"127.0.0.1:{server.getsockname()[1]}"}
        assert subprocess.run(["bash", "-c", text], env=env, check=True, capture_output=True).stdout == b""
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "slurmrestd does not answer\n", "")


def test_tokens_that_come_by_tls_go_to_slurmrestds_socket_alone(tmp_path: Path) -> None:
    text = f"service=control\nset -eu\n{CONTROL}"
    text = text.replace("/run/rocstack", str(tmp_path)).replace("[ -S ", "[ -e ")
    text += '\ninstall() { mkdir -p "${@: -1}"; }\nas() { shift; echo "$@"; }\nkeep() { shift; "$@"; }\n'
    text += "start_rest\ntouch $rest/socket\nserve_tls server.pem\n"
    env = {**os.environ, "ROCSTACK_RESTD": "127.0.0.1:300", "ROCSTACK_REST_TLS": "0.0.0.0:6821"}
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, check=True)
    rest, tls = done.stdout.splitlines()
    assert rest.endswith(f"slurmrestd {tmp_path}/slurmrestd/socket 127.0.0.1:300")
    assert f"--backend={tmp_path}/slurmrestd/socket " in tls
    assert "300" not in tls


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

"""The control image's services, in a shell without their daemons."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


LISTEN = """
import os, socket, sys
if sys.argv[1] != "-":
    os.setgroups([]); os.setuid(int(sys.argv[1]))
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("uid", "well"), [("-", False), *([("65534", True), ("2001", False)] if os.getuid() == 0 else [])]
)
def test_a_jobs_program_at_slurmrestds_port_is_not_taken_for_it(uid: str, well: bool) -> None:
    parts = [SERVICES / role / "usr/local/lib/rocstack/service" / role for role in ("common", "control")]
    text = "service=control\nset -euo pipefail\n" + "\n".join(path.read_text() for path in parts) + "\ncheck_rest\n"
    command, pipe = [sys.executable, "-c", LISTEN, uid], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout
        port = program.stdout.readline().strip()
        env = {**os.environ, "ROCSTACK_RESTD": f"127.0.0.1:{port}"}
        done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True)
        program.communicate()
    assert (done.returncode == 0) is well
    assert ("slurmrestd does not answer" in done.stdout) is not well


def test_tokens_that_come_by_tls_go_to_slurmrestds_socket_alone(tmp_path: Path) -> None:
    parts = [SERVICES / role / "usr/local/lib/rocstack/service" / role for role in ("common", "control")]
    text = "service=control\nset -eu\n" + "\n".join(path.read_text() for path in parts)
    text = text.replace("/run/rocstack", str(tmp_path)).replace("[ -S ", "[ -e ")
    text += '\ninstall() { mkdir -p "${@: -1}"; }\nas() { shift; echo "$@"; }\nkeep() { shift; "$@"; }\n'
    text += "start_rest\ntouch $rest/socket\nserve_tls server.pem\n"
    env = {**os.environ, "ROCSTACK_RESTD": "127.0.0.1:6820", "ROCSTACK_REST_TLS": "0.0.0.0:6821"}
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, check=True)
    rest, tls = done.stdout.splitlines()
    assert rest.endswith(f"slurmrestd {tmp_path}/slurmrestd/socket 127.0.0.1:6820")
    assert f"--backend={tmp_path}/slurmrestd/socket " in tls
    assert "6820" not in tls


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

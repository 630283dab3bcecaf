"""The control image's services, in a shell without their daemons."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


CONTROL = "\n".join(
    (SERVICES / role / "usr/local/lib/rocstack/service" / role).read_text() for role in ("common", "control")
)


@contextmanager
def listening(uid: str = "-") -> Iterator[str]:
    """The port of a program, of another user if it is said."""
    command, pipe = [sys.executable, "-c", LISTEN, uid], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout
        yield program.stdout.readline().strip()
        program.communicate()


@pytest.mark.parametrize(
    ("uid", "well"), [("-", False), *([("65534", True), ("2001", False)] if os.getuid() == 0 else [])]
)
def test_a_jobs_program_at_slurmrestds_port_is_not_taken_for_it(uid: str, well: bool) -> None:
    with listening(uid) as port:
        env = {**os.environ, "ROCSTACK_RESTD": f"127.0.0.1:{port}"}
        text = f"service=control\nset -euo pipefail\n{CONTROL}\ncheck_rest\n"
        done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True)
    assert (done.returncode == 0) is well
    assert ("slurmrestd does not answer" in done.stdout) is not well


@pytest.mark.parametrize("taken", ["", "slurmctld", "slurmdbd"])
def test_slurmrestd_hands_no_token_to_a_job_at_the_port_of_slurmctld_or_slurmdbd(tmp_path: Path, taken: str) -> None:
    """Slurm asks nobody who answers there, and sends the token at once."""
    with listening() as ours, listening() as theirs:
        of = {"slurmctld": ours, "slurmdbd": ours} | ({taken: theirs} if taken else {})
        (tmp_path / "slurm.conf").write_text(f"SlurmctldPort={of['slurmctld']}-{of['slurmctld']}\n")
        (tmp_path / "slurmdbd.conf").write_text(f"# its own\nDbdPort = {of['slurmdbd']}\n")
        text = f"service=control\nset -euo pipefail\n{CONTROL}\n".replace("/etc/slurm", str(tmp_path))
        text += f'as() {{ echo started; }}\nid() {{ echo {os.getuid()}; }}\nsleep() {{ echo "$(ports)" && exit 7; }}\n'
        text += 'real=$(declare -f listeners)\neval "own_${real}"\n'
        text += f'listeners() {{ [ "$1" = {theirs} ] && echo 2001 || own_listeners "$1"; }}\nserve_rest\n'
        env = {**os.environ, "ROCSTACK_RESTD": "127.0.0.1:6820"}
        done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True)
    assert done.stderr == ""
    if taken:
        assert (done.returncode, done.stdout.split()) == (7, [of["slurmctld"], of["slurmdbd"]])
    else:
        assert (done.returncode, done.stdout) == (0, "started\n")


def test_the_ports_of_a_slurm_that_names_none_are_its_usual_ones(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=c\n")
    text = f"service=control\nset -euo pipefail\n{CONTROL}\nports\n".replace("/etc/slurm", str(tmp_path))
    assert subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True).stdout == "6817\n"
    (tmp_path / "slurmdbd.conf").write_text("DbdHost=localhost\n")
    assert subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True).stdout == "6817\n6819\n"


SLURMCTLD = """
trap 'echo slurmctld is told; sleep 0.3; echo it has written; exit 5' TERM
until [ $((0x$(awk '/^SigCgt/ {print $2}' /proc/$PPID/status) >> 14 & 1)) = 1 ]; do sleep 0.05; done
echo ready
while :; do sleep 0.05; done
"""


def test_slurmrestd_ends_before_slurmctld_leaves_its_port_and_with_slurmdbd(tmp_path: Path) -> None:
    """A job that waits for the port would get the tokens of all who ask while slurmctld writes down what it knows."""
    text = f"service=control\nset -euo pipefail\n{CONTROL}\n".replace("/run/rocstack", str(tmp_path))
    text += "end_rest() { echo slurmrestd ends; }\nrefuse_taken() { :; }\n"
    (tmp_path / "slurmctld").write_text(SLURMCTLD)
    told = f"{text}as() {{ exec bash {tmp_path}/slurmctld; }}\nserve_controller\n"
    with subprocess.Popen(["bash", "-c", told], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout
        assert program.stdout.readline() == "ready\n"
        program.terminate()
        said = program.stdout.read().splitlines()
    assert said == ["slurmrestd ends", "slurmctld is told", "it has written"]
    assert program.returncode == 5
    asked = text + "slurm_listens && echo it starts again\ntrue\n"
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert "again" not in done.stdout

    crash = text + "as() { exit 3; }\nserve_controller\n"
    assert subprocess.run(["bash", "-c", crash], check=False).returncode == 3
    ended = text + "as() { exit 1; }\nserve_accounting\n"
    done = subprocess.run(["bash", "-c", ended], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "slurmrestd ends\n")


@pytest.mark.parametrize("daemon", ["slurmctld", "slurmdbd"])
def test_no_slurmctld_starts_beside_a_job_at_its_port_or_slurmdbds(tmp_path: Path, daemon: str) -> None:
    """It would take from that program who its administrators are."""
    for name in ("slurm.conf", "slurmdbd.conf"):
        (tmp_path / name).write_text("# nothing of ports\n")
    theirs = {"slurmctld": 6817, "slurmdbd": 6819}[daemon]
    text = f"service=control\nset -euo pipefail\n{CONTROL}\n".replace("/etc/slurm", str(tmp_path))
    text += "as() { echo started; }\nid() { echo 64030; }\n"
    text += f'listeners() {{ [ "$1" = {theirs} ] && echo "$THEIRS" || echo 64030; }}\nserve_controller\n'
    done, well = (
        subprocess.run(["bash", "-c", text], env={**os.environ, "THEIRS": uid}, capture_output=True, text=True)
        for uid in ("2001", "64030")
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert f"a program of uid 2001 has port {theirs} of this node" in done.stderr
    assert (well.returncode, well.stdout, well.stderr) == (0, "started\n", "")


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

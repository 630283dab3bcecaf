"""A control plane of the images as a deploy starts it: database, controller and one worker, each in its container."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path

from slurm_containers import Cluster, Node, until
from workspace import Built, engine

from rocstack.deploy.plan import tls

SLURM = """\
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/run/slurm/jwt_hs256.key
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStorageEnforce=associations
NodeName=n1 CPUs=4 State=UNKNOWN
# Nobody knows its name; it has an address, where nobody is.
NodeName=gone NodeAddr=192.0.2.9 CPUs=4 State=DOWN
PartitionName=train Nodes=ALL Default=YES State=UP
"""
SLURMDBD = """\
AuthType=auth/munge
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/run/slurm/jwt_hs256.key
DbdHost=localhost
SlurmUser=slurm
PidFile=/var/lib/slurm/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
StoragePass={password}
"""
USERS = "alice 2001 2001\nbob 2002 2001\n"
REST, HTTPS = 6820, 6821


class ControlPlane(Cluster):
    def __init__(self, built: Built, folder: Path) -> None:
        super().__init__(built, folder, SLURM)
        prefix = built.workspace.prefix
        self.data, self.socket, self.state = (f"{prefix}-{name}" for name in ("data", "socket", "state"))
        self.jwt = folder / "jwt.key"
        self.jwt.write_bytes(secrets.token_bytes(32))
        self.jwt.chmod(0o400)
        self.ca, ca_key = tls.make_ca(datetime.now(UTC))
        key = tls.host_key(tls.make_key(), "ctl")
        (folder / "server").mkdir()
        (folder / "server/server.key").write_text(key)
        (folder / "server/server.pem").write_text(tls.certificate(self.ca, ca_key, key, ["ctl"], datetime.now(UTC)))
        (folder / "cluster").mkdir()
        (folder / "cluster/users").write_text(USERS)
        self.set_password()

    def set_password(self) -> None:
        self.password = secrets.token_urlsafe(24)
        (self.folder / "database").write_text(self.password)
        file = self.folder / "etc/slurmdbd.conf"
        file.unlink(missing_ok=True)
        file.write_text(SLURMDBD.format(password=self.password))
        # Only its owner may read it, and that is Slurm's account in the image.
        file.chmod(0o600)
        self.beside("chown", "64030:64030", "/etc/slurm/slurmdbd.conf", writable=True)

    def database(self) -> Node:
        volumes = (f"--volume={self.data}:/var/lib/mysql", f"--volume={self.socket}:/run/mysqld")
        password = f"--volume={self.folder / 'database'}:/run/secrets/database:ro"
        return self.start("db", "control", "--env=ROCSTACK_SERVICE=db", *volumes, password)

    def controller(self) -> Node:
        flags = (self.settings(), *self.volumes(), f"--volume={self.folder / 'cluster'}:/run/rocstack/cluster:ro")
        jwt = f"--volume={self.jwt}:/run/secrets/jwt.key:ro"
        server = f"--volume={self.folder / 'server'}:/etc/rocstack/registry:ro"
        rest = (f"--env=ROCSTACK_RESTD=127.0.0.1:{REST}", f"--env=ROCSTACK_REST_TLS=0.0.0.0:{HTTPS}")
        # Where libmariadb looks for the database if nobody says it, as in Debian 14.
        elsewhere = "--env=MYSQL_UNIX_PORT=/run/mariadbd/mysqld.sock"
        return self.start("ctl", "control", *flags, jwt, server, *rest, elsewhere)

    def worker(self) -> Node:
        users = f"--volume={self.folder / 'cluster'}:/run/rocstack/cluster:ro"
        return self.start("n1", "worker", "--env=ROCSTACK_CONTROLLER=ctl", users)

    def volumes(self) -> tuple[str, str]:
        return f"--volume={self.state}:/var/lib/slurm", f"--volume={self.socket}:/run/mysqld"

    def beside(self, *command: str, writable: bool = False, stdin: Path | None = None) -> tuple[int, str]:
        """A command in a container with the controller's volumes: its code and all it says."""
        etc = f"--volume={self.folder / 'etc'}:/etc/slurm{'' if writable else ':ro'}"
        line = ("run", "--rm", "--interactive", "--network=none", etc, *self.volumes())
        with (stdin or Path("/dev/null")).open("rb") as stream:
            done = engine(*line, self.built.workspace.reference("control"), *command, check=False, stdin=stream)
        return done.returncode, done.stdout + done.stderr

    def wipe(self) -> None:
        for node in self.made:
            node.remove()
        for volume in (self.data, self.socket, self.state):
            engine("volume", "rm", "--force", volume, check=False)

    def close(self) -> None:
        self.wipe()
        super().close()


class Controller:
    """Questions to a controller's container."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def ready(self) -> None:
        until(self.node.health, "healthy", self.node)

    def submit(self, *flags: str) -> str:
        line = (
            "sbatch",
            "--parsable",
            "--account=research",
            "--chdir=/tmp",
            "--output=/dev/null",
            *flags,
            "--wrap=true",
        )
        return self.node.run("setpriv", "--reuid=alice", "--regid=alice", "--init-groups", *line).stdout.strip()

    def state(self, job: str) -> str:
        return self.node.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").stdout.strip()

    def ended(self, job: str) -> str:
        """As the database knows it."""
        line = ("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}", "--format=State,User,Account")
        return self.node.run(*line).stdout.strip()

    def accounts(self) -> list[str]:
        line = ("sacctmgr", "--noheader", "--parsable2", "list", "associations", "format=account,user")
        return sorted(self.node.run(*line).stdout.split())


def ask(
    worker: Node, path: str, token: str = "", *, base: str = f"https://ctl:{HTTPS}", ca: str = ""
) -> tuple[int, dict[str, object]]:
    """GET of the controller's REST interface, from another container; without HTTP status: 0 and why."""
    script = f"""
import json, ssl, urllib.request, urllib.error
context = ssl.create_default_context(cadata={ca!r} or None)
headers = {{"X-SLURM-USER-TOKEN": "{token}"}} if "{token}" else {{}}
try:
    asked = urllib.request.Request("{base}{path}", headers=headers)
    answer = urllib.request.urlopen(asked, timeout=20, context=context)
    print(json.dumps([answer.status, json.load(answer)]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, {{}}]))
except OSError as error:
    print(json.dumps([0, {{"why": str(error)}}]))
"""
    status, found = json.loads(worker.run("python3", "-c", script).stdout)
    return status, found

"""Database, controller and a worker at work: accounting, tokens, what survives and what a backup brings back."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import HTTPS, REST, Controller, ControlPlane, ask
from slurm_containers import Node, until
from workspace import Built, engine

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def plane(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    plane = ControlPlane(built, tmp_path_factory.mktemp("plane"))
    yield plane
    plane.close()


@pytest.fixture(scope="module")
def nodes(plane: ControlPlane) -> dict[str, Node]:
    """The controller before its database: it waits."""
    found = {"worker": plane.worker(), "controller": plane.controller()}
    until(
        lambda: str("waiting: the database does not answer" in found["controller"].log()), "True", found["controller"]
    )
    assert found["controller"].run("rocstack-health", check=False).returncode == 1
    found["db"] = plane.database()
    controller = Controller(found["controller"])
    controller.ready()
    until(found["worker"].health, "healthy", found["worker"])
    found["controller"].run("sacctmgr", "--immediate", "add", "account", "research")
    found["controller"].run("sacctmgr", "--immediate", "add", "user", "alice", "account=research")
    return found


@pytest.fixture
def worker(nodes: dict[str, Node]) -> Node:
    return nodes["worker"]


@pytest.fixture
def controller(nodes: dict[str, Node]) -> Controller:
    return Controller(nodes["controller"])


def idle(controller: Controller) -> None:
    line = ("sinfo", "--noheader", "--nodes=n1", "--format=%T")
    until(lambda: controller.node.run(*line).stdout.strip(), "idle", controller.node)


def test_jobs_are_accounted(controller: Controller) -> None:
    idle(controller)
    job = controller.submit()
    until(lambda: controller.ended(job), "COMPLETED|alice|research", controller.node)
    assert controller.accounts() == ["research|", "research|alice", "root|", "root|root"]


def test_tokens_open_the_rest_interface_by_tls_only(controller: Controller, worker: Node, plane: ControlPlane) -> None:
    token = controller.node.run("scontrol", "token", "username=alice", "lifespan=300").stdout.strip()
    token = token.removeprefix("SLURM_JWT=")
    for version in ("v0.0.40", "v0.0.41"):
        status, found = ask(worker, f"/slurm/{version}/ping", token, ca=plane.ca)
        assert status == 200
        assert [ping["pinged"] for ping in found["pings"]] == ["UP"]  # type: ignore[attr-defined]
        assert ask(worker, f"/slurmdb/{version}/clusters", token, ca=plane.ca)[0] == 200
    ping = "/slurm/v0.0.41/ping"
    assert ask(worker, ping, ca=plane.ca)[0] == 401
    assert ask(worker, "/slurm/v0.0.41/jobs", token[:-4] + "AAAA", ca=plane.ca)[0] not in (0, 200)
    for base in (f"http://ctl:{HTTPS}", f"http://ctl:{REST}"):
        assert ask(worker, ping, token, base=base)[0] == 0, "no plain http but on loopback"
    assert "CERTIFICATE_VERIFY_FAILED" in str(ask(worker, ping, token)[1])
    asked = f"GET {ping} HTTP/1.0\\r\\nX-SLURM-USER-TOKEN: {token}\\r\\n\\r\\n"
    line = f"exec 3<>/dev/tcp/127.0.0.1/{REST}; printf '{asked}' >&3; head -n 1 <&3"
    assert " 200 " in controller.node.run("bash", "-c", line).stdout
    key = controller.node.run("stat", "--format=%U %a", "/run/slurm/jwt_hs256.key").stdout.strip()
    assert key == "slurm 400"


def test_nothing_but_the_socket_reaches_the_database(nodes: dict[str, Node], plane: ControlPlane) -> None:
    db = nodes["db"]
    listening = db.run("ss", "--listening", "--no-header", "--tcp", "--udp", "--numeric").stdout
    assert [line for line in listening.splitlines() if "127.0.0.11:" not in line] == [], "but for docker's own DNS"
    assert plane.password not in db.log() + nodes["controller"].log()
    for node in (db, nodes["controller"]):
        assert plane.password not in node.run("ps", "axeww").stdout
    spoken = "SHOW VARIABLES WHERE variable_name IN ('innodb_lock_wait_timeout', 'innodb_buffer_pool_size')"
    values = dict(line.split() for line in db.run("mariadb", "-BNe", spoken).stdout.splitlines())
    assert values["innodb_lock_wait_timeout"] == "900"
    assert 128 << 20 <= int(values["innodb_buffer_pool_size"]) <= 4096 << 20


@pytest.mark.parametrize(
    ("daemon", "says"),
    [("slurmdbd", "slurmdbd does not answer"), ("munged", "munge: no round trip"), ("slurmrestd", ""), ("hitch", "")],
)
def test_daemons_come_back(controller: Controller, daemon: str, says: str) -> None:
    node = controller.node
    node.run("pkill", "-STOP", "--exact", daemon)
    if says:
        until(lambda: str(says in node.run("rocstack-health", check=False).stdout), "True", node)
        until(node.health, "unhealthy", node)
    node.run("pkill", "-KILL", "--exact", daemon)
    until(lambda: str(f"{daemon} ended with 137 and starts again" in node.log()), "True", node)
    controller.ready()
    assert node.state()["Running"]


def test_reconfigure_leaves_it_running(controller: Controller) -> None:
    started = controller.node.state()["StartedAt"]
    controller.node.run("scontrol", "reconfigure")
    controller.ready()
    assert controller.node.state()["StartedAt"] == started


def test_the_database_recovers_and_learns_its_new_password(nodes: dict[str, Node], plane: ControlPlane) -> None:
    before = Controller(nodes["controller"]).accounts()
    engine("kill", "--signal=KILL", nodes["db"].name)
    nodes["db"].remove()
    old, db = plane.password, plane.database()
    until(db.health, "healthy", db)
    assert Controller(nodes["controller"]).accounts() == before
    engine("stop", "--time=60", db.name)
    assert "Shutdown complete" in db.log()
    assert db.state()["ExitCode"] in (0, 143)
    db.remove()
    plane.set_password()
    nodes["db"] = plane.database()
    until(nodes["db"].health, "healthy", nodes["db"])
    login = ("mariadb", "--user=slurm", "--execute=DO 1", "slurm_acct_db")
    assert nodes["db"].run(*login, check=False, MYSQL_PWD=old).returncode != 0
    assert nodes["db"].run(*login, check=False, MYSQL_PWD=plane.password).returncode == 0


def test_jobs_survive_another_container(nodes: dict[str, Node], plane: ControlPlane) -> None:
    controller = Controller(nodes["controller"])
    job = controller.submit("--hold")
    # Killed, slurmctld would forget what it has not yet written, which is up to some seconds.
    engine("stop", "--time=60", controller.node.name)
    nodes["controller"].remove()
    nodes["controller"] = plane.controller()
    controller = Controller(nodes["controller"])
    controller.ready()
    assert controller.state(job) == "PENDING"
    controller.node.run("scontrol", "release", job)
    until(lambda: controller.ended(job), "COMPLETED|alice|research", controller.node)


def test_two_controllers_do_not_share_a_state(plane: ControlPlane, nodes: dict[str, Node]) -> None:
    second = plane.start("ctl2", "control", plane.settings(), *plane.volumes())
    until(lambda: str(second.state()["Status"]), "exited", second)
    assert second.state()["ExitCode"] == 3
    assert "another controller or rocstack-restore is at work" in second.log()
    assert Controller(nodes["controller"]).node.state()["Running"]


def test_a_backup_brings_all_back(nodes: dict[str, Node], plane: ControlPlane, tmp_path: Path) -> None:
    """Last but one: it wipes everything."""
    controller = Controller(nodes["controller"])
    done, job = controller.submit(), controller.submit("--hold")
    until(lambda: controller.ended(done), "COMPLETED|alice|research", controller.node)
    accounts, backup = controller.accounts(), tmp_path / "backup.tar.zst"
    with backup.open("wb") as stream:
        subprocess.run(["docker", "exec", controller.node.name, "rocstack-backup"], stdout=stream, check=True)
    assert backup.read_bytes()[:4] == b"\x28\xb5\x2f\xfd", "zstd, and nothing said on standard output"
    code, said = plane.beside("rocstack-restore", stdin=backup)
    assert code == 1
    assert "the controller runs on this state" in said

    plane.wipe()
    half = tmp_path / "half"
    half.write_bytes(backup.read_bytes()[: backup.stat().st_size // 2])
    odd = tmp_path / "odd"
    tar = ["tar", "-C", str(tmp_path / "in"), "-xpf", "-"]
    (tmp_path / "in").mkdir()
    subprocess.run(f"zstd -qdc {backup} | {' '.join(tar)}", shell=True, check=True)
    (tmp_path / "in/slurmctld/shell").touch(0o755)
    (tmp_path / "in/slurmctld/shell").chmod(0o4755)
    subprocess.run(f"tar -C {tmp_path}/in -cf - about slurmctld database.sql | zstd -q >{odd}", shell=True, check=True)
    for file, wanted in ((half, 2), (odd, 2), (backup, 3)):
        code, said = plane.beside("rocstack-restore", stdin=file)
        assert (code, "nothing was changed" in said) == (wanted, True), said
    nodes["db"] = plane.database()
    until(nodes["db"].health, "healthy", nodes["db"])
    code, said = plane.beside("rocstack-restore", stdin=backup)
    assert code == 0, said
    assert said.startswith("rocstack-restore: the cluster rocstack is as it was at ")

    nodes["controller"], nodes["worker"] = plane.controller(), plane.worker()
    controller = Controller(nodes["controller"])
    controller.ready()
    assert controller.accounts() == accounts
    assert controller.ended(done) == "COMPLETED|alice|research"
    assert controller.state(job) == "PENDING"
    controller.node.run("scontrol", "release", job)
    until(lambda: controller.ended(job), "COMPLETED|alice|research", controller.node)


def test_the_controller_says_what_is_missing(plane: ControlPlane, nodes: dict[str, Node]) -> None:
    nodes["controller"].remove()
    for flags, says in (
        (("--env=ROCSTACK_RESTD=127.0.0.1:6820", plane.settings()), "no JWT key at /run/secrets/jwt.key"),
        ((), "no /etc/slurm/slurm.conf"),
        (("--env=ROCSTACK_SERVICE=redis",), "ROCSTACK_SERVICE is controller, db or registry"),
        (("--env=ROCSTACK_SERVICE=db",), "no password at /run/secrets/database"),
        (("--env=ROCSTACK_SERVICE=registry",), "no /etc/rocstack/registry/server.pem"),
    ):
        node = plane.start(f"bare-{secrets.token_hex(2)}", "control", *flags)
        until(lambda node=node: str(node.state()["Status"]), "exited", node)  # type: ignore[misc]
        assert node.state()["ExitCode"] in (2, 3)
        assert says in node.log()


def test_the_database_is_made_in_an_empty_place_only(plane: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "foreign").write_text("of somebody else")
    (tmp_path / "database").write_text(secrets.token_urlsafe(24))
    mounts = (f"--volume={tmp_path}:/var/lib/mysql", f"--volume={tmp_path / 'database'}:/run/secrets/database:ro")
    node = plane.start("foreign", "control", "--env=ROCSTACK_SERVICE=db", *mounts)
    until(lambda: str(node.state()["Status"]), "exited", node)
    assert "/var/lib/mysql holds something, but no database" in node.log()
    assert (tmp_path / "foreign").read_text() == "of somebody else"
    node.remove()
    # What a start leaves that was killed while it made the database.
    (tmp_path / "rocstack-unfinished").touch()
    node = plane.start("unfinished", "control", "--env=ROCSTACK_SERVICE=db", *mounts)
    started = time.monotonic()
    until(node.health, "healthy", node)
    print(f"a new database answers after {time.monotonic() - started:.1f} s")
    node.run("find", "/var/lib/mysql", "-mindepth", "1", "-delete", check=False)

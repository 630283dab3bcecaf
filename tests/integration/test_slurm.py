"""Slurm's files and accounts as they are made here, given to the real daemons: two workers with eight GPUs each that
are character devices and nothing more. Once as machines with this one's CPUs and cgroups, once as virtual nodes, which
say that they have more, without cgroups."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from slurm_containers import PRIVILEGES, Node, until
from workspace import REPO, Built, engine

from rocstack.cluster import accounts, cgroup, slurm_files, slurm_records
from rocstack.cluster.settings import ClusterSettings
from rocstack.cluster.slurm_node import SlurmNodeConfig, slurm_node
from rocstack.node.profile import Gpu, NodeProfile, System

pytestmark = [pytest.mark.engine, pytest.mark.slow]  # the deployed cluster of other tests has the same files

ORDER = (131, 128, 129, 130, 132, 133, 134, 135)  # ROCm's; not that of the device nodes
DEVICES = "for minor in $(seq 128 135); do mknod -m 666 /dri/renderD$minor c 226 $minor; done"
OPEN = """
import errno, os
found = {}
for minor in range(128, 136):
    try: os.open(f"/dev/dri/renderD{minor}", os.O_RDWR)
    except OSError as error: found[minor] = errno.errorcode[error.errno]
print([minor for minor, why in found.items() if why == "ENXIO"])  # allowed, and no driver behind it
"""
WANTED = {
    "qos": {
        "low": {"priority": 10, "preempt_mode": "requeue"},
        "high": {"priority": 1000, "preempts": ["low"]},
        "capped": {"max_gpus_per_user": 4, "max_wall": "36h", "flags": ["DenyOnLimit"]},
    },
    "accounts": {"research": {"fairshare": 60}, "vision": {"parent": "research", "max_gpus": 12}},
    "users": {"alice": {"uid": 2000, "accounts": ["vision", "research"]}, "bob": {"uid": 2001, "admin": "operator"}},
    "slurm": {"JobFileAppend": 1, "PriorityCalcPeriod": 1},
}


def gpus() -> tuple[Gpu, ...]:
    return tuple(
        Gpu(
            index, f"0000:{index:02x}:00.0", "1002:74a1", "gfx942", "AMD Instinct MI300X OAM", minor, kfd_node=index + 1
        )
        for index, minor in enumerate(ORDER)
    )


@dataclass
class Slurm:
    control: Node
    workers: tuple[Node, Node]
    settings: ClusterSettings
    files: slurm_files.Files

    def ask(self) -> slurm_records.SlurmRecords:
        return slurm_records.read(
            {name: self.control.run(*line).stdout for name, line in slurm_records.QUESTIONS.items()}
        )

    def changes(self, settings: ClusterSettings) -> accounts.SlurmChanges:
        now = datetime.fromisoformat(self.control.run("date", "+%Y-%m-%dT%H:%M:%S").stdout.strip())
        return accounts.changes(settings, self.ask(), workers=["sl1", "sl2"], groups={"rack": ["sl2"]}, now=now)

    def apply(self, settings: ClusterSettings) -> None:
        for line in self.changes(settings).commands:
            self.control.run(*line)

    def alice(self, *line: str, check: bool = True) -> str:
        """On the first worker, as somebody who is not root."""
        user = ("setpriv", "--reuid=2000", "--regid=2000", "--clear-groups")
        done = engine("exec", "--workdir=/tmp", self.workers[0].name, *user, *line, check=check)
        return done.stdout.strip() if check else done.stdout + done.stderr

    def state(self, job: str) -> str:
        return self.control.run("squeue", "--noheader", "--jobs", job, "--format=%T").stdout.strip()


def settings(**more: object) -> ClusterSettings:
    return ClusterSettings.model_validate_json(json.dumps({**WANTED, **more}))


@pytest.fixture(scope="module", params=["auto", "disabled"])
def cluster(request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    folder, prefix = tmp_path_factory.mktemp("slurm"), f"{built.workspace.prefix}-{request.param}"
    version = int(engine("info", "--format", "{{.CgroupVersion}}").stdout)
    if request.param == "auto" and version != 1:
        pytest.skip("jobs in cgroups of version 2 were never seen here")
    number = secrets.randbelow(250)
    addresses = {name: f"10.214.{number}.{last}" for name, last in (("ctl", 10), ("sl1", 12), ("sl2", 11))}
    virtual = None if request.param == "auto" else "made by hand"
    system = System(cpus=os.cpu_count(), memory=6 << 30)
    profile = NodeProfile(1, "sl1", virtual=virtual, system=system, gpus=gpus())
    workers: list[SlurmNodeConfig] = [
        slurm_node(profile, name=name, address=addresses[name], cgroup=version, cgroup_writable=True)
        for name in ("sl1", "sl2")
    ]
    wanted = settings(cgroup=request.param)
    files = slurm_files.files(
        wanted, slurm_files.Control("ctl", addresses["ctl"]), workers, password="not-so-secret-1234"
    )
    secret(folder / "munge.key", secrets.token_bytes(128))
    secret(folder / "jwt.key", secrets.token_bytes(32))
    secret(folder / "database", b"not-so-secret-1234")
    (folder / "cluster").mkdir()
    (folder / "cluster/users").write_text(wanted.user_lines())
    etc = folder / "etc"
    etc.mkdir()
    for name, text in files.texts.items():
        (etc / name).write_text(text)
    engine("run", "--rm", f"--volume={etc}:/etc/slurm", "--entrypoint=sh", built.control, "-c",
           "chown slurm:slurm /etc/slurm/slurmdbd.conf && chmod 600 /etc/slurm/slurmdbd.conf")  # fmt: skip
    engine("network", "create", f"--subnet=10.214.{number}.0/24", f"{prefix}-net")
    made: list[Node] = []
    try:
        yield start(made, built, folder, prefix, addresses, wanted, files, version)
    finally:
        for node in made:
            node.remove()
        engine("network", "rm", f"{prefix}-net", check=False)
        engine("volume", "rm", f"{prefix}-socket", check=False)
        for folder in sorted(Path("/sys/fs/cgroup").glob("*/slurm_sl[12]/**/"), reverse=True):  # the deepest first
            with suppress(OSError):
                folder.rmdir()


def start(
    made: list[Node],
    built: Built,
    folder: Path,
    prefix: str,
    addresses: dict[str, str],
    wanted: ClusterSettings,
    files: slurm_files.Files,
    version: int,
) -> Slurm:
    def run(name: str, role: str, *flags: str) -> Node:
        made.append(Node(f"{prefix}-{name}"))
        line = (f"--name={made[-1].name}", f"--hostname={name}", *PRIVILEGES[role], *flags, getattr(built, role))
        engine("run", "--detach", *line)
        return made[-1]

    def mounts(*pairs: tuple[str, str]) -> list[str]:
        return [f"--volume={folder / source}:{target}:ro" for source, target in pairs]

    socket = f"--volume={prefix}-socket:/run/mysqld"
    shared = mounts(("munge.key", "/run/secrets/munge.key"), ("cluster", "/run/rocstack/cluster"))
    secret_files = mounts(("database", "/run/secrets/database"))
    run("db", "control", "--network=none", "--env=ROCSTACK_SERVICE=db", socket, *secret_files)
    network = {name: (f"--network={prefix}-net", f"--ip={address}") for name, address in addresses.items()}
    own = mounts(("etc", "/etc/slurm"), ("jwt.key", "/run/secrets/jwt.key"))
    control = run("ctl", "control", *network["ctl"], socket, *shared, *own)
    profile = f"seccomp={REPO / 'images/seccomp.json'}"
    flags = {
        name: [
            flag.replace(f"seccomp={cgroup.SECCOMP}", profile)
            for flag in cgroup.cgroup_flags(name, version, files.cgroups.used)
        ]
        for name in ("sl1", "sl2")
    }
    ends = ("--volume=/sys:/sys:ro", f"--env=ROCSTACK_CONTROLLER={addresses['ctl']}:297")
    (folder / "dri").mkdir()
    engine("run", "--rm", f"--volume={folder / 'dri'}:/dri", "--entrypoint=sh", built.worker, "-c", DEVICES)
    devices = [f"--device={file}:/dev/dri/{file.name}" for file in sorted((folder / "dri").iterdir())]
    everywhere = (*devices, *ends, *shared)
    workers = [run(name, "worker", *network[name], *flags[name], *everywhere) for name in ("sl1", "sl2")]
    until(
        lambda: control.run("sinfo", "--noheader", "--partition=train", "--format=%D %T", check=False).stdout.strip(),
        "2 idle",
        control,
    )
    made_cluster = Slurm(control, (workers[0], workers[1]), wanted, files)
    for node in (control, *workers):
        node.run("rocstack-users")
    made_cluster.apply(wanted)
    return made_cluster


def secret(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    file.chmod(0o400)


def test_the_daemons_take_the_files_without_a_complaint(cluster: Slurm) -> None:
    """From its second start on: at the first there is no state yet, and it says so."""
    engine("restart", "--time=5", cluster.control.name)
    until(
        lambda: cluster.control.run(
            "sinfo", "--noheader", "--partition=train", "--format=%D %T", check=False
        ).stdout.strip(),
        "2 idle",
        cluster.control,
    )
    log = engine("logs", f"--since={cluster.control.state()['StartedAt']}", cluster.control.name)
    said = [line for line in (log.stdout + log.stderr).splitlines() if "Running as primary controller" in line]
    assert said, "it did start again"
    complaints = [n.log() for n in cluster.workers] + [log.stdout + log.stderr]
    wrong = [
        line
        for text in complaints
        for line in text.splitlines()
        if re.match(r"slurm(ctld|d(-sl\d)?): (error|warning):", line)
    ]
    assert not [line for line in wrong if not transient(line)]


def transient(line: str) -> bool:
    """What restarts and first starts say. The account of the acceptance suite is made by a deploy."""
    if line.endswith("No association for account rocstack-verify"):
        return True
    words = ("connect failure", "failed to load configs", "sendto", "fed_mgr", "Connection reset", "Unable to contact")
    return any(word in line for word in (*words, "Connection refused", "state file", "state save file", "agent"))


def test_nodes_have_their_gpus_and_addresses(cluster: Slurm) -> None:
    rows = cluster.control.run(
        "sinfo", "--noheader", "--partition=train", "--Node", "--format=%N %G %f %c %m"
    ).stdout.split("\n")
    virtual = (
        ["gfx942,mi300x,virtual", "32"] if not cluster.files.cgroups.used else ["gfx942,mi300x", str(os.cpu_count())]
    )
    assert rows[0].split() == ["sl1", "gpu:mi300x:8", *virtual, "5632"]
    text = cluster.control.run("scontrol", "show", "node", "sl1").stdout
    assert ".12 " in text, "addresses stand beside the names in their order"


def test_a_job_gets_rocms_variable_and_no_other(cluster: Slurm) -> None:
    env = dict(line.split("=", 1) for line in cluster.alice("srun", "--gpus=2", "env").splitlines() if "=" in line)
    assert env["ROCR_VISIBLE_DEVICES"] == "0,1"
    assert not {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"} & set(env)
    if not cluster.files.cgroups.used:
        assert env["SLURM_CPUS_ON_NODE"] == "8", "each GPU brings its CPUs"


def test_tasks_of_both_nodes_are_bound(cluster: Slurm) -> None:
    """Not as root: binding the tasks of a user needs a capability."""
    line = ("srun", "--nodes=2", "--ntasks-per-node=2", "--cpu-bind=cores", "hostname")
    assert sorted(cluster.alice(*line).split()) == ["sl1", "sl1", "sl2", "sl2"]


def test_a_job_opens_no_gpu_but_its_own(cluster: Slurm) -> None:
    if not cluster.files.cgroups.used:
        pytest.skip("without cgroups nothing holds a job back")
    assert cluster.alice("srun", "--gpus=2", "python3", "-c", OPEN) == "[128, 131]", "the first two by ROCm's count"
    alone = ("srun", "--nodes=1", "--ntasks=2", "--gpus-per-task=mi300x:1", "python3", "-c", OPEN)
    assert sorted(cluster.alice(*alone).splitlines()) == ["[128]", "[131]"]


def test_memory_over_the_limit_ends_the_job(cluster: Slurm) -> None:
    if not cluster.files.cgroups.used:
        pytest.skip("without cgroups nothing holds a job back")
    hungry = ("python3", "-c", "print(len(bytearray(400 << 20)))")
    assert cluster.alice("srun", "--mem=600", *hungry) == str(400 << 20)
    assert "Out Of Memory" in cluster.alice("srun", "--mem=100", *hungry, check=False)


def test_root_in_the_worker_writes_no_cgroups_but_slurms(cluster: Slurm) -> None:
    """Nor gets there by a mount or a device node of its own: with these it would be root on the node."""
    if not cluster.files.cgroups.used:
        pytest.skip("without cgroups there is nothing to write")
    own = "/sys/fs/cgroup/devices/slurm_sl1"
    script = f"""
        mkdir {own}/mine && rmdir {own}/mine && echo writes its own
        for folder in /sys/fs/cgroup/*/; do
            mkdir "$folder/rocstack-was-here" 2>/dev/null && rmdir "$folder/rocstack-was-here" && echo "writes $folder"
            (echo $$ >"$folder/cgroup.procs") 2>/dev/null && echo "enters $folder"
            (echo /tmp/x >"$folder/release_agent") 2>/dev/null && echo "is started by $folder"
        done
        mkdir /tmp/there
        mount -t cgroup -o devices none /tmp/there 2>/dev/null && echo mounts cgroups
        mount -o remount,rw,bind /sys/fs/cgroup/devices 2>/dev/null && echo mounts again
        mount -t tmpfs none /tmp/there 2>/dev/null && echo mounts
        unshare --mount true 2>/dev/null && echo makes namespaces
        echo $$ >{own}/cgroup.procs && echo enters its own
        mknod /tmp/disk b 8 0 2>/dev/null && echo makes a disk
        exit 0
    """
    assert cluster.workers[0].run("bash", "-c", script).stdout.splitlines() == ["writes its own", "enters its own"]


def test_high_preempts_low_which_is_requeued(cluster: Slurm) -> None:
    low = cluster.alice(
        "sbatch", "--parsable", "--account=research", "--qos=low", "--nodes=2", "--gpus-per-node=8", "--wrap=sleep 60"
    )
    until(lambda: cluster.state(low), "RUNNING", cluster.control, 20)
    assert cluster.alice("srun", "--account=research", "--qos=high", "--nodes=2", "--gpus-per-node=8", "true") == ""
    assert cluster.state(low) == "PENDING"
    assert "Restarts=1" in cluster.control.run("scontrol", "show", "job", low).stdout
    cluster.alice("scancel", low)


def test_a_job_that_its_workers_restart_ended_is_given_up(cluster: Slurm) -> None:
    """Also one that the controller has just heard of: it would count as running for half an hour."""
    job = cluster.alice("sbatch", "--parsable", "--no-requeue", "--nodelist=sl2", "--wrap=sleep 900")
    until(lambda: cluster.state(job), "RUNNING", cluster.control, 20)
    cluster.control.run("scontrol", "reconfigure")
    engine("restart", "--time=5", cluster.workers[1].name)
    shown = ("scontrol", "show", "job", job)
    until(lambda: str("NODE_FAIL" in cluster.control.run(*shown).stdout), "True", cluster.control, 120)
    idle = ("sinfo", "--noheader", "--partition=train", "--format=%D %T")
    until(lambda: cluster.control.run(*idle).stdout.strip(), "2 idle", cluster.control, 60)


def test_limits_hold(cluster: Slurm) -> None:
    said = cluster.alice("srun", "--qos=capped", "--gpus=5", "true", check=False)
    assert "QOSMaxGRESPerUser" in said
    assert cluster.alice("srun", "--qos=capped", "--gpus=4", "true") == ""
    assert "Invalid account" in cluster.alice("srun", "--account=root", "true", check=False)


def test_a_second_time_there_is_nothing_to_do(cluster: Slurm) -> None:
    assert cluster.changes(cluster.settings) == accounts.SlurmChanges()


def test_what_was_made_by_hand_stays_and_is_said(cluster: Slurm) -> None:
    by_hand = ("sacctmgr", "--immediate")
    cluster.control.run(*by_hand, "add", "qos", "name=theirs")
    cluster.control.run(*by_hand, "modify", "account", "where", "name=research", "set", "QosLevel+=theirs", "GrpJobs=7")
    changes = cluster.changes(cluster.settings)
    assert changes == accounts.SlurmChanges((), ("QoS theirs: not in rocstack.yml, left as it is",))
    cluster.control.run(*by_hand, "delete", "qos", "name=theirs")


def test_everything_can_be_changed_and_taken_back(cluster: Slurm) -> None:
    low = {
        "priority": 5,
        "preempt_mode": "cancel",
        "grace": "45s",
        "max_nodes": 3,
        "max_jobs": 2,
        "max_submitted": 9,
        "max_wall": "90m",
    }
    other = settings(
        qos={
            "low": {**low, "max_gpus": 9, "max_gpus_per_account": 8, "max_gpus_per_user": 7, "max_gpus_per_job": 6},
            "high": {"priority": 7, "preempts": [], "flags": ["NoReserve"]},
            "capped": {"max_gpus_per_user": -1, "max_wall": "infinite", "flags": []},
        },
        accounts={
            "research": {"fairshare": 7, "default_qos": "low"},
            "vision": {"parent": "root", "qos": ["normal", "low"], "max_gpus": -1},
        },
        users={"alice": {"uid": 2000, "accounts": ["research", "vision"]}, "bob": {"uid": 2001, "admin": "none"}},
    )
    cluster.apply(other)
    assert cluster.changes(other) == accounts.SlurmChanges()
    row = cluster.ask().qos["low"]
    assert (row["MaxWall"], row["GraceTime"], row["MaxTRES"]) == ("01:30:00", "00:00:45", "gres/gpu=6,node=3")
    cluster.apply(cluster.settings)
    assert cluster.changes(cluster.settings) == accounts.SlurmChanges()


def test_dedicated_capacity(cluster: Slurm) -> None:
    """Their jobs are drawn to it, others stay outside; made twice, moved, and taken away by hand."""
    held = {"vision-nodes": {"nodes": ["rack"], "accounts": ["vision"]}}
    cluster.apply(settings(reservations=held))
    assert cluster.changes(settings(reservations=held)) == accounts.SlurmChanges()
    try:
        assert cluster.alice("srun", "--account=vision", "hostname") == "sl2"
        assert cluster.alice("srun", "--account=research", "hostname") == "sl1"
        later = {"vision-nodes": {"count": 1, "accounts": ["vision"], "start": "2031-01-01T08:00", "duration": "36h"}}
        moved = {"vision-nodes": {"nodes": ["sl1"], "accounts": ["research"], "magnetic": False}}
        cluster.apply(settings(reservations=moved))
        assert cluster.changes(settings(reservations=moved)) == accounts.SlurmChanges()
        cluster.control.run("scontrol", "delete", "reservation", "vision-nodes")
        cluster.apply(settings(reservations=later))
        assert cluster.changes(settings(reservations=later)) == accounts.SlurmChanges()
        assert cluster.ask().reservations["vision-nodes"]["EndTime"] == "2031-01-02T20:00:00"
    finally:
        cluster.control.run("scontrol", "delete", "reservation", "vision-nodes", check=False)


def test_tiers_under_contention(cluster: Slurm) -> None:
    """All want all GPUs of one node. The QoS counts first; in one QoS the account that has had less than its share."""
    if cluster.files.cgroups.used:
        pytest.skip("once is enough: it takes some minutes")
    accounts = {"research": {"fairshare": 60}, "other": {"fairshare": 60}}
    people = {"alice": {"uid": 2000, "accounts": ["research"]}, "bob": {"uid": 2001, "accounts": ["other"]}}
    # Slurm's own has priority 0.
    cluster.apply(settings(accounts=accounts, users=people, qos={**WANTED["qos"], "normal": {"priority": 100}}))

    def submit(uid: int, qos: str, command: str = "true") -> str:
        user = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "sbatch", "--parsable", f"--qos={qos}")
        asked = ("--nodelist=sl1", "--gpus-per-node=8", "--output=/dev/null", f"--wrap={command}")
        return engine("exec", "--workdir=/tmp", cluster.workers[0].name, *user, *asked).stdout.strip()

    def began(job: str) -> str:
        return cluster.control.run("sacct", "-nXj", job, "--format=Start", "--noconvert").stdout.strip()

    first = submit(2000, "high", "sleep 600")
    until(lambda: cluster.state(first), "RUNNING", cluster.control, 20)
    jobs = [submit(2000, "low"), submit(2000, "normal"), submit(2001, "normal"), submit(2000, "high")]

    def waiting() -> str:
        line = ("squeue", "--noheader", "--states=PENDING", "--sort=-p", "--format=%i")
        return " ".join(cluster.control.run(*line).stdout.split())

    low, used, unused, high = jobs

    def more_share() -> str:
        said = cluster.control.run("sprio", "--noheader", "--format=%i %F", check=False).stdout.split()
        share = {"": 0.0} | dict(zip(said[::2], map(float, said[1::2]), strict=True))
        return max(share, key=lambda job: share[job])

    until(more_share, unused, cluster.control, 150)  # once what runs is counted, which is so each minute
    until(waiting, f"{high} {unused} {used} {low}", cluster.control, 30)
    cluster.alice("scancel", first)
    until(lambda: cluster.control.run("squeue", "--noheader").stdout, "", cluster.control, 120)
    assert began(high) <= began(unused) <= began(used) <= began(low)

"""What a person does with a cluster after it was deployed: look, log in, save, restore, take down."""

from __future__ import annotations

import signal

import pytest
from deployed_cluster import INVENTORY, DeployedCluster, until

from rocstack.deploy.read import journal
from rocstack.edge import locks, ssh

pytestmark = pytest.mark.engine


def until_in_order(deployed: DeployedCluster) -> None:
    until(lambda: deployed.workspace.run("status", "--json").json["ok"], 60)


def test_status(deployed: DeployedCluster) -> None:
    seen = deployed.json("status")
    assert seen["ok"]
    assert (seen["control"], seen["release"]["healthy"], seen["interrupted"]) == ("n1", True, None)
    worker, control = seen["images"]
    assert (worker["role"], worker["nodes"], control["role"], control["nodes"]) == ("worker", 2, "control", 1)
    assert worker["digest"].startswith("sha256:"), "as the registry has it"
    for node in seen["nodes"]:
        assert (node["virtual"], node["image"], node["digest"]) == ("mi300x-thor2", worker["id"], worker["digest"])
        assert (node["slurm"], node["gpus"], node["gres"], node["verified"]) == ("idle", 8, 8, None)
    text = deployed.run("status").out
    assert "(virtual: mi300x-thor2)" in text


def test_what_is_not_in_order_is_named(deployed: DeployedCluster) -> None:
    deployed.ssh("n2", "docker stop --time 1 rocstack-worker")
    deployed.slurm("scontrol update nodename=n1 state=drain reason=fan")
    try:
        seen = deployed.json("status", code=1)
        found = {(each["node"], each["code"]): each for each in seen["findings"]}
        assert {("n2", "container-stopped"), ("n1", "slurm-drained")} <= found.keys()
        assert seen["nodes"][0]["reason"] == "fan"
    finally:
        deployed.ssh("n2", "docker start rocstack-worker")
    resume = found["n1", "slurm-drained"]["next_step"].partition("`rocstack ")[2].rstrip("`")
    assert resume == "shell n1 --service controller -- scontrol update nodename=n1 state=resume"
    deployed.run(*resume.split())
    until_in_order(deployed)


def test_logs(deployed: DeployedCluster) -> None:
    done = deployed.run("logs", "n2", "--lines", "1000")
    assert "slurmd version" in done.out + done.err
    done = deployed.run("logs", "n1", "--service", "db")
    assert "ready for connections" in done.out + done.err
    assert deployed.workspace.run("logs", "n3").code == 2
    assert "it runs on n1" in deployed.run("logs", "n2", "--service", "registry", code=2).err


def test_a_log_that_is_followed(deployed: DeployedCluster) -> None:
    following = "pgrep --full --list-full '^docker logs'"
    process = deployed.workspace.start("logs", "n2", "--follow")
    until(lambda: deployed.ssh("n2", following, check=False), 60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, "Traceback" in err) == (130, False), out + err
    until(lambda: not deployed.ssh("n2", following, check=False), 10, lambda: "nobody reads it any more")


def test_shell(deployed: DeployedCluster) -> None:
    assert deployed.run("shell", "n2", "--", "hostname").out == "n2\n"
    assert deployed.workspace.run("shell", "n1", "--service", "controller", "--", "sh", "-c", "exit 7").code == 7
    assert deployed.workspace.run("shell", "n2", "--service", "controller", "--", "true").code == 2


def test_backup_and_restore(deployed: DeployedCluster) -> None:
    file = deployed.workspace.folder / "slurm.tar.zst"
    before = deployed.slurm("sbatch --parsable --hold --wrap true")
    runs = deployed.slurm("sbatch --parsable --wrap 'sleep 600'")
    until(lambda: deployed.jobs()[int(runs)] == "RUNNING", 30, deployed.jobs)
    deployed.run("backup", str(INVENTORY), str(file))
    deployed.slurm(f"scancel {runs}")
    assert file.stat().st_mode & 0o777 == 0o600
    assert deployed.refused("backup", str(INVENTORY), str(file)) == (2, "file-exists")
    assert not list(deployed.workspace.folder.glob(".*.tar*"))

    after = deployed.slurm("sbatch --parsable --hold --wrap true")
    deployed.slurm("sacctmgr -i add account later")
    half = deployed.workspace.folder / "half"
    half.write_bytes(file.read_bytes()[:-100])
    assert deployed.refused("restore", str(INVENTORY), str(half), "--yes") == (2, "bad-backup")
    assert deployed.refused("restore", str(INVENTORY), str(file)) == (2, "unconfirmed")
    until(lambda: set(deployed.jobs()) == {int(before), int(after)}, 30, deployed.jobs)  # nothing was changed

    assert deployed.json("restore", str(INVENTORY), str(file), "--yes")["cancelled"] == [int(runs)]
    until(lambda: set(deployed.jobs()) == {int(before)}, 60, deployed.jobs)
    assert "later" not in deployed.slurm("sacctmgr -n list account format=account")
    deployed.slurm(f"scancel {before}")
    until_in_order(deployed)


def test_two_at_once(deployed: DeployedCluster) -> None:
    ssh_host = ssh.ssh_hosts(deployed.workspace.folder / INVENTORY, ["n1"])["n1"]
    with locks.cluster_lock(ssh_host, journal.lock()):
        assert deployed.refused("down") == (1, "deploy-running")
        assert deployed.findings(0) == [(None, "deploy-running")]


def test_down_and_as_it_was(deployed: DeployedCluster) -> None:
    held = int(deployed.slurm("sbatch --parsable --hold --wrap true"))
    runs = int(deployed.slurm("sbatch --parsable --wrap 'sleep 600'"))
    until(lambda: deployed.jobs()[runs] == "RUNNING", 30, deployed.jobs)
    assert deployed.refused("down") == (1, "jobs-running")
    assert deployed.refused("down", "--data") == (2, "unconfirmed")

    gone = deployed.json("down", "--force")["removed"]
    assert gone["n1"]["containers"] == ["rocstack-control", "rocstack-db", "rocstack-registry", "rocstack-worker"]
    assert gone["n2"] == {"containers": ["rocstack-worker"], "volumes": [], "images": [], "files": []}
    assert deployed.ssh("n1", "docker ps --all --quiet") == ""
    assert deployed.findings(1) == [(None, "cluster-down")]
    assert "nothing to remove" in deployed.run("down").out

    deployed.run("deploy")
    until(lambda: deployed.jobs() == {held: "PENDING"}, 60, deployed.jobs)  # what was kept, and no job that is gone
    deployed.slurm(f"scancel {held}")
    deployed.run("status")

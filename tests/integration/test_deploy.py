"""A cluster from nothing, by `rocstack deploy` on two virtual nodes with real engines, Slurm and MariaDB."""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
from pathlib import Path

import pytest
import yaml
from deployed_cluster import INVENTORY, DeployedCluster, until
from workspace import Workspace, engine

pytestmark = pytest.mark.engine

HELLO = (
    "from mpi4py import MPI; w = MPI.COMM_WORLD;"
    " print(f'{w.rank} of {w.size} on {MPI.Get_processor_name()}: {w.allreduce(w.rank)}')"
)


def test_from_nothing(deployed: DeployedCluster) -> None:
    said = deployed.first.json
    assert (said["ok"], said["failed"], said["stopped"], said["untouched"]) == (True, {}, "", [])
    assert said["ready"] == said["changed"] == ["n1", "n2"]
    assert {row["node"]: row["bytes"] > 1e8 for row in said["shipped"]} == {"n1": True, "n2": True}
    print(f"first deploy: {deployed.first.seconds:.1f} s")
    assert set(deployed.containers("n1")) == {f"rocstack-{name}" for name in ("registry", "db", "control", "worker")}
    assert set(deployed.containers("n2")) == {"rocstack-worker"}
    rows = deployed.slurm("sinfo --noheader -N -o '%N %T %G'").splitlines()  # one of each partition
    assert sorted({row.strip() for row in rows}) == ["n1 idle gpu:mi300x:8", "n2 idle gpu:mi300x:8"]


def test_jobs_get_gpus_on_both_nodes(deployed: DeployedCluster) -> None:
    job = "srun -N2 --gres=gpu:8 sh -c 'echo $(hostname) $ROCR_VISIBLE_DEVICES'"
    assert sorted(deployed.slurm(job).splitlines()) == ["n1 0,1,2,3,4,5,6,7", "n2 0,1,2,3,4,5,6,7"]
    few = deployed.slurm("srun -w n2 --gpus=mi300x:2 sh -c 'echo $ROCR_VISIBLE_DEVICES'").strip()
    assert len(few.split(",")) == 2


def test_mpi_over_both_nodes(deployed: DeployedCluster) -> None:
    """As a user who is no more than that."""
    said = deployed.ssh(
        "n1",
        "docker exec --user alice --env OMPI_MCA_mpi_yield_when_idle=1 rocstack-control"
        f' srun --time=2 -N2 --ntasks-per-node=2 --mpi=pmix sh -c "id -un; python3 -c \\"{HELLO}\\""',
    )
    # UCX and PMIx may log lines of their own.
    ranks = sorted(line for line in said.splitlines() if re.match(r"\d of \d on ", line))
    assert ranks == [f"{rank} of 4 on n{1 + rank // 2}: 6" for rank in range(4)]
    assert said.splitlines().count("alice") == 4
    asked = "sacct --noheader --parsable2 --allocations --format=State --user=alice"
    until(lambda: deployed.slurm(asked).split()[-1:] == ["COMPLETED"], 30)


def test_the_rest_interface_takes_a_token_on_loopback_only(deployed: DeployedCluster) -> None:
    host = yaml.safe_load((deployed.workspace.folder / INVENTORY).read_text())
    address = host["all"]["children"]["workers"]["hosts"]["n1"]["ansible_host"]
    token = deployed.slurm("scontrol token username=alice lifespan=60").strip().removeprefix("SLURM_JWT=")

    def ask(headers: dict[str, str]) -> str:
        url = "http://127.0.0.1:300/slurm/v0.0.41/nodes"
        script = (
            f"import urllib.request as u; print(u.urlopen(u.Request('{url}', headers={headers}), timeout=20).read())"
        )
        return deployed.ssh("n1", f'python3 -c "{script}" 2>&1 || true')

    said = ask({"X-SLURM-USER-TOKEN": token})
    assert "n1" in said
    assert "n2" in said
    assert "HTTP Error 401" in ask({})
    for port in (300, 5001):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), timeout=20)


def test_logs_of_containers_end_somewhere(deployed: DeployedCluster) -> None:
    """Who has no account makes the registry log a line, too."""
    said = deployed.ssh("n1", "docker inspect --format '{{json .HostConfig.LogConfig}}' $(docker ps -q)")
    kept = [json.loads(line)["Config"] for line in said.splitlines()]
    assert kept == [{"max-file": "4", "max-size": "50m"}] * len(kept)
    assert len(kept) > 3


def secrets(deployed: DeployedCluster) -> dict[str, str]:
    """Every key of the cluster, as a log would have it: one line of a PEM is enough."""
    file = deployed.workspace.folder / INVENTORY.with_name("rocstack-secrets.yml")
    assert file.stat().st_mode & 0o777 == 0o600
    values = yaml.safe_load(file.read_text())
    del values["registry_ca"]  # everybody may know it
    texts = {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in values.items()
    }
    return {name: max(text.splitlines(), key=len)[:60] for name, text in texts.items()}


def test_keys_are_where_they_belong_only(deployed: DeployedCluster) -> None:
    keys = secrets(deployed)
    assert len(keys) == 6
    assert "TASK [Containers]" in deployed.log
    said = [deployed.log, deployed.first.out, deployed.first.err]
    for node in ("n1", "n2"):
        said.append(deployed.ssh(node, "docker inspect $(docker ps -q); cat /var/lib/rocstack/*.json"))
        said.append(deployed.ssh(node, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))
        said.append(deployed.ssh(node, "for i in $(docker images -q); do docker history --no-trunc $i; done"))
        open_files = "find /etc/rocstack /etc/docker /var/lib/rocstack -type f -perm /044"
        said.append(deployed.ssh(node, f"{open_files} | xargs cat"))
    for name, key in keys.items():
        assert not any(key in text for text in said), name
    shown = deployed.ssh("n1", "cat /etc/rocstack/keys/database; stat -c %a /etc/rocstack/keys/database")
    assert shown.endswith("400\n")
    assert keys["database_password"] in shown, "the search finds what is there"


def test_a_second_deploy_changes_nothing(deployed: DeployedCluster) -> None:
    before = {node: deployed.containers(node) for node in ("n1", "n2")}
    done = deployed.run("deploy", "--json")
    print(f"second deploy: {done.seconds:.1f} s, of which {done.json['seconds']:.1f} s after the start")
    said = done.json
    assert (said["ok"], said["changed"], said["plan"]["changes"], said["shipped"]) == (True, [], 0, [])
    assert said["ready"] == ["n1", "n2"]
    assert {node: deployed.containers(node) for node in ("n1", "n2")} == before


def test_the_plan_shows_all_and_changes_nothing(deployed: DeployedCluster) -> None:
    image = deployed.image("planned")
    before = {node: deployed.containers(node) for node in ("n1", "n2")}
    deployed.ssh("n1", "useradd --uid 64030 other")
    deployed.ssh("n2", "mv /usr/bin/docker /usr/bin/docker.away")
    try:
        said = deployed.json("deploy", "--plan", "--image", image, code=1)
        text = deployed.run("deploy", "--plan", "--image", image, code=1)
    finally:
        deployed.ssh("n1", "userdel other")
        deployed.ssh("n2", "mv /usr/bin/docker.away /usr/bin/docker")
    n1, n2 = said["nodes"]
    assert (said["refused"], n1["result"], n2["result"]) == ("", "change", "blocked")
    assert {(each["kind"], each["what"]) for each in n1["changes"]} >= {("replace", "rocstack-worker")}
    assert "uid-taken" in {each["code"] for each in n1["findings"]}
    assert "engine-absent" in {each["code"] for each in n2["findings"]}
    assert (said["ship"]["method"], said["ship"]["nodes"], n1["virtual"]) == ("registry", 1, "mi300x-thor2")
    for words in ("uid-taken (n1)", "engine-absent (n2)", "replace rocstack-worker", "none: not fit"):
        assert words in text.out
    assert {node: deployed.containers(node) for node in ("n1", "n2")} == before
    assert deployed.nodes() == {"n1": "idle", "n2": "idle"}
    engine("rmi", image)


def test_another_laptop_without_the_keys_is_refused(deployed: DeployedCluster, tmp_path: Path) -> None:
    other = Workspace(tmp_path, deployed.workspace.prefix)
    inventory = shutil.copy(deployed.workspace.folder / INVENTORY, tmp_path)
    before = deployed.ssh("n1", "md5sum /etc/rocstack/keys/*")
    done = other.run("deploy", inventory)
    assert done.code == 2
    assert "keys that are not in" in done.err
    assert "next    copy rocstack-secrets.yml from the machine that deployed the cluster first" in done.err
    assert not (tmp_path / "rocstack-secrets.yml").exists()
    assert deployed.ssh("n1", "md5sum /etc/rocstack/keys/*") == before

"""`cluster.service` on a virtual node: its image, its container and its database come, are well, and go again."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oidc_provider
import pytest
import yaml
from chromium_pipe import chromium
from deployed_cluster import ANSWER, INVENTORY, DeployedCluster
from oidc_provider import CLIENT, SECRET
from test_verify_report import BROWSER
from workspace import Built, Outcome, Workspace, engine

pytestmark = pytest.mark.engine

SETTINGS = f"""\
inventory: {INVENTORY}
cluster:
  mounts: [/srv/shared:/shared]
  users:
    alice: {{uid: 2000}}
  health: {{drain: false}}
"""
ON = "  service: {port: 9443}\n"
ISSUER = "http://127.0.0.1:9555"
SIGN_IN = f"""\
  service:
    port: 9443
    oidc: {{issuer: '{ISSUER}', client_id: {CLIENT}, client_secret_file: client-secret}}
"""
API, UID, TOKENS = "rocstack-service", "64033", "rocstack-tokens"
# In the service's container, as anybody who reaches it.
SIGNED_IN = f"""\
import httpx, json, time
token = httpx.get("{ISSUER}/issue").json()["token"]
client = httpx.Client(base_url="https://127.0.0.1:9443", verify=False, timeout=30)
head = {{"Authorization": "Bearer " + token}}
said = [client.get("/v1/me", headers=head).json()["id"]]
asked = {{"recipe": "mine", "arguments": ["id", "-u"], "gpus_per_node": 0}}
job = client.post("/v1/jobs", json=asked, headers=head).json()
end = time.time() + 120
while job["status"] not in ("succeeded", "failed") and time.time() < end:
    time.sleep(1)
    job = client.get("/v1/jobs/" + job["id"], headers=head).json()
log = client.get("/v1/jobs/" + job["id"] + "/log", headers=head).json()["text"]
said += [job["status"], "2000" in log.split()]
page = client.get("/login/issuer", follow_redirects=True)
said += [page.status_code, "Sign out alice" in client.get("/jobs").text]
head, body, sign = token.split(".")
forged = {{"Authorization": f"Bearer {{head}}.{{body}}." + "A" * len(sign)}}
said.append(client.get("/v1/me", headers=forged).status_code)
print(json.dumps(said))
"""
ASK = """\
import json, ssl, sys, urllib.request
url, ca = json.load(sys.stdin)
with urllib.request.urlopen(url, context=ssl.create_default_context(cadata=ca), timeout=20) as answer:
    print(answer.status)
"""
REPORTED = """\
import pathlib
from rocstack.cluster.service import REPORTS
from rocstack.service.reports import VerifyReports
for each in VerifyReports(pathlib.Path(REPORTS)).read()[0]:
    print(each.run.level, *(part for name, node in each.nodes.items() for part in (name, node.state)))
"""
DATABASES = """\
import json, sqlalchemy
said = json.load(open("/etc/rocstack/service/service.json"))
url = sqlalchemy.make_url(said["database"]).set(password=open(said["database_password"]).read())
with sqlalchemy.create_engine(url).connect() as connection:
    print(json.dumps(sorted(row[0] for row in connection.execute(sqlalchemy.text("SHOW DATABASES")))))
"""


def switch(cluster: DeployedCluster, text: str = "") -> None:
    (cluster.workspace.folder / "rocstack.yml").write_text(SETTINGS + text)


def deploy(cluster: DeployedCluster, *args: str, code: int = 0) -> Any:
    return cluster.json("deploy", *args, code=code)


def asked(cluster: DeployedCluster, host: str = "127.0.0.1") -> str:
    """The status of GET /health, asked on the node with the cluster's CA."""
    secrets = yaml.safe_load((cluster.workspace.folder / INVENTORY.with_name("rocstack-secrets.yml")).read_text())
    config = cluster.workspace.folder / INVENTORY.with_name("ssh_config")
    line = ["ssh", "-F", str(config), "n1", f"python3 -c '{ASK}'"]
    said = json.dumps([f"https://{host}:9443/health", secrets["registry_ca"]])
    done = subprocess.run(line, input=said, capture_output=True, text=True, check=False, timeout=ANSWER)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def inside(cluster: DeployedCluster, script: str) -> str:
    return cluster.ssh("n1", f"docker exec -i {API} python3 -P - <<'EOS'\n{script}EOS")


@pytest.fixture(scope="module")
def image(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    workspace = Workspace(tmp_path_factory.mktemp("service"), built.workspace.prefix, made=built.workspace.made)
    return workspace.build("--role", "service")


@pytest.fixture(scope="module")
def cluster(built: Built, image: Outcome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedCluster]:
    """One node without the service, to which it came afterwards; n1 is both control node and worker."""
    workspace = Workspace(tmp_path_factory.mktemp("served"), built.workspace.prefix, made=built.workspace.made)
    (workspace.folder / "rocstack.yml").write_text(SETTINGS)
    try:
        up = workspace.run("local", "up", "--nodes", "1")
        assert up.code == 0, up.err
        first = workspace.run("deploy", "--json")
        assert first.code == 0, first.err + first.out
        made = DeployedCluster(workspace, first, "")
        before = made.containers("n1")
        assert API not in before
        assert not made.ssh("n1", "ls -d /etc/rocstack/service /srv/shared/rocstack 2>/dev/null", check=False)
        switch(made, ON)
        deploy(made)
        after = made.containers("n1")
        assert set(after) == {*before, API}
        same = ("rocstack-worker", "rocstack-control", "rocstack-registry")
        assert [after[name] for name in same] == [before[name] for name in same], "jobs run on"
        yield made
    finally:
        workspace.run("local", "down")


def test_its_image_has_no_slurm(image: Outcome) -> None:
    """What the mirror has newer than the lock is no fault of the image."""
    row = image.image("service")
    assert row["status"] == "built"
    assert set(row["smoke"]) == {"system", "service", "libraries"}
    assert row["size_bytes"] < 400e6
    said = json.loads(engine("image", "inspect", row["reference"]).stdout)[0]
    assert said["Config"]["User"] == f"{UID}:{UID}"
    assert "io.rocstack.component.slurm" not in said["Config"]["Labels"]


def test_it_answers_by_the_clusters_ca(cluster: DeployedCluster) -> None:
    assert asked(cluster) == "200"
    assert asked(cluster, "n1") == "200"
    assert "does not answer" not in cluster.ssh("n1", f"docker exec {API} rocstack-service-health")


def test_it_is_nobody_who_may_do_anything(cluster: DeployedCluster) -> None:
    for process in cluster.ssh("n1", f"docker exec {API} sh -c 'cd /proc && ls -d [0-9]*'").split():
        text = cluster.ssh("n1", f"docker exec {API} cat /proc/{process}/status", check=False)
        status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        if status:  # what has just asked is gone
            assert set(status["Uid"].split()) == set(status["Gid"].split()) == {UID}
            assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {0}
            assert (status["NoNewPrivs"], status["Groups"].split()) in (("1", [UID]), ("1", []))
    refused = cluster.ssh("n1", f"docker exec {API} touch /usr/x 2>&1", check=False)
    assert "Read-only file system" in refused
    memory = cluster.ssh("n1", f"docker inspect --format '{{{{.HostConfig.Memory}}}}' {API}")
    assert int(memory) == 4 << 30
    keys = "/etc/rocstack/keys /run/secrets/munge.key /run/secrets/jwt.key"
    assert not cluster.ssh("n1", f"docker exec {API} ls -d {keys} 2>/dev/null", check=False)
    password = cluster.ssh("n1", "cat /etc/rocstack/keys/service-database")
    for said in (f"docker inspect {API} rocstack-db", "ps -eo args", f"docker logs {API} 2>&1"):
        assert password not in cluster.ssh("n1", said)


def test_its_database_is_its_own(cluster: DeployedCluster) -> None:
    assert json.loads(inside(cluster, DATABASES)) == ["information_schema", "rocstack_service"]


def test_its_folder_is_its_own(cluster: DeployedCluster) -> None:
    assert cluster.ssh("n1", "stat -c '%u %g %a' /srv/shared/rocstack").split() == [UID, UID, "711"]


def test_verify_brings_its_report_and_the_service_alone_can_read_it(cluster: DeployedCluster) -> None:
    said = cluster.workspace.run("verify", str(INVENTORY), "--level", "0")
    assert "the service's page shows this report" in said.err
    assert inside(cluster, REPORTED).split() == ["0", "n1", "passing"]
    rights = cluster.ssh("n1", "cd /etc/rocstack/service && stat -c '%u %g %a' reports reports/level-0.json")
    assert rights.split("\n")[:2] == [f"0 {UID} 750", f"0 {UID} 640"]


def test_replicas_are_jobs_of_their_owner(cluster: DeployedCluster) -> None:
    folder = "/srv/shared/models/tiny"
    cluster.ssh("n1", f'mkdir -p {folder} && echo \'{{"model_type": "llama"}}\' >{folder}/config.json')
    made = cluster.json("serve", "/shared/models/tiny", "--replicas", "2", "--inventory", str(INVENTORY))
    assert (made["user"], [each["model"] for each in made["servers"]]) == ("alice", ["tiny", "tiny"])
    owners = cluster.slurm("sacct --noheader --allocations --format=User,JobName%20 --allusers").split()
    assert owners.count("serve-tiny") == owners.count("alice") == 2
    assert cluster.refused("serve", "nothing", "--replicas", "2") == (2, "service-refuses")


def test_a_second_deploy_changes_nothing_and_status_shows_it(cluster: DeployedCluster) -> None:
    assert deploy(cluster)["changed"] == []
    status = cluster.json("status")
    assert status["ok"]
    assert [row["role"] for row in status["images"]].count("service") == 1
    cluster.ssh("n1", f"docker stop {API}")
    assert ("n1", "container-stopped") in cluster.findings(code=1)
    assert deploy(cluster)["changed"] == ["n1"]


def test_one_that_does_not_come_up_keeps_nobody_from_the_cluster(cluster: DeployedCluster) -> None:
    before = cluster.containers("n1")
    broken = f"{cluster.workspace.prefix}/service:broken"
    recipe = f'FROM {cluster.workspace.reference("service")}\nENTRYPOINT ["/bin/sh", "-c", "echo no good; exit 1"]\n'
    engine("build", "--tag", broken, "-", input=recipe)
    outcome = deploy(cluster, "--service-image", broken, code=1)
    assert API in outcome["failed"]["n1"]
    after = cluster.containers("n1")
    assert {name: image for name, (_, image) in after.items()} == {name: image for name, (_, image) in before.items()}
    assert asked(cluster) == "200"
    assert "UP" in cluster.slurm("scontrol ping")
    deploy(cluster)
    assert cluster.json("status")["ok"]
    assert set(cluster.nodes()) == {"n1"}
    assert cluster.nodes()["n1"] == "idle"


def test_its_database_is_in_the_backup_and_comes_back(cluster: DeployedCluster) -> None:
    def sql(text: str) -> str:
        return cluster.ssh("n1", f"docker exec rocstack-db mariadb --skip-column-names --execute='{text}'").strip()

    sql("CREATE TABLE rocstack_service.of_test (kept INT); INSERT INTO rocstack_service.of_test VALUES (7)")
    file = str(cluster.workspace.folder / "backup")
    cluster.run("backup", str(INVENTORY), file)
    sql("UPDATE rocstack_service.of_test SET kept = 8")
    cluster.run("restore", str(INVENTORY), file, "--yes")
    assert sql("SELECT kept FROM rocstack_service.of_test") == "7"
    sql("DROP TABLE rocstack_service.of_test")
    assert well(cluster)


def well(cluster: DeployedCluster) -> bool:
    """It may have been started just now."""
    for _ in range(60):
        if asked(cluster) == "200":
            return True
        time.sleep(0.5)
    return False


def test_people_sign_in_at_an_issuer_and_run_jobs_as_themselves(cluster: DeployedCluster) -> None:
    """Also with new keys, which the database has, too."""
    secret = cluster.workspace.folder / "client-secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    image = cluster.ssh("n1", f"docker inspect --format '{{{{.Image}}}}' {API}").strip()
    program = Path(oidc_provider.__file__).read_text()
    cluster.ssh("n1", f"mkdir -p /srv/issuer && cat >/srv/issuer/issuer.py <<'EOF'\n{program}\nEOF")
    run = "docker run --detach --rm --name issuer --network host --entrypoint python3 --volume /srv/issuer:/issuer:ro"
    cluster.ssh("n1", f"{run} {image} -P /issuer/issuer.py {ISSUER.rpartition(':')[2]}")
    try:
        switch(cluster, SIGN_IN)
        deploy(cluster)
        assert cluster.json("status")["ok"]
        assert json.loads(inside(cluster, SIGNED_IN)) == ["alice", "succeeded", True, 200, True, 401]
        before = cluster.ssh("n1", "cat /etc/rocstack/keys/service-database")
        cluster.run("rotate-keys", str(INVENTORY))
        assert cluster.ssh("n1", "cat /etc/rocstack/keys/service-database") != before
        assert well(cluster)
        assert json.loads(inside(cluster, DATABASES)) == ["information_schema", "rocstack_service"]
        assert json.loads(inside(cluster, SIGNED_IN)) == ["alice", "succeeded", True, 200, True, 401]
        uids = cluster.ssh("n1", f"docker exec {TOKENS} sh -c 'grep -h ^Uid: /proc/[0-9]*/status'").split()
        assert set(uids) == {"Uid:", "64034"}
        assert not cluster.ssh("n1", f"docker exec {API} ls /run/secrets/jwt.key 2>/dev/null", check=False)
        assert not cluster.ssh("n1", f"docker exec {TOKENS} ls -d /shared /run/mysqld 2>/dev/null", check=False)
        for said in (
            f"docker inspect {API} {TOKENS}",
            "ps -eo args",
            f"docker logs {API} 2>&1",
            f"docker logs {TOKENS} 2>&1",
        ):
            assert SECRET not in cluster.ssh("n1", said)
        assert deploy(cluster)["changed"] == []
    finally:
        cluster.ssh("n1", "docker stop issuer", check=False)


SILENT = "document.querySelector('main').textContent.includes('Slurm doesn\\'t answer at the moment')"
OLD = "document.getElementById('old').textContent"
STATE = "document.querySelector('main .state').textContent"
TICKS = "sh -c 'while sleep 1; do echo tick; done'"


@pytest.mark.skipif(not BROWSER, reason="no browser is here")
def test_a_person_submits_watches_and_cancels_in_a_browser(cluster: DeployedCluster, tmp_path: Path) -> None:
    """The page renews itself, also while Slurm or the database takes connections and says nothing: then it says so."""
    form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    host = engine("inspect", "--format", form, cluster.workspace.nodes()["n1"]).stdout.strip()
    with chromium(BROWSER, tmp_path / "profile", "--ignore-certificate-errors") as page:
        page.go(f"https://{host}:9443/")
        page.write("textarea", cluster.run("token", "--user", "alice").out.strip())
        page.leaves(lambda: page.click("main button"))
        page.leaves(lambda: page.click("a[href='/new']"))
        page.leaves(lambda: page.click("a[href='/new/mine']"))
        for name, text in (("name", "ticks"), ("words", TICKS), ("gpus_per_node", "0")):
            page.write(f"[name={name}]", text)
        page.leaves(lambda: page.click("form[data-stay] button"))
        began = page.value("performance.timeOrigin")
        page.until("(document.querySelector('.log') || {textContent: ''}).textContent.includes('tick')", 120)
        assert page.value(STATE) == "running"
        daemon = "docker exec rocstack-control sh -c 'kill -{} $(pidof slurmctld slurmctld-wlm | cut -d\" \" -f1)'"
        cluster.ssh("n1", daemon.format("STOP"))
        try:
            page.until(f"{SILENT} || {OLD}.includes('Slurm')", 60)
        finally:
            cluster.ssh("n1", daemon.format("CONT"))
        page.until(f"!{SILENT} && !{OLD}", 60)
        cluster.ssh("n1", "docker pause rocstack-db")
        try:
            page.until(f"{OLD}.includes('database')", 60)
            assert asked(cluster) != "200"
        finally:
            cluster.ssh("n1", "docker unpause rocstack-db")
        page.until(f"!{SILENT} && !{OLD}", 60)
        assert page.value("performance.timeOrigin") == began, "all by itself"
        page.leaves(lambda: page.click("#cancel"))
        assert page.value(STATE) == "cancelled"
        page.leaves(lambda: page.click("nav a[href='/jobs']"))
        assert "cancelled" in page.value("document.querySelector('main tbody tr').textContent")
    ended = 'until [ -z "$(squeue --noheader --name=ticks)" ]; do sleep 1; done'
    cluster.slurm(f"timeout 60 sh -c '{ended}'")
    assert well(cluster)


def test_switched_off_it_goes_and_what_it_had_stays(cluster: DeployedCluster) -> None:
    before = cluster.containers("n1")
    switch(cluster)
    try:
        deploy(cluster)
        after = cluster.containers("n1")
        assert set(after) == set(before) - {API, TOKENS}
        keys = cluster.ssh("n1", "ls /etc/rocstack/keys /etc/rocstack/service").split()
        assert "munge.key" in keys
        assert not {"tokens-jwt.key", "service-database", "server.key", "oidc-secret"} & {*keys}, "nothing uses them"
        assert after["rocstack-worker"] == before["rocstack-worker"]
        assert cluster.json("status")["ok"]
        said = cluster.ssh("n1", "docker exec rocstack-db mariadb --execute='SHOW DATABASES'")
        assert "rocstack_service" in said
        assert cluster.ssh("n1", "stat -c %u /srv/shared/rocstack").strip() == UID
        assert cluster.refused("deploy", "--service-image", "x:y") == (2, "bad-value")
    finally:
        switch(cluster, ON)
        deploy(cluster)
    assert asked(cluster) == "200"
    cluster.run("down", "--yes")
    assert not cluster.ssh("n1", "docker ps --all --quiet --filter label=io.rocstack.service").strip()

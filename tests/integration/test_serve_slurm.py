"""Replicas of a server as Slurm's jobs on two nodes, with vLLM itself: the workers' image is of the stack vllm-cpu, the
control image of debian-13. Each answers for the adapters of its owner. One that is killed is passed over meanwhile, and
started again."""

from __future__ import annotations

import json
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny_adapters as tiny
import yaml
from deployed_cluster import INVENTORY, DeployedCluster, until
from shared_folder import share
from workspace import REPO, Built, Workspace, engine

pytestmark = [pytest.mark.engine, pytest.mark.slow]
PORT = 8443
ARGUMENTS = ("--enforce-eager", "--dtype=float32", "--max-model-len=256", "--kv-cache-memory-bytes=67108864")
# Of the gateway, as whoever is root on the node.
KILL = "docker exec rocstack-worker pkill --signal KILL --full -- '-m rocstack[.]serve'"

# What a fine-tuning job's end does, for a job that took its adapter from elsewhere: this image trains nothing.
REGISTER = """\
import asyncio, pathlib, sys
from rocstack.service import config
from rocstack.service.identity import Caller
from rocstack.service.service import Service
from rocstack.service.tables import JobRow

async def main(job):
    service = Service.of(config.load(pathlib.Path("/etc/rocstack/service/service.json")))
    row = await service.database.run(lambda session: session.get_one(JobRow, job))
    model = service.models.take(Caller("alice", 2000, 2000, ""), row, "tiny", "poet", 1 << 30, 0)
    name = model.id
    await service.database.run(lambda session: session.add(model))
    print(name)

asyncio.run(main(sys.argv[1]))
"""


@dataclass
class ServedBySlurm:
    cluster: DeployedCluster
    shared: Path
    client: httpx.Client  # alice's
    image: str  # of the workers

    def servers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.client.get("/v1/servers").json()["data"]
        return sorted(rows, key=lambda row: str(row["id"]))

    def ask(self, model: str) -> httpx.Response:
        message = {"role": "user", "content": "hello"}
        body = {"model": model, "messages": [message], "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        return self.client.post("/v1/chat/completions", json=body)

    def adapter(self, seed: int) -> tuple[str, Path]:
        """A new model of alice's, and its adapter's folder."""
        folder = tiny.adapter(self.shared / f"made/{seed}", "tiny", seed=seed)
        body = {"recipe": "mine", "gpus_per_node": 0, "parameters": {"mpi": "none"}}
        job = self.client.post("/v1/jobs", json=body | {"arguments": ["cp", "-r", str(folder), "adapter"]}).json()["id"]
        state = lambda: self.client.get(f"/v1/jobs/{job}").json()  # noqa: E731
        until(lambda: state()["status"] == "succeeded", 120, lambda: f"{state()}")
        inside = "docker exec -i rocstack-service python3 -P"
        return self.cluster.ssh("n1", f"{inside} - {job} <<'EOS'\n{REGISTER}EOS").split()[-1], folder

    def text(self, model: str) -> str:
        answer = self.ask(model)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def served(built: Built, vllm_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBySlurm]:
    workspace = Workspace(tmp_path_factory.mktemp("vllm-slurm"), built.workspace.prefix, made=built.workspace.made)
    shared = Path(tempfile.mkdtemp(prefix="rocstack-shared-"))
    shared.chmod(0o755)
    text = f"inventory: {INVENTORY}\ncluster:\n  mounts: [{shared}]\n  users: {{alice: {{uid: 2000}}}}\n"
    text += f"  health: {{drain: false}}\n  service: {{port: {PORT}}}\n"
    (workspace.folder / "rocstack.yml").write_text(text)
    workspace.build("--role", "service")
    cluster = DeployedCluster(workspace, None, "")  # type: ignore[arg-type]
    try:
        cluster.run("local", "up", "--nodes", "2")
        share(shared, workspace.nodes().values())
        tiny.llama(shared / "models/tiny")
        control = workspace.reference("control")
        cluster.run("deploy", "--image", vllm_image, "--control-image", control)
        folder = workspace.folder / INVENTORY.parent
        inventory = yaml.safe_load((workspace.folder / INVENTORY).read_text())
        host = inventory["all"]["children"]["workers"]["hosts"]["n1"]["ansible_host"]
        ca = yaml.safe_load((folder / "rocstack-secrets.yml").read_text())["registry_ca"]
        head = {"Authorization": f"Bearer {cluster.run('token', '--user', 'alice').out.strip()}"}
        trust = ssl.create_default_context(cadata=ca)
        with httpx.Client(base_url=f"https://{host}:{PORT}", verify=trust, headers=head, timeout=120) as client:
            yield ServedBySlurm(cluster, shared, client, vllm_image)
    finally:
        workspace.run("local", "down")
        shutil.rmtree(shared, ignore_errors=True)


def by_transformers(served: ServedBySlurm, *adapters: Path) -> dict[str, str]:
    script = REPO / "tests/support/greedy_answers.py"
    place = served.shared
    ran = engine(
        "run", "--rm", "--network=none", "--env=PYTHONPATH=/opt/vllm/lib", "--env=HOME=/tmp", "--entrypoint=python3",
        f"--volume={place}:{place}:ro", f"--volume={script}:/greedy_answers.py:ro", served.image,
        "/greedy_answers.py", str(place / "models/tiny"), "12", *map(str, adapters),
    )  # fmt: skip
    return json.loads(ran.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_two_replicas_answer_and_one_that_is_killed_comes_back(served: ServedBySlurm) -> None:
    """vLLM's own answers, from one node and then from the other, are those of transformers."""
    adapters = dict(served.adapter(seed) for seed in (5, 6, 7, 8))  # while no server has the nodes
    line = ("serve", "tiny", "--node", "n2", "--node", "n1", "--inventory", str(INVENTORY), "--user", "alice", "--json")
    made = served.cluster.run(*line, "--", *ARGUMENTS).json
    assert [each["model"] for each in made["servers"]] == ["tiny", "tiny"]

    def logs() -> str:
        texts = (
            served.client.get(f"/v1/jobs/{row['id']}/log", params={"offset": -3000}).text for row in made["servers"]
        )
        return f"{served.servers()}\n" + "\n".join(texts)

    until(lambda: [row["status"] for row in served.servers()] == ["ready", "ready"], 600, logs)
    nodes = served.cluster.slurm("squeue --noheader --sort=i --format=%N").split()
    assert nodes == ["n2", "n1"]
    wanted = served.text("tiny")
    assert len(wanted) == 12
    assert {served.text("tiny") for _ in range(4)} == {wanted}
    greedy = by_transformers(served, *adapters.values())
    assert wanted == greedy[""]
    for _ in range(2):  # at first it is loaded
        assert [served.text(name) for name in adapters] == [greedy[folder.name] for folder in adapters.values()]
    assert len({*greedy.values()}) == 5, "each says something of its own"
    for node in nodes:  # whichever is asked first, the other one answers meanwhile
        served.cluster.ssh(node, KILL)
        assert {served.text("tiny") for _ in range(8)} == {wanted}, logs()
        assert [served.text(name) for name in adapters] == [greedy[folder.name] for folder in adapters.values()]
        until(lambda: "starting" in [row["status"] for row in served.servers()], 60, logs)
        until(lambda: [row["status"] for row in served.servers()] == ["ready", "ready"], 300, logs)
    assert served.text("tiny") == wanted
    for row in served.servers():
        assert served.client.delete(f"/v1/servers/{row['id']}").json()["deleted"]
    until(lambda: not served.cluster.slurm("squeue --noheader").split(), 90, logs)

"""Two virtual nodes with the default stack deployed to them, as a person would have them: once a session."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared_folder import share
from workspace import Outcome, Workspace, engine

from rocstack.deploy.read import journal, verified
from rocstack.edge import locks, ssh
from rocstack.node.engine_errors import NOT_STARTED, tries

INVENTORY = Path(".rocstack/local/inventory.yml")
ANSWER = 120.0  # seconds for a command on a node
# Slurm's own round of health checks, every five minutes, drains no node in which a test has made a fault.
SETTINGS = f"""\
inventory: {INVENTORY}
cluster:
  users:
    alice: {{uid: 2000}}
  health: {{drain: false}}
"""


@dataclass(frozen=True)
class DeployedCluster:
    """Whoever changes it brings it back: all tests of a session have the same one. `first` is the deploy that made
    it, `log` what Ansible said; n1 is the control node, and both are workers."""

    workspace: Workspace
    first: Outcome
    log: str

    def run(self, *args: str, code: int = 0) -> Outcome:
        """A command that must end so."""
        done = self.workspace.run(*args)
        assert done.code == code, f"{args}: {done.code}\n{done.out}{done.err}"
        return done

    def json(self, *args: str, code: int = 0) -> Any:
        return self.run(*args, "--json", code=code).json

    def refused(self, *args: str) -> tuple[int, str]:
        """The exit code and the error's."""
        done = self.workspace.run(*args, "--json")
        return done.code, done.json["error"]["code"]

    def state(self, job: str) -> str:
        """`job show`'s exit code follows the job's state, so that no code is expected here."""
        found: str = self.workspace.run("job", "show", job, "--json").json["state"]
        return found

    def ssh(self, node: str, command: str, check: bool = True) -> str:
        config = self.workspace.folder / INVENTORY.with_name("ssh_config")
        line = ["ssh", "-F", str(config), node, command]
        for _ in tries():
            done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=ANSWER)
            if NOT_STARTED not in done.stderr:
                break
        assert not check or done.returncode == 0, f"{node}: {command}: {done.stderr}{done.stdout}"
        return done.stdout

    def slurm(self, command: str, check: bool = True) -> str:
        """In the controller's container."""
        return self.ssh("n1", f"docker exec rocstack-control {command}", check)

    def findings(self, code: int) -> list[tuple[str, str]]:
        """(node, what is wrong) as `status` has it."""
        return [(found["node"], found["code"]) for found in self.json("status", code=code)["findings"]]

    def jobs(self) -> dict[int, str]:
        """Job -> its state."""
        return {job["job_id"]: job["job_state"][0] for job in json.loads(self.slurm("squeue --json"))["jobs"]}

    def nodes(self) -> dict[str, str]:
        """Node -> its state in Slurm, with the reason where there is one."""
        rows = [line.strip().split(" ", 2) for line in self.slurm("sinfo --noheader -N -o '%N %T %E'").splitlines()]
        return {name: state if reason == "none" else f"{state}: {reason}" for name, state, reason in rows}

    def idle(self, seconds: float = 90) -> float:
        """Waits until both nodes are; how long it took."""
        return until(lambda: self.nodes() == {"n1": "idle", "n2": "idle"}, seconds, self.nodes)

    def containers(self, node: str) -> dict[str, tuple[str, str]]:
        """What runs there: name -> (its id, its image's)."""
        said = self.ssh(node, "docker inspect --format '{{.Name}} {{.Id}} {{.Image}}' $(docker ps -q)")
        rows = [line.lstrip("/").split() for line in said.splitlines()]
        return {name: (container, image) for name, container, image in rows}

    def image(self, name: str, *lines: str) -> str:
        """Another worker image, never seen before: a small layer more, and the lines of a Dockerfile."""
        news = f"RUN echo {secrets.token_hex(8)} >/etc/{name}"
        recipe = [f"FROM {self.workspace.reference('worker')}", news, *lines]
        made = f"{self.workspace.prefix}/worker:{name}"
        engine("build", "--tag", made, "-", input="\n".join(recipe))
        return made

    def unverify(self) -> None:
        """Nothing is proved of its images, as before."""
        with locks.cluster_lock(ssh.ssh_hosts(self.workspace.folder / INVENTORY, ["n1"])["n1"], journal.lock()) as held:
            held.write(journal.loads(held.text).verified(None).dumps())
        for file in (self.workspace.folder / ".rocstack/verify" / verified.FOLDER).glob("*"):
            file.unlink()

    def power(self, node: str) -> str:
        """The container that is the node, for `docker kill`."""
        return self.workspace.nodes()[node]


@contextmanager
def deploy(workspace: Workspace, shared: Path | None = None) -> Iterator[DeployedCluster]:
    """They are gone afterwards. `shared`: a folder of this machine that all nodes and workers see."""
    mounts = f"  mounts: [{shared}]\n" if shared else ""
    (workspace.folder / "rocstack.yml").write_text(SETTINGS + mounts)
    try:
        up = workspace.run("local", "up", "--nodes", "2")
        assert up.code == 0, up.err
        if shared:
            share(shared, workspace.nodes().values())
        first = workspace.run("deploy", "--json")
        assert first.code == 0, first.err + first.out
        yield DeployedCluster(workspace, first, (workspace.folder / ".rocstack/deploy/ansible.log").read_text())
    finally:
        workspace.run("local", "down")


def until(
    true: Callable[[], object], seconds: float, said: Callable[[], Any] = lambda: "", most_s: float = 1.5
) -> float:
    """How long it took. A look by ssh into a container costs half a second of a processor, so the pauses between them
    grow to `most_s`: give less for what does not stay true."""
    started, pause = time.monotonic(), 0.2
    while not true():
        assert time.monotonic() < started + seconds, f"not within {seconds} s: {said()}"
        time.sleep(pause)
        pause = min(pause * 1.5, most_s)
    return time.monotonic() - started

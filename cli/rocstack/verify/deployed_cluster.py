"""The deployed cluster as the suite's experiments reach it: its nodes by ssh, its containers, its Slurm."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from testinfra.backend.base import CommandResult
from testinfra.host import Host

from rocstack.base.errors import CheckFailed
from rocstack.base.levels import HARDWARE
from rocstack.base.text import from_json, values_of
from rocstack.cluster.settings import ClusterSettings as Settings
from rocstack.deploy.plan import services
from rocstack.deploy.read import inventory as inventories
from rocstack.deploy.read.facts import NodeFacts
from rocstack.deploy.state import cluster_state, status
from rocstack.deploy.state.cluster_state import ClusterState
from rocstack.edge.ssh import bounded
from rocstack.node import slurm_state
from rocstack.node.engine_facts import SERVICE, SPEC
from rocstack.node.fabric import parse_env
from rocstack.node.node_command import ENV_FILES
from rocstack.verify import testinfra_hosts
from rocstack.verify.evidence import CheckSkipped
from rocstack.verify.slurm_session import FOLDER, KILLED, USER, SlurmSession
from rocstack.verify.testinfra_hosts import AT_ONCE

Words = Iterable[str]
# What evidence has of NodeStatus, and of NodeFacts.
_STATUS = ("name", "roles", "virtual", "image", "digest", "health", "slurm", "reason", "restarts")
MOST_VALUES = 1_000_000  # of a node's answer
_FACTS = ("behind", "ahead", "cpus", "memory")
_SHUT = slurm_state.AWAY | {"DRAIN", "FAIL"}
_BREAK = "\x1e"
# The image's labels; what its entrypoint computed of the fabric; whether MUNGE works, without which no job starts.
_WORKER_COMMAND = f"""docker inspect --format '{{{{json .Config.Labels}}}}' {services.WORKER} || exit
exec docker exec {services.WORKER} sh -c 'printf "{_BREAK}"; for file in {" ".join(ENV_FILES)}
do [ ! -e "$file" ] || {{ cat "$file"; break; }}; done; printf "{_BREAK}"
timeout 5 munge -n | timeout 5 unmunge >/dev/null'"""


@dataclass(frozen=True)
class WorkerState:
    """What a worker's container has and says. `wrong` is why no job can start in it."""

    labels: Mapping[str, str]
    fabric: Mapping[str, str]
    wrong: str = ""


@dataclass(frozen=True)
class DeployedCluster:
    """`hosts` are the nodes that were reached, as root; `settings` what rocstack.yml says of the cluster; `unnamed` the
    inventory's workers that are not to be judged."""

    state: ClusterState
    settings: Settings
    hosts: Mapping[str, Host]
    slurm: SlurmSession
    level: int = 0  # up to which checks are run
    unnamed: tuple[str, ...] = ()

    @property
    def control(self) -> str:
        return self.state.inventory.control.name

    @property
    def workers(self) -> tuple[str, ...]:
        """Those that were reached."""
        return tuple(host.name for host in self.state.inventory.workers if host.name in self.hosts)

    @property
    def ready(self) -> tuple[str, ...]:
        """Workers on which jobs can start, at once or when others end."""
        return tuple(name for name in self.workers if not self._no_jobs(name))

    @cached_property
    def worker_states(self) -> Mapping[str, WorkerState]:
        """By worker that was reached. Slurm itself notices a broken container after minutes only."""
        outputs = self.everywhere(_WORKER_COMMAND, self.workers, seconds=30)
        return {name: _worker_state(done) for name, done in outputs.items()}

    def _no_jobs(self, name: str) -> str:
        worker, row = self.worker_states.get(name), (self.state.slurm.nodes or {}).get(name)
        if worker and worker.wrong:
            return worker.wrong
        if row is None:
            return "Slurm doesn't know it, or its controller doesn't answer"
        return slurm_state.state_text(dict(row)) if _SHUT & set(row["state"]) else ""

    def left_out(self) -> dict[str, str]:
        """Of the nodes that take jobs, those that were not to be had, and why.

        Raises:
            CheckFailed: no node is to be had.
        """
        try:
            got = self.allocated()
        except CheckSkipped as error:
            return dict.fromkeys(self.ready, str(error))
        missing = [name for name in self.ready if name not in got]
        now = self.slurm.states(missing) if missing else {}
        wait = f"longer than the {self.slurm.wait:.0f} s that a job of the suite may wait"
        reasons = {name: f"it is {now.get(name, ('unknown', 0))[0]} for {wait}: busy, or shut" for name in missing}
        other = {name: count for name, count in self._gpus.items() if self.slurm.gpus not in (0, count)}
        return reasons | {name: f"the suite's jobs take {self.slurm.gpus} GPUs, it has {other[name]}" for name in other}

    def everywhere(self, command: str, names: Words = (), seconds: float = 60) -> dict[str, CommandResult]:
        """As root, beside the containers, on `names` (default: all nodes) at once."""
        chosen = list(names or self.hosts)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            done = pool.map(lambda name: self.hosts[name].run(command, seconds=seconds), chosen)
            return dict(zip(chosen, done, strict=True))

    def in_workers(self, command: str, names: Words = (), seconds: float = 60) -> dict[str, CommandResult]:
        """A shell command as root in the workers' containers."""
        line = shlex.join(
            ["docker", "exec", f"--workdir={FOLDER}", services.WORKER, *bounded(seconds), "sh", "-c", command]
        )
        return self.everywhere(line, names or self.workers, seconds + KILLED)

    def python(
        self, program: Path, names: Words = (), seconds: float = 60, *, in_worker: bool = False, arguments: Words = ()
    ) -> dict[str, Any]:
        """A program of ours on the nodes themselves, or as root in the workers' containers (`in_worker`), which prints
        one JSON value: node -> that, or {"error": why}."""
        isolated = [] if in_worker else ["-I"]  # as root, where somebody's folder may be
        line = shlex.join(["python3", *isolated, "-c", program.read_text(encoding="utf-8"), *arguments])
        run = self.in_workers if in_worker else self.everywhere
        return {node: _answer(done) for node, done in run(line, names, seconds).items()}

    def allocated(self) -> tuple[str, ...]:
        """The nodes on which steps can run. Where jobs take GPUs, nodes with another number of them are left out: with
        fewer they can't have the job, and of more some would not be looked at.

        Raises:
            CheckSkipped, CheckFailed: no node is to be had.
        """
        if not self.ready:
            raise CheckFailed.of("no-worker-ready", inventory=self.state.inventory.path)
        self.slurm.gpus = usual(self._gpus.values())
        return self.slurm.allocate([name for name in self.ready if self.slurm.gpus in (0, self._gpus[name])])

    @property
    def _gpus(self) -> dict[str, int]:
        """Real ones that work, by node that takes jobs: what is measured on them must have the nodes for itself."""
        if self.level < HARDWARE:
            return dict.fromkeys(self.ready, 0)
        real = {node.name: node.profile.gpus for node in self.state.gathered.nodes if not node.profile.virtual}
        return {name: sum(gpu.kfd_node is not None for gpu in real.get(name, ())) for name in self.ready}

    def evidence(self) -> dict[str, Any]:
        """The evidence "cluster" (ClusterEvidence), in JSON values."""
        now, gathered = status.status(self.state), self.state.gathered
        most = [node.name for node in now.nodes if now.images and node.image == now.images[0].id]
        absent = {failure.node: failure.reason for failure in gathered.failures}
        labels = [worker.labels for name, worker in self.worker_states.items() if name in most]
        return {
            "cluster": now.cluster,
            "control": now.control,
            "unnamed": self.unnamed,
            "release": now.release.model_dump(mode="json") if now.release else None,
            "images": [asdict(image) for image in now.images],
            "labels": likeliest(labels, now.release.images.labels if now.release else {}),
            "fabric": {name: worker.fabric for name, worker in self.worker_states.items() if worker.fabric},
            "nodes": [
                {
                    **{key: getattr(node, key) for key in _STATUS},
                    "absent": absent.get(node.name, ""),
                    "no_jobs": self._no_jobs(node.name) if "worker" in node.roles else "",
                    **_facts(gathered.node(node.name)),
                }
                for node in now.nodes
            ],
        }


def likeliest(claims: Sequence[Mapping[str, str]], deployed: Mapping[str, str]) -> Mapping[str, str]:
    """Of what workers with one image say of it: what agrees with the journal's labels, then what most say, and what
    all say of those that are as many. So no worker answers for all."""
    rows = [row for row in claims if deployed.items() <= row.items()] or list(claims)
    most = max(map(rows.count, rows), default=0)
    said = [row.items() for row in rows if rows.count(row) == most]
    return {key: value for key, value in said[0] if all((key, value) in row for row in said)} if said else {}


def connect(path: Path, settings: Settings, *, level: int, user: str = USER, wait: float = 300) -> DeployedCluster:
    """
    Raises:
        BadInput, Missing, CheckFailed: as `read_state`; the control node wasn't reached.
    """
    inventory = inventories.load(path)
    state = cluster_state.read_state(inventory, settings, forks=settings.ship.forks)
    reached = {node.name: state.gathered.ssh_hosts[node.name] for node in state.gathered.nodes}
    if inventory.control.name not in reached:
        reason = next((f.reason for f in state.gathered.failures if f.node == inventory.control.name), "not there")
        raise CheckFailed.of("control-unreached", node=inventory.control.name, why=reason, inventory=path)
    hosts = {name: testinfra_hosts.by_ssh(ssh_host) for name, ssh_host in reached.items()}
    return DeployedCluster(state, settings, hosts, SlurmSession(hosts[inventory.control.name], user, wait), level)


def usual(counts: Iterable[int]) -> int:
    """GPUs that most of the nodes have which have any; the larger number of two that are as frequent."""
    times = Counter(count for count in counts if count)
    return max(times, key=lambda count: (times[count], count), default=0)


def _worker_state(done: CommandResult) -> WorkerState:
    labels, env, _ = (*done.stdout.split(_BREAK), "", "", "")[:3]
    lines = _named(done.stderr).splitlines()
    why = lines[0] if lines else f"exit status {done.rc}"
    wrong = f"its worker's container is not fit for jobs: {why}" if done.rc else ""
    try:
        known = {key: value for key, value in from_json(labels).items() if key not in (SERVICE, SPEC)}
        if not all(isinstance(value, str) for value in known.values()):
            raise ValueError("its image has labels that are no text")
        return WorkerState(known, parse_env(env), wrong)
    except (ValueError, AttributeError) as error:
        return WorkerState({}, {}, wrong or f"{error}")


def _facts(facts: NodeFacts | None) -> dict[str, Any]:
    """`names` are those of the images that run there, by id."""
    if facts is None:
        return {**dict.fromkeys(_FACTS), "control_image": "", "names": {}, "profile": None}
    used = {each.image for each in facts.containers}
    control = facts.container(services.CONTROL)
    return {
        **{key: getattr(facts, key) for key in _FACTS},
        "control_image": control.image if control else "",
        "names": {image.id: image.names for image in facts.images if image.id in used},
        "profile": asdict(facts.profile),
    }


def _named(text: str) -> str:
    """The engine says a container's number where a person knows its name."""
    return re.sub("[0-9a-f]{64}", services.WORKER, text.strip())


def _answer(done: CommandResult) -> Any:
    try:
        if values_of(done.stdout) > MOST_VALUES:
            return {"error": f"its answer has more than {MOST_VALUES:,} values"}
        return from_json(done.stdout)
    except ValueError:
        lines = (_named(done.stderr) or done.stdout.strip() or f"exit status {done.rc}").splitlines()
        return {"error": lines[-1]}

"""One run of the suite inside pytest: its evidence, its edge to the cluster, and the report at its end."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest

from rocstack.base import __version__
from rocstack.base.errors import BadInput, CheckFailed
from rocstack.edge import locks
from rocstack.edge.locks import ClusterLock, LockSpec
from rocstack.settings.settings import Settings, load
from rocstack.stack.gpus import model_of
from rocstack.verify import artifacts, evidence, history, testinfra_hosts
from rocstack.verify.deployed_cluster import DeployedCluster, connect
from rocstack.verify.evidence import CheckSkipped, ClusterEvidence, Evidence, ImageEvidence, NodeEvidence
from rocstack.verify.result import CheckResult, NodeSeen, Run, Skip

# On the control node: two runs at once would be in each other's way.
LOCK = LockSpec(
    path="/run/rocstack-verify.lock",
    work="verify",
    resume="`rocstack verify`",
)
COMPONENT = "io.rocstack.component."  # begins the labels of the image's components
WATCH_S = 1.0  # seconds between two looks whether the lock is still ours
STALE = 10  # seconds after which the nodes are read again


class Suite:
    """The edge to the cluster is made when first needed."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.started, self.who = config, time.time(), locks.operator()
        report, replayed = config.getoption("rocstack_report"), config.getoption("rocstack_evidence")
        self.folder = Path(report) if report else None
        try:
            self.evidence = Evidence(evidence.load(Path(replayed)) if replayed else None)
        except BadInput as error:
            raise pytest.UsageError(f"{error.where}: {error.what}") from None
        self.results: list[CheckResult] = []
        self.interrupted = False
        self._cluster: DeployedCluster | None = None
        self._open = ExitStack()
        self._telling = threading.Lock()

    @cached_property
    def settings(self) -> Settings:
        return load({}, os.environ, Path.cwd())[0]

    @property
    def cluster(self) -> DeployedCluster:
        if self.evidence.replayed:
            raise CheckSkipped("the evidence is replayed, there is no cluster", Skip(kind=""))
        if self._cluster is None:
            cluster, asked = self._read(), time.monotonic()
            ssh_host, wait = cluster.state.gathered.ssh_hosts[cluster.control], cluster.slurm.wait
            waiting = partial(self.event, "waiting", seconds=wait)
            held = self._open.enter_context(locks.cluster_lock(ssh_host, LOCK, wait=wait, on_wait=waiting))
            self.watch(held)
            self._cluster = self._read() if time.monotonic() > asked + STALE else cluster
            self._cluster.slurm.heal()
        return self._cluster

    def cluster_evidence(self) -> ClusterEvidence:
        return self.evidence.parsed("cluster", evidence.CLUSTER, lambda: self.cluster.evidence())

    def left_out(self) -> Mapping[str, str]:
        """Node -> why the suite's jobs can't run there, though jobs do."""
        try:
            return dict(self.evidence.take("left_out", lambda: self.cluster.left_out()))
        except CheckSkipped:
            return {}

    def event(self, kind: str, **values: Any) -> None:
        """A line of JSON for whoever shows the progress.

        Raises:
            KeyboardInterrupt: it is gone, so nobody waits for this run.
        """
        fd = self.config.getoption("rocstack_events")
        if fd is None:
            return
        try:
            with self._telling, open(fd, "w", encoding="utf-8", closefd=False) as pipe:
                pipe.write(json.dumps({"event": kind, **values}) + "\n")
        except BrokenPipeError:
            raise KeyboardInterrupt from None

    def watch(self, held: ClusterLock) -> None:
        """A run that loses its lock ends as if it were interrupted: the next one's jobs are not to meet its own."""
        main, closed = threading.main_thread().ident or 0, threading.Event()

        def look() -> None:
            while not closed.wait(WATCH_S):
                try:
                    held.check()
                except CheckFailed as lost:
                    try:
                        self.event("stopped", error=lost.to_dict())
                    finally:
                        signal.pthread_kill(main, signal.SIGINT)
                    return

        self._open.callback(closed.set)
        threading.Thread(target=look, daemon=True).start()

    def close(self) -> None:
        if self._cluster:
            self._cluster.slurm.close()
        self._open.close()

    def write(self) -> None:
        """The report, if there is anything to report."""
        if self.folder is None or not self.results:
            return
        run, runs = self._run(), self.config.getoption("rocstack_runs")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.evidence.write(self.folder / evidence.FILE)
        artifacts.write(run, self.folder, history.previous(Path(runs), run) if runs else None)

    def _run(self) -> Run:
        cluster, when = self.cluster_evidence(), datetime.fromtimestamp(self.started, UTC)
        components = {name: text for name, text in cluster.labels.items() if name.startswith(COMPONENT)}
        images = {image.role: image for image in reversed(cluster.images)}  # the one of most nodes is the first
        none = ImageEvidence(role="", id="", digest="")
        return Run(
            rocstack=__version__,
            id=when.strftime("%Y%m%d-%H%M%S"),
            who=self.who,
            when=when.strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=round(time.time() - self.started, 1),
            level=self.config.getoption("rocstack_level"),
            only=self.config.getoption("rocstack_only") or "",
            complete=not self.interrupted,
            nodes=tuple(_seen(node) for node in cluster.nodes),
            image=images.get("worker", none).id,
            digest=images.get("worker", none).digest,
            control_image=images.get("control", none).id,
            versions={name.removeprefix(COMPONENT): text for name, text in components.items()},
            results=tuple(self.results),
            **{key: getattr(cluster, key) for key in ("cluster", "control", "labels", "fabric")},
        )

    def _read(self) -> DeployedCluster:
        """With those of the inventory's nodes that `--hosts` names."""
        option, (path, limited) = self.config.getoption, self._inventory
        how = {"level": option("rocstack_level"), "user": option("rocstack_user"), "wait": option("rocstack_wait")}
        cluster = connect(path, self.settings.cluster, **how)
        if not limited:
            return cluster
        state, every = testinfra_hosts.limited(cluster.state, option("hosts")), cluster.state.inventory.workers
        reached = {name: host for name, host in cluster.hosts.items() if state.inventory.roles(name)}
        unnamed = tuple(host.name for host in every if host not in state.inventory.workers)
        return replace(cluster, state=state, hosts=reached, unnamed=unnamed)

    @cached_property
    def _inventory(self) -> tuple[Path, bool]:
        """The file, and whether `--hosts` names some of its nodes; else that was all there was to make a file of."""
        option = self.config.getoption
        file, named = option("rocstack_inventory") or option("ansible_inventory"), option("hosts")
        if file:
            return Path(file), bool(named)
        if not named:
            raise pytest.UsageError("which cluster? --inventory FILE, or --hosts=ssh://n1,ssh://n2")
        folder = self.config.invocation_params.dir / ".rocstack/verify"
        folder.mkdir(parents=True, exist_ok=True)
        return testinfra_hosts.inventory_of(named, folder, option("ssh_config"), option("ssh_identity_file")), False


def _seen(node: NodeEvidence) -> NodeSeen:
    named = (model_of(gpu.device, gpu.name) or gpu.gfx or "GPU" for gpu in (node.profile.gpus if node.profile else ()))
    gpus = Counter(named)
    nics = Counter(nic.nic for nic in (node.profile.nics if node.profile else ()) if nic.nic)
    model = ", ".join(f"{count} × {name}" for name, count in (*gpus.items(), *nics.items()))
    return NodeSeen(model=model, **{key: getattr(node, key) for key in ("name", "roles", "virtual", "absent", "image")})

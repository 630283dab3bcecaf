"""What of a deployed cluster is not in order. The texts are in images/findings/status.yml."""

from collections.abc import Iterator
from typing import Any

from rocstack.base import finding_texts
from rocstack.base.findings import Finding
from rocstack.deploy.plan import services
from rocstack.deploy.plan.plan import short
from rocstack.deploy.plan.services import SERVICE_OF
from rocstack.deploy.read.facts import NodeFacts, code_of
from rocstack.deploy.state.cluster_state import ClusterState, is_image, wrong
from rocstack.node import slurm_state
from rocstack.node.engine import Row

# (code of the entry, node or None, values of its sentences)
Problem = tuple[str, str | None, dict[str, Any]]


def findings(state: ClusterState) -> Iterator[Finding]:
    """The cluster's own first, then by node."""
    table = finding_texts.table()
    for code, node, values in _problems(state):
        yield table[code].finding({"inventory": state.inventory.path, "node": node or "", **values}, node=node)


def _problems(state: ClusterState) -> Iterator[Problem]:
    yield from _of_the_cluster(state)
    for warning in state.inventory.warnings:
        yield "inventory-warning", None, {"warning": warning}
    for failure in state.gathered.failures:
        yield code_of(failure), failure.node, {"reason": failure.reason}
    if state.empty:
        return
    for facts in state.gathered.nodes:
        if facts.engine.problem:
            user = facts.user.name or facts.user.uid
            yield f"engine-{facts.engine.problem}", facts.name, {"error": facts.engine.error, "user": user}
        else:
            yield from _of_containers(state, facts)
            yield from _of_image(state, facts)
    yield from _of_slurm(state)


def _of_the_cluster(state: ClusterState) -> Iterator[Problem]:
    deploy = state.journal.current
    if state.slurm.deploying:
        yield "deploy-running", None, {"who": state.slurm.deploying}
    elif deploy:
        not_done = deploy.at("pending", "shipped", "drained", "started")
        failed = [f"{name} ({deploy.nodes[name].reason})" for name in deploy.at("failed")]
        parts = [f"{len(deploy.at('done'))} nodes done"]
        parts += [f"not done: {', '.join(not_done)}"] if not_done else []
        parts += [f"failed: {', '.join(failed)}"] if failed else []
        yield "deploy-interrupted", None, {"who": deploy.who, "when": deploy.started, "state": "; ".join(parts)}
    if state.control and state.empty:
        yield "cluster-down" if state.journal.releases else "not-deployed", None, {}


def _of_containers(state: ClusterState, facts: NodeFacts) -> Iterator[Problem]:
    for name in state.containers(facts.name):
        word, container = wrong(facts, name), facts.container(name)
        values = {"service": SERVICE_OF[name]}
        if word == "starting" and _answers(state, facts.name, name):
            continue  # the engine looks every few seconds only
        if word in ("missing", "starting", "unhealthy"):
            yield f"container-{word}", facts.name, values
        elif word and container:
            error = f": {container.error}" if container.error else ""
            cause = "it ends again and again" if container.status == "restarting" else "it ended, or was stopped"
            yield "container-stopped", facts.name, {**values, "state": container.status + error, "cause": cause}


def _answers(state: ClusterState, node: str, container: str) -> bool:
    """Whether Slurm shows that it works."""
    nodes = state.slurm.nodes
    ready = nodes is not None and not slurm_state.not_ready(nodes.get(node))
    return (container == services.CONTROL and nodes is not None) or (container == services.WORKER and ready)


def _of_image(state: ClusterState, facts: NodeFacts) -> Iterator[Problem]:
    if state.release is None or state.journal.current:
        return
    images = state.release.images
    wanted_ids = {
        services.WORKER: images.worker_id,
        services.CONTROL: images.control_id,
        services.API: images.service_id,
        services.TOKENS: images.service_id,
    }
    for name, wanted in wanted_ids.items():
        container = facts.container(name)
        if container and wanted and not is_image(facts, container.image, wanted):
            values = {"service": SERVICE_OF[name], "image": short(container.image), "wanted": short(wanted)}
            yield "image-differs", facts.name, values


def _of_slurm(state: ClusterState) -> Iterator[Problem]:
    control = state.inventory.control.name
    facts = state.gathered.node(control)
    if state.slurm.nodes is None:
        if facts and not wrong(facts, services.CONTROL):
            yield "slurm-silent", control, {"why": state.slurm.why}
        return
    for host in state.inventory.workers:
        row = state.slurm.nodes.get(host.name)
        if why := slurm_state.not_ready(row):
            yield _not_ready(state, host.name, row, why)
        worker = state.gathered.node(host.name)
        expected = slurm_state.gres_gpus(row["gres"]) if row else None
        if worker and expected is not None and state.offers_gpus and expected != len(worker.profile.gpus):
            yield "gpus-differ", host.name, {"expected": expected, "count": len(worker.profile.gpus)}


def _not_ready(state: ClusterState, name: str, row: Row | None, why: str) -> Problem:
    if row is None:
        return "slurm-unknown", name, {"why": why}
    if slurm_state.not_back(row):
        return "slurm-away", name, {"why": why}
    if slurm_state.drained_by_deploy(row):
        cause, step = "a deploy drained it and did not get it back", f"`rocstack deploy {state.inventory.path}`"
    else:
        line = f"scontrol update nodename={name} state=resume"
        cause = "somebody, or Slurm's own check, drained it"
        step = f"repair it, then `rocstack shell {state.inventory.control.name} --service controller -- {line}`"
    return "slurm-drained", name, {"why": why, "cause": cause, "step": step}

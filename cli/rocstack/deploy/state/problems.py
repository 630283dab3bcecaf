"""What of a deployed cluster is not in order, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rocstack.base.findings import Finding, FindingLevel
from rocstack.deploy.plan import services
from rocstack.deploy.plan.plan import short
from rocstack.deploy.read.facts import NodeFacts
from rocstack.deploy.state.cluster_state import WORDS, ClusterState, is_image, wrong
from rocstack.node import slurm_state
from rocstack.node.engine import Row


def findings(state: ClusterState) -> Iterator[Finding]:
    """The cluster's own first, then by node."""
    yield from _of_the_cluster(state)
    for failure in state.gathered.failures:
        yield _finding(
            failure.node,
            "node-unreached",
            f"could not be read: {failure.reason}",
            "power, network, or ssh; what runs there goes on without this machine",
            f"`ansible -i {state.inventory.path} {failure.node} -m ping` tries the same",
        )
    if state.empty:
        return
    for facts in state.gathered.nodes:
        if facts.engine.problem:
            yield _finding(
                facts.name,
                f"engine-{facts.engine.problem}",
                f"its container engine gives no answer: {facts.engine.error}",
                "the engine doesn't run, hangs, or refuses this user",
                f"`docker info` on {facts.name} must answer, as the user of the inventory",
            )
        else:
            yield from _of_containers(state, facts)
            yield from _of_image(state, facts)
    yield from _of_slurm(state)


def _of_the_cluster(state: ClusterState) -> Iterator[Finding]:
    deploy, path = state.journal.current, state.inventory.path
    control = state.gathered.node(state.inventory.control.name)
    if state.slurm.deploying:
        yield _finding(None, "deploy-running", f"a deploy is at work: {state.slurm.deploying}", level="note")
    elif deploy:
        open_still = deploy.at("pending", "shipped", "drained", "started")
        failed = [f"{name} ({deploy.nodes[name].reason})" for name in deploy.at("failed")]
        yield _finding(
            None,
            "deploy-interrupted",
            f"the deploy that {deploy.who} began at {deploy.started} has not ended: "
            + "; ".join(
                [
                    f"{len(deploy.at('done'))} nodes done",
                    *([f"not done: {', '.join(open_still)}"] if open_still else []),
                    *([f"failed: {', '.join(failed)}"] if failed else []),
                ]
            ),
            "it was interrupted, or too many nodes failed",
            f"`rocstack deploy {path} --resume`",
        )
    if control and not any(facts.containers for facts in state.gathered.nodes):
        known = bool(state.journal.releases)
        yield _finding(
            None,
            "cluster-down" if known else "not-deployed",
            "no container of the cluster is on any node that was read"
            if known
            else "nothing has been deployed to these nodes",
            "`rocstack down` was here" if known else "",
            f"`rocstack deploy {path}`",
        )


def _of_containers(state: ClusterState, facts: NodeFacts) -> Iterator[Finding]:
    for name in state.containers(facts.name):
        word, found = wrong(facts, name), facts.container(name)
        service = WORDS[name]
        log = f"`rocstack logs {facts.name} --service {service}` says why"
        if word == "missing":
            what = f"the container of its {service} is not there"
            yield _finding(facts.name, "container-missing", what, "", f"`rocstack deploy {state.inventory.path}`")
        elif word == "starting" and _answers(state, facts.name, name):
            continue  # the engine looks every few seconds only
        elif word == "starting":
            what = f"its {service} is starting"
            yield _finding(facts.name, "container-starting", what, "", f"look again in a minute; {log}", "note")
        elif word == "unhealthy":
            what = f"its {service} runs, and its health check fails"
            yield _finding(facts.name, "container-unhealthy", what, "", log)
        elif word and found:
            error = f": {found.error}" if found.error else ""
            cause = "it ends again and again" if found.status == "restarting" else "it ended, or was stopped"
            yield _finding(
                facts.name,
                "container-stopped",
                f"its {service} is {found.status}{error}",
                cause,
                f"{log}; `rocstack deploy {state.inventory.path}` starts it again",
            )


def _answers(state: ClusterState, node: str, container: str) -> bool:
    """Whether Slurm shows that it works."""
    nodes = state.slurm.nodes
    ready = nodes is not None and not slurm_state.not_ready(nodes.get(node))
    return (container == services.CONTROL and nodes is not None) or (container == services.WORKER and ready)


def _of_image(state: ClusterState, facts: NodeFacts) -> Iterator[Finding]:
    if state.release is None or state.journal.current:
        return
    images = state.release.images
    for name, wanted in ((services.WORKER, images.worker_id), (services.CONTROL, images.control_id)):
        found = facts.container(name)
        if found and not is_image(facts, found.image, wanted):
            yield _finding(
                facts.name,
                "image-differs",
                f"its {WORDS[name]} is of image {short(found.image)}, the release's is {short(wanted)}",
                "the last deploy did not come to it, or failed there",
                f"`rocstack deploy {state.inventory.path}`",
            )


def _of_slurm(state: ClusterState) -> Iterator[Finding]:
    control = state.inventory.control.name
    facts = state.gathered.node(control)
    if state.slurm.nodes is None:
        if facts and not wrong(facts, services.CONTROL):
            yield _finding(
                control,
                "slurm-silent",
                f"Slurm's controller doesn't answer: {state.slurm.why}",
                "",
                f"`rocstack logs {control} --service controller` shows its log",
            )
        return
    for host in state.inventory.workers:
        row = state.slurm.nodes.get(host.name)
        if why := slurm_state.not_ready(row):
            yield _not_ready(state, host.name, row, why)
        seen = state.gathered.node(host.name)
        counted = slurm_state.gres_gpus(row["gres"]) if row else None
        if seen and counted is not None and state.offers_gpus and counted != len(seen.profile.gpus):
            yield _finding(
                host.name,
                "gpus-differ",
                f"Slurm counts on {counted} GPUs, and the node shows {len(seen.profile.gpus)}",
                "a GPU fell off the bus, came back, or the driver is not loaded",
                f"`rocstack doctor {state.inventory.path}`; `rocstack deploy` takes over what is there",
            )


def _not_ready(state: ClusterState, name: str, row: Row | None, why: str) -> Finding:
    path, control = state.inventory.path, state.inventory.control.name
    if row is None:
        return _finding(name, "slurm-unknown", why, "it joined the inventory later", f"`rocstack deploy {path}`")
    if slurm_state.not_back(row):
        log = f"`rocstack logs {name}` shows slurmd's log"
        return _finding(name, "slurm-away", f"takes no jobs: it {why}", "its slurmd doesn't answer", log)
    if slurm_state.drained_by_deploy(row):
        cause, next_step = "a deploy drained it and did not get it back", f"`rocstack deploy {path}`"
    else:
        line = f"scontrol update nodename={name} state=resume"
        cause = "somebody, or Slurm's own check, drained it"
        next_step = f"when it is right: `rocstack shell {control} --service controller -- {line}`"
    return _finding(name, "slurm-drained", f"takes no jobs: it {why}", cause, next_step)


def _finding(
    node: str | None, code: str, what: str, cause: str = "", next_step: str = "", level: FindingLevel = "error"
) -> Finding:
    return Finding(code, level, what, cause, next_step, node=node)

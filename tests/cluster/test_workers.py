"""The workers as Slurm has them, and the daemons that it lives of."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from experiments import containers, credentials
from states import answers

from rocstack.image.labels import OWN
from rocstack.node import slurm_state
from rocstack.stack import rules
from rocstack.verify.evidence import (
    CREDENTIALS,
    ClusterEvidence,
    ContainerAnswer,
    ControllerAnswer,
    CredentialAnswer,
    CredentialAnswers,
    Evidence,
    NoAnswer,
    NodeEvidence,
    SlurmNode,
)
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder

GOOD = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING"})
BAD = slurm_state.AWAY | {"DRAIN", "FAIL", "MAINTENANCE", "POWER_DOWN", "POWER_DRAIN", "DYNAMIC_FUTURE"}
EXPIRED, REWOUND = 15, 16  # munge(3): the decoder's clock is ahead, or behind
LOGS = "`rocstack logs NODE` shows why; `rocstack deploy` restarts its container"


@pytest.fixture(scope="session")
def exchanged(evidence: Evidence, cluster: Any) -> dict[str, CredentialAnswers]:
    return evidence.parsed("credentials", CREDENTIALS, lambda: credentials.run(cluster))


@pytest.fixture(scope="session")
def health(evidence: Any, cluster: Any, cluster_evidence: ClusterEvidence) -> dict[str, str | None]:
    """Node -> that of its containers; those that had just started are asked again."""
    words = {node.name: node.health for node in cluster_evidence.nodes}
    starting = [name for name, word in words.items() if re.search(r"\bstarting", word or "")]  # not: restarting
    return {**words, **(evidence.take("settled", lambda: containers.settle(cluster, starting)) if starting else {})}


@check(
    name="workers",
    title="Slurm has every worker of the inventory, as configured, and starts jobs there",
    cannot="whether jobs succeed there, and CPUs or memory that are set to between half and all",
    level=1,
    core=True,
    item=2,
    scope="cluster",
    cause="the node is off, its slurmd doesn't answer, or somebody drained it",
    next_step=(
        "run `rocstack status`; resume a drained node with `scontrol update nodename=NODE state=resume` once it is "
        "fixed"
    ),
    source="Lamini, multi-node training: the tests of a cluster",
)
def test_workers(record: Recorder, cluster_evidence: ClusterEvidence, controller: ControllerAnswer) -> None:
    rows = {row.name: row for row in controller.nodes}
    workers = [node for node in cluster_evidence.nodes if node.is_worker]
    slurm = rules.upstream(cluster_evidence.labels.get(f"{OWN}component.slurm", ""))
    for node in workers:
        row = rows.get(node.name)
        if node.absent:
            record.failed(node.name, f"could not be reached: {node.absent}", "absent", wanted="idle")
        elif row is None:
            record.failed(node.name, "Slurm doesn't know it", "unknown", wanted="idle")
        else:
            _state(record, node.name, row)
            seen = rules.upstream(row.version or "")
            wanted = str(slurm or row.version)
            record.equal(node.name, str(seen or ""), wanted, why=f"its slurmd has version {row.version}, not {wanted}")
    reached = {node.name: node for node in workers if node.name in rows and not node.absent}
    for name, node in reached.items():
        _size(record, node, rows[name])
    others = sorted(set(rows) - {node.name for node in workers} - set(cluster_evidence.unnamed or ()))
    for name in others:
        record.failed("", f"Slurm has the worker {name}, the inventory doesn't", name)


def _state(record: Recorder, name: str, row: SlurmNode) -> None:
    state = set(row.state)
    words = "+".join(row.state).lower()
    if state & GOOD and not state & BAD:
        record.passed(name, words, wanted="idle, mixed or allocated")
    else:
        why = f"Slurm starts no jobs there: {words}" + (f" ({row.reason})" if row.reason else "")
        record.failed(name, why, words, wanted="idle, mixed or allocated")


def _size(record: Recorder, node: NodeEvidence, row: SlurmNode) -> None:
    """No more than the node has, and no less than half: the system keeps some, and Slurm may count cores, not threads.
    A virtual node says more than the machine under it has."""
    if node.virtual or node.cpus is None or node.memory is None:
        return
    sizes = ((node.cpus, row.cpus, "CPUs"), (node.memory >> 20, row.real_memory, "MiB"))
    for has, configured, unit in sizes:
        wanted = f"{has // 2} to {has} {unit}"
        if has // 2 <= configured <= has:
            record.passed(node.name, configured, unit, wanted=wanted)
        else:
            record.failed(
                node.name, f"Slurm counts on {configured} {unit}, it has {has}", configured, unit, wanted=wanted
            )


@check(
    name="munge",
    title="The control node accepts the worker's MUNGE credential, and the worker the control node's",
    cannot="whether the key is secret",
    level=1,
    core=True,
    cause="munged doesn't run in the worker's container, has another key, or the clocks differ",
    next_step=LOGS,
    source="dun/munge wiki, troubleshooting",
)
def test_munge(record: Recorder, exchanged: dict[str, CredentialAnswers], cluster_evidence: ClusterEvidence) -> None:
    for node in record.nodes:
        credentials_of = exchanged.get(node.name, CredentialAnswers())
        here, there = credentials_of.here, credentials_of.there
        offset = _offset(here, there)
        for credential, peer, where in (
            (there, cluster_evidence.control, "at the control node"),
            (here, "", "of the control node"),
        ):
            if credential.status not in (0, EXPIRED, REWOUND):
                why = credential.said.splitlines()[0] if credential.said else "no answer"
                record.failed(node.name, f"its credential {where}: {why}", peer=peer, evidence=credential.said)
                break
        else:
            record.judge(node.name, offset, "munge-seconds", peer=cluster_evidence.control, evidence=there.said)


def _offset(here: CredentialAnswer, there: CredentialAnswer) -> float | None:
    """Seconds between both clocks, to a second; None where a credential was not read."""
    if here.encoded is None or here.decoded is None or there.encoded is None or there.decoded is None:
        return None
    return abs((here.decoded - here.encoded) - (there.decoded - there.encoded)) / 2


REFUSED = (15, 16, 17)  # of munge.h, with the right key: expired, rewound, replayed


@check(
    name="munge-host",
    title="The worker accepts a MUNGE credential of its own host",
    cannot="anything where the host runs no MUNGE with the cluster's key: then it is skipped",
    level=1,
    cause="the host's munged has the cluster's key, and its clock or its list of credentials is wrong",
    next_step="compare `date` on the host and in the worker; restart the host's munged, or stop it if nothing needs it",
)
def test_munge_host(record: Recorder, exchanged: dict[str, CredentialAnswers]) -> None:
    for node in record.nodes:
        credential = exchanged[node.name].host if node.name in exchanged else None
        if credential is None:
            record.skipped(node.name, f"no MUNGE runs on the host {node.name}")
        elif credential.status not in (0, *REFUSED):
            why = f"the MUNGE of the host {node.name} is none of the cluster's: its credentials can't be decoded"
            record.skipped(node.name, why, evidence=credential.said)
        else:
            record.equal(node.name, credential.status, 0, evidence=credential.said)


@check(
    name="clock-skew",
    title="The nodes' clocks agree",
    cannot="differences that are shorter than the answer of a node takes",
    level=1,
    scope="cluster",
    cause="no time service runs on the node, or it can't reach its servers",
    next_step="run `chronyc tracking` or `timedatectl` on the node",
)
def test_clock_skew(record: Recorder, cluster_evidence: ClusterEvidence) -> None:
    """What is certain: how far apart the bounds are within which each clock must be, of which most share a moment."""
    bounds = {node.name: (node.behind, node.ahead) for node in cluster_evidence.nodes if node.behind is not None}
    for node in record.nodes:
        if node.name not in bounds:
            record.skipped(node.name, "its clock was not read")
            continue
        low, high = bounds[node.name]
        others = [_between((low, high), other) for name, other in bounds.items() if name != node.name]
        certain = (
            sorted(others)[len(others) // 2]
            if len(others) > 2
            else _between((low, high), bounds[cluster_evidence.control])
        )
        record.judge(
            node.name, certain, "clock-skew", evidence=f"{low:+.3f} to {high:+.3f} s beside the asking machine"
        )


def _between(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, one[0] - other[1], other[0] - one[1])


@check(
    name="containers",
    title="The containers of every node run and are healthy",
    cannot="why a container started again, or what its health command doesn't ask",
    level=1,
    scope="cluster",
    cause="a service ended, or its health check fails",
    next_step=LOGS,
)
def test_containers(record: Recorder, cluster_evidence: ClusterEvidence, health: dict[str, str | None]) -> None:
    for node in record.nodes:
        word, restarts = health[node.name], cluster_evidence.node(node.name).restarts
        record.equal(node.name, word, "healthy", why=word, evidence=f"{restarts} restarts")
        record.measured(node.name, restarts, "restarts")


@check(
    name="slurm-services",
    title="Slurm's controller, accounting and REST service answer",
    cannot="how they behave under many jobs",
    level=1,
    scope="cluster",
    cause="a daemon of the control container has ended or uses another key",
    next_step="read `rocstack logs CONTROL --service controller` and `--service db`",
)
def test_slurm_services(record: Recorder, cluster_evidence: ClusterEvidence, controller: ControllerAnswer) -> None:
    node, ping, database, rest = cluster_evidence.control, controller.ping, controller.database, controller.rest
    up = ping.code == 0 and " is UP" in ping.out
    record.equal(node, up, True, why=f"slurmctld: {ping.err or ping.out}", evidence=ping.out)
    known = database.code == 0 and bool(database.out)
    record.equal(node, known, True, why=f"slurmdbd: {database.err or 'knows no cluster'}", evidence=database.out)
    why = f"slurmrestd answers {rest.with_token} to a token"
    record.equal(node, rest.with_token, 200, why=why, evidence=rest.api)
    if rest.without_token in (401, 403):
        record.passed(node, rest.without_token, wanted="refused without a token")
    else:
        why = f"slurmrestd answers {rest.without_token} without a token"
        record.failed(node, why, rest.without_token, wanted="401")


@check(
    name="names",
    title="Every worker resolves the other workers' names to their addresses",
    cannot="names of hosts that are no workers",
    level=1,
    needs=("nodes:2",),
    cause="DNS or /etc/hosts lacks nodes; MPI and torch find each other by name",
    next_step="run `rocstack shell NODE -- getent hosts NAME`",
)
def test_names(
    record: Recorder, in_containers: dict[str, ContainerAnswer | NoAnswer], controller: ControllerAnswer
) -> None:
    addresses = _addresses(record, controller)
    for node, answer in answers(record, in_containers):
        judged = {name: _wrong(name, address, node.name, addresses) for name, address in answer.names.items()}
        wrong = [f"{name}: {why}" for name, why in judged.items() if why]
        count = len(judged) - len(wrong)
        if wrong:
            some = "; ".join(wrong[:5])
            record.failed(node.name, some, count, "names", wanted=f"{len(judged)} names")
        else:
            record.passed(node.name, count, "names")


def _addresses(record: Recorder, controller: ControllerAnswer) -> dict[str, set[str]]:
    """Of each node: as Slurm has it, and those of all its networks that no other node has, too."""
    own = {
        node.name: {each.address.partition("/")[0] for each in node.profile.addresses}
        for node in record.all_nodes
        if node.profile
    }
    times = Counter(address for some in own.values() for address in some)
    addresses = {name: {address for address in some if times[address] == 1} for name, some in own.items()}
    for row in controller.nodes:
        addresses.setdefault(row.name, set()).add(row.address)
    return addresses


def _wrong(name: str, address: str, here: str, addresses: dict[str, set[str]]) -> str:
    """A node's own name may be of its loopback."""
    if address.startswith("!"):
        return address.lstrip("! ")
    if address.startswith("127."):
        return "" if name == here else f"{address}, which is its own"
    if address in addresses.get(name, {address}):
        return ""
    owner = next((other for other, some in addresses.items() if address in some), None)
    return f"{address}, which is {owner}'s" if owner else f"{address}, which is no address of {name}"

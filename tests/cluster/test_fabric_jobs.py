"""The data network as jobs see it: its devices, and the environment that tells libraries which to use."""

from __future__ import annotations

from typing import Any

import states
from states import profiles, readable

from rocstack.base.text import listed
from rocstack.image.labels import OWN
from rocstack.node.gate import TCP
from rocstack.probe.classes import OWN as OWN_NAMES
from rocstack.verify.evidence import ClusterEvidence, JobAnswer
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder

# libibverbs finds these cards by the driver that the kernel names (rdma-core, providers/ionic), not by their PCI ids.
BY_DRIVER = {"ainic"}
LAMINI = "Lamini, multi-node training: the tests of a cluster"


@check(
    name="rdma-in-jobs",
    title="A job sees all RDMA devices of its node",
    cannot="whether a job may open them: `queue-pairs` does",
    level=2,
    needs=("rdma", "gpu", "jobs"),
    item=4,
    cause="the image has no library for the card's driver, or the worker's container has no /dev/infiniband",
    next_step="run `srun ibv_devices`; `rocstack build --nic NIC --profiles FILE` builds the image for this driver",
    source=f"{LAMINI}; linux-rdma/rdma-core libibverbs/init.c",
)
def test_rdma_in_jobs(record: Recorder, gpu_jobs: dict[str, Any], cluster_evidence: ClusterEvidence) -> None:
    """An image for other cards, or for none, has no library for these and need not."""
    image = cluster_evidence.labels.get(f"{OWN}nic", "")
    seen = {node.name: profile for node, profile in profiles(record)}
    for node, answer in readable(record, gpu_jobs, "all"):
        wanted = {nic.verbs for nic in seen[node.name].nics if nic.nic == image and nic.verbs}
        if not wanted:
            of = "has no RDMA" if image in ("", TCP) else f"is for {image} cards, which the node has not"
            record.skipped(node.name, f"the image {of}")
        elif node.virtual and image in BY_DRIVER:
            record.skipped(node.name, "virtual node: no kernel names the driver of its devices to libibverbs")
        elif answer.get("rdma") is None:
            why = answer.get("error")
            record.skipped(node.name, why or "no ibv_devices in the image", "" if why else "no-tool")
        else:
            lacking = sorted(wanted - set(answer["rdma"]))
            number = len(wanted) - len(lacking)
            record.equal(node.name, number, len(wanted), "devices", why=f"a job does not see {listed(lacking)}")


@check(
    name="fabric-env",
    title="Every task gets its node's fabric environment, and it is the same on all nodes",
    cannot="whether the values suit the switches; a job script may set others",
    level=1,
    needs=("jobs",),
    cause="the worker's entrypoint couldn't write the file, Slurm's TaskProlog is missing, or a node has other ports",
    next_step=(
        "compare `srun env | grep -e NCCL -e UCX` with /etc/rocstack/fabric.env in the worker; then `rocstack deploy`"
    ),
    source="NCCL user guide, environment variables",
)
def test_fabric_env(record: Recorder, in_jobs: dict[str, JobAnswer], cluster_evidence: ClusterEvidence) -> None:
    """Its own ports and their indexes a node may have for itself."""
    computed = {node.name: cluster_evidence.fabric.get(node.name, {}) for node in record.nodes}
    shared = {name: {k: v for k, v in own.items() if k not in OWN_NAMES} for name, own in computed.items()}
    texts = {name: states.listed(f"{key}={value}" for key, value in own.items()) for name, own in shared.items()}
    usual = states.commonest(texts.values())
    for name, own in computed.items():
        env = in_jobs[name].env if name in in_jobs else {}
        lost = [key for key, value in own.items() if env.get(key) != value]
        count = len(own) - len(lost)
        if not own:
            record.failed(name, "its worker has no fabric environment", 0, "variables")
        elif lost:
            record.failed(
                name, f"a task has not {listed(lost)} as computed", count, "variables", wanted=f"{len(own)} variables"
            )
        elif (texts[name],) != usual:
            other = next(each for each in usual if each != texts[name])
            odd = sorted(set(texts[name].split(" + ")) ^ set(other.split(" + ")))
            others = "as many others" if texts[name] in usual else "most nodes"
            record.failed(name, f"different from {others}: {listed(odd)}", count, "variables")
        else:
            record.passed(name, count, "variables", evidence="\n".join(f"{k}={v}" for k, v in own.items()))

"""The images that the nodes run: whether they are the release's, say what they are, and fit the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from states import answers

from rocstack.deploy.plan.plan import short
from rocstack.image.labels import OWN
from rocstack.node.image_facts import from_labels
from rocstack.stack import gpus, rules
from rocstack.verify.evidence import ClusterEvidence, ContainerAnswer, NoAnswer
from rocstack.verify.pytest_plugin import check
from rocstack.verify.recorder import Recorder, components, without

PROGRAMS = Path(__file__).parent / "programs"
FACTS = ("version", "stack", "role", "nic", "nic.way", "gfx", "base.how", "base.digest", "content", "glibc")
COMPUTE = ("hip", "rccl", "rocblas", "jax")  # what no training does without; hipBLASLt has another way
PARTS = ("slurm", "munge", "pmix", "rdma", "rocm", "rccl", "system")  # of every worker's image; what trains differs
NO_PROVIDER = ("tcp", "slingshot")
AGAIN = "rebuild the image with `rocstack build`"
DEPLOY = "run `rocstack deploy INVENTORY`"


@pytest.fixture(scope="session")
def seen_secrets(evidence: Any, cluster: Any) -> dict[str, Any]:
    """What programs/secrets.py found on each node."""
    rows: dict[str, Any] = evidence.take("secrets", lambda: cluster.python(PROGRAMS / "secrets.py"))
    return rows


@check(
    name="worker-image",
    title="Every worker runs the release's worker image",
    cannot="whether the files of a running container were changed since it started",
    level=0,
    core=True,
    cause="the last deploy didn't reach the node, or failed there",
    next_step=DEPLOY,
)
def test_worker_image(record: Recorder, cluster_evidence: ClusterEvidence) -> None:
    for node in record.nodes:
        _of_release(record, cluster_evidence, node.name, "worker")


@check(
    name="control-image",
    title="The control node runs the release's control image",
    cannot="whether the files of a running container were changed since it started",
    level=0,
    scope="cluster",
    cause="the last deploy failed there, or somebody created the container by hand",
    next_step=DEPLOY,
)
def test_control_image(record: Recorder, cluster_evidence: ClusterEvidence) -> None:
    _of_release(record, cluster_evidence, cluster_evidence.control, "control")


def _of_release(record: Recorder, cluster_evidence: ClusterEvidence, node: str, role: str) -> None:
    if not cluster_evidence.release:
        record.skipped(node, "no deploy has ended yet, so there is no release")
        return
    images, row = cluster_evidence.release.images, cluster_evidence.node(node)
    wanted = images.worker_id if role == "worker" else images.control_id
    image = row.image if role == "worker" else row.control_image
    if not image:
        record.failed(node, "the container is missing", "", wanted=short(wanted))
    # The ids of containerd's store are other ones, but the name that a deploy gave it says so.
    elif image != wanted and any(name.endswith(f":{short(wanted)}") for name in row.names.get(image, ())):
        record.passed(node, short(wanted), evidence=image)
    else:
        record.equal(node, short(image), short(wanted))


@check(
    name="labels",
    title="The image's labels tell what it contains and what it is for",
    cannot="whether the labels are true: `versions` and `parts` ask the programs",
    level=0,
    scope="cluster",
    cause="the image wasn't built by rocstack, or by an older version",
    next_step=AGAIN,
)
def test_labels(record: Recorder, cluster_evidence: ClusterEvidence) -> None:
    labels = cluster_evidence.labels
    image = from_labels("the worker image", labels)
    wanted = [*FACTS, *(f"component.{name}" for name in PARTS)]
    missing = [name for name in wanted if not labels.get(OWN + name)]
    if image.private_abi is None:
        missing.append("verbs.private-abi")
    if image.nic not in NO_PROVIDER:
        missing += [] if image.providers else ["nic.providers"]
        missing += [
            f"the kernel ABIs of {each.driver}"
            for each in image.providers
            if each.way != "host" and not each.kernel_abi
        ]
    count = f"{len(wanted) + 1 - len(missing)} of {len(wanted) + 1}"
    if missing:
        record.failed("", f"no label {', '.join(missing)}", count, "labels")
    else:
        record.passed("", count, "labels")
    record.equal("", labels.get(f"{OWN}role"), "worker")
    if lock := labels.get(f"{OWN}lock"):
        drift = labels.get(f"{OWN}lock.drift", "0")
        record.measured("", int(drift), "versions beside the lock", evidence=f"lock {lock}")
    else:
        record.measured("", "not locked")


@check(
    name="nic-gate",
    title="The image matches the node's NICs and their kernel driver",
    cannot="whether packets pass: it compares cards, driver and kernel ABI with the image's library",
    level=0,
    cause="the image's provider library doesn't support the kernel ABI of the node's driver",
    next_step="run `rocstack probe` and `rocstack build --nic NIC --profiles FILE`; `rocstack doctor` tells more",
    source="rdma-core, libibverbs/init.c",
)
def test_nic_gate(record: Recorder, in_containers: dict[str, ContainerAnswer | NoAnswer]) -> None:
    for node, answer in answers(record, in_containers):
        word, _, why = answer.gate.said.rpartition("\n")[2].partition(": ")
        if answer.gate.code == 0:
            record.passed(node.name, word, evidence=answer.gate.said)
        else:
            record.failed(node.name, why or word, word, wanted="fits", evidence=answer.gate.said)


@check(
    name="driver-rocm",
    title="The node's amdgpu driver supports the image's ROCm",
    cannot="anything of a driver or a ROCm that AMD's table doesn't have: then it is skipped",
    level=0,
    needs=("gpu",),
    cause="the driver belongs to another ROCm generation than the image",
    next_step="use another stack (`rocstack stacks`), or the driver that AMD's matrix lists for this ROCm",
    source="AMD, user and kernel-space support matrix",
)
def test_driver_rocm(record: Recorder, cluster_evidence: ClusterEvidence) -> None:
    labels = cluster_evidence.labels
    rocm, method = labels.get(f"{OWN}component.rocm", ""), labels.get(f"{OWN}rocm.method", "amd")
    matrix = tuple(rule for rule in rules.load() if "driver" in rule.need)
    for node in record.nodes:
        driver = node.profile.amdgpu if node.profile else None
        release = gpus.driver_release(driver) or ""
        verdicts = rules.judge(matrix, {"rocm": rocm, "rocm.method": method, "driver": release})
        broken = [verdict for verdict in verdicts if verdict.state == "broken"]
        if not driver or driver == "in-tree":
            record.skipped(node.name, f"the driver is {driver or 'not known'}: AMD's table doesn't cover it")
        elif broken and release:
            record.failed(node.name, f"ROCm {rocm}: {broken[0].rule.cause}", driver, source=broken[0].rule.source)
        elif any(verdict.state == "holds" for verdict in verdicts):
            record.passed(node.name, driver, wanted=f"one for ROCm {rocm}")
        elif method != "amd":
            record.skipped(node.name, "the ROCm in the image is a distribution's: AMD's table doesn't cover it")
        else:
            record.skipped(node.name, f"no rule knows the driver {driver} with ROCm {rocm}")


@check(
    name="gpu-code",
    title="The image's libraries have code for the node's GPUs",
    cannot="whether the code runs: it was read from the files when the image was built",
    level=0,
    needs=("gpu",),
    cause="the image was built for other GPUs: its kernels and collectives fail on these",
    next_step="run `rocstack build --inventory INVENTORY`, which builds for the nodes' GPUs",
    source="ROCm documentation, GPU architecture: a code object is for one target",
)
def test_gpu_code(record: Recorder, cluster_evidence: ClusterEvidence) -> None:
    """Of an image that doesn't say what it has in it, by the targets that it is built for."""
    image = from_labels("the worker image", cluster_evidence.labels)
    read = {name: targets for name, targets in image.code if name in COMPUTE}
    code = read or ({"the image": image.gfx} if image.gfx else {})
    for node in record.nodes:
        cards = node.profile.gpus if node.profile else ()
        targets = sorted({gpu.gfx or gpus.target_of(gpu.device) or "" for gpu in cards} - {""})
        lacks = [f"{name} has no code for {gfx}" for name, has in code.items() for gfx in targets if gfx not in has]
        if not (code and targets):
            record.skipped(node.name, "the image's labels don't say" if targets else "which GPUs it has isn't known")
        elif lacks and node.virtual:
            record.skipped(node.name, f"virtual node ({node.virtual}), whose GPUs run no code: {'; '.join(lacks)}")
        elif lacks:
            record.failed(node.name, "; ".join(lacks), ", ".join(image.gfx), wanted=", ".join(targets))
        else:
            record.passed(node.name, ", ".join(targets), evidence=f"code of {', '.join(code)}")


@check(
    name="versions",
    title="The programs in the image have the versions that its labels name",
    cannot="whether a program of the right version is intact",
    level=0,
    cause="something in the container was changed or is hidden by a mount",
    next_step="run `rocstack shell NODE -- rocstack-versions`; `docker inspect rocstack-worker` shows the mounts",
)
def test_versions(
    record: Recorder, in_containers: dict[str, ContainerAnswer | NoAnswer], cluster_evidence: ClusterEvidence
) -> None:
    wanted = {
        key.removeprefix(f"{OWN}component."): value
        for key, value in cluster_evidence.labels.items()
        if key.startswith(f"{OWN}component.")
    }
    for node, answer in answers(record, in_containers):
        versions = answer.versions
        wrong = [
            f"{name} {versions.get(name, 'not there')}, the label says {version}"
            for name, version in wanted.items()
            if versions.get(name) != version
        ]
        if wrong:
            record.failed(
                node.name, "; ".join(wrong), len(wanted) - len(wrong), "versions", wanted=f"{len(wanted)} versions"
            )
        else:
            record.passed(node.name, len(wanted), "versions")


@check(
    name="parts",
    title="The image's libraries load and its programs start on this node",
    cannot="whether a program that starts computes rightly",
    level=0,
    cause="a library is missing, needs another kind of node, or is hidden by a mount",
    next_step="run `rocstack shell NODE -- ldd FILE`: it names the missing library",
)
def test_parts(
    record: Recorder, in_containers: dict[str, ContainerAnswer | NoAnswer], cluster_evidence: ClusterEvidence
) -> None:
    known = components(cluster_evidence.labels)
    for node, answer in answers(record, in_containers):
        parts = {name: each for name, each in answer.parts.items() if name in known or not known}
        wrong = [why for each in parts.values() for why in each]
        if wrong:
            record.failed(node.name, "; ".join(wrong), len(parts), "components", evidence="\n".join(wrong))
        else:
            record.passed(node.name, len(parts), "components")


@check(
    name="pmix",
    title="Slurm and Open MPI load the same PMIx",
    cannot="whether ranks find each other: `mpi-launch` starts some",
    level=0,
    cause=(
        "Slurm was built with another PMIx than Open MPI: ranks that `srun --mpi=pmix` starts don't find each other"
    ),
    next_step=AGAIN,
    source="Slurm, MPI and UPC users guide: PMIx",
)
def test_pmix(
    record: Recorder, in_containers: dict[str, ContainerAnswer | NoAnswer], cluster_evidence: ClusterEvidence
) -> None:
    for node, answer in answers(record, in_containers):
        pmix = answer.pmix
        wanted, offers = f"pmix_v{pmix.major}", ", ".join(pmix.offers) or "none"
        if not pmix.major or wanted not in pmix.offers:
            why = f"srun offers {offers}, the image has PMIx {pmix.major or '?'}"
            record.failed(node.name, why, offers, wanted=wanted)
        else:
            record.passed(node.name, wanted, evidence=offers)
        if "part:openmpi" not in without(cluster_evidence.labels):
            record.equal(node.name, pmix.slurm or None, pmix.openmpi or "the one that OpenMPI loads")


@check(
    name="secrets",
    title="No image, container setting or process list holds a secret of the cluster",
    cannot="secrets that aren't the cluster's own",
    level=0,
    scope="cluster",
    cause="a key was passed as a build argument, an environment variable or on a command line",
    next_step="remove it there, then give the cluster a new key: whoever could read the old one may have it",
)
def test_secrets(record: Recorder, seen_secrets: dict[str, Any]) -> None:
    for node, answer in answers(record, seen_secrets):
        if answer["found"]:
            record.failed(node.name, "; ".join(answer["found"][:5]), len(answer["found"]), "places", wanted="none")
        else:
            places = f"{answer['looked']} places and {answer['layers']} layers"
            evidence = f"looked for {len(answer['secrets'])} secrets in {places}"
            record.passed(node.name, 0, "places", evidence=evidence)

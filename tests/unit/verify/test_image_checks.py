"""The images that nodes run, judged by recorded evidence in which one fact is another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from evidence_replay import good, red, replay

CHECKS = {
    "worker-image",
    "control-image",
    "labels",
    "nic-gate",
    "driver-rocm",
    "gpu-code",
    "versions",
    "parts",
    "pmix",
    "secrets",
}
OTHER = "sha256:" + "5" * 64
Evidence = dict[str, Any]


def labels(evidence: Evidence) -> dict[str, str]:
    found: dict[str, str] = evidence["cluster"]["labels"]
    return found


def inside(evidence: Evidence) -> dict[str, Any]:
    found: dict[str, Any] = evidence["in_containers"]["n2"]
    return found


def other_worker(evidence: Evidence) -> None:
    evidence["cluster"]["nodes"][1]["image"] = OTHER


def other_controller(evidence: Evidence) -> None:
    evidence["cluster"]["nodes"][0]["control_image"] = OTHER


def no_content(evidence: Evidence) -> None:
    del labels(evidence)["io.rocstack.content"]


def no_private_abi(evidence: Evidence) -> None:
    labels(evidence)["io.rocstack.verbs.private-abi"] = "?"


def no_provider(evidence: Evidence) -> None:
    labels(evidence)["io.rocstack.nic"] = "broadcom"


def other_role(evidence: Evidence) -> None:
    labels(evidence)["io.rocstack.role"] = "control"


def unfit(evidence: Evidence) -> None:
    inside(evidence)["gate"] = {"code": 1, "said": "doesn't fit: n2: kernel ABI 6, the image's bnxt_re supports 1-1"}


def not_known(evidence: Evidence) -> None:
    inside(evidence)["gate"] = {"code": 2, "said": "unknown: n2: the kernel ABI of bnxt_re0 could not be read"}


def old_driver(evidence: Evidence) -> None:
    labels(evidence).update({"io.rocstack.component.rocm": "7.2.3", "io.rocstack.rocm.method": "amd"})
    for node in evidence["in_containers"].values():
        node["versions"]["rocm"] = "7.2.3"
    for node, driver in zip(evidence["cluster"]["nodes"], ("6.16.13", "6.1.5"), strict=True):
        node["profile"]["amdgpu"] = driver


def real(evidence: Evidence) -> None:
    for node in evidence["cluster"]["nodes"]:
        node["virtual"] = None
        node["cpus"], node["memory"] = node["profile"]["system"]["cpus"], node["profile"]["system"]["memory"]


def code_for(evidence: Evidence, **targets: str) -> None:
    found = {f"io.rocstack.gfx.{name}": has for name, has in targets.items()}
    labels(evidence).update({"io.rocstack.gfx": "gfx90a,gfx942", **found})


def other_gpus(evidence: Evidence) -> None:
    code_for(evidence, hip="gfx90a,gfx942", rccl="gfx90a", hipblaslt="none")
    real(evidence)
    for gpu in evidence["cluster"]["nodes"][0]["profile"]["gpus"]:
        gpu["gfx"] = "gfx90a"


def covered(evidence: Evidence) -> None:
    inside(evidence)["versions"]["rccl"] = "2.21.5"


def unknown_version(evidence: Evidence) -> None:
    del inside(evidence)["versions"]["munge"]


def unloadable(evidence: Evidence) -> None:
    inside(evidence)["parts"]["rccl"] = ["librccl.so.1: cannot open shared object file"]


def older_pmix(evidence: Evidence) -> None:
    inside(evidence)["pmix"]["offers"] = ["pmix_v4"]


def two_pmix(evidence: Evidence) -> None:
    inside(evidence)["pmix"]["slurm"] = "/opt/pmix/lib/libpmix.so.2.5.2"


def seen_key(evidence: Evidence) -> None:
    evidence["secrets"]["n2"]["found"] = ["munge.key in the process list (312)"]


FAULTS: list[tuple[str, Callable[[Evidence], None], str, str]] = [
    ("worker-image", other_worker, "n2", "555555555555, not"),
    ("control-image", other_controller, "n1", "555555555555, not"),
    ("labels", no_content, "", "no label content"),
    ("labels", no_private_abi, "", "verbs.private-abi"),
    ("labels", no_provider, "", "nic.providers"),
    ("labels", other_role, "", "control, not worker"),
    ("nic-gate", unfit, "n2", "kernel ABI 6"),
    ("nic-gate", not_known, "n2", "could not be read"),
    ("driver-rocm", old_driver, "n2", "ROCm 7.2.3"),
    ("gpu-code", other_gpus, "n2", "rccl has no code for gfx942"),
    ("versions", covered, "n2", "rccl 2.21.5, the label says"),
    ("versions", unknown_version, "n2", "munge not there"),
    ("parts", unloadable, "n2", "librccl.so.1"),
    ("pmix", older_pmix, "n2", "srun offers pmix_v4"),
    ("pmix", two_pmix, "n2", "/opt/pmix"),
    ("secrets", seen_key, "n2", "munge.key in the process list"),
]


def test_good() -> None:
    found = replay(good(), level=0)
    assert found.keys() == CHECKS
    assert red(found) == set()


@pytest.mark.parametrize(("name", "fault", "node", "why"), FAULTS, ids=[fault.__name__ for _, fault, _, _ in FAULTS])
def test_one_fact_turns_its_check_red(name: str, fault: Callable[[Evidence], None], node: str, why: str) -> None:
    evidence = good()
    fault(evidence)
    found = replay(evidence, level=1)
    assert red(found) == {name}
    bad = [measure for measure in found[name].measures if measure.state == "failed"]
    assert {measure.node for measure in bad} == {node}
    assert any(why in measure.why for measure in bad)


@pytest.mark.parametrize(
    ("code", "virtual", "state", "says"),
    [
        ({"hip": "gfx942", "rccl": "gfx942", "rocblas": "gfx90a,gfx942", "hipblaslt": "none"}, False, "passed", ""),
        ({"hip": "gfx942", "jax": "none"}, False, "failed", "jax has no code for gfx942"),
        ({"hip": "gfx942", "jax": "none"}, True, "skipped", "whose GPUs run no code: jax has no code for gfx942"),
        ({}, False, "passed", ""),  # by what it is built for
    ],
)
def test_code_for_the_gpus(code: dict[str, str], virtual: bool, state: str, says: str) -> None:
    evidence = good()
    code_for(evidence, **code)
    if not virtual:
        real(evidence)
    found = replay(evidence, level=0)["gpu-code"].measures
    assert {(measure.node, measure.state) for measure in found} == {("n1", state), ("n2", state)}
    assert all(says in measure.why for measure in found)


@pytest.mark.parametrize("driver", ["6.16.13", "6.14.14"])
def test_a_driver_is_judged_by_its_release(driver: str) -> None:
    """The kernel module of release 30.30 says 6.16.13."""
    evidence = good()
    old_driver(evidence)
    for node in evidence["cluster"]["nodes"]:
        node["profile"]["amdgpu"] = driver
    assert {each.state for each in replay(evidence, level=0)["driver-rocm"].measures} == {"passed"}


def test_the_store_of_containerd_has_other_ids() -> None:
    evidence = good()
    node = evidence["cluster"]["nodes"][1]
    wanted = evidence["cluster"]["release"]["images"]["worker_id"].removeprefix("sha256:")[:12]
    node["image"], node["names"] = OTHER, {OTHER: [f"rocstack/worker:{wanted}"]}
    assert red(replay(evidence, level=0)) == set()


def test_a_container_that_says_nothing_has_failed() -> None:
    evidence = good()
    evidence["in_containers"]["n2"] = {"error": "it is not running"}
    evidence["secrets"]["n2"] = {"error": "python3: not found"}
    found = replay(evidence, level=0)
    assert red(found) == {"nic-gate", "versions", "parts", "pmix", "secrets"}
    assert found["parts"].why == "could not be inspected: it is not running"


def test_without_a_release_nothing_is_compared() -> None:
    evidence = good()
    evidence["cluster"]["release"] = None
    assert replay(evidence, "worker-image")["worker-image"].state == "skipped"

"""What the ranks of a healthy run answered, with one fact changed: which checks of training turn red."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jax_training
import pytest
from evidence_replay import good, red, replay, states

from rocstack.verify.suite import checks

DATA = Path(__file__).parents[1] / "data/verify"
JAX_PYTHON = os.environ.get("ROCSTACK_JAX_PYTHON", "")
CPUS = {f"training-{name}" for name in ("one-rank", "in-node", "on-nodes", "weights", "data", "restart")}
GPUS = {"training-one-gpu", "training-gpus-in-node", "training-gpus-on-nodes"}


def with_gpus(real: bool) -> dict[str, Any]:
    """The same from GPUs; of nodes that are virtual, unless they are to be real."""
    found = good()
    for node in found["cluster"]["nodes"] if real else ():
        node["virtual"] = node["profile"]["virtual"] = None
    left = [row for row in found["training"]["answers"] if row["run"] in ("alone", "node", "all")]
    found["training_gpus"] = deepcopy(found["training"] | {"answers": left})
    for row in found["training_gpus"]["answers"]:
        row["device"] = "AMD Instinct MI300X"
    return found


def rows(found: dict[str, Any], run: str, node: str = "") -> list[dict[str, Any]]:
    answers = found["answers"]
    return sorted((r for r in answers if r["run"] == run and node in ("", r["node"])), key=lambda row: row["rank"])


def not_finite(run: str, node: str = "") -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for row in rows(found, run, node):
            row["losses"][-1] = math.nan

    return change


def loss_stays(run: str, node: str = "") -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for row in rows(found, run, node):
            row["losses"] = [row["losses"][0]] * len(row["losses"])

    return change


def loss_is_another(run: str, node: str = "") -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for row in rows(found, run, node):
            row["losses"][5] *= 1.03

    return change


def weights(run: str, when: str, rank: int, node: str = "") -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        rows(found, run, node)[rank][when] = "0" * 64

    return change


def both(*changes: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for each in changes:
            each(found)

    return change


def ended(run: str, rank: int, code: int, said: str, node: str = "") -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for row in rows(found, run, node):
            row["code"], row["said"] = (code, said) if row["rank"] == rank else (4, "error: the other is gone")
            del row["after"]

    return change


def no_answer(run: str, rank: int, node: str = "") -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        found["answers"].remove(rows(found, run, node)[rank])

    return change


def from_step(run: str, step: int) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for row in rows(found, run):
            row["from"] = step

    return change


def other_end(run: str) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        for row in rows(found, run):
            row["after"] = "0" * 64

    return change


def nobody_killed(found: dict[str, Any]) -> None:
    for row in rows(found, "killed"):
        row["code"], row["said"] = 1, "error: checkpoint.dir: no space left on device"


def sample_twice(found: dict[str, Any]) -> None:
    first, second, *_ = rows(found, "all")
    second["ids"][7] = first["ids"][3]


def sample_lost(found: dict[str, Any]) -> None:
    rows(found, "all")[3]["ids"].pop()


def test_a_healthy_run_passes() -> None:
    found = replay(good(), only="training-*", level=1)
    assert states(found) == dict.fromkeys(CPUS, "passed")


@pytest.mark.parametrize(
    ("check", "change", "says", "skipped"),
    [
        ("one-rank", not_finite("alone", "n2"), "the loss is not finite", ()),
        ("one-rank", loss_stays("alone", "n2"), "the loss does not fall: 5.5477 to 5.5477", ()),
        ("one-rank", weights("alone", "after", 0, "n2"), "other weights than as many nodes with such a device", ()),
        ("in-node", not_finite("node", "n2"), "the loss is not finite", ()),
        ("in-node", loss_is_another("node", "n2"), "differ from one rank's by up to 3.00%", ()),
        ("in-node", ended("node", 1, 3, "error: no GPU", "n2"), "rank 1: no GPU", ()),
        ("in-node", no_answer("node", 1, "n2"), "1 of 2 ranks gave no answer", ()),
        ("on-nodes", loss_stays("all"), "the loss does not fall", ()),
        ("on-nodes", loss_is_another("all"), "differ from one rank's by up to 3.00%", ()),
        ("on-nodes", ended("all", 2, 1, "Traceback\nValueError: x"), "rank 2: ValueError: x", ("restart",)),
        ("weights", weights("all", "before", 3), "rank 3 of 4 has other weights at the start", ("on-nodes", "restart")),
        ("weights", weights("all", "after", 1), "rank 1 of 4 has other weights at the end", ("on-nodes", "restart")),
        (
            "weights",
            weights("node", "after", 1, "n1"),
            "rank 0 of 2 has other weights at the end than as many of the",
            (),
        ),
        ("data", sample_twice, "rank 1 has 1 samples that rank 0 has too", ("on-nodes",)),
        ("data", sample_lost, "1 of 8,191 samples are no rank's", ("on-nodes",)),
        ("restart", nobody_killed, "before its step 10: rank 0: checkpoint.dir: no space left on device", ()),
        ("restart", from_step("restart", 6), "after the kill: it went on from step 6, not 9", ()),
        ("restart", from_step("damaged", 9), "with the newest damaged: it went on from step 9, not 6", ()),
        ("restart", other_end("restart"), "after the kill: it ended with other weights", ()),
        ("restart", other_end("damaged"), "with the newest damaged: it ended with other weights", ()),
        ("restart", ended("damaged", 0, 1, "error: none is whole"), "with the newest damaged: rank 0: none is", ()),
        ("restart", no_answer("restart", 2), "after the kill: 1 of 4 ranks gave no answer", ()),
    ],
)
def test_one_wrong_fact_turns_its_check_red_and_no_other(
    check: str, change: Callable[[dict[str, Any]], None], says: str, skipped: tuple[str, ...]
) -> None:
    given = good()
    change(given["training"])
    found = replay(given, only="training-*", level=1)
    assert red(found) == {f"training-{check}"}
    assert says in found[f"training-{check}"].why
    assert set(states(found, ["skipped"])) == {f"training-{name}" for name in skipped}


def test_a_node_on_which_nothing_trains_is_named_and_the_others_verified() -> None:
    given = good()
    found = given["training"]
    found["nodes"] = ["n1"]
    together = rows(found, "node", "n1")
    found["answers"] = [*rows(found, "alone", "n1"), *together]
    start = {"run": "start", "node": "n2", "rank": 0, "world": 1, "code": 1, "said": "ImportError: no libtorch.so"}
    found["answers"].append(start)
    judged = replay(given, only="training-*", level=1)
    assert red(judged) == {"training-one-rank"}
    assert judged["training-one-rank"].why == "rank 0: ImportError: no libtorch.so"
    of_n2 = [m.why for m in judged["training-in-node"].measures if m.node == "n2"]
    assert of_n2 == ["not even one rank trains there: see training-one-rank"]
    assert judged["training-on-nodes"].state == "skipped"


def test_gpus_are_for_real_nodes() -> None:
    virtual = replay(with_gpus(real=False), only="training-*", level=2)
    assert {virtual[name].state for name in GPUS} == {"skipped"}
    assert "virtual node" in virtual["training-one-gpu"].why
    found = replay(with_gpus(real=True), only="training-*", level=2)
    assert states(found) == dict.fromkeys(CPUS | GPUS, "passed")
    measures = found["training-one-gpu"].measures
    assert {m.evidence for m in measures if m.state == "passed"} == {"AMD Instinct MI300X"}


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({"framework": "jax", "framework.rocm": "7"}, ""),
        ({"framework": "jax"}, "is built without ROCm; it trains with JAX"),
        ({"framework": "pytorch"}, "is built without ROCm"),
        ({"framework": "pytorch", "framework.rocm": "7.2"}, ""),
    ],
)
def test_gpus_whose_framework_is_another_are_no_failure(labels: dict[str, str], says: str) -> None:
    given = with_gpus(real=True)
    given["cluster"]["labels"] |= {f"io.rocstack.{name}": value for name, value in labels.items()}
    found = replay(given, only="training-*", level=2)
    assert {found[name].state for name in CPUS} == {"passed"}
    assert {found[name].state for name in GPUS} == {"skipped" if says else "passed"}
    for name in GPUS:
        assert found[name].why.removesuffix(")").endswith(says)
        assert found[name].no_tool is bool(says)


def with_jax() -> dict[str, Any]:
    """What two ranks on each of two nodes answered, on processors; here as if they had been GPUs."""
    given = with_gpus(real=True)
    given["cluster"]["labels"] |= {"io.rocstack.framework": "jax", "io.rocstack.framework.rocm": "7"}
    given["training_gpus"] = json.loads((DATA / "training-jax.json").read_text())
    return given


def test_ranks_that_trained_with_jax() -> None:
    found = replay(with_jax(), only="training-*", level=2)
    assert {found[name].state for name in GPUS} == {"passed"}


def test_an_image_of_maxtext_needs_no_mpi_and_no_trainer() -> None:
    """Its ranks are JAX's, on processors too; none is killed."""
    given = with_jax()
    given["training"] = given["training_gpus"]
    labels = given["cluster"]["labels"]
    for part in ("openmpi", "ucx", "pytorch", "trainer"):
        del labels[f"io.rocstack.component.{part}"]
    labels["io.rocstack.framework"] = "maxtext"
    for answer in given["in_jobs"].values():
        answer["tools"] = [name for name in answer["tools"] if name != "rocstack-train"]
    for answer in given["in_containers"].values():
        answer["parts"] |= {"openmpi": ["no ompi_info"], "pytorch": ["no libtorch.so"]}
        answer["pmix"]["openmpi"] = ""
    found = replay(given, level=2)
    mpi = {name for name in found if name.startswith("mpi-")}
    assert {found[name].state for name in (CPUS | GPUS) - {"training-restart"}} == {"passed"}
    assert {name: found[name].state for name in mpi} == dict.fromkeys(mpi, "skipped")
    assert found["mpi-launch"].why == "no Open MPI in the image"
    assert found["training-restart"].why == "no trainer in the image"
    assert all(found[name].no_tool for name in (*mpi, "training-restart"))
    assert {found[name].state for name in ("labels", "parts", "pmix")} == {"passed"}


@pytest.mark.parametrize(
    ("check", "change", "node", "says"),
    [
        ("one-gpu", loss_stays("alone", "n2"), "n2", "the loss does not fall"),
        ("gpus-in-node", weights("node", "after", 1, "n2"), "n2", "rank 0 of 2 has other weights at the end"),
        ("gpus-on-nodes", loss_is_another("all"), "", "differ from one rank's by up to 3.00%"),
        ("gpus-on-nodes", sample_twice, "n1", "rank 1 has 1 samples that rank 0 has too"),
        ("gpus-on-nodes", ended("all", 3, 1, "RuntimeError: JAX sees 0 devices"), "n2", "rank 3: RuntimeError: JAX"),
    ],
)
def test_ranks_of_jax_that_compute_something_else(
    check: str, change: Callable[[dict[str, Any]], None], node: str, says: str
) -> None:
    given = with_jax()
    change(given["training_gpus"])
    found = replay(given, only="training-*", level=2)
    assert red(found) == {f"training-{check}"}
    bad = [m for m in found[f"training-{check}"].measures if m.state == "failed"]
    assert node in {m.node for m in bad}
    assert says in bad[0].why


@pytest.mark.skipif(not JAX_PYTHON, reason="ROCSTACK_JAX_PYTHON names no Python with JAX 0.9.1")
def test_jax_trains_on_processors() -> None:
    """The ranks of two nodes, as they are started in a job."""
    given = with_jax()
    given["training_gpus"] = jax_training.trained(JAX_PYTHON)
    assert red(replay(given, only="training-*", level=2)) == set()
    assert {row["run"]: row["world"] for row in given["training_gpus"]["answers"]} == {"alone": 1, "node": 2, "all": 4}


@pytest.mark.parametrize(
    ("check", "change", "node", "says"),
    [
        ("one-gpu", both(weights("alone", "after", 0, "n1"), loss_is_another("alone", "n1")), "n1", "by up to 3.00%"),
        ("gpus-in-node", loss_is_another("node", "n1"), "n1", "differ from one rank's by up to 3.00%"),
        ("gpus-in-node", weights("node", "before", 1, "n2"), "n2", "rank 0 of 2 has other weights at the start"),
        ("gpus-in-node", weights("node", "after", 1, "n2"), "n2", "rank 0 of 2 has other weights at the end"),
        ("gpus-on-nodes", weights("all", "before", 3), "n2", "rank 3 of 4 has other weights at the start"),
        ("gpus-on-nodes", weights("all", "after", 1), "n1", "rank 1 of 4 has other weights at the end"),
        ("gpus-on-nodes", sample_twice, "n1", "rank 1 has 1 samples that rank 0 has too"),
        ("gpus-on-nodes", sample_lost, "", "1 of 8,191 samples are no rank's"),
        ("gpus-on-nodes", ended("all", 3, 1, "error: RCCL: unhandled system error"), "n2", "rank 3: RCCL: unhandled"),
    ],
)
def test_gpus_that_compute_something_else(
    check: str, change: Callable[[dict[str, Any]], None], node: str, says: str
) -> None:
    """On GPUs no other check is about weights and data."""
    given = with_gpus(real=True)
    change(given["training_gpus"])
    found = replay(given, only="training-*", level=2)
    assert red(found) == {f"training-{check}"}
    assert not states(found, ["skipped"])
    bad = [m for m in found[f"training-{check}"].measures if m.state == "failed"]
    assert node in {m.node for m in bad}
    assert says in bad[0].why


def test_gpus_need_not_sum_in_the_same_order() -> None:
    """PyTorch only warns of what it can't make deterministic."""
    given = with_gpus(real=True)
    weights("alone", "after", 0, "n1")(given["training_gpus"])
    assert red(replay(given, only="training-one-gpu", level=2)) == set()


def test_the_ranks_of_one_node_do_not_stand_for_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(checks())
    from experiments.training import _of_ranks

    rows = [{"run": "all", "node": "n1", "rank": rank, "code": 0} for rank in (0, 1, 2, 3, 0)]
    assert [row["rank"] for row in _of_ranks(rows, 2)] == [0, 1]
    assert (
        len(_of_ranks([*rows, {"run": "all", "node": "n2", "rank": 2, "code": 0}, {**rows[0], "run": "node"}], 2)) == 4
    )

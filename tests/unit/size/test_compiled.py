"""The compiler's answer beside the formula's: what is read, what is refused, what is advised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rocstack.base.errors import CheckFailed
from rocstack.size import compiled, hardware, models
from rocstack.size.layout import Asked
from rocstack.size.sizing import Sized, answer

GIB = 1 << 30
DATA = Path(__file__).parents[1] / "data/size"


def sized(name: str = "llama-3.1-8b", nodes: int = 8, sequence: int = 8192, **layout: Any) -> Sized:
    shape, model = models.find(name)
    asked = Asked(**{"tp": 1, "pp": 1, "shard": 8 * nodes, "micro": 1, "accumulate": 1, "recompute": True, **layout})
    return answer(model, shape, hardware.find("mi300x"), asked, nodes=nodes, sequence=sequence)


def said(**fields: Any) -> bytes:
    axes = [["data", 1], ["stage", 1], ["fsdp", 64], ["tensor", 1], ["expert", 1]]
    fixed = {"arguments": GIB, "temporaries": 6 * GIB, "axes": axes, "text": [], "seconds": {"compile": 5.0}}
    return json.dumps({**fixed, **fields}).encode()


def step(*lines: str) -> list[str]:
    return ["ENTRY %main {", *lines, "}"]


GATHER = "%w = bf16[8030261248] all-gather(), replica_groups=[1,64]<=[64]"
SUM = "%g = bf16[125472832] reduce-scatter(), replica_groups=[1,64]<=[64]"


def test_it_fits_or_says_by_how_much_not() -> None:
    found = compiled.read(said(), sized(), "flash")
    assert found.ok
    assert found.total == 7 * GIB
    assert not found.findings
    large = compiled.read(said(temporaries=300 * GIB), sized(), "flash")
    assert not large.ok
    assert large.over == 301 * GIB - hardware.find("mi300x").budget
    (finding,) = large.findings
    assert finding.code == "compiled-too-large"
    assert "300.0 GiB are temporaries" in finding.what
    json.dumps(large.to_dict())


def test_arguments_as_the_formula_counts_them() -> None:
    """MaxText keeps 12 bytes of a parameter in its shards; compiled for real, these were 1.5, 1.7 and 4.8 GB."""
    for name, nodes, layout, measured in (
        ("llama-3.1-8b", 8, {}, 1.5e9),
        ("llama-3.1-70b", 64, {}, 1.7e9),
        ("llama-3.1-70b", 64, {"tp": 8, "shard": 64}, 1.7e9),
        ("llama-3.1-405b", 128, {"tp": 8, "shard": 128}, 4.8e9),
    ):
        expected = compiled.arguments(sized(name, nodes, **layout))
        assert abs(expected / measured - 1) < 0.04, (name, expected)


def test_weights_that_are_gathered_twice_are_no_finding_and_more_often_are() -> None:
    """A step of FSDP gathers twice the bf16 weights, as the formula says."""
    own = sized()
    twice = compiled.read(said(text=step(GATHER, GATHER)), own, "flash")
    formula = next(each for each in own.wires if each.kind == "FSDP gather")
    (gather,) = (each for each, _ in twice.wires)
    assert (gather.count, gather.ranks, gather.fabric) == (2, 64, True)
    assert gather.sent == pytest.approx(formula.bytes, rel=0.01)
    assert not twice.findings
    rounds = sized(accumulate=4)
    often = compiled.read(said(text=step(*[GATHER] * 8, *[SUM] * 4)), rounds, "flash")
    assert [each.code for each in often.findings] == ["compiled-gathers-anew", "compiled-sums-anew"]
    assert "126 GB over the fabric, 4 times" in often.findings[0].what
    once = compiled.read(said(text=step(GATHER, GATHER, SUM)), rounds, "flash")
    assert not once.findings


def test_upper_bounds_are_said() -> None:
    axes = [["data", 1], ["fsdp", 8], ["expert", 8], ["tensor", 1]]
    found = compiled.read(said(axes=axes), sized("mixtral-8x7b", ep=8), "dot_product")
    assert [each.code for each in found.findings] == ["scores-are-kept", "experts-have-room-for-all"]


def test_a_recorded_step_beside_the_formula() -> None:
    """Llama 3.1 70B on 512 MI300X, compiled by MaxText 0.2.1: it gathers the bf16 weights twice, but for the embedding,
    and reduces gradients once, in bf16 where the formula has float32."""
    own = sized("llama-3.1-70b", 64)
    found = compiled.read((DATA / "llama-3.1-70b-512.json").read_bytes(), own, "flash")
    assert found.arguments == pytest.approx(found.formula, rel=0.01)
    assert found.temporaries < 18e9
    assert found.ok
    assert not found.findings
    sent = {(each.kind, each.ranks, each.fabric): each.sent for each, _ in found.wires}
    formula = {each.kind: each.bytes for each in own.wires}
    assert sent["all-gather", 512, True] == pytest.approx(formula["FSDP gather"], rel=0.03)
    assert sent["reduce-scatter", 512, True] == pytest.approx(formula["FSDP reduce"] / 2, rel=0.03)


def test_a_recorded_pipeline_beside_the_formula() -> None:
    """LUMI's 140B on 6,144 GPUs in TP 8, PP 8 and DP 96: TP's sums stay in the node, and each micro-batch sums up its
    gradients over the fabric."""
    shape, model = models.find("lumi-140b")
    asked = Asked(tp=8, pp=8, shard=1, micro=1, accumulate=8, interleave=1, recompute=True)
    own = answer(model, shape, hardware.find("mi250x"), asked, nodes=768, sequence=5120)
    found = compiled.read((DATA / "lumi-140b-6144.json").read_bytes(), own, "flash")
    assert found.arguments == pytest.approx(found.formula, rel=0.01)
    sent = {(each.kind, each.ranks, each.fabric): each.sent for each, _ in found.wires}
    assert sent["all-gather", 8, False] > 1e11
    assert sent["all-gather", 96, True] == pytest.approx(2 * 2 * shape.parameters / 64, rel=0.1)
    assert [each.code for each in found.findings] == ["compiled-sums-anew"]


def test_where_gpus_of_a_mesh_lie() -> None:
    """The text numbers them by the mesh's axes; in the machine the pipeline is outermost."""
    axes = [["data", 2], ["stage", 2], ["fsdp", 1], ["expert", 1], ["tensor", 8]]
    nodes = compiled.node_numbers(axes, 32, 8)
    assert nodes[:8] == [0] * 8
    assert nodes[8:16] == [2] * 8
    assert nodes[16:24] == [1] * 8
    assert nodes[24:] == [3] * 8
    with pytest.raises(ValueError, match="mesh"):
        compiled.node_numbers([["data", 2], ["sequence", 16]], 32, 8)


@pytest.mark.parametrize(
    ("says", "code"),
    [
        ("INTERNAL: Shared memory size limit exceeded: requested 98304, available: 65536", "kernel-too-large"),
        ("per_device_batch_size must be divisible by num_pipeline_microbatches", "maxtext-indivisible"),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate", "compiler-out-of-memory"),
        ("Expected dict, got None.\n  Traceback\x1b[31m", "compiler-refuses"),
    ],
)
def test_what_the_compiler_refuses_is_a_finding(says: str, code: str) -> None:
    raw = json.dumps({"refused": {"phase": "compile", "type": "XlaRuntimeError", "says": says}, "seconds": {}}).encode()
    found = compiled.read(raw, sized(), "flash")
    (finding,) = found.findings
    assert not found.ok
    assert finding.code == code
    assert finding.level == "error"
    assert "\x1b" not in finding.what + finding.cause


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"{", b'{"arguments": -1}', said(arguments=1 << 60), said(arguments=1.5), said(more=1),
        said(axes=[["fsdp", 32]]), said(axes=[["fsdp", 64], ["fsdp", 1]]), said(axes=[["fsdp"]]),
        said(text=["ENTRY %main {", "$(reboot)", "}"]), said(seconds={"compile": -1}), said(text="all-gather"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(raw: bytes) -> None:
    with pytest.raises(CheckFailed) as caught:
        compiled.read(raw, sized(), "flash")
    assert caught.value.code == "compiler-says-nonsense"

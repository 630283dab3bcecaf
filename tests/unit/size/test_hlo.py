"""Collectives of compiled texts: hand-made ones, and the excerpt that the image's program makes of XLA's own."""

from __future__ import annotations

from types import ModuleType

import pytest
from module_file import module_of

from rocstack.base import paths
from rocstack.size import hlo
from rocstack.size.hlo import StepCollective

# As XLA prints it: layouts, operands, metadata, trip counts in the backend's configuration.
XLA = """\
HloModule jit_train_step, is_scheduled=true, num_partitions=16

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%wrapped (p: f32[64]) -> f32[4] {
  %p = f32[64]{0} parameter(0)
  ROOT %reduce-scatter.1 = f32[4]{0} reduce-scatter(%p), channel_id=3, replica_groups=[1,16]<=[16], \
use_global_device_ids=true, dimensions={0}, to_apply=%add
}

%body (t: (s32[], bf16[8,2])) -> (s32[], bf16[8,2]) {
  %t = (s32[], bf16[8,2]{1,0}) parameter(0)
  %w = bf16[8,2]{1,0} get-tuple-element(%t), index=1
  %all-gather-start = (bf16[8,2]{1,0}, bf16[128,2]{1,0}) all-gather-start(%w), channel_id=1, \
replica_groups=[1,16]<=[16], dimensions={0}, metadata={op_name="jit(step)/while/body"}
  %all-gather-done = bf16[128,2]{1,0} all-gather-done(%all-gather-start)
  %all-reduce.7 = (f32[3,2]{1,0}, /*index=1*/f32[2]{0}) all-reduce(%a, %b), replica_groups=[2,8]<=[16], to_apply=%add
  ROOT %out = (s32[], bf16[8,2]{1,0}) tuple(%i, %w)
}

%cond (t: (s32[], bf16[8,2])) -> pred[] {
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (p0: bf16[8,2]) -> bf16[8,2] {
  %p0 = bf16[8,2]{1,0} parameter(0)
  %while.1 = (s32[], bf16[8,2]{1,0}) while(%t), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"80"},"known_init_step":{"init":"0","step":"1"}}
  %async-start = ((f32[64]{0}), f32[4]{0}) async-start(%g), calls=%wrapped
  %async-done = f32[4]{0} async-done(%async-start)
  %permute = bf16[8,2]{1,0} collective-permute(%p0), source_target_pairs={{0,8},{8,0},{1,9},{9,1}}
  ROOT %copy = bf16[8,2]{1,0} copy(%p0)
}
"""


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return module_of(paths.images() / "maxtext/compile.py")


def read(text: str | list[str], gpus: int = 16, per_node: int = 8) -> hlo.StepText:
    lines = text.splitlines() if isinstance(text, str) else text
    return hlo.read(lines, gpus, lambda gpu: gpu // per_node)


def entry(*lines: str, gpus: int = 16, per_node: int = 8) -> tuple[StepCollective, ...]:
    return read(["ENTRY %main {", *lines, "}"], gpus, per_node).collectives


def test_what_a_step_exchanges(program: ModuleType) -> None:
    found = read(program.excerpt(XLA))
    said = {(each.kind, each.ranks, each.fabric): (each.count, each.bytes, each.largest) for each in found.collectives}
    assert said == {
        ("all-gather", 16, True): (80, 80 * 512, 512),
        ("all-reduce", 8, False): (80, 80 * 32, 32),
        ("reduce-scatter", 16, True): (1, 256, 256),
        ("collective-permute", 2, True): (1, 32, 32),
    }
    assert found.endless == 0


def test_the_excerpt_holds_what_leads_to_collectives_alone(program: ModuleType) -> None:
    lines = program.excerpt(XLA)
    assert "%cond {" not in lines
    assert "%add {" not in lines
    assert not [line for line in lines if "metadata" in line or "parameter" in line or "done" in line]
    assert "%while.1 = while(), body=%body, trips=80" in lines


@pytest.mark.parametrize(
    ("groups", "ranks", "fabric"),
    [
        ("[2,8]<=[16]", 8, False),
        ("[8,2]<=[2,8]T(1,0)", 2, True),
        ("[4,4]<=[2,2,4]T(0,1,2)", 4, False),
        ("[2,8]<=[2,2,4]T(1,0,2)", 8, True),
        ("{{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}}", 4, False),
        ("{{0,8},{1,9}}", 2, True),
        ("{}", 16, True),
    ],
)
def test_groups(groups: str, ranks: int, fabric: bool) -> None:
    (found,) = entry(f"%r = f32[10] all-reduce(), replica_groups={groups}, to_apply=%add")
    assert (found.ranks, found.fabric, found.bytes) == (ranks, fabric, 40)


def test_what_a_gpu_sends() -> None:
    def sent(line: str) -> float:
        return entry(line)[0].sent

    groups = "replica_groups=[2,8]<=[16]"
    assert sent(f"%a = bf16[800] all-gather(), {groups}") == 1600 * 7 / 8
    assert sent(f"%a = f32[100] reduce-scatter(), {groups}") == 3200 * 7 / 8
    assert sent(f"%a = f32[400] all-reduce(), {groups}") == 2 * 1600 * 7 / 8
    assert sent("%a = f8e4m3fn[40] collective-permute(), source_target_pairs={{0,1},{1,0}}") == 40


def test_started_ones_have_their_result_behind_their_operand() -> None:
    groups = "replica_groups=[2,8]<=[16]"
    for line, size in (
        (f"%a = (bf16[2], bf16[16]) all-gather-start(), {groups}", 32),
        (f"%a = ((bf16[2], f32[1]), (bf16[16], f32[8])) all-gather-start(), {groups}", 64),
        (f"%a = (f32[4], f32[2]) all-reduce-start(), {groups}", 24),
        (f"%a = ((f32[64]), f32[8]) reduce-scatter-start(), {groups}", 256),
        ("%a = (f32[8], f32[8], u32[], u32[]) collective-permute-start(), source_target_pairs={{0,1},{1,0}}", 32),
    ):
        assert entry(line)[0].bytes == size, line


def test_a_pipeline_is_as_long_as_its_ring() -> None:
    (found,) = entry("%p = f32[1] collective-permute(), source_target_pairs={{0,4},{4,8},{8,12},{12,0},{1,5}}")
    assert (found.ranks, found.fabric) == (4, True)


def test_loops_in_loops_and_both_branches() -> None:
    found = read([
        "%inner {", "%a = f32[1] all-reduce(), replica_groups=[2,8]<=[16]", "}",
        "%outer {", "%w = while(), body=%inner, trips=5",
        "%c = conditional(), branch_computations={%inner, %inner}", "}",
        "ENTRY %main {", "%w = while(), body=%outer, trips=10", "%u = while(), body=%inner", "}",
    ])  # fmt: skip
    assert found.collectives[0].count == 10 * (5 + 2) + 1
    assert found.endless == 1


def test_a_step_of_one_gpu() -> None:
    assert read([], gpus=1) == hlo.StepText((), 0)
    assert entry("%r = f32[1] all-reduce(), replica_groups={{0}}", gpus=1) == ()


@pytest.mark.parametrize(
    "lines",
    [
        ["ENTRY %main {", "rm -rf /", "}"],
        ["%only {", "}"],
        ["ENTRY %main {", "%a = f32[1] all-reduce(), replica_groups=[2,8]<=[17]", "}"],
        ["ENTRY %main {", "%a = f32[1] all-reduce(), replica_groups=[4,8]<=[32]", "}"],
        ["ENTRY %main {", "%a = f32[1] all-reduce(), replica_groups=[2,8]<=[2,8]T(1,1)", "}"],
        ["ENTRY %main {", "%a = f32[1] all-reduce(), replica_groups=mesh['x'=2]", "}"],
        ["ENTRY %main {", "%a = f32[1] all-reduce(), replica_groups={{0,99}}", "}"],
        ["ENTRY %main {", "%a = f32[1] all-reduce(), replica_groups={{0,1},{2}}", "}"],
        ["ENTRY %main {", "%a = f32[1] collective-permute(), source_target_pairs={{0,1,2}}", "}"],
        ["ENTRY %main {", "%a = (f32[1] all-reduce(), replica_groups={{0,1}}", "}"],
        ["ENTRY %main {", "%a = f999999[1] all-reduce(), replica_groups={{0,1}}", "}"],
        ["ENTRY %main {", "%a = () all-gather-start(), replica_groups={{0,1}}", "}"],
        ["ENTRY %main {", f"%a = {'(' * 5000}f32[1]{')' * 5000} all-reduce(), replica_groups={{{{0,1}}}}", "}"],
        ["%a {", "%c = call(), to_apply=%b", "}", "%b {", "%c = call(), to_apply=%a", "}",
         "ENTRY %main {", "%c = call(), to_apply=%a", "}"],
        ["%a {", "%r = f32[1] all-reduce(), replica_groups={{0,1}}", "}",
         "%b {", "%w = while(), body=%a, trips=999999999", "}",
         "ENTRY %main {", "%w = while(), body=%b, trips=9999", "}"],
    ],
)  # fmt: skip
def test_what_is_no_such_text(lines: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^[a-z]"):
        read(lines)


def test_a_line_that_never_closes_a_bracket_is_read_once() -> None:
    """And not from each of its brackets to its end."""
    assert hlo._CALLS.findall("body={" * 200_000) == []
    assert hlo._CALLS.findall("body={%a, calls={%b}") == ["{%b}"]

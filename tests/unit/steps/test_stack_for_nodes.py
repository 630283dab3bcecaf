"""A stack for nodes whose profiles are given: chosen, refused, or allowed for a rehearsal; nothing is built."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recorded_nodes
from cli_run import Cli

from rocstack.base.errors import CheckFailed
from rocstack.image.build_report import with_built_stack
from rocstack.probe.profiles import write_profiles
from rocstack.steps import explain as steps
from rocstack.steps.image_plan import ImagePlan, plan_image
from rocstack.steps.options import ExplainOptions, RenderOptions, settings

LACKS = ("no code for gfx942", "no PyTorch with ROCm")
FITTING = "rocm-6.4-ubuntu-24.04"


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of one node with 8 MI300X, in the current folder."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "nodes.json"
    node = recorded_nodes.PROFILE.validate_json(json.dumps(recorded_nodes.expected("mi300x-thor2")))
    write_profiles(file, [node])
    return file


def plan(options: RenderOptions) -> tuple[ImagePlan, list[str]]:
    notes: list[str] = []
    return plan_image(options, settings(options), notes.append), notes


def test_the_stack_is_chosen_for_the_nodes(profiles: Path) -> None:
    made, notes = plan(RenderOptions(profiles=profiles))
    assert (made.resolved.stack.name, made.lacks) == (FITTING, ())
    assert notes == [made.why]
    assert made.folder == Path(f".rocstack/{FITTING}-tcp")


def test_a_stack_is_built_for_the_nodes_gpus_where_it_can_be(profiles: Path) -> None:
    """Debian's libraries have code for MI250X, which the stack leaves out unless it is asked for."""
    node = recorded_nodes.PROFILE.validate_json(json.dumps(recorded_nodes.expected("mi300x-thor2")))
    mi250x = replace(node, gpus=tuple(replace(gpu, gfx="gfx90a") for gpu in node.gpus))
    write_profiles(profiles, [mi250x])
    options = RenderOptions(profiles=profiles, stack="rocm-7.2-debian")
    made, notes = plan(options)
    assert (made.resolved.stack.gfx, made.lacks) == (("gfx90a",), ())
    assert notes == ["stack rocm-7.2-debian for the nodes' gfx90a, instead of gfx942"]
    write_profiles(profiles, [node, replace(mi250x, name="n2")])
    assert plan(options)[0].resolved.stack.gfx == ("gfx90a", "gfx942")
    write_profiles(profiles, [replace(node, gpus=tuple(replace(gpu, gfx="gfx950") for gpu in node.gpus))])
    with pytest.raises(CheckFailed, match="no code for gfx950"):
        plan(options)


def mi250x(file: Path, **changes: Any) -> None:
    node = recorded_nodes.PROFILE.validate_json(json.dumps(recorded_nodes.expected("mi300x-thor2")))
    write_profiles(file, [replace(node, gpus=tuple(replace(gpu, gfx="gfx90a") for gpu in node.gpus), **changes)])


def test_targets_that_were_named_are_not_replaced(profiles: Path) -> None:
    """And what would do is said."""
    mi250x(profiles)
    named = {"profiles": profiles, "stack": "rocm-7.2-debian", "gfx": "gfx942"}
    with pytest.raises(CheckFailed, match="no code for gfx90a") as refused:
        plan(RenderOptions(**named))
    assert "build with --gfx gfx90a, or --stack rocm-" in str(refused.value.next_step)
    told = steps.explain(ExplainOptions(**named))
    assert isinstance(told, steps.Explanation)
    assert (told.stack.gfx, told.lacks) == (("gfx942",), ("no code for gfx90a",))
    assert {each.stack.name: each.lacks for each in told.fits}["rocm-7.2-debian"] == ("no code for gfx90a",)


def test_explain_takes_the_nodes_targets_as_build_does(profiles: Path) -> None:
    mi250x(profiles)
    told = steps.explain(ExplainOptions(profiles=profiles, stack="rocm-7.2-debian"))
    assert isinstance(told, steps.Explanation)
    assert (told.ok, told.stack.gfx) == (True, ("gfx90a",))


def test_a_stack_whose_libraries_have_no_code_for_the_named_targets_suits_no_node(profiles: Path) -> None:
    told = steps.explain(ExplainOptions(profiles=profiles, stack="rocm-7.2-ubuntu-24.04", gfx="gfx942,gfx950"))
    assert isinstance(told, steps.Explanation)
    fits = {each.stack.name: each.lacks for each in told.fits}
    assert fits["rocm-7.2-debian"] == ("libraries without code for gfx950",)
    assert "libraries without code for gfx942, gfx950" in fits["debian-13"]
    assert fits["rocm-7.2-ubuntu-24.04"] == ()


def test_the_driver_of_a_distributions_rocm_is_judged(profiles: Path) -> None:
    mi250x(profiles, amdgpu="6.3.6")
    with pytest.raises(CheckFailed, match=r"no support for the driver 6\.3\.6"):
        plan(RenderOptions(profiles=profiles, stack="rocm-7.2-debian"))


def test_without_nodes_it_is_the_setting() -> None:
    made, notes = plan(RenderOptions())
    assert (made.resolved.stack.name, made.why, notes) == ("debian-13", "", [])


@pytest.mark.parametrize("named", ["flag", "variable", "file"])
def test_a_stack_that_was_named_is_not_replaced(
    named: str, profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named == "variable":
        monkeypatch.setenv("ROCSTACK_STACK", "debian-13")
    if named == "file":
        (tmp_path / "rocstack.yml").write_text("stack: debian-13\n")
    options = RenderOptions(profiles=profiles, stack="debian-13" if named == "flag" else None)
    with pytest.raises(CheckFailed) as refused:
        plan(options)
    assert (refused.value.code, refused.value.exit_code) == ("stack-unusable", 1)
    assert f"stack debian-13 has {' and '.join(LACKS)}" in refused.value.what
    assert f"--stack {FITTING} or rocm-7.2" in str(refused.value.next_step)


@pytest.mark.parametrize("by", ["flag", "variable", "file"])
def test_a_rehearsal_allows_it(by: str, profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "variable":
        monkeypatch.setenv("ROCSTACK_REHEARSAL", "1")
    if by == "file":
        (tmp_path / "rocstack.yml").write_text("rehearsal: true\n")
    made, notes = plan(RenderOptions(profiles=profiles, rehearsal=by == "flag"))
    assert (made.resolved.stack.name, made.lacks, notes) == ("debian-13", LACKS, [])


def test_other_targets_are_judged_as_they_are_built(profiles: Path) -> None:
    with pytest.raises(CheckFailed, match="no code for gfx942"):
        plan(RenderOptions(profiles=profiles, stack=FITTING, gfx="gfx90a"))


def test_explain_has_every_stack(profiles: Path) -> None:
    found = steps.explain(ExplainOptions(profiles=profiles))
    assert isinstance(found, steps.Explanation)
    assert found.ok
    shown = found.to_dict()
    assert shown["stack"] == FITTING
    assert shown["why"].startswith(f"stack {FITTING} for these nodes")
    assert shown["facts"]["driver"] == "6.4"
    lacks = {each["stack"]: each["lacks"] for each in shown["stacks"]}
    assert (lacks["debian-13"], lacks[FITTING]) == ([*LACKS], [])
    assert set(shown["targets"]) == {"gfx90a", "gfx942"}
    named = steps.explain(ExplainOptions(profiles=profiles, stack="debian-13"))
    assert isinstance(named, steps.Explanation)
    assert (named.ok, named.lacks) == (False, LACKS)


def report(stack: str, why: str, age: int, ok: bool = True) -> None:
    folder = Path(f".rocstack/{stack}-tcp")
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps({"ok": ok, "stack": stack, "why": why}))
    os.utime(folder / "report.json", (1_800_000_000 - age, 1_800_000_000 - age))


def test_deploy_takes_the_stack_that_the_last_build_chose() -> None:
    assert with_built_stack(settings()).stack == "debian-13"
    report("mine", "", 1)  # it was named
    report(FITTING, "for these nodes", 3)
    report("rocm-7.2-ubuntu-24.04", "for these nodes", 1, ok=False)
    assert with_built_stack(settings()).stack == FITTING
    assert with_built_stack(settings(stack="mine")).stack == "mine"
    report("debian-13", "", 2)
    assert with_built_stack(settings()).stack == "debian-13"


def test_databases_of_miopen_are_those_of_the_nodes_gpus(profiles: Path) -> None:
    named = plan(RenderOptions(stack="rocm-7.2-debian", profiles=profiles))[0].render()
    plain = plan(RenderOptions(stack="rocm-7.2-debian"))[0].render()
    rules = [context.files["rules/dpkg.rules"].data.decode().splitlines() for context in (named, plain)]
    assert {*rules[0]} - {*rules[1]} == {
        "path-exclude=/*/miopen/db/gfx942e4.*",
        "path-exclude=/*/miopen/db/gfx942_228.*",
    }


def test_a_gpu_without_code_in_debians_libraries_is_refused_and_one_with_another_way_is_told(
    tmp_path: Path, cli: Cli
) -> None:
    for command in ("render", "build"):
        ran = cli(command, "--stack", "rocm-7.2-debian", "--gfx", "gfx950", "--nic", "tcp", cwd=tmp_path)
        assert (ran.code, "debian-rocblas-gfx" in ran.out + ran.err) == (2, True)
    ran = cli("explain", "--stack", "rocm-7.2-debian", "--nic", "tcp", cwd=tmp_path)
    assert ran.code == 0
    assert "note debian-hipblaslt-gfx: gfx is gfx942, not gfx908" in ran.out
    assert "broken" not in ran.out.replace("0 broken", "")

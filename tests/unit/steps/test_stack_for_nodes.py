"""A stack for nodes whose profiles are given: chosen, refused, or allowed for a rehearsal; nothing is built."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import recorded_nodes

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

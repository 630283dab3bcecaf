"""Builds that go wrong, for real: what is said, what is left, and how to go on."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from workspace import STACK, Built, Outcome, Workspace, edited_lock, engine, inspect, stack_file

pytestmark = pytest.mark.engine
GONE = "rocstack-no-such-package"


def overlay(folder: Path, **files: str) -> str:
    """A folder of the user's own; names of files are written with __ for / and without their ending."""
    for name, text in files.items():
        path = folder / "own" / f"{name.replace('__', '/')}{'.yml' if name == 'overlay' else '.j2'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "own")


# A package that is gone


@pytest.fixture(scope="module")
def gone(base: str, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, Outcome, Outcome]:
    """The same failure in a stage that both images need: as JSON and as a person sees it."""
    workspace = Workspace(tmp_path_factory.mktemp("gone"), f"{prefix}-gone").with_tree(tmp_path_factory.mktemp("tree"))
    template = workspace.tree / "templates/components/system.j2"
    text = template.read_text()
    template.write_text(text.replace("packages: [tini,", f"packages: [{GONE}, tini,"))
    assert template.read_text() != text
    return (
        workspace,
        workspace.run("build", "--json", "--base-image", base),
        workspace.run("build", "--base-image", base),
    )


def test_package_that_is_gone(gone: tuple[Workspace, Outcome, Outcome]) -> None:
    workspace, outcome, _ = gone
    assert outcome.code == 1
    assert not outcome.json["ok"]
    images = {image["status"]: image for image in outcome.json["images"]}
    assert images.keys() == {"failed", "blocked"}, "the stage is shared: one image fails, the other is blocked"
    failed, blocked = images["failed"], images["blocked"]
    assert blocked["blocked_by"] == failed["role"]
    assert blocked["failure"] is None

    said = failed["failure"]
    assert said["stage"] == "shared"
    assert said["kind"] == "permanent"
    assert failed["attempts"] == 1
    assert said["error"] == f"E: Unable to locate package {GONE}"
    assert f"no package '{GONE}'" in said["cause"]
    assert f"_remove: [{GONE}]" in said["next_step"]
    assert any(said["error"] in line for line in said["context"])
    file, _, line = said["template"].partition(":")
    assert file == "templates/components/system.j2"
    assert GONE in (workspace.tree / file).read_text().splitlines()[int(line) - 1]
    dockerfile = (workspace.folder / f".rocstack/{STACK}-tcp/context/Dockerfile").read_text().splitlines()
    near = "\n".join(dockerfile[said["dockerfile_line"] - 1 : said["dockerfile_line"] + 40])
    assert GONE in near.partition("\nEOS")[0]
    log = (workspace.folder / failed["log"]).read_text()
    assert f"[shared] {said['error']}" in log
    for image in images.values():
        assert engine("image", "inspect", image["reference"], check=False).returncode != 0, "nothing is tagged"


def test_failure_for_people_and_for_ci(gone: tuple[Workspace, Outcome, Outcome]) -> None:
    workspace, _, shown = gone
    report = json.loads((workspace.folder / f".rocstack/{STACK}-tcp/report.json").read_text())
    said = next(image["failure"] for image in report["images"] if image["failure"])
    assert shown.code == 1
    lines = shown.err.splitlines()
    assert re.search(rf"^failed: {workspace.prefix}/\w+:{STACK}-tcp in stage shared$", shown.err, re.MULTILINE)
    assert f"  error: {said['error']}" in lines
    assert f"  template: {said['template']} (Dockerfile line {said['dockerfile_line']})" in lines
    for label in ("cause", "next", "kind", "log", "reproduce"):
        assert any(line.startswith(f"  {label}: ") for line in lines), label
    assert re.search(r" blocked by (worker|control) ", shown.out)
    suite = ET.fromstring((workspace.folder / f".rocstack/{STACK}-tcp/report.xml").read_text())
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "1")
    case = suite.find(".//failure")
    assert case is not None
    assert said["error"] in str(case.get("message"))
    assert said["reproduce"] in str(case.text)


def test_reproduce_command_fails_the_same_way(gone: tuple[Workspace, Outcome, Outcome]) -> None:
    workspace, outcome, _ = gone
    said = next(image["failure"] for image in outcome.json["images"] if image["failure"])
    again = subprocess.run(said["reproduce"], shell=True, cwd=workspace.folder, capture_output=True, text=True)
    assert again.returncode != 0
    assert said["error"] in again.stderr


# A smoke test that fails


def test_failing_smoke_test_leaves_the_old_image(built: Built, workspace: Workspace) -> None:
    before = inspect(built.control)["Id"]
    smoke = '{% block smoke %}\nok "so far"\nfail "this does not fit"\n{% endblock %}\n'
    own = overlay(workspace.folder, components__munge=smoke)
    outcome = workspace.run("build", "--json", "--role", "control", "--overlay", own)
    said = outcome.failure("control")
    assert said["stage"] == "smoke-control"
    assert said["kind"] == "permanent"
    assert re.fullmatch(r"smoke test of munge, line \d+: this does not fit", said["error"])
    assert said["template"].endswith("components/munge.j2:3"), "the line of the user's own file"
    assert inspect(workspace.reference("control"))["Id"] == before


def test_a_program_whose_library_is_not_there(workspace: Workspace) -> None:
    odd = "sed s/libsmartcols.so.1/libsmartcolx.so.1/ /usr/bin/lslogins >/usr/bin/odd; chmod 755 /usr/bin/odd"
    runtime = f"{{% block runtime %}}{{{{ super() }}}}{odd}\n{{% endblock %}}\n"
    own = overlay(workspace.folder, components__registry=runtime)
    outcome = workspace.run("build", "--json", "--role", "control", "--overlay", own)
    said = outcome.failure("control")
    assert said["stage"] == "smoke-control"
    assert "ELF files with libraries that are not in the image" in said["error"]
    log = (workspace.folder / outcome.image("control")["log"]).read_text()
    assert "/usr/bin/odd: libsmartcolx.so.1 is not in the image" in log


# What the lock holds against the world


def test_wheel_that_is_not_the_locked_one(base: str, prefix: str, workspace: Workspace) -> None:
    def replace_hash(lock: dict[str, Any]) -> None:
        next(wheel for wheel in lock["wheels"] if wheel["name"] == "safetensors")["sha256"] = ["0" * 64]

    edited_lock(workspace.folder, replace_hash)
    stranger = Workspace(workspace.folder, f"{prefix}-stranger")
    outcome = stranger.run("build", "--json", "--role", "worker", "--base-image", base)
    said = outcome.failure("worker")
    assert said["stage"] == "wheels"
    assert said["kind"] == "permanent"
    assert "HASHES" in said["error"] or "hash" in said["error"].lower()
    assert "not the file that was locked" in said["cause"]
    assert "rocstack lock" in said["next_step"]
    assert engine("image", "inspect", stranger.reference("worker"), check=False).returncode != 0


def test_world_that_moved_on_since_the_lock(built: Built, private_workspace: Workspace) -> None:
    def age(lock: dict[str, Any]) -> None:
        next(package for package in lock["packages"] if package["name"] == "munge")["version"] = "0.5.15-1"

    edited_lock(private_workspace.folder, age)
    frozen = private_workspace.run("build", "--json", "--role", "control", "--frozen")
    said = frozen.failure("control")
    assert said["stage"] == "lock"
    assert re.fullmatch(r"\S+ is \S+, the lock says \S+ \(\d+ differences\)", said["error"])
    assert engine("image", "inspect", private_workspace.reference("control"), check=False).returncode != 0

    tolerant = private_workspace.build("--role", "control")
    drift = {item["what"]: item for item in tolerant.image("control")["drift"]}
    found = drift["munge"]["found"]
    assert drift["munge"]["locked"] == "0.5.15-1"
    assert found.startswith(built.first.image("control")["versions"]["munge"])
    shown = private_workspace.run("build", "--role", "control")
    first = tolerant.image("control")["drift"][0]  # the list is cut after ten
    assert f"changed since the lock: {first['what']} {first['locked']} -> {first['found']}" in shown.out


def test_larger_than_its_budget(built: Built, workspace: Workspace) -> None:
    before = inspect(built.worker)["Id"]
    small = stack_file(workspace.folder, budget_mb=700)
    said = workspace.run("build", "--json", "--role", "worker", "--stack", str(small)).failure("worker")
    assert said["stage"] == "size"
    assert re.match(r"1\d\d\d MB uncompressed, the stack's budget is 700 MB; the largest package is \S+", said["error"])
    assert "budget_mb" in said["next_step"]
    assert inspect(workspace.reference("worker"))["Id"] == before

"""The workflows: the weekly one names only what there is, and no registry but the listed ones gets the password."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.base import image_names, paths
from rocstack.stack import lock, stack

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.y*ml"))
PASSWORD = "s3cret"


def jobs(file: Path) -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(file.read_text())["jobs"])


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_actions_are_pinned_and_jobs_may_only_read(file: Path) -> None:
    used = re.findall(r"uses:\s*(.*)", file.read_text())
    steps = [step for job in jobs(file).values() for step in job["steps"]]
    assert len(used) == sum("uses" in step for step in steps) > 0
    assert all(re.fullmatch(r"[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each) for each in used), used
    assert yaml.safe_load(file.read_text())["permissions"] == {}
    assert all(job["permissions"] == {"contents": "read"} for job in jobs(file).values())
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert not any("${{" in step.get("run", "") for step in steps), "a value is a variable, never a part of a script"


def test_secrets_are_in_one_step_of_one_job_after_the_tests_and_the_build() -> None:
    secret = [(file.name, name) for file in WORKFLOWS for name, job in jobs(file).items() if "secrets." in str(job)]
    assert secret == [("weekly.yml", "publish")]
    weekly = jobs(ROOT / ".github/workflows/weekly.yml")
    publish = weekly["publish"]
    assert publish["environment"] == "publish"
    assert set(publish["needs"]) == set(weekly) - {"publish"} >= {"slow", "mutation"}
    assert "if" not in publish, "a condition of its own may run it after failed tests"
    places = ["secrets." in str(step) for step in publish["steps"]]
    assert (places.count(True), publish["steps"][places.index(True)]["run"]) == (1, "bash .ci/login")
    builds = [at for at, step in enumerate(publish["steps"]) if "rocstack build" in step.get("run", "")]
    assert all("--frozen" in publish["steps"][at]["run"] for at in builds)
    pushes = [at for at in builds if "--push" in publish["steps"][at]["run"]]
    assert builds[0] < places.index(True) < pushes[0]
    assert publish["steps"][pushes[0]]["env"]["REGISTRY"] == "${{ steps.login.outputs.registry }}"


LISTED = "one.example/hpc two.example:5000"


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("", "one.example/hpc"),
        ("one.example/hpc", "one.example/hpc"),
        ("two.example:5000", "two.example:5000"),
        ("one.example", None),
        ("one.example/hpc/more", None),
        ("one.example/", None),
        ("two.example:5000 one.example/hpc", None),
        ("evil.example", None),
        ("*", None),
        ("???.example/hpc", None),
        (" ", None),
        ("one.example/hpc\nevil.example", None),
        ("$(touch made)", None),
        ("ONE.example/hpc", None),
        ("one.example./hpc", None),
        ("one.example/hpc.evil.example", None),
        ("one.example:443/hpc", None),
        ("ada@one.example/hpc", None),
        ("https://one.example/hpc", None),
        ("one.example/hpc\r", None),
        ("-", None),
    ],
)
def test_the_password_goes_to_listed_registries_only(asked: str, chosen: str | None, tmp_path: Path) -> None:
    docker, said, output = tmp_path / "docker", tmp_path / "said", tmp_path / "output"
    docker.write_text(f'#!/bin/sh\necho "$*" >>{said}; cat >>{said}\n')
    docker.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_OUTPUT": str(output), "REGISTRIES": LISTED}
    env |= {"ASKED": asked, "REGISTRY_USER": "ada", "REGISTRY_PASSWORD": PASSWORD}
    ran = subprocess.run(["bash", ROOT / ".ci/login"], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert PASSWORD not in ran.stdout + ran.stderr
    assert not (tmp_path / "made").exists()
    if chosen is None:
        assert (ran.returncode, said.exists(), output.exists()) == (2, False, False)
        assert "is not among ROCSTACK_REGISTRIES" in ran.stdout
        return
    assert ran.returncode == 0, ran.stderr
    assert said.read_text() == f"login --username ada --password-stdin {chosen.partition('/')[0]}\n{PASSWORD}"
    assert output.read_text() == f"registry={chosen}\n"


@pytest.mark.parametrize(
    ("registry", "host"),
    [
        ("Registry.example:5000/hpc", "Registry.example:5000"),
        ("[::1]:5000", "[::1]:5000"),
        ("10.0.0.1/a/b", "10.0.0.1"),
        ("hpc/images", None),
        ("hpc", None),
        ("https://one.example", None),
        ("ada@one.example", None),
        ("one.example./hpc", None),
        ("--config=x.y", None),
        ("", None),
    ],
)
def test_docker_is_told_hosts_only(registry: str, host: str | None, tmp_path: Path) -> None:
    docker, said = tmp_path / "docker", tmp_path / "said"
    docker.write_text(f'#!/bin/sh\necho "$*" >>{said}; cat >/dev/null\n')
    docker.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_OUTPUT": str(tmp_path / "out"), "REGISTRIES": registry}
    env |= {"REGISTRY_USER": "ada", "REGISTRY_PASSWORD": PASSWORD}
    ran = subprocess.run(["bash", ROOT / ".ci/login"], env=env, capture_output=True, text=True)
    if host:
        assert image_names.parse_registry(registry).host == host
        assert said.read_text() == f"login --username ada --password-stdin {host}\n"
    else:
        assert (ran.returncode, said.exists()) == (2, False)


@pytest.mark.parametrize("lacking", ["REGISTRIES", "REGISTRY_USER", "REGISTRY_PASSWORD"])
def test_no_login_without_its_settings(lacking: str, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "REGISTRIES": "a.example", "REGISTRY_USER": "u", "REGISTRY_PASSWORD": "p"}
    ran = subprocess.run(["bash", ROOT / ".ci/login"], env={**env, lacking: ""}, capture_output=True, text=True)
    assert (ran.returncode, "environment 'publish' needs" in ran.stdout) == (2, True)


def test_stacks_and_nics_of_the_weekly_matrix_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())
    matrix = workflow["jobs"]["publish"]["strategy"]["matrix"]
    scheduled = re.search(r"\|\| '(.*)'", matrix["stack"])
    assert scheduled
    stacks = json.loads(scheduled[1])
    by_hand = workflow[True]["workflow_dispatch"]["inputs"]["stacks"]["default"]  # YAML 1.1 reads `on` as true
    assert stacks == json.loads(by_hand), "a run by hand builds the same as the scheduled one"
    assert not set(stacks) - set(stack.names())
    for name in stacks:
        assert lock.for_stack(stack.load(name), None), "a stack without a lock can't be built unattended"
    assert not set(matrix["nic"]) - {file.stem for file in (paths.templates() / "nic").glob("*.j2")}

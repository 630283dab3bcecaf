"""The workflows: the weekly one names only what there is, and no registry but the listed ones gets the password."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocstack.base import image_names, paths
from rocstack.release.plan import ReleaseFile
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
    may = {name: job["permissions"] for name, job in jobs(file).items()}
    assert may.pop("failed", {"issues": "write"}) == {"issues": "write"}
    proposes = {"contents": "write", "pull-requests": "write"}  # a person merges it
    assert may.pop("propose", proposes) == proposes
    assert all(each == {"contents": "read"} for each in may.values())
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert yaml.safe_load(file.read_text())["defaults"]["run"]["shell"] == "bash", "else a failure in a pipe is none"
    assert not any("${{" in step.get("run", "") for step in steps), "a value is a variable, never a part of a script"


def test_secrets_come_after_all_tests_and_the_build_to_protected_jobs_alone() -> None:
    secret = {(file.name, name) for file in WORKFLOWS for name, job in jobs(file).items() if "secrets." in str(job)}
    assert secret == {("weekly.yml", "release"), ("weekly.yml", "promote")}
    weekly = jobs(ROOT / ".github/workflows/weekly.yml")
    release, promote = weekly["release"], weekly["promote"]
    assert (release["environment"], promote["environment"]) == ("publish", "stable")
    assert release["needs"] == "test"
    assert set(weekly["test"]["strategy"]["matrix"]["target"]) == {"test", "test-slow", "test-rdma", "mutation"}
    assert "if" not in release, "a condition of its own may run it after failed tests"
    assert {"release", "staging"} <= set(promote["needs"])
    assert "if" not in promote
    for job in (release, promote):
        steps = [step for step in job["steps"] if "secrets." in str(step)]
        assert [step["run"].partition(" write")[0] for step in steps] == ["bash .ci/login", ".ci/signing-key"]
        assert "cache" not in str(job), "what is published is made of nothing that another run could have changed"
        gone = [step for step in job["steps"] if step.get("if") == "always()"]
        assert any("signing-key remove" in step["run"] and "docker logout" in step["run"] for step in gone)
    places = ["secrets." in str(step) for step in release["steps"]]
    built = next(at for at, step in enumerate(release["steps"]) if "--build-only" in step.get("run", ""))
    made = next(step for step in release["steps"] if step.get("id") == "release")
    assert built < places.index(True)
    assert made["env"]["REGISTRY"] == "${{ steps.login.outputs.registry }}"


def test_a_failure_opens_an_issue_whatever_failed() -> None:
    weekly = jobs(ROOT / ".github/workflows/weekly.yml")
    assert weekly["failed"]["if"] == "failure()"
    assert set(weekly["failed"]["needs"]) == set(weekly) - {"failed"}


def test_the_signing_key_is_for_this_user_alone_and_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "signing"
    env = {"PATH": os.environ["PATH"], "SIGNING_KEY": "k", "SIGNING_PASSWORD": PASSWORD}
    command = [ROOT / ".ci/signing-key", "write", folder]
    ran = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()} == {
        "release.key": 0o600,
        "password": 0o600,
    }
    assert subprocess.run([ROOT / ".ci/signing-key", "remove", folder]).returncode == 0
    assert not folder.exists()
    ran = subprocess.run(command, env={**env, "SIGNING_PASSWORD": ""}, capture_output=True, text=True)
    assert (ran.returncode, "ROCSTACK_SIGNING_PASSWORD" in ran.stderr, folder.exists()) == (2, True, False)


def test_gitlab_does_the_same() -> None:
    pipeline = yaml.safe_load((ROOT / ".gitlab-ci.yml").read_text())
    assert pipeline["stages"].index("test") < pipeline["stages"].index("release") < pipeline["stages"].index("stable")
    assert (pipeline["release"]["environment"], pipeline["stable"]["environment"]) == ("publish", "stable")
    assert "cache" not in pipeline["release"]
    assert pipeline["release"]["resource_group"] == "weekly"
    names = re.findall(r"ROCSTACK_[A-Z_]+", str(pipeline))
    assert not names, "rocstack would take them for settings"
    for script in re.findall(r"\.ci/[a-z.-]+", (ROOT / ".gitlab-ci.yml").read_text()):
        assert (ROOT / script).exists() or script == ".ci/verified", script


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


def test_what_is_released_weekly_can_be_built() -> None:
    plan = ReleaseFile.load(ROOT / ".ci/release.yml").plan
    assert sum(entry.default for entry in plan.images) == 1
    for entry in plan.images:
        assert lock.for_stack(stack.load(entry.stack), None), "a stack without a lock can't be built unattended"
        assert (paths.templates() / f"nic/{entry.nic}.j2").is_file()


def test_whoever_may_write_runs_nothing_of_the_repository() -> None:
    """The patch comes from a job that read the network."""
    steps = jobs(ROOT / ".github/workflows/weekly.yml")["propose"]["steps"]
    (script,) = [step["run"] for step in steps if "run" in step]
    assert not re.search(r"rocstack|make|\.ci/|cli/|python|source ", script)
    assert "--include='images/stacks/*'" in script
    assert "HEAD:refs/heads/weekly-upgrade" in script

"""From a release to its promotion, as the weekly run and the guide have it: deployed by digest to a cluster whose
policy asks for signatures, verified there, and promoted with that report, which counts as proof from then on."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deployed_cluster import INVENTORY, SETTINGS, DeployedCluster
from released import Releases, entry, releases
from workspace import REPO, Built, Workspace

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TAG = "2026.01"
# The command of a checkout. Two levels are enough to see where their report goes.
COMMAND = '#!/bin/sh\n[ "$1" != verify ] || set -- "$@" --level 1\nexec "$PYTHON" -m rocstack.cli.main "$@"\n'


def policy(place: Releases, **more: Any) -> None:
    trust = {"keys": ["release.pub"], "registry": place.target, **more}
    (place.here.folder / "rocstack.yml").write_text(f"{SETTINGS}trust: {json.dumps(trust)}\n")


@pytest.fixture(scope="module")
def place(base: str, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    """A release, and two nodes with nothing on them."""
    folder = tmp_path_factory.mktemp("staging")
    (folder / "work/.venv/bin").mkdir(parents=True)
    shutil.copytree(REPO / ".ci", folder / "work/.ci", ignore=shutil.ignore_patterns("verified"))
    command = folder / "work/.venv/bin/rocstack"
    command.write_text(COMMAND)
    command.chmod(0o755)
    here = Workspace(folder / "work", built.workspace.prefix, made=built.workspace.made)
    with releases(base, built, here, folder) as place:
        place.write(entry(default=True))
        place.must("--tag", TAG)
        policy(place)
        try:
            up = place.here.run("local", "up", "--nodes", "2")
            assert up.code == 0, up.err
            yield place
        finally:
            place.here.run("local", "down")
            for image in released(place):
                subprocess.run(["docker", "rmi", f"{image['repository']}@{image['digest']}"], capture_output=True)


def released(place: Releases) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((place.here.folder / ".rocstack/release/release.json").read_text())[
        "images"
    ]
    return found


def staged(place: Releases, key: Path) -> subprocess.CompletedProcess[str]:
    """What the weekly run does at the staging cluster."""
    about = {"REGISTRY": place.target, "TAG": TAG, "INVENTORY": str(INVENTORY), "PUBLIC_KEY": key.read_text()}
    env = {**place.here.environ(), **about, "PYTHON": place.here.python}
    line = ["bash", place.here.folder / ".ci/staging"]
    return subprocess.run(line, env=env, capture_output=True, text=True, check=False, timeout=1200)


def test_what_another_key_signed_is_not_deployed(place: Releases, tmp_path: Path) -> None:
    assert place.run("keygen", str(tmp_path / "other.key"), "--password-file", "password").code == 0
    done = staged(place, tmp_path / "other.pub")
    assert done.returncode == 1, done.stderr
    assert "unknown-signer" in done.stdout + done.stderr + (place.here.folder / ".ci/verified/release.json").read_text()
    assert not (place.here.folder / ".rocstack/deploy").exists()


def test_from_the_release_to_the_name_stable(place: Releases) -> None:
    done = staged(place, place.here.folder / "release.pub")
    assert done.returncode == 0, done.stdout + done.stderr
    there = DeployedCluster(place.here, place.here.run("status"), "")
    status = there.json("status")
    assert {node["image"] for node in status["nodes"]} <= {image["id"] for image in released(place)}, status
    assert status["release"]["images"]["signers"] == [place.public.fingerprint]
    assert sorted(there.slurm("srun -N 2 hostname").split()) == ["n1", "n2"]

    policy(place, level=1)
    there.run("deploy", code=1)  # nobody signed the report yet
    made = place.must("promote", TAG, "--report", ".ci/verified/report.json")
    assert (made["changed"], made["promoted"]) == (True, "stable")
    found = place.verify("stable", "--layers")
    assert found["ok"], found
    assert {len(image["attestations"]) for image in found["images"]} == {3}
    assert "level 1" in (place.here.folder / f".rocstack/release/measured-{TAG}.md").read_text()
    there.run("deploy")
    policy(place, level=2)
    there.run("deploy", code=1)

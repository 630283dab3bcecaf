"""Builds that go wrong, for real: what is said, what is left, and how to go on."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import docker
import pytest
from conftest import Built
from place import STACK, Outcome, Place, edited_lock, engine, inspect, stack_file

from rocstack import base as bases
from rocstack import stack
from rocstack.settings import Settings

pytestmark = pytest.mark.engine
GONE = "rocstack-no-such-package"


def overlay(folder: Path, **files: str) -> str:
    """A folder of the user's own; names of files are written with __ for / and without their ending."""
    for name, text in files.items():
        path = folder / "own" / f"{name.replace('__', '/')}{'.yml' if name == 'overlay' else '.j2'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder / "own")


def failure(outcome: Outcome, role: str) -> dict[str, Any]:
    assert outcome.code == 1, outcome.err + outcome.out
    image = outcome.image(role)
    assert image["status"] == "failed"
    found: dict[str, Any] = image["failure"]
    return found


def builders(folder: Path) -> list[str]:
    """Build processes that work on a context in `folder` (whose commands run there)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if "buildx" in line and Path(os.readlink(process / "cwd")).is_relative_to(folder):
                found.append(line)
        except OSError:  # it ended meanwhile
            continue
    return found


# A package that is gone


@pytest.fixture(scope="module")
def gone(base: str, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Outcome, Outcome]:
    """The same failure in a stage that both images need: as JSON and as a person sees it."""
    place = Place(tmp_path_factory.mktemp("gone"), f"{prefix}-gone").with_tree(tmp_path_factory.mktemp("tree"))
    template = place.tree / "templates/components/system.j2"
    text = template.read_text()
    template.write_text(text.replace("packages: [tini,", f"packages: [{GONE}, tini,"))
    assert template.read_text() != text
    return place, place.run("build", "--json", "--base-image", base), place.run("build", "--base-image", base)


def test_package_that_is_gone(gone: tuple[Place, Outcome, Outcome]) -> None:
    place, outcome, _ = gone
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
    assert GONE in (place.tree / file).read_text().splitlines()[int(line) - 1]
    dockerfile = (place.folder / f".rocstack/{STACK}-tcp/context/Dockerfile").read_text().splitlines()
    near = "\n".join(dockerfile[said["dockerfile_line"] - 1 : said["dockerfile_line"] + 40])
    assert GONE in near.partition("\nEOS")[0]
    log = (place.folder / failed["log"]).read_text()
    assert f"[shared] {said['error']}" in log
    for image in images.values():
        assert engine("image", "inspect", image["reference"], check=False).returncode != 0, "nothing is tagged"


def test_failure_for_people_and_for_ci(gone: tuple[Place, Outcome, Outcome]) -> None:
    place, outcome, shown = gone
    said = next(image["failure"] for image in outcome.json["images"] if image["failure"])
    assert shown.code == 1
    lines = shown.err.splitlines()
    assert re.search(rf"^failed: {place.prefix}/\w+:{STACK}-tcp in stage shared$", shown.err, re.MULTILINE)
    assert f"  error: {said['error']}" in lines
    assert f"  template: {said['template']} (Dockerfile line {said['dockerfile_line']})" in lines
    for label in ("cause", "next", "kind", "log", "reproduce"):
        assert any(line.startswith(f"  {label}: ") for line in lines), label
    assert re.search(r" blocked by (worker|control) ", shown.out)
    suite = ET.fromstring((place.folder / f".rocstack/{STACK}-tcp/report.xml").read_text())
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "1")
    case = suite.find(".//failure")
    assert case is not None
    assert said["error"] in str(case.get("message"))
    assert said["reproduce"] in str(case.text)


def test_reproduce_command_fails_the_same_way(gone: tuple[Place, Outcome, Outcome]) -> None:
    place, outcome, _ = gone
    said = next(image["failure"] for image in outcome.json["images"] if image["failure"])
    again = subprocess.run(said["reproduce"], shell=True, cwd=place.folder, capture_output=True, text=True)
    assert again.returncode != 0
    assert said["error"] in again.stderr


# A smoke test that fails


def test_failing_smoke_test_leaves_the_old_image(built: Built, place: Place) -> None:
    before = inspect(built.control)["Id"]
    smoke = '{% block smoke %}\nok "so far"\nfail "this does not fit"\n{% endblock %}\n'
    own = overlay(place.folder, components__munge=smoke)
    outcome = place.run("build", "--json", "--role", "control", "--overlay", own)
    said = failure(outcome, "control")
    assert said["stage"] == "smoke-control"
    assert said["kind"] == "permanent"
    assert re.fullmatch(r"smoke test of munge, line \d+: this does not fit", said["error"])
    assert said["template"].endswith("components/munge.j2:3"), "the line of the user's own file"
    assert inspect(place.reference("control"))["Id"] == before


# What the lock holds against the world


def test_wheel_that_is_not_the_locked_one(base: str, prefix: str, place: Place) -> None:
    def replace_hash(lock: dict[str, Any]) -> None:
        next(wheel for wheel in lock["wheels"] if wheel["name"] == "safetensors")["sha256"] = ["0" * 64]

    edited_lock(place.folder, replace_hash)
    stranger = Place(place.folder, f"{prefix}-stranger")
    outcome = stranger.run("build", "--json", "--role", "worker", "--base-image", base)
    said = failure(outcome, "worker")
    assert said["stage"] == "wheels"
    assert said["kind"] == "permanent"
    assert "HASHES" in said["error"] or "hash" in said["error"].lower()
    assert "not the file that was locked" in said["cause"]
    assert "rocstack lock" in said["next_step"]
    assert engine("image", "inspect", stranger.reference("worker"), check=False).returncode != 0


def test_world_that_moved_on_since_the_lock(built: Built, apart: Place) -> None:
    def age(lock: dict[str, Any]) -> None:
        next(package for package in lock["packages"] if package["name"] == "munge")["version"] = "0.5.15-1"

    edited_lock(apart.folder, age)
    found = built.first.image("control")["versions"]["munge"]
    frozen = apart.run("build", "--json", "--role", "control", "--frozen")
    said = failure(frozen, "control")
    assert said["stage"] == "lock"
    assert re.match(rf"munge is {re.escape(found)}\S*, the lock says 0\.5\.15-1 \(1 difference", said["error"])
    assert engine("image", "inspect", apart.reference("control"), check=False).returncode != 0

    tolerant = apart.build("--role", "control")
    drift = tolerant.image("control")["drift"]
    assert [(item["what"], item["locked"]) for item in drift] == [("munge", "0.5.15-1")]
    shown = apart.run("build", "--role", "control")
    assert f"changed since the lock: munge 0.5.15-1 -> {drift[0]['found']}" in shown.out


def test_larger_than_its_budget(built: Built, place: Place) -> None:
    before = inspect(built.worker)["Id"]
    small = stack_file(place.folder, budget_mb=700)
    said = failure(place.run("build", "--json", "--role", "worker", "--stack", str(small)), "worker")
    assert said["stage"] == "size"
    assert re.match(r"1\d\d\d MB uncompressed, the stack's budget is 700 MB; the largest package is \S+", said["error"])
    assert "budget_mb" in said["next_step"]
    assert inspect(place.reference("worker"))["Id"] == before


# The network


TIMEOUT = "ERROR: failed to solve: error from the mirror: dial tcp: i/o timeout\n"
STALE = "E: Failed to fetch pool/main/m/munge/munge_0.5.16-1_amd64.deb  404  Not Found [IP: 127.0.0.1 80]\n"


@pytest.fixture
def moody(place: Place) -> Place:
    """A docker that fails with the lines of the file `moods`, one a build; then it is the real one. It notes which
    state of the package index it was asked for, and takes this week's, so that nothing is built again."""
    real = shutil.which("docker")
    fake = place.folder / "bin/docker"
    fake.parent.mkdir()
    moods = place.folder / "moods"
    fake.write_text(
        f"""#!/bin/bash
[[ "$*" == "buildx build "* ]] || exec {real} "$@"
exec 9>>{place.folder}/worlds
flock 9
for word; do
    [[ $word != ROCSTACK_WORLD=* ]] || {{ echo "$word" >&9; word=${{word%%-*}}; }}
    words+=("$word")
done
if [ -s {moods} ]; then
    head -n 1 {moods} >&2
    sed -i 1d {moods}
    exit 1
fi
exec 9>&-
exec {real} "${{words[@]}}"
"""
    )
    fake.chmod(0o755)
    return place.with_env(PATH=f"{fake.parent}:{os.environ['PATH']}")


def test_transient_failure_is_healed_by_waiting(built: Built, moody: Place) -> None:
    (moody.folder / "moods").write_text(TIMEOUT)
    outcome = moody.build("--role", "control")
    assert outcome.image("control")["attempts"] == 2
    assert "i/o timeout (transient); trying again in 5 s" in outcome.err
    assert outcome.seconds > 5
    assert outcome.image("control")["image_id"] == built.first.image("control")["image_id"]


def test_index_older_than_the_mirror_is_fetched_anew_once_for_both(built: Built, moody: Place) -> None:
    (moody.folder / "moods").write_text(2 * STALE)
    outcome = moody.build()
    assert [image["attempts"] for image in outcome.json["images"]] == [2, 2]
    assert "the package index is older than the mirror; fetching it anew" in outcome.err
    worlds = [line.partition("=")[2] for line in (moody.folder / "worlds").read_text().split()]
    old, new = worlds[0], worlds[-1]
    assert re.fullmatch(rf"{old}-\d+", new)
    assert worlds == [old] * 2 + [new] * 4, "the images themselves are made from the index that worked"
    assert outcome.json["world"] == new
    again = moody.build()
    assert again.json["world"] == new, "and it stays"


def test_transient_failure_that_stays(built: Built, moody: Place) -> None:
    (moody.folder / "moods").write_text(TIMEOUT * 9)
    moody = moody.with_env(ROCSTACK_ATTEMPTS="2")
    outcome = moody.run("build", "--json", "--role", "control")
    said = failure(outcome, "control")
    assert said["kind"] == "transient"
    assert outcome.image("control")["attempts"] == 2
    assert "network or a mirror" in said["cause"]
    assert (moody.folder / "moods").read_text() == TIMEOUT * 7


def test_interrupt_while_it_waits_to_try_again(built: Built, moody: Place) -> None:
    (moody.folder / "moods").write_text(TIMEOUT * 99)
    process = moody.start("build", "--role", "control")
    assert process.stderr is not None
    for line in process.stderr:
        if "trying again in 10 s" in line:
            break
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert time.monotonic() - started < 5, "it slept on"


def test_base_when_no_registry_answers(client: docker.DockerClient, base: str, prefix: str, place: Place) -> None:
    """A registry that nobody runs: `auto` makes the base here, `registry` says what is missing."""
    nowhere = "127.0.0.1:9/library/debian:none"
    choice = stack.load(STACK)
    choice = choice.model_copy(update={"base": choice.base.model_copy(update={"image": nowhere})})
    settings = Settings(image_prefix=f"{prefix}-fresh")
    said: list[str] = []
    made = bases.ensure(client, choice, settings, said.append)
    assert made.how == "mmdebstrap"
    assert made.reference.startswith(f"{prefix}-fresh/base:debian-13-")
    assert made.digest == inspect(made.reference)["Id"]
    assert any("making the base with mmdebstrap instead" in line for line in said)
    assert engine("run", "--rm", made.reference, "cat", "/etc/debian_version").stdout.startswith("13")
    again: list[str] = []
    assert bases.ensure(client, choice, settings, again.append) == made
    assert again == [], "made once"

    text = Path(stack_file(place.folder)).read_text()
    file = place.folder / f"{STACK}.yml"
    file.write_text(re.sub(r"(?m)^  image: .*$", f"  image: {nowhere}", text))
    strict = place.run("build", "--json", "--stack", str(file), "--base", "registry")
    assert strict.code in (2, 3), strict.out
    if strict.code == 2:  # the lock belongs to another base
        assert strict.json["error"]["code"] == "lock-mismatch"
    named = place.run("build", "--json", "--base-image", nowhere)
    error = named.json["error"]
    assert (named.code, error["code"]) == (3, "no-base")
    assert "registry did not give it" in error["cause"]
    assert "base: mmdebstrap" in error["next"]


# The machine


def test_disk_nearly_full(base: str, prefix: str, place: Place) -> None:
    huge = stack_file(place.folder, disk_mb=10**9)
    stranger = Place(place.folder, f"{prefix}-{secrets.token_hex(2)}")
    outcome = stranger.run("build", "--json", "--stack", str(huge), "--base-image", base)
    error = outcome.json["error"]
    assert (outcome.code, error["code"]) == (3, "disk-full")
    assert re.match(
        r"[\d.]+ GB are free in /\S+; a build of this stack from nothing needs about 1000000\.0 GB", error["what"]
    )
    assert "docker builder prune" in error["next"]
    assert not [path for path in stranger.folder.rglob(".rocstack/*/*") if path.name != ".building"]


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_in_the_middle_of_a_build(built: Built, place: Place, signal_number: int) -> None:
    before = inspect(place.reference("control"))["Id"]
    log = place.folder / f".rocstack/{STACK}-tcp/logs/control.log"
    process = place.start("build", "--role", "control", "--no-cache", start_new_session=True)
    deadline = time.monotonic() + 120
    while not (log.exists() and "[shared] " in log.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert builders(place.folder)
    started = time.monotonic()
    process.send_signal(signal_number)
    out, err = process.communicate(timeout=60)
    took = time.monotonic() - started
    print(f"stopped after {took:.1f} s (limit 10 s)")
    assert process.returncode == 130, err
    assert took < 10
    assert "stopped. What was finished is kept; run the same command again to go on." in err
    assert "Traceback" not in out + err
    assert builders(place.folder) == []
    assert inspect(place.reference("control"))["Id"] == before
    after = place.build("--role", "control")
    assert after.image("control")["status"] == "built"


def test_two_at_the_same_time(built: Built, place: Place) -> None:
    both = [place.start("build", "--json") for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    for out, _ in said:
        ids = {image["role"]: image["image_id"] for image in json.loads(out)["images"]}
        assert ids == {role: built.first.image(role)["image_id"] for role in ids}
    assert any("another build uses" in err for _, err in said) or all(err for _, err in said)

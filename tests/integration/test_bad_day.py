"""Builds on a bad day: a mirror that does not answer, a full disk, an impatient person."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import time
from pathlib import Path

import docker
import pytest
from workspace import STACK, Built, Outcome, Workspace, edited_lock, engine, inspect, stack_file

from rocstack.image import base_image as bases
from rocstack.settings.settings import Settings
from rocstack.stack import stack
from rocstack.stack.lock import definition_digest

pytestmark = pytest.mark.engine


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


# The network


TIMEOUT = "ERROR: failed to solve: error from the mirror: dial tcp: i/o timeout\n"
STALE = "E: Failed to fetch pool/main/m/munge/munge_0.5.16-1_amd64.deb  404  Not Found [IP: 127.0.0.1 80]\n"


@pytest.fixture
def moody(workspace: Workspace) -> Workspace:
    """A docker that fails with the lines of the file `moods`, one a build; then it is the real one. Where there is
    a file `old`, this week's package index is out of date. It notes which index it was asked for, and takes this
    week's, so that nothing is built again."""
    real = shutil.which("docker")
    fake = workspace.folder / "bin/docker"
    fake.parent.mkdir()
    moods = workspace.folder / "moods"
    fake.write_text(
        f"""#!/bin/bash
[[ "$*" == "buildx build "* ]] || exec {real} "$@"
exec 9>>{workspace.folder}/worlds
flock 9
for word; do
    [[ $word != ROCSTACK_WORLD=* ]] || {{ echo "$word" >&9; asked=$word; word=${{word%%-*}}; }}
    words+=("$word")
done
if [ -e {workspace.folder}/old ] && [[ $asked != *-* ]]; then
    cat {workspace.folder}/old >&2
    exit 1
elif [ -s {moods} ]; then
    head -n 1 {moods} >&2
    sed -i 1d {moods}
    exit 1
fi
exec 9>&-
exec {real} "${{words[@]}}"
"""
    )
    fake.chmod(0o755)
    return workspace.with_env(PATH=f"{fake.parent}:{os.environ['PATH']}")


def test_transient_failure_is_healed_by_waiting(built: Built, moody: Workspace) -> None:
    (moody.folder / "moods").write_text(TIMEOUT)
    outcome = moody.build("--role", "control")
    assert outcome.image("control")["attempts"] == 2
    assert "i/o timeout (transient); trying again in 5 s" in outcome.err
    assert outcome.image("control")["image_id"] == built.first.image("control")["image_id"]


def test_index_older_than_the_mirror_is_fetched_anew_once_for_both(built: Built, moody: Workspace) -> None:
    (moody.folder / "old").write_text(STALE)
    outcome = moody.build()
    attempts = [image["attempts"] for image in outcome.json["images"]]
    assert max(attempts) == 2  # one that begins after the other has failed begins with the new index
    assert "the package index is older than the mirror; fetching it anew" in outcome.err
    worlds = [line.partition("=")[2] for line in (moody.folder / "worlds").read_text().split()]
    old, new = worlds[0], worlds[-1]
    assert re.fullmatch(rf"{old}-\d+", new)
    assert sorted(worlds) == [old] * (sum(attempts) - 2) + [new] * 4, "images are made from the index that worked"
    assert outcome.json["world"] == new
    again = moody.build()
    assert again.json["world"] == new, "and it stays"


def test_transient_failure_that_stays(built: Built, moody: Workspace) -> None:
    (moody.folder / "moods").write_text(TIMEOUT * 9)
    moody = moody.with_env(ROCSTACK_ATTEMPTS="2")
    outcome = moody.run("build", "--json", "--role", "control")
    said = outcome.failure("control")
    assert said["kind"] == "transient"
    assert outcome.image("control")["attempts"] == 2
    assert "network or a mirror" in said["cause"]
    assert (moody.folder / "moods").read_text() == TIMEOUT * 7


def test_interrupt_while_it_waits_to_try_again(built: Built, moody: Workspace) -> None:
    (moody.folder / "moods").write_text(TIMEOUT * 99)
    process = moody.start("build", "--role", "control")
    assert process.stderr is not None
    for line in process.stderr:
        if "trying again in 10 s" in line:
            break
    process.send_signal(signal.SIGINT)
    tried = (moody.folder / "moods").read_text()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert (moody.folder / "moods").read_text() == tried, "it slept on and tried again"


def test_base_when_no_registry_answers(
    client: docker.DockerClient, base: str, prefix: str, workspace: Workspace
) -> None:
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

    assert_no_base(workspace.run("build", "--json", "--base-image", nowhere))
    file = stack_file(workspace.folder)
    file.write_text(re.sub(r"(?m)^  image: .*$", f"  image: {nowhere}", file.read_text()))
    edited_lock(workspace.folder, lambda lock: lock.update(definition=definition_digest(stack.load(str(file)))))
    assert_no_base(workspace.run("build", "--json", "--stack", str(file), "--base", "registry"))


def assert_no_base(outcome: Outcome) -> None:
    error = outcome.json["error"]
    assert (outcome.code, error["code"]) == (3, "no-base")
    assert "registry did not provide it" in error["cause"]
    assert "base: mmdebstrap" in error["next"]


# The machine


def test_disk_nearly_full(base: str, prefix: str, workspace: Workspace) -> None:
    huge = stack_file(workspace.folder, disk_mb=10**9)
    stranger = Workspace(workspace.folder, f"{prefix}-{secrets.token_hex(2)}")
    outcome = stranger.run("build", "--json", "--stack", str(huge), "--base-image", base)
    error = outcome.json["error"]
    assert (outcome.code, error["code"]) == (3, "disk-full")
    assert re.match(r"[\d.]+ GB are free in /\S+; a first build of this stack needs about 1000000\.0 GB", error["what"])
    assert "docker builder prune" in error["next"]
    assert not [path for path in stranger.folder.rglob(".rocstack/*/*") if path.name != ".building"]


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_in_the_middle_of_a_build(built: Built, workspace: Workspace, signal_number: int) -> None:
    before = inspect(workspace.reference("control"))["Id"]
    log = workspace.folder / f".rocstack/{STACK}-tcp/logs/control.log"
    process = workspace.start("build", "--role", "control", "--no-cache", start_new_session=True)
    deadline = time.monotonic() + 120
    while not (log.exists() and "[shared] " in log.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert builders(workspace.folder)
    process.send_signal(signal_number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopped. Finished work is kept; run the same command again to continue." in err
    assert "Traceback" not in out + err
    assert builders(workspace.folder) == []
    assert inspect(workspace.reference("control"))["Id"] == before
    after = workspace.build("--role", "control")
    assert after.image("control")["status"] == "built"


def test_two_at_the_same_time(built: Built, workspace: Workspace) -> None:
    both = [workspace.start("build", "--json") for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    for out, _ in said:
        ids = {image["role"]: image["image_id"] for image in json.loads(out)["images"]}
        assert ids == {role: built.first.image(role)["image_id"] for role in ids}
    assert all("Traceback" not in err and "error:" not in err for _, err in said)

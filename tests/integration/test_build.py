"""`rocstack build` of the default stack: what it reports, how long it takes, what a change costs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import termios
import time
import xml.etree.ElementTree as ET
from datetime import UTC, datetime

import pytest
from workspace import Built, Workspace, engine, inspect

from rocstack.image.build_report import BuildReport

pytestmark = pytest.mark.engine
CONTROL_CODE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def layers(image: str) -> list[str]:
    return list(inspect(image)["RootFS"]["Layers"])


def layers_since(image: str, when: datetime) -> list[int]:
    """Bytes of each layer that was made after `when`."""
    told = engine("history", "--no-trunc", "--human=false", "--format", "{{.Size}} {{.CreatedAt}}", image).stdout
    steps = [line.split() for line in told.splitlines()]
    return [int(size) for size, made in steps if int(size) and datetime.fromisoformat(made) >= when]


def test_report_agrees_with_the_engine(built: Built) -> None:
    report = built.first.json
    assert report["ok"]
    assert [image["role"] for image in report["images"]] == ["worker", "control"]
    for image in report["images"]:
        seen = inspect(image["reference"])
        assert image["image_id"] == seen["Id"]
        assert image["status"] == "built"
        # The engine counts files that a later layer replaces twice.
        assert 0.9 * seen["Size"] < image["size_bytes"] <= seen["Size"]
        assert sum(image["components"].values()) == image["size_bytes"]
        assert image["versions"].keys() == image["smoke"].keys() - {"nic", "libraries"} or image["role"] == "worker"
        assert all(image["smoke"].values()), "every smoke test says what it saw"
        log = built.workspace.folder / image["log"]
        assert log.is_file()


def test_json_is_the_report_file(built: Built) -> None:
    report = built.first.json
    folder = built.workspace.folder / ".rocstack/debian-13-tcp"
    assert json.loads((folder / "report.json").read_text()) == report
    again = BuildReport.model_validate_json(json.dumps({k: v for k, v in report.items() if k not in ("schema", "ok")}))
    assert json.loads(json.dumps(again.to_dict())) == report

    suite = ET.fromstring((folder / "report.xml").read_text())
    cases = suite.findall("testcase")
    assert len(cases) == int(suite.get("tests", "0")) == 2 + sum(len(image["smoke"]) for image in report["images"])
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "0")
    assert not suite.findall(".//failure")


def test_nothing_changed_builds_nothing_and_makes_the_same_images(built: Built) -> None:
    times = []
    for _ in range(2):
        again = built.workspace.build()
        times.append(again.seconds)
        for image in again.json["images"]:
            assert image["image_id"] == built.first.image(image["role"])["image_id"]
    # The engine may have dropped old steps from its cache before, but not those of a moment ago.
    steps = [step for image in again.json["images"] for step in image["steps"]]
    assert [step for step in steps if not step["cached"] and not step["step"].startswith("FROM ")] == []
    print(f"nothing changed: {min(times):.2f} s (make bench has the limit)")


def test_change_in_the_trainer_is_one_small_layer(
    private_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory
) -> None:
    changed = private_workspace.with_tree(tmp_path_factory.mktemp("tree"))
    before = changed.build()
    file = changed.tree / "images/trainer/rocstack_trainer/train.py"
    file.write_text(f"{file.read_text()}\n# changed at {time.time_ns()}\n")
    started = datetime.now(UTC)
    after = changed.build()

    old, new = (outcome.image("worker")["image_id"] for outcome in (before, after))
    assert len(layers(old)) == len(layers(new))
    assert layers(old)[-1] != layers(new)[-1]
    made = layers_since(new, started)
    assert len(made) == 1, "only the trainer's layer is new"
    print(f"a change in the trainer: {after.seconds:.1f} s, layer of {made[0] / 1e3:.0f} kB uncompressed")
    assert made[0] < 1_000_000  # so its compressed size is, too
    labels = [inspect(outcome.image("worker")["image_id"])["Config"]["Labels"] for outcome in (before, after)]
    assert labels[0]["io.rocstack.content"] != labels[1]["io.rocstack.content"]
    assert before.image("control")["image_id"] != after.image("control")["image_id"], "its content label says so too"
    assert layers_since(after.image("control")["image_id"], started) == []


def test_roles_share_their_first_layers(built: Built) -> None:
    worker, control = layers(built.worker), layers(built.control)
    shared = next(n for n, (a, b) in enumerate(zip(worker, control, strict=False)) if a != b)
    assert shared >= 3, "base, accounts and the packages of both"
    own = len(control) - shared
    assert 0 < own <= 6, "packages, Slurm's and MariaDB's, a copied program, two rootfs, the manifest"


def test_size_is_within_the_budget(built: Built) -> None:
    size = inspect(built.worker)["Size"]
    print(f"worker: {size / 1e6:.0f} MB uncompressed (budget 1600 MB)")
    assert size < 1600e6
    assert built.first.image("worker")["size_bytes"] < 1600e6


def test_one_role_by_itself(built: Built) -> None:
    alone = built.workspace.build("--role", "control")
    assert [image["role"] for image in alone.json["images"]] == ["control"]
    assert alone.image("control")["image_id"] == built.first.image("control")["image_id"]


def test_content_label_is_stable(built: Built, workspace: Workspace) -> None:
    def content(image: str) -> str:
        return str(inspect(image)["Config"]["Labels"]["io.rocstack.content"])

    first = {role: content(built.first.image(role)["image_id"]) for role in ("worker", "control")}
    elsewhere = workspace.build()
    assert {role: content(elsewhere.image(role)["image_id"]) for role in first} == first
    assert re.fullmatch(r"[0-9a-f]{64}", first["worker"])
    assert first["worker"] != first["control"]


@pytest.mark.parametrize(
    ("nic", "provider"),
    # Of broadcom's inbox library test_base_image and test_nic_build see the same.
    [("mellanox", "mlx5"), pytest.param("broadcom", "bnxt_re", marks=pytest.mark.slow)],
)
def test_other_nics(built: Built, workspace: Workspace, nic: str, provider: str) -> None:
    started = datetime.now(UTC)
    done = workspace.build("--nic", nic)
    labels = inspect(workspace.reference("worker", nic))["Config"]["Labels"]
    assert labels["io.rocstack.nic"] == nic
    assert labels["io.rocstack.nic.way"] == "inbox"
    assert labels["io.rocstack.nic.kernel-abi"] == "1-1"
    assert labels["io.rocstack.verbs.private-abi"] == "34"
    assert labels["io.rocstack.nic.provider"].endswith(f"/lib{provider}-rdmav34.so")
    found = engine("run", "--rm", workspace.reference("worker", nic), "sha256sum", labels["io.rocstack.nic.provider"])
    assert found.stdout.split()[0] == labels["io.rocstack.nic.provider-sha256"]
    smoke = done.image("worker")["smoke"]
    assert any(provider in line for line in smoke["nic"])
    assert re.fullmatch(r"\d{4} ELF files resolve", smoke["libraries"][0]), "those below the NIC's layer"
    assert "torch all-reduces on gloo" in smoke["pytorch"]
    log = (workspace.folder / done.image("worker")["log"]).read_text()
    assert "tested again" not in log, "its layer changes nothing below it"
    assert len(layers_since(workspace.reference("worker", nic), started)) <= 1, "it has no packages of its own"


def test_plain_lines_without_a_terminal(built: Built) -> None:
    again = built.workspace.run("build")
    assert again.code == 0, again.err
    for text in (again.out, again.err):
        assert "\x1b" not in text
        assert "\r" not in text
    assert again.err.startswith("building worker, control of debian-13 for tcp")
    assert again.err.splitlines()[1:] == ["every step from the cache"]
    for heading in ("COMPONENT", "PACKAGE", "IMAGE"):
        assert re.search(rf"^{heading} +", again.out, re.MULTILINE), heading
    assert re.search(rf"^{re.escape(built.worker)} +built +\d+ MB +\d+\.\d s +[0-9a-f]{{12}}$", again.out, re.MULTILINE)


@pytest.mark.parametrize("columns", [40, 120])
def test_on_a_terminal(built: Built, columns: int) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    here = built.workspace.with_env(TERM="xterm-256color")
    process = here.start("build", stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    text = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        text += chunk
    os.close(master)
    shown = text.decode()
    assert process.wait() == 0, shown
    assert "\x1b[?25l" in shown, "no live display"
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h"), "the cursor is left hidden"
    assert "Traceback" not in shown
    plain = CONTROL_CODE.sub("", shown)
    table = plain[plain.index("worker: what is in it") : plain.index("\nbase ")].splitlines()
    assert max(len(line.rstrip()) for line in table) <= columns


@pytest.mark.slow
def test_without_the_cache_the_image_is_what_was_just_built(private_workspace: Workspace) -> None:
    """And not what an earlier build of the same steps left in the cache."""
    folder = private_workspace.folder / "overlay/components"
    folder.mkdir(parents=True)
    (folder / "munge.j2").write_text("{% block runtime %}\n{{ super() -}}\ndate +%s%N >/etc/made\n{% endblock %}\n")
    seen = []
    for _ in range(2):
        private_workspace.build("--role", "control", "--no-cache", "--overlay", "overlay")
        image = private_workspace.reference("control")
        seen.append(int(engine("run", "--rm", "--entrypoint=cat", image, "/etc/made").stdout))
    assert seen[0] < seen[1]

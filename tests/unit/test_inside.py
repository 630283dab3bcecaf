"""What of rocstack lies in the worker image: it runs there with nothing but Python, and picks the node's provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support import join

from rocstack.node import inside
from rocstack.node.image import Image, Provider
from rocstack.node.nic_settings import NicSettings
from rocstack.node.profile import NodeProfile

FOLDER = "rootfs/worker/usr/local/lib/rocstack/python"
ROOT, NAME = "/opt/rocstack/nic", "libbnxt_re-rdmav34.so"
PROVIDERS = (
    Provider("abi-1", "inbox", "bnxt_re", f"{ROOT}/abi-1/{NAME}", "56.1-1", 34, (1, 1), "a"),
    Provider("abi-6", "source", "bnxt_re", f"{ROOT}/abi-6/{NAME}", "232.0.164.5", 34, (6, 6), "b"),
)
IMAGE = Image("x", "broadcom", "worker", ("bnxt_en", "bnxt_re"), ("14e4:1760",), 34, "2.41", PROVIDERS)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as an image holds it."""
    folder = tmp_path_factory.mktemp("image")
    files = join(nic="broadcom").render().files
    for path, file in files.items():
        if path.startswith(FOLDER):
            target = folder / path.removeprefix(FOLDER + "/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.data)
    return folder


def python(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python without site-packages: what a library brings isn't there."""
    line = [sys.executable, "-I", "-S", str(package), *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_it_needs_nothing_but_python(package: Path) -> None:
    ran = python(package)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "rocstack-node gate" in ran.stdout
    assert python(package, "frobnicate").returncode == 2


def test_every_nic_profile_is_in_it(package: Path) -> None:
    known = [NicSettings.from_dict(row) for row in json.loads((package / "nics.json").read_text())]
    assert [nic.nic for nic in known] == ["ainic", "broadcom", "mellanox", "slingshot", "tcp"]
    broadcom = known[1]
    assert broadcom.provider == "bnxt_re"
    assert "14e4:1760" in broadcom.pci
    assert all(line.source and line.why for nic in known for line in nic.env)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """libibverbs' folder with a link to the first provider; /usr/lib is elsewhere."""
    folder = tmp_path / "x86_64-linux-gnu/libibverbs"
    folder.mkdir(parents=True)
    link = folder / "libbnxt_re-rdmav34.so"
    link.symlink_to(PROVIDERS[0].path or "")
    monkeypatch.setattr(inside, "LIBRARIES_FOLDER", tmp_path)
    return link


def test_the_nodes_provider_is_linked(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside.choose(IMAGE, "abi-6")
    assert os.readlink(own) == PROVIDERS[1].path
    assert capsys.readouterr().err == "rocstack: bnxt_re 232.0.164.5 (kernel ABI 6-6) for this node\n"
    inside.choose(IMAGE, "abi-1")
    assert os.readlink(own) == PROVIDERS[0].path
    assert sorted(path.name for path in own.parent.iterdir()) == [own.name]


def test_without_the_right_to_link_it_is_named(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, target: str) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "symlink_to", denied)
    assert inside.choose(IMAGE, "abi-6") == "\nRDMAV_DRIVERS=/opt/rocstack/nic/abi-6/libbnxt_re\n"
    assert os.readlink(own) == PROVIDERS[0].path


def test_an_image_with_one_provider_needs_no_choice(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside.choose(replace(IMAGE, providers=PROVIDERS[:1]), "abi-1")
    assert capsys.readouterr().err == ""


def test_the_containers_own_variables_win(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "NICS", package / "nics.json")
    image, node = Image("x", "tcp"), NodeProfile(1, "n1")
    assert inside.environment(node, image, {}, {}).env == {"NCCL_IB_DISABLE": "1"}
    mine = inside.environment(node, image, {}, {"NCCL_IB_DISABLE": "0", "HOME": "/root"})
    assert mine.env == {"NCCL_IB_DISABLE": "0"}


def test_the_environment_file_goes_where_the_user_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "PATH", str(tmp_path / "no-such-folder/fabric.env"))
    path = inside.write_env("A=1\n")
    assert Path(path).read_text() == "A=1\n"
    assert Path(path).stat().st_mode & 0o777 == 0o600
    Path(path).unlink()


def test_tasks_get_what_they_did_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fabric.env"
    file.write_text("# why\nNCCL_NET='AWS Libfabric'\nNCCL_IB_TC=104\n")
    monkeypatch.setattr(inside, "PATH", str(file))
    monkeypatch.setenv("NCCL_IB_TC", "96")
    assert inside.main(["env", "--task"]) == 0
    assert capsys.readouterr().out == "export NCCL_NET=AWS Libfabric\n"

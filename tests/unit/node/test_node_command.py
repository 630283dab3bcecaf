"""What of rocstack lies in the worker image: it runs there with nothing but Python, and picks the node's provider."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from resolved_stack import join

from rocstack.node import (
    node_command,
    own_folder,
    rdma_check,
    start_gate,
    start_options,
)
from rocstack.node.fabric import Fabric, parse_env
from rocstack.node.gate import FITS, UNFIT, UNKNOWN, GateFinding, GateVerdict
from rocstack.node.image_facts import ImageFacts, ImageProvider
from rocstack.node.nic_settings import NicSettings
from rocstack.node.profile import NodeProfile, Unread, Verbs
from rocstack.node.rdma_check import DeviceCheck

FOLDER = "rootfs/worker/usr/local/lib/rocstack/python"
ROOT, NAME = "/opt/rocstack/nic", "libbnxt_re-rdmav34.so"
PROVIDERS = (
    ImageProvider("abi-1", "inbox", "bnxt_re", f"{ROOT}/abi-1/{NAME}", "56.1-1", 34, (1, 1), "a"),
    ImageProvider("abi-6", "source", "bnxt_re", f"{ROOT}/abi-6/{NAME}", "232.0.164.5", 34, (6, 6), "b"),
)
VERBS = b"libibverbs of the image"
IMAGE = ImageFacts(
    "x", "broadcom", "worker", ("bnxt_en", "bnxt_re"), ("14e4:1760",), 34, hashlib.sha256(VERBS).hexdigest(), "2.41",
    (), PROVIDERS,
)  # fmt: skip


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
    """libibverbs' folder with a link to the first of two providers; /usr/lib and /opt are elsewhere."""
    folder = tmp_path / "x86_64-linux-gnu/libibverbs"
    folder.mkdir(parents=True)
    (folder.parent / "libibverbs.so.1").write_bytes(VERBS)
    monkeypatch.setattr(start_gate, "libibverbs_file", lambda: folder.parent / "libibverbs.so.1")
    link = folder / NAME
    link.symlink_to(PROVIDERS[0].path or "")
    monkeypatch.setattr(start_gate, "LIBRARIES", tmp_path)
    monkeypatch.setattr(start_gate, "NEWER_RDMA_CORE", tmp_path / "newer")
    monkeypatch.delenv("RDMAV_DRIVERS", raising=False)
    return link


def test_the_nodes_provider_is_linked(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert node_command.link_node_provider(IMAGE, "abi-6") == ""
    assert os.readlink(own) == PROVIDERS[1].path
    assert capsys.readouterr().err == "rocstack: bnxt_re 232.0.164.5 (kernel ABI 6-6) for this node\n"
    node_command.link_node_provider(IMAGE, "abi-1")
    assert os.readlink(own) == PROVIDERS[0].path
    assert sorted(path.name for path in own.parent.iterdir()) == [own.name]


def test_without_the_right_to_link_it_is_named(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, target: str) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "symlink_to", denied)
    assert start_gate.link_provider(IMAGE, "abi-6") == "/opt/rocstack/nic/abi-6/libbnxt_re"
    assert os.readlink(own) == PROVIDERS[0].path


def test_an_image_with_one_provider_needs_no_choice(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert node_command.link_node_provider(replace(IMAGE, providers=PROVIDERS[:1]), "abi-1") == ""
    assert capsys.readouterr().err == ""


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def files(own: Path, tmp_path: Path) -> ImageFacts:
    """An image whose two providers are real files; libibverbs' folder links to the first."""
    made = []
    for provider in PROVIDERS:
        file = tmp_path / provider.place / NAME
        file.parent.mkdir()
        file.write_bytes(provider.place.encode())
        made.append(replace(provider, path=str(file), sha256=sha(provider.place.encode())))
    own.unlink()
    own.symlink_to(str(made[0].path))
    return replace(IMAGE, providers=tuple(made))


def verdict(result: str = FITS, place: str | None = "abi-1") -> GateVerdict:
    return GateVerdict("n1", "x", result, (GateFinding(result, "as judged"),), place, None)


def test_the_file_that_libibverbs_loads_is_the_one_that_was_judged(files: ImageFacts, own: Path) -> None:
    assert start_gate.check_loaded_files(files, verdict(), {}) == verdict()
    wrong = start_gate.check_loaded_files(files, verdict(place="abi-6"), {})
    assert wrong.result == UNFIT
    assert f"libibverbs would load {own.resolve()}, the node needs {files.providers[1].path}" in wrong.sentence
    by_name = {"RDMAV_DRIVERS": f"mlx5;{str(files.providers[1].path).rpartition('-rdmav')[0]}"}
    assert start_gate.check_loaded_files(files, verdict(place="abi-6"), by_name).result == FITS
    assert start_gate.check_loaded_files(files, verdict(), by_name).result == UNFIT
    by_older_name = {"IBV_DRIVERS": by_name["RDMAV_DRIVERS"]}
    assert start_gate.check_loaded_files(files, verdict(), by_older_name).result == UNFIT
    both = {**by_older_name, "RDMAV_DRIVERS": ""}  # the older one isn't read then
    assert start_gate.check_loaded_files(files, verdict(), both).result == FITS


@pytest.mark.parametrize("result", [FITS, UNKNOWN])
def test_another_file_in_its_place_does_not_fit(result: str, files: ImageFacts, own: Path) -> None:
    one = replace(files, providers=files.providers[:1])
    own.resolve().write_bytes(b"of the host")
    found = start_gate.check_loaded_files(one, verdict(result), {})
    assert found.result == UNFIT
    assert f"would load {own.resolve()}, which is not the bnxt_re that the image was built with" in found.sentence
    own.unlink()
    assert f"libibverbs' folder has no {NAME}" in start_gate.check_loaded_files(one, verdict(result), {}).sentence


def test_what_is_in_no_manifest_is_not_compared(files: ImageFacts, own: Path) -> None:
    own.resolve().write_bytes(b"of the host")
    host = replace(files.providers[0], way="host", sha256=None)
    assert start_gate.check_loaded_files(replace(files, providers=(host,)), verdict(UNKNOWN), {}) == verdict(UNKNOWN)
    unnamed = replace(files.providers[0], sha256=None)
    assert start_gate.check_loaded_files(replace(files, providers=(unnamed,)), verdict(), {}).result == UNKNOWN


@pytest.mark.parametrize("way", ["inbox", "host"])
@pytest.mark.parametrize("result", [FITS, UNKNOWN])
def test_an_upgraded_libibverbs_does_not_fit(way: str, result: str, files: ImageFacts, own: Path) -> None:
    """It loads files of its own private ABI; those that were judged are still there."""
    one = replace(files, providers=(replace(files.providers[0], way=way),))
    verbs = own.parents[1] / "libibverbs.so.1"
    verbs.write_bytes(b"of rdma-core 59")
    (own.parent / NAME.replace("34", "59")).write_bytes(b"inbox of rdma-core 59")
    found = start_gate.check_loaded_files(one, verdict(result), {})
    assert found.result == UNFIT
    assert f"takes {verbs}, which is not the libibverbs that the image was built with" in found.sentence
    assert "an upgrade of rdma-core needs a new build" in found.sentence
    verbs.unlink()
    assert "libibverbs can't be loaded" in start_gate.check_loaded_files(one, verdict(result), {}).sentence


def test_an_image_that_does_not_name_its_libibverbs(files: ImageFacts, own: Path) -> None:
    unnamed = replace(files, verbs_sha256=None)
    found = start_gate.check_loaded_files(unnamed, verdict(), {})
    assert (found.result, "which file its libibverbs is" in found.sentence) == (UNKNOWN, True)
    assert start_gate.check_loaded_files(unnamed, verdict(UNKNOWN), {}) == verdict(UNKNOWN)
    own.resolve().write_bytes(b"of the host")
    assert start_gate.check_loaded_files(unnamed, verdict(), {}).result == UNFIT
    assert start_gate.check_loaded_files(replace(unnamed, providers=()), verdict(), {}) == verdict()


def test_the_file_that_the_loader_takes(tmp_path: Path) -> None:
    """A real library under that name, by a link: the loader itself is asked."""
    source = tmp_path / "v.c"
    source.write_text("int ibv_fork_init(void) { return 0; }\n")
    real, link = tmp_path / "libibverbs.so.1.15.59.0", tmp_path / "libibverbs.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-o", real, source], check=True)
    link.symlink_to(real.name)
    ask = "from rocstack.node.rdma_check import libibverbs_file; print(libibverbs_file())"
    for folder in (tmp_path, tmp_path / "gone"):
        ran = subprocess.run(
            [sys.executable, "-c", ask],
            env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
            capture_output=True,
            text=True,
        )
        assert (ran.stdout == f"{real}\n") == (folder == tmp_path), ran.stderr


def test_a_newer_rdma_core_has_its_own_folder(files: ImageFacts, tmp_path: Path) -> None:
    newer = tmp_path / "newer/libibverbs" / NAME
    newer.parent.mkdir(parents=True)
    (newer.parents[1] / "libibverbs.so.1").touch()
    newer.write_bytes(b"another")
    assert f"would load {newer}" in start_gate.check_loaded_files(files, verdict(), {}).sentence


def computed(environ: dict[str, str], nic: str = "tcp") -> Fabric:
    return node_command.environment(
        NodeProfile(1, "n1"), ImageFacts("x", nic), {}, environ, start_options.read_options(environ)
    )


def test_the_containers_own_variables_win(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_command, "NICS", package / "nics.json")
    assert computed({}).env == {"NCCL_IB_DISABLE": "1"}
    assert computed({"NCCL_IB_DISABLE": "0", "HOME": "/root"}).env == {"NCCL_IB_DISABLE": "0"}
    assert computed({"NCCL_IB_DISABLE": "0\n1"}).env == {}, "what no file can hold stays as it is"
    with pytest.raises(LookupError, match="no NIC profile mine"):
        computed({}, "mine")


def test_the_controller_is_asked_for_once(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_command, "NICS", package / "nics.json")
    asked: list[str] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, *_, **__: asked.append(name) or [])
    warnings = computed({"ROCSTACK_CONTROLLER": "ctl:6817"}).warnings
    assert asked == ["ctl"]
    assert "ROCSTACK_CONTROLLER: ctl did not resolve within 2 s" in warnings


def test_the_environment_is_written_where_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    first, second = tmp_path / "file/fabric.env", tmp_path / "run/fabric.env"
    monkeypatch.setattr(node_command, "ENV_FILES", (str(first), str(second)))
    assert node_command.write_env("A=1\n")
    assert node_command.read_env() == {"A": "1"}
    assert second.read_text() == "A=1\n"
    monkeypatch.setattr(node_command, "ENV_FILES", (str(first),))
    assert not node_command.write_env("A=1\n")


@dataclass
class Place:
    """A container's files, and what it finds there."""

    folder: Path
    patch: pytest.MonkeyPatch
    tried: list[str] = field(default_factory=list)

    def is_of(self, image: ImageFacts, node: NodeProfile, *proofs: DeviceCheck) -> None:
        class Stand:
            def prove(stand, names: list[str] | None, **_: int) -> list[DeviceCheck]:
                self.tried.extend(names or ["every"])
                return list(proofs)

        self.patch.setattr(node_command, "read_image", lambda: (image, {}))
        self.patch.setattr(node_command, "read_node", lambda: node)
        self.patch.setattr(rdma_check, "LibVerbs", Stand)

    def start(self, **environ: str) -> int:
        for name, value in environ.items():
            self.patch.setenv(name, value)
        return node_command.main(["start", "--daemons"])

    @property
    def gate(self) -> str:
        return (self.folder / "gate").read_text()


@pytest.fixture
def place(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(node_command, "NICS", package / "nics.json")
    monkeypatch.setattr(node_command, "ENV_FILES", (str(tmp_path / "fabric.env"),))
    monkeypatch.setattr(start_gate, "DECISION_PATH", str(tmp_path / "gate"))
    for name in ("ROCSTACK_GATE", "ROCSTACK_DATA_SUBNETS", "ROCSTACK_CONTROLLER"):
        monkeypatch.delenv(name, raising=False)
    return Place(tmp_path, monkeypatch)


@pytest.fixture
def one(files: ImageFacts) -> ImageFacts:
    """Both devices of NODE are its own."""
    return replace(files, providers=files.providers[:1])


MINE = tuple(Verbs(f"bnxt_re{i}", f"uverbs{i}", True, 1, "bnxt_re", None, None, None, (), ()) for i in (0, 1))
OTHER = replace(MINE[0], name="mlx5_0", driver="mlx5_ib")
NODE = NodeProfile(1, "n1", verbs=(*MINE, OTHER), unread=(Unread("libraries", "the image has its own"),))
GOOD = tuple(DeviceCheck(device.name, queue_pairs=1, wanted=1) for device in MINE)
BAD = DeviceCheck("bnxt_re1", "it can't be opened: Invalid argument")


def test_daemons_start_where_every_device_works(
    place: Place, one: ImageFacts, capsys: pytest.CaptureFixture[str]
) -> None:
    place.is_of(one, NODE, *GOOD)
    assert place.start() == 0
    assert place.tried == ["bnxt_re0", "bnxt_re1"], "not the card for management"
    assert place.gate == "fits n1: kernel ABI 1, bnxt_re 56.1-1 supports 1-1\n"
    out = capsys.readouterr()
    assert parse_env(out.out) == parse_env((place.folder / "fabric.env").read_text()) != {}
    assert "bnxt_re1: device, PD, CQ and 1 queue pair work" in out.err
    place.is_of(one, NODE, GOOD[0], BAD)
    assert place.start() == 1
    assert "bnxt_re1: it can't be opened" in capsys.readouterr().err
    assert place.gate.startswith("refuse n1: ")


def test_start_and_gate_look_at_the_file_itself(place: Place, one: ImageFacts, own: Path) -> None:
    own.resolve().write_bytes(b"of the host")
    place.is_of(one, NODE, *GOOD)
    assert place.start() == 1
    assert node_command.main(["gate"]) == 1
    assert place.tried == []
    assert "which is not the bnxt_re that the image was built with" in place.gate


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"nic": None, "providers": ()}, "the image has no rocstack labels"),
        ({"modules": (), "providers": ()}, "the image does not say which drivers broadcom NICs have"),
        ({"providers": ()}, "the image does not say which provider it holds"),
        ({"modules": ()}, "the image does not say which drivers broadcom NICs have"),
    ],
)
def test_what_is_not_known_is_not_started(
    changes: dict[str, Any], says: str, place: Place, one: ImageFacts, capsys: pytest.CaptureFixture[str]
) -> None:
    place.is_of(replace(one, **changes), NODE, *GOOD)
    assert place.start() == 1
    assert f"unknown: n1: {says}" in capsys.readouterr().err
    assert place.tried == []


def test_a_trial_makes_the_unknown_known(place: Place, one: ImageFacts, capsys: pytest.CaptureFixture[str]) -> None:
    """The host's library is mounted: only that it works tells that it fits."""
    image = replace(one, providers=(replace(one.providers[0], way="host", path=None, sha256=None),))
    place.is_of(image, NODE, *GOOD)
    assert node_command.main(["gate"]) == 2
    assert place.start() == 0
    assert place.gate.startswith("proved n1: ")
    assert node_command.main(["gate"]) == 0
    place.is_of(image, NODE, GOOD[0], BAD)
    assert place.start() == 1
    assert node_command.main(["gate"]) == 2
    hidden = replace(NODE, unread=(*NODE.unread, Unread("/sys/class/infiniband", "no permission")))
    place.is_of(image, hidden, *GOOD)
    assert place.start() == 1, "of devices that could not be read none was tried"
    place.is_of(image, replace(NODE, verbs=(replace(MINE[0], driver=None),)), GOOD[0])
    place.tried.clear()
    assert place.start() == 0
    assert place.tried == ["bnxt_re0"], "whose driver is not known may be the image's"


def test_virtual_devices_can_not_be_tried(place: Place, one: ImageFacts, capsys: pytest.CaptureFixture[str]) -> None:
    node = replace(NODE, virtual="m")
    place.is_of(one, node)
    assert place.start() == 0
    assert "virtual m: its devices can't be opened, none was tried" in capsys.readouterr().err
    place.is_of(replace(one, private_abi=None), node)
    assert place.start() == 1
    assert node_command.main(["prove"]) == 1
    assert place.tried == []


UNFITTING = replace(NODE, verbs=tuple(replace(device, kernel_abi=6) for device in MINE))


@pytest.mark.parametrize(
    ("gate", "code", "word", "said"),
    [
        ("", 1, "refuse", "doesn't fit"),
        ("refuse", 1, "refuse", "doesn't fit"),
        ("warn", 0, "warn", "doesn't fit"),
        ("off", 0, "off", ""),
    ],
)
def test_what_the_gate_is_told(
    gate: str, code: int, word: str, said: str, place: Place, one: ImageFacts, capsys: pytest.CaptureFixture[str]
) -> None:
    place.is_of(one, UNFITTING)
    assert place.start(ROCSTACK_GATE=gate) == code
    assert place.gate.startswith(f"{word} n1: kernel ABI 6")
    err = capsys.readouterr().err
    assert said in err
    assert bool(said) == ("kernel ABI" in err)
    assert node_command.main(["gate"]) == 1, "the gate itself stays with what it found"
    assert place.tried == []


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ROCSTACK_GATE", "Warn", "ROCSTACK_GATE=Warn: it is refuse, warn or off"),
        ("ROCSTACK_GATE", "0", "ROCSTACK_GATE=0: it is refuse, warn or off"),
        ("ROCSTACK_DATA_SUBNETS", "10.1.0.0/16,10.1.2.0/16", "10.1.2.0/16 has bits set behind the prefix"),
        ("ROCSTACK_DATA_SUBNETS", "here", "'here' is no network"),
        ("ROCSTACK_CONTROLLER", "ctl:port", "'ctl:port' is no HOST[:PORT]"),
        ("ROCSTACK_CONTROLLER", "[ctl]:1", "'[ctl]:1' is no HOST[:PORT]"),
        ("ROCSTACK_CONTROLLER", "a,,b", "'' is no HOST[:PORT]"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(
    name: str, value: str, says: str, place: Place, one: ImageFacts, capsys: pytest.CaptureFixture[str]
) -> None:
    place.is_of(one, NODE, *GOOD)
    assert place.start(**{name: value}) == 2
    found = capsys.readouterr()
    assert name in found.err
    assert says in found.err
    assert found.out == ""
    assert node_command.main(["start"]) == 0, "a command runs"
    found = capsys.readouterr()
    assert says in found.err
    assert "GLOO" in found.out or "NCCL" in found.out


def test_what_fails_does_not_read_as_unfitting(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise json.JSONDecodeError("Expecting value", "", 0)

    place.patch.setattr(node_command, "read_image", broken)
    for arguments in (["start"], ["start", "--daemons"], ["gate"], ["env"], ["prove"]):
        assert node_command.main(arguments) == 3
        err = capsys.readouterr().err
        assert err.startswith("rocstack: this node could not be inspected: JSONDecodeError: Expecting value")
        assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["prove", "--all", "--mnay"], ["gate", "--task"], ["start", "now"], ["strat"]])
def test_unknown_words_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert node_command.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"rocstack: no {'command' if arguments == ['strat'] else 'option'} ")


def test_prove_by_hand(place: Place, one: ImageFacts) -> None:
    place.is_of(one, NODE, *GOOD)
    assert node_command.main(["prove", "--many"]) == 0
    assert place.tried == ["bnxt_re0", "bnxt_re1"]
    assert node_command.main(["prove", "--all"]) == 0
    assert place.tried[2:] == ["every"]
    place.is_of(replace(one, providers=(), nic="tcp"), NODE, *GOOD)
    assert node_command.main(["prove"]) == 1


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("ctl", ["ctl"]),
        ("ctl:6817", ["ctl"]),
        ("10.0.0.1:6817", ["10.0.0.1"]),
        ("[::1]:6817", ["::1"]),
        ("[fd00::12]", ["fd00::12"]),
        ("fd00::12", ["fd00::12"]),
        ("ctl1:6817, ctl2", ["ctl1", "ctl2"]),
    ],
)
def test_the_controllers_hosts(text: str, hosts: list[str]) -> None:
    assert start_options.controller_hosts(text) == hosts


def test_the_first_that_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "both": [(socket.AF_INET6, 0, 0, "", ("fd00::1", 0)), (socket.AF_INET, 0, 0, "", ("10.0.0.1", 0))],
        "six": [(socket.AF_INET6, 0, 0, "", ("fe80::1%eth0", 0))],
    }

    def ask(name: str, *_: object, **__: object) -> object:
        if name == "long":
            raise UnicodeError
        if name not in table:
            raise socket.gaierror
        return table[name]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    assert start_options.resolve_first(["gone", "long", "both", "six"]) == "10.0.0.1", "IPv4 first, as Slurm"
    assert start_options.resolve_first(["six"]) == "fe80::1"
    assert start_options.resolve_first(["gone", "10.0.0.2"]) == "10.0.0.2"
    assert start_options.resolve_first(["fe80::1%eth0"]) == "fe80::1%eth0", "as it was written"
    assert start_options.resolve_first(["gone"]) is None


def test_a_dead_name_server_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_options, "RESOLVE_TIMEOUT_S", 0.1)
    answer, answered = threading.Event(), threading.Event()

    def ask(*_: object, **__: object) -> list[object]:
        answer.wait(60)
        answered.set()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    assert start_options.resolve_first(["a", "b", "c", "::1"]) == "::1"
    assert not answered.is_set(), "it waited for the answer"
    answer.set()


def test_tasks_get_what_they_did_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fabric.env"
    file.write_text("# why\nNCCL_NET='AWS Libfabric'\nNCCL_IB_TC=104\n")
    monkeypatch.setattr(node_command, "ENV_FILES", (str(tmp_path / "none"), str(file)))
    monkeypatch.setenv("NCCL_IB_TC", "96")
    monkeypatch.setattr(own_folder, "SHARED", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert node_command.main(["env", "--task"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "export NCCL_NET=AWS Libfabric",
        f"export TMPDIR={tmp_path}/rocstack-{os.getuid()}",
    ]


def test_a_task_without_the_file_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fabric.env"
    monkeypatch.setattr(node_command, "ENV_FILES", (str(file),))
    monkeypatch.setattr(own_folder, "SHARED", str(tmp_path / "none"))
    monkeypatch.delenv("TMPDIR", raising=False)
    assert node_command.main(["env", "--task"]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 3)
    assert f"there is no {file}" in said.err
    assert "no folder of this user's own for temporary files" in said.err
    assert "no rendezvous for this task: KeyError: 'SLURM_JOB_NUM_NODES'" in said.err
    file.write_text("A='\n")
    assert node_command.main(["env", "--task"]) == 0
    assert "can't be read" in capsys.readouterr().err

"""`rocstack probe` from the command line: this host, recordings, and nodes that answer or don't."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_run import Cli, listing

from rocstack.base.errors import BadInput
from rocstack.edge import ansible
from rocstack.edge.ansible import HostRun
from rocstack.node import parse
from rocstack.node.profile import Library, NodeProfile, Verbs
from rocstack.node.recording import Recording
from rocstack.probe import recordings as probe
from rocstack.probe import summary
from rocstack.probe.classes import traits
from rocstack.probe.profiles import read_profiles, write_profiles
from rocstack.virtual import machine, model, tree

LOCAL = f"ansible_connection=local ansible_python_interpreter={sys.executable}"


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Three virtual nodes; the third has another card."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    for number, name in enumerate(("mi300x-thor2", "mi300x-thor2", "mi300x-cx7"), 1):
        found = tree.record(machine.expand(model.load(name), number))
        (folder / f"{found.host}.json").write_text(json.dumps(found.to_dict()))
    return folder


def test_this_host(cli: Cli) -> None:
    ran = cli("probe", "--json")
    assert ran.code == 0, ran.err
    (node,) = ran.json()["profiles"]
    assert node["system"]["kernel"] == Path("/proc/sys/kernel/osrelease").read_text().strip()
    assert node["virtual"] is None
    text = cli("probe")
    assert text.code == 0
    assert f"kernel {node['system']['kernel']}" in text.out
    assert "virtual" not in text.out.splitlines()[0]


def test_one_node_is_described_and_drawn(cli: Cli, recordings: Path) -> None:
    ran = cli("probe", "--replay", str(recordings / "n1.json"))
    assert ran.code == 0, ran.err
    assert ran.out.startswith("n1 (virtual mi300x-thor2)\n")
    assert "8 × AMD Instinct MI300X OAM gfx942" in ran.out
    assert "8 × bnxt_re, kernel ABI 6" in ran.out
    assert "├─ GPU 0" in ran.out
    assert "→ bnxt_re0, same switch" in ran.out


def test_several_nodes_are_a_table_with_what_differs(cli: Cli, recordings: Path, tmp_path: Path) -> None:
    ran = cli("probe", "--replay", str(recordings), "--out", "nodes.json")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].split()[:4] == ["NODE", "SYSTEM", "GPUS", "NICS"]
    cells = "8 × MI300X gfx942|8 × broadcom 400G|bnxt_en 232.0.164.5|231.2.63.0|6|none|no fault seen"
    assert re.split(" {2,}", lines[1])[2:] == cells.split("|")
    assert [line.split()[0] for line in lines[1:4]] == ["n1", "n2", "n3"]
    assert all("(virtual " in line for line in lines[1:4])
    assert "2 nodes alike: n1, n2" in lines
    assert any(line.startswith("kernel ABI: n3: 1; n1, n2: 6") for line in lines)
    assert "3 node profiles: nodes.json" in ran.err
    assert [node.name for node in read_profiles(tmp_path / "nodes.json")] == ["n1", "n2", "n3"]
    assert cli("probe", "--replay", str(recordings), "--json").json() == json.loads(
        (tmp_path / "nodes.json").read_text()
    )
    drawn = cli("probe", "--replay", str(recordings), "--draw", "n3")
    assert "mlx5_0" in drawn.out
    wrong = cli("probe", "--replay", str(recordings), "--draw", "n33", "--json")
    assert wrong.code == 2
    assert wrong.json()["error"]["code"] == "unknown-node"
    assert "'n3'" in wrong.json()["error"]["what"]


def test_narrow(cli: Cli, recordings: Path) -> None:
    ran = cli("probe", "--replay", str(recordings / "n1.json"), env={"COLUMNS": "60"})
    drawing = ran.out[ran.out.index("GPUs and NICs") :]
    assert max(map(len, drawing.splitlines())) <= 60


def test_a_recording_is_masked_and_replays(cli: Cli, recordings: Path, tmp_path: Path) -> None:
    ran = cli("probe", "--replay", str(recordings), "--record", "masked")
    assert ran.code == 0, ran.err
    assert "n2 is recorded as masked/node-2.json" in ran.err
    assert sorted(path.name for path in (tmp_path / "masked").iterdir()) == [
        name for n in (1, 2, 3) for name in (f"node-{n}", f"node-{n}.json")
    ]
    before, after = probe.read_recordings(recordings), probe.read_recordings(tmp_path / "masked")
    assert list(map(traits, probe.profiles(after))) == list(map(traits, probe.profiles(before)))
    from_tree = probe.probe_host(str(tmp_path / "masked" / "node-1"))
    assert [gpu.pci for gpu in from_tree.gpus] == [gpu.pci for gpu in probe.profiles(before)[0].gpus]
    again = cli("probe", "--replay", str(recordings), "--record", "masked")
    assert again.code == 2
    assert "holds other files" in again.err


def test_environment(cli: Cli, recordings: Path) -> None:
    ran = cli("probe", "--replay", str(recordings), "--env")
    assert ran.code == 0, ran.err
    assert ran.out.count("NCCL_IB_HCA==bnxt_re0:1,") == 2
    assert ran.out.count("NCCL_IB_HCA==mlx5_0:1,") == 1
    assert "# Virtual node, model mi300x-cx7" in ran.out
    assert "NIC profile differs" in ran.err
    data = cli("probe", "--replay", str(recordings / "n1.json"), "--env", "--json").json()
    assert data["fabrics"][0]["nic"] == "broadcom"
    assert all(line["reason"] for line in data["fabrics"][0]["lines"])
    forced = cli("probe", "--replay", str(recordings / "n1.json"), "--env", "--nic", "tcp")
    assert "NIC profile tcp" in forced.out
    assert cli("probe", "--env", "--nic", "brodcom").code == 2


BAD = {
    "both": (("inv", "--replay", "x"), "one-source"),
    "out into nowhere": (("--out", "nowhere/nodes.json"), "no-folder"),
    "out is a folder": (("--out", "."), "no-file"),
    "no inventory": (("nope.yml",), "no-inventory"),
    "no recording": (("--replay", "nope.json"), "no-file"),
    "empty folder": (("--replay", "empty"), "no-file"),
    "no root": (("--root", "nope"), "no-folder"),
    "recording of another schema": (("--replay", "schema.json"), "bad-recording"),
    "no recording at all": (("--replay", "list.json"), "bad-recording"),
    "recording cut off": (("--replay", "cut.json"), "bad-recording"),
    "recording in pieces": (("--replay", "pieces.json"), "bad-recording"),
    "node profiles are no recording": (("--replay", "nodes.json"), "bad-recording"),
    "record over something": (("--record", "."), "not-empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_changes_nothing(case: str, cli: Cli, tmp_path: Path) -> None:
    words, code = BAD[case]
    (tmp_path / "inv").write_text(f"n1 {LOCAL}\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "schema.json").write_text('{"schema": 9, "host": "n1"}')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "nodes.json").write_text('{"schema": 1, "profiles": []}')
    (tmp_path / "cut.json").write_text('{"schema": 1, "host": ')
    (tmp_path / "pieces.json").write_text('{"schema": 1, "host": "n1", "files": 3}')
    before = listing(tmp_path)
    ran = cli("probe", *words, "--json")
    assert ran.code == 2, ran.err
    assert ran.json()["error"]["code"] == code
    assert ran.json()["error"]["next"]
    assert listing(tmp_path) == before


def test_an_inventory_with_a_node_that_is_gone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "inv").write_text(f"a[1:2] {LOCAL}\ngone ansible_host=127.0.0.1 ansible_port=1\n")
    ran = cli("probe", "inv", "--out", "nodes.json", "--json")
    assert ran.code == 1
    assert "gone: unreachable: " in ran.err
    assert "refused" in ran.err
    found = read_profiles(tmp_path / "nodes.json")
    assert [node.name for node in found] == ["a1", "a2"], "the inventory's names"
    assert ran.json() == json.loads((tmp_path / "nodes.json").read_text())
    assert found[0].system.kernel == Path("/proc/sys/kernel/osrelease").read_text().strip()
    (tmp_path / "nodes.json").unlink()
    drawn = cli("probe", "inv", "--out", "nodes.json", "--draw", "gone")
    assert drawn.code == 2
    assert "no node 'gone' was read: unreachable: ssh:" in drawn.err
    assert len(read_profiles(tmp_path / "nodes.json")) == 2, "what was read is kept"


def test_rdma_in_software_is_called_so(cli: Cli, tmp_path: Path) -> None:
    node = NodeProfile(1, "n1", verbs=(Verbs("rxe0", kernel_abi=1, driver="rdma_rxe"),))
    write_profiles(tmp_path / "nodes.json", [node])
    assert summary.facts(node)["RDMA"] == "1 × rdma_rxe (RDMA in software), kernel ABI 1"
    assert summary.cells(node)[-1] == "RDMA in software: rxe0"
    libraries = (Library("/usr/lib64/libfabric.so.1", "libfabric", "1.22.0"), Library("/x.so", "bnxt_re", "232"))
    told = summary.facts(replace(node, libraries=libraries))["libraries"]
    assert told == "libfabric 1.22.0, bnxt_re 232 (kernel ABI not read)"
    said = cli("doctor", "--profiles", "nodes.json")
    assert "RDMA in software, no card: n1: rxe0" in said.out
    assert cli("doctor", "--profiles", "nodes.json", "--json").json()["software"] == {"n1": ["rxe0"]}


def packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode())).decode()


ANSWERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "no base64": {"recording": "!"},
    "no gzip": {"recording": "AAAA"},
    "no JSON": {"recording": packed("x")},
    "no recording": {"recording": packed("[]")},
    "deep": {"recording": packed("[" * 200_000)},
    "another schema": {"recording": packed('{"schema": 2}')},
    "a bomb": {"recording": packed("x" * 20_000_000)},
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_node_that_answers_nonsense_fails_alone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good = json.dumps(tree.record(machine.expand(model.load("mi300x-thor2"))).to_dict())
    runs = (
        HostRun("n2", "ok", results={probe.TASK: ANSWERS[case]}),
        HostRun("n10", "ok", results={probe.TASK: {"recording": packed(good)}}),
        HostRun("n1", "failed", "no python"),
    )
    monkeypatch.setattr(ansible, "run", lambda *_, **__: runs)
    monkeypatch.setattr(probe, "LARGEST", 10_000_000)
    found = probe.record_inventory(Path("inv"))
    assert [node.name for node in probe.profiles(found.recordings)] == ["n10"]
    assert [(each.node, each.state) for each in found.failures] == [("n1", "failed"), ("n2", "failed")]
    assert found.failures[0].reason == "no python"


def test_root_must_be_a_folder() -> None:
    with pytest.raises(BadInput, match="no folder"):
        probe.probe_host("/nonexistent")


@pytest.mark.parametrize("folder", ["/opt/rocm", "/opt/rocm/core"])  # AMD's packages, before and since ROCm 10
def test_the_hosts_rocm(folder: str) -> None:
    assert parse.tools(Recording(files={f"{folder}/.info/version": "10.0.0\n"})) == {"rocm": "10.0.0"}

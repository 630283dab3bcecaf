"""The checks of nodes, GPUs and fabric: each turns red by its own faults (data/verify/faults.yml), and by no other."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from replay import good, red, replay

from rocstack import probe
from rocstack.node import read
from rocstack.verify import suite
from rocstack.verify.cluster import usual
from rocstack.virtual import faults, machine, model, tree

FILES = ("test_nodes.py", "test_gpus.py", "test_gpu_jobs.py", "test_topology.py")
FILES += ("test_fabric.py", "test_fabric_jobs.py")
FAULTS = yaml.safe_load((Path(__file__).parent / "data/verify/faults.yml").read_text())
CASES = [(check, row) for check, rows in FAULTS.items() for row in rows]
KINDS = probe.kinds()
# Evidence about nodes; what was computed and sent between them no fault here could change.
JUDGED = ("cluster", "in_jobs", "on_hosts", "gpu_jobs", "controller", "in_containers", "credentials", "secrets")
# What a fault of rocstack.virtual changes of a profile; the rest is the machine's under the virtual node.
PARTS = ("gpus", "nics", "netdevs", "verbs", "affinity", "modules", "amdgpu")


def own() -> set[str]:
    texts = ((suite.checks() / name).read_text() for name in FILES)
    return {name for text in texts for name in re.findall(r'^    name="([^"]+)"', text, re.MULTILINE)}


def recorded() -> dict[str, Any]:
    return {key: value for key, value in good().items() if key in JUDGED}


def real(evidence: dict[str, Any]) -> dict[str, Any]:
    """The recorded nodes as if they had their hardware: what a virtual node can't say is what a healthy one says."""
    labels = evidence["cluster"]["labels"]
    provider = {"driver": "bnxt_re", "way": "host", "private_abi": 34, "kernel_abi": [1, 6]}
    labels |= {"io.rocstack.nic": "broadcom", "io.rocstack.nic.providers": json.dumps([provider])}
    for node in evidence["cluster"]["nodes"]:
        profile, name = node["profile"], node["name"]
        node["virtual"] = profile["virtual"] = None
        node["cpus"], node["memory"] = profile["system"]["cpus"], profile["system"]["memory"]
        evidence["in_jobs"][name] |= {"memlock": -1, "shm": 800 << 30}
        host = evidence["on_hosts"][name]
        host |= {"log": ["[ 7.1] amdgpu 0000:05:00.0: amdgpu: SMU is initialized successfully!"], "processes": {}}
        for function in host["pci"].values():
            function |= {"fatal": False, "acs": 0, "bytes": 4096}
        evidence["controller"]["settings"] |= {"TaskPlugin": "task/cgroup,task/affinity", "ConstrainDevices": "yes"}
        own, *others = [f"/dev/dri/renderD{gpu['render_minor']}" for gpu in profile["gpus"]]
        evidence["gpu_jobs"][name]["one"]["devices"] = {own: "", **dict.fromkeys(others, "EPERM")}
        said = evidence["gpu_jobs"][name]["all"]
        said |= {"rdma": [device["name"] for device in profile["verbs"]]}
        said |= {"agents": len(profile["gpus"]), "devices": dict.fromkeys(said["devices"], "")}
        said["smi"]["seconds"] = 0.4
    return evidence


def broken(row: dict[str, Any]) -> dict[str, Any]:
    """The evidence with the faults of one case."""
    evidence = real(recorded()) if row.get("real") else recorded()
    if "fault" in row:
        made = faults.apply(machine.expand(model.load("mi300x-thor2"), 2), [faults.parse(row["fault"])])
        profile = asdict(read.parse(tree.record(made), KINDS))
        kept = evidence["cluster"]["nodes"][1]["profile"]
        kept |= {part: profile[part] for part in PARTS}
        kept["system"] |= {key: profile["system"][key] for key in ("kernel", "cmdline")}
    for path, value in row.get("set", {}).items():
        change(evidence, path, value)
    return evidence


def change(evidence: Any, path: str, value: Any) -> None:
    *way, last = [int(word) if re.fullmatch(r"\d", word) else word for word in path.split()]
    for word in way:
        evidence = evidence[word]
    if value == "gone":
        del evidence[last]
    else:
        evidence[last] = value


@pytest.mark.parametrize(("check", "row"), CASES, ids=[f"{check}-{number}" for number, (check, _) in enumerate(CASES)])
def test_a_fault_turns_its_check_red_and_no_other(check: str, row: dict[str, Any]) -> None:
    results = replay(broken(row))
    assert red(results) == ({check} - {"none"})
    if check != "none":
        assert results[check].state == "failed", results[check].why


def test_every_check_of_these_files_has_a_fault() -> None:
    assert own() == set(FAULTS) - {"none"}


def test_on_real_hardware_each_of_these_checks_says_something() -> None:
    """None is skipped there but for what the hosts of the recording have not."""
    results = replay(real(recorded()))
    assert {name for name in own() if results[name].state == "skipped"} == {"rocm"}


def test_nodes_that_could_not_be_looked_at_have_failed() -> None:
    evidence = real(recorded())
    evidence["on_hosts"]["n2"] = {"error": "sh: 1: python3: not found"}
    results = replay(evidence)
    assert red(results) == {"firewall", "kernel-log", "pci-errors", "acs", "gpu-idle"}
    assert "python3: not found" in results["firewall"].why


@pytest.mark.parametrize("names", [("n2",), ("n1", "n2")])
def test_a_driver_that_drives_nothing_is_no_absent_hardware(names: tuple[str, ...]) -> None:
    """Nor where it is so on all nodes."""
    evidence = real(recorded())
    for node in evidence["cluster"]["nodes"]:
        if node["name"] in names:
            profile = node["profile"]
            for gpu in profile["gpus"]:
                gpu["kfd_node"] = None
            profile["verbs"] = []
            for nic in profile["nics"]:
                nic["verbs"] = None
            profile["affinity"] = [{**link, "nic": f"rdma{link['gpu']}"} for link in profile["affinity"]]
    results = replay(evidence)
    assert red(results) == {"gpu-count", "rdma-devices"}
    for check in red(results):
        assert {m.node for m in results[check].measures if m.state == "failed"} == set(names)
    assert "8 on the PCI bus, 0 with a driver" in results["gpu-count"].why


def test_a_worker_without_gpus_and_rdma_is_no_fault() -> None:
    evidence = real(recorded())
    evidence["cluster"]["nodes"][1]["profile"] |= {"gpus": [], "verbs": [], "nics": [], "affinity": []}
    evidence["controller"]["nodes"][1]["gres"] = ""
    results = replay(evidence)
    assert red(results) == set()
    for name in ("gpu-count", "rdma-devices"):
        assert [m.state for m in results[name].measures] == ["passed", "skipped"]


@pytest.mark.parametrize(
    ("check", "part", "value"),
    [
        ("gpu-pcie", "gpus", {"pcie": {"speed": None, "width": None, "max_speed": None, "max_width": None}}),
        ("nic-pcie", "nics", {"pcie": {"speed": None, "width": None, "max_speed": None, "max_width": None}}),
        ("nic-ports", "verbs ports", {"state": None}),
        ("gpu-firmware", "gpus", {"firmware": None}),
        ("gids", "verbs ports", {"link_layer": "InfiniBand", "gids": []}),
        ("arp", "", {"addresses": []}),
        ("topology", "affinity", {"via": "system"}),
    ],
)
def test_what_nobody_could_read_has_not_passed(check: str, part: str, value: dict[str, Any]) -> None:
    evidence = recorded()
    for node in evidence["cluster"]["nodes"]:
        things = [node["profile"]]
        for word in part.split():
            things = [each for thing in things for each in thing[word]]
        for thing in things:
            thing |= value
    assert replay(evidence, only=check)[check].state == ("measured" if check == "topology" else "skipped")


def test_links_that_all_nodes_lack_are_missing() -> None:
    evidence = recorded()
    for node in evidence["cluster"]["nodes"]:
        for gpu in node["profile"]["gpus"]:
            gpu["links"] = [link for link in gpu["links"] if 7 not in (link["to"], gpu["index"])]
    found = replay(evidence, only="gpu-links")["gpu-links"]
    assert found.state == "failed"
    assert "21 of 28 xGMI links; without one: 0-7" in found.why


@pytest.mark.parametrize(
    ("counts", "taken"), [((8, 8, 8, 7), 8), ((8, 8, 0), 8), ((8, 0, 0), 8), ((4, 8), 8), ((0, 0), 0), ((), 0)]
)
def test_one_odd_node_changes_nothing_for_the_others(counts: tuple[int, ...], taken: int) -> None:
    assert usual(counts) == taken


NFT = """table inet filter {
\tchain input {
\t\ttype filter hook input priority filter; policy %s;
\t\tct state established,related accept
\t\tip saddr 192.0.2.1 drop
%s\t}
}
"""


@pytest.mark.parametrize(
    ("policy", "last", "found"),
    [
        ("accept", "", ""),
        ("drop", "", "type filter hook input priority filter; policy drop"),
        ("accept", "\t\treject with icmpx admin-prohibited\n", "reject with icmpx admin-prohibited"),
        ("accept", "\t\tcounter packets 3 bytes 180 drop\n", "counter packets 3 bytes 180 drop"),
    ],
)
def test_rules_that_refuse_the_rest(policy: str, last: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever no earlier rule has let in; a rule for one address is not in the way."""
    source = (suite.checks() / "programs/host.py").read_text().partition("\nprint(")[0]
    host: dict[str, Any] = {}
    exec(source, host)
    host["said"] = lambda *command: NFT % (policy, last) if command[0] == "nft" else None
    monkeypatch.setattr(host["shutil"], "which", lambda name: None)
    assert host["firewall"]() == {"nftables": found}


def test_the_topology_is_drawn() -> None:
    nodes = replay(recorded(), only="topology")["topology"].drawings["topology"]["nodes"]
    assert set(nodes) == {"n1", "n2"}
    drawn = nodes["n1"]
    assert len(drawn["gpus"]) == len(drawn["nics"]) == len(drawn["affinity"]) == 8
    assert len(drawn["links"]) == 28
    assert drawn["gpus"][3] == {"index": 3, "pci": "0000:65:00.0", "numa": 0, "name": "AMD Instinct MI300X OAM"}
    assert drawn["nics"][0]["speed"] == 400000
    assert drawn["nics"][0]["state"] == "ACTIVE"
    assert drawn["affinity"][0] == {"gpu": 0, "nic": "bnxt_re0", "via": "switch"}

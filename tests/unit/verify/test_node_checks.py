"""The checks of nodes, GPUs and fabric: each turns red by its own faults (data/verify/faults.yml), and by no other."""

from __future__ import annotations

import copy
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from evidence_replay import good, red, replay

from rocstack.node import parse
from rocstack.probe import recordings
from rocstack.verify import suite
from rocstack.verify.deployed_cluster import DeployedCluster, usual
from rocstack.verify.slurm_session import StepOutput
from rocstack.virtual import faults, machine, model, tree

sys.path.append(str(suite.checks()))
from experiments import gpus

FILES = ("test_nodes.py", "test_gpus.py", "test_gpu_jobs.py", "test_topology.py")
FILES += ("test_fabric.py", "test_fabric_jobs.py")
FAULTS = yaml.safe_load((Path(__file__).parents[1] / "data/verify/faults.yml").read_text())
CASES = [(check, row) for check, rows in FAULTS.items() for row in rows]
KINDS = recordings.kinds()
# Evidence about nodes; what was computed and sent between them no fault here could change.
JUDGED = ("cluster", "in_jobs", "on_hosts", "gpu_jobs", "controller", "in_containers", "credentials", "secrets")
# What a fault of rocstack.virtual changes of a profile; the rest is the machine's under the virtual node.
PARTS = ("gpus", "nics", "netdevs", "verbs", "affinity", "modules", "amdgpu")


def own() -> set[str]:
    texts = ((suite.checks() / name).read_text() for name in FILES)
    return {name for text in texts for name in re.findall(r'^    name="([^"]+)"', text, re.MULTILINE)}


RIGHT = [f"GPU {index} (gfx942:sramecc+:xnack-): the kernel's result is right" for index in range(8)]


def recorded() -> dict[str, Any]:
    return {key: value for key, value in good().items() if key in JUDGED}


def real(evidence: dict[str, Any]) -> dict[str, Any]:
    """The recorded nodes as if they had their hardware: what a virtual node can't say is what a healthy one says."""
    labels = evidence["cluster"]["labels"]
    provider = {"driver": "bnxt_re", "way": "host", "private_abi": 34, "kernel_abi": [1, 6]}
    labels |= {"io.rocstack.nic": "broadcom", "io.rocstack.nic.providers": json.dumps([provider])}
    labels["io.rocstack.gfx"] = "gfx942"
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
        for each, device in zip(evidence["gpu_jobs"][name]["each"], (own, *others), strict=True):
            devices = {path: "" if path == device else "EPERM" for path in (own, *others)}
            each |= {"env": {"ROCR_VISIBLE_DEVICES": "0"}, "devices": devices}
        said = evidence["gpu_jobs"][name]["all"]
        said |= {"rdma": [device["name"] for device in profile["verbs"]]}
        said |= {"agents": len(profile["gpus"]), "devices": dict.fromkeys(said["devices"], "")}
        said["smi"]["seconds"] = 0.4
        said["hip"] = "\n".join(RIGHT)
    return evidence


def broken(row: dict[str, Any]) -> dict[str, Any]:
    """The evidence with the faults of one case."""
    evidence = real(recorded()) if row.get("real") else recorded()
    if "fault" in row:
        made = faults.apply(machine.expand(model.load("mi300x-thor2"), 2), [faults.parse(row["fault"])])
        profile = asdict(parse.parse(tree.record(made), KINDS))
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


@pytest.mark.parametrize("names", [("n2",), ("n1", "n2")])
def test_a_gpu_that_fell_off_the_bus_is_missed_wherever_it_was(names: tuple[str, ...]) -> None:
    """Also of all nodes, or of the only one; a guest may have half a board, and a board is never 7."""
    for guest, number, missing in ((False, 7, True), (False, 4, True), (True, 4, False), (True, 7, True)):
        evidence = real(recorded())
        for node in evidence["cluster"]["nodes"]:
            name, profile = node["name"], node["profile"]
            evidence["on_hosts"][name]["guest"] = guest
            if name in names:
                profile["gpus"] = profile["gpus"][:number]
        found = replay(evidence, only="gpu-count")["gpu-count"]
        bad = {measure.node for measure in found.measures if measure.state == "failed"}
        assert bad == ({*names} if missing or names == ("n2",) else set()), (guest, number)
    assert "7 of 8 GPUs" in found.why


def test_partitions_of_a_gpu_are_no_more_cards() -> None:
    evidence = real(recorded())
    for node in ("n1", "n2"):
        evidence["on_hosts"][node]["partitions"] = dict.fromkeys(evidence["on_hosts"][node]["vram"], "CPX")
        evidence["gpu_jobs"][node]["all"] |= {"agents": 64}
    assert red(replay(evidence, only="gpu-tools")) == set()
    for node in ("n1", "n2"):
        parts = [f"{a}-{b}" for a in range(64) for b in range(a + 1, 64)]
        smi = {"cards": {f"card{part}": "0x74a1" for part in range(64)}, "links": dict.fromkeys(parts, "XGMI")}
        evidence["gpu_jobs"][node]["all"]["smi"] |= smi
    assert red(replay(evidence, only="gpu-links")) == set(), "rocm-smi numbers the parts"


@pytest.mark.parametrize(
    ("lines", "state", "says"),
    [
        (RIGHT, "passed", ""),
        (RIGHT * 8, "passed", ""),  # GPUs that are divided
        ([*RIGHT[:7], "GPU 7 (gfx942): element 3 is 0"], "failed", "7 of 8 GPUs compute: GPU 7 (gfx942): element 3"),
        (["kernel: no kernel image is available for execution on the device"], "failed", "0 of 8 GPUs compute: kernel"),
        (RIGHT[:4], "failed", "4 of 8 GPUs compute: it gave no answer"),
        (None, "skipped", "no hip-check in the image"),
    ],
)
def test_what_hip_check_says(lines: list[str] | None, state: str, says: str) -> None:
    evidence = real(recorded())
    for node in ("n1", "n2"):
        evidence["gpu_jobs"][node]["all"]["hip"] = "\n".join(lines) if lines else None
    found = replay(evidence, only="hip-check")["hip-check"].measures
    assert {(each.node, each.state) for each in found} == {("n1", state), ("n2", state)}
    assert all(says in each.why for each in found)


def test_each_gpu_is_given_once_whatever_number_it_has_in_its_task() -> None:
    """Where devices are kept from others, each task counts its own from 0; elsewhere Slurm's numbers differ."""
    for evidence in (recorded(), real(recorded())):
        assert {m.value for m in replay(evidence, only="gres-each")["gres-each"].measures} == {8}
    evidence = real(recorded())
    for each in evidence["gpu_jobs"]["n2"]["each"]:
        each["devices"] = dict.fromkeys(each["devices"], "")  # kept from none, and each has number 0
    assert replay(evidence, only="gres-each")["gres-each"].why == "ROCR_VISIBLE_DEVICES=0 was given to 8 tasks"
    for error, state in (
        ("Immediate execution impossible, insufficient priority", "skipped"),
        ("no such gres", "failed"),
    ):
        evidence["gpu_jobs"]["n2"]["each"] = {"error": f"srun: error: {error}"}
        measures = replay(evidence, only="gres-each")["gres-each"].measures
        assert {measure.node: measure.state for measure in measures} == {"n1": "passed", "n2": state}


@pytest.mark.parametrize("most", [0, 4])
def test_a_job_has_as_many_tasks_as_gpus(most: int) -> None:
    """In the suite's allocation, which has as many GPUs of each node as the smallest has, or in jobs of its own."""
    asked: list[tuple[Any, ...]] = []

    def step(words: Any, names: list[str], tasks: int) -> StepOutput:
        asked.append((tuple(words), names, tasks))
        said = [json.dumps({"node": name, "env": {}}) for name in names for _ in range(tasks) if name != "n3"]
        return StepOutput(0, "".join(f"@rocstack {each}\n" for each in said), "" if said else "srun: no")

    def own(*line: str, seconds: float) -> tuple[str, ...]:
        return line

    def ran(program: Path, *words: str, nodes: list[str], tasks: int, options: list[str], **_: Any) -> StepOutput:
        return step([*options, *words], nodes, tasks)

    slurm = SimpleNamespace(gpus=most, name="x", partition="", run=own, heard=step, python=ran)
    rows = [SimpleNamespace(name=f"n{n}", gres=f"gpu:mi300x:{count}(S:0-1)") for n, count in ((1, 8), (2, 8), (3, 4))]
    cluster = SimpleNamespace(slurm=slurm, allocated=lambda: ["n1", "n2", "n3"], in_workers=lambda line, seconds: {})
    found = gpus.run(cluster, cast(Any, SimpleNamespace(nodes=rows)))
    count = most or 8
    assert [len(found[name]["each"]) for name in ("n1", "n2")] == [count, count] == [found["n1"]["tasks"]] * 2
    away = {"error": "srun: no"}
    assert [found["n3"][kind] for kind in ("tasks", "all", "each")] == [4, away, away]
    assert "said nothing" in found["n3"]["one"]["error"]
    words = next(words for words, names, tasks in asked if names == ["n1", "n2"] and tasks > 1)
    assert {f"--ntasks={2 * count}", "--gpus-per-task=1", "env"} <= set(words)
    assert not [word for word in words if word.startswith("--gres")]


def test_a_tool_that_fails_at_once_is_not_quick() -> None:
    evidence = real(recorded())
    evidence["gpu_jobs"]["n2"]["all"]["smi"] |= {"cards": {}, "seconds": 0.02}
    assert replay(evidence, only="smi-seconds")["smi-seconds"].why == "rocm-smi told of 0 of 8 GPUs, after 0.0 s"


def test_a_fabric_of_ipv6_alone_is_sound_and_one_of_link_local_addresses_is_not() -> None:
    routed, local = "fd00:0010:0100:0000:0000:0000:0000:0001", "fe80:0000:0000:0000:0a00:27ff:fe00:0001"
    for gid, state in ((routed, "passed"), (local, "failed")):
        evidence = recorded()
        for node in evidence["cluster"]["nodes"]:
            for device in node["profile"]["verbs"]:
                own = device["netdevs"][0] if device["netdevs"] else None
                device["ports"][0]["gids"] = [{"index": 1, "gid": gid, "type": "RoCE v2", "netdev": own}]
        found = replay(evidence, only="gids")["gids"]
        assert found.state == state, found.why


def test_a_card_for_management_may_have_few_lanes() -> None:
    evidence = recorded()
    narrow = {"speed": 8.0, "width": 4, "max_speed": 32.0, "max_width": 16}
    for node in evidence["cluster"]["nodes"]:
        spare = next(nic for nic in node["profile"]["nics"] if nic["netdevs"] == ["eno1"])
        spare |= {"nic": "broadcom", "device": "14e4:1760", "pcie": narrow}
    assert replay(evidence, only="nic-pcie")["nic-pcie"].state == "passed"


def test_of_two_that_differ_none_is_blamed_alone_and_one_alone_proves_nothing() -> None:
    evidence = recorded()
    evidence["cluster"]["nodes"][1]["profile"]["system"]["kernel"] = "6.8.0-85-generic"
    found = replay(evidence, only="kernel")["kernel"]
    assert {measure.node for measure in found.measures if measure.state == "failed"} == {"n1", "n2"}
    assert "no value is that of most nodes" in found.why
    evidence["cluster"]["nodes"][1]["absent"] = "no route to host"
    assert {measure.state for measure in replay(evidence, only="kernel")["kernel"].measures} == {"measured"}


def test_memory_that_failed_where_nothing_used_it_is_said_and_fails_no_node() -> None:
    evidence = real(recorded())
    gpu = "amdgpu 0000:05:00.0: {3}"
    logged = [f"{gpu}[Hardware Error]: Accelerator Check Architecture events logged"]
    logged += [f"{gpu}[Hardware Error]: ACA[01/01].{name}=0x9c2041000000011b" for name in ("STATUS", "ADDR", "MISC")]
    deferred = [*logged, f"{gpu}socket: 0, die: 1, 1 new deferred hardware errors detected in umc block"]
    for lines in (["amdgpu 0000:05:00.0: amdgpu: poison is created, no user action is needed"], deferred):
        evidence["on_hosts"]["n2"]["log"] = lines
        measures = replay(evidence, only="kernel-log")["kernel-log"].measures
        assert {m.node: (m.state, m.value) for m in measures} == {"n1": ("passed", 0), "n2": ("measured", 1)}


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


def halved(**card: Any) -> dict[str, Any]:
    """Both nodes with a data network that came up at 200 Gb/s; `card` changes the cards."""
    evidence = recorded()
    for node in evidence["cluster"]["nodes"]:
        profile = node["profile"]
        for nic in profile["nics"][:8]:
            nic |= card
        for netdev in profile["netdevs"]:
            netdev["speed"] = min(netdev["speed"], 200000)
        for device in profile["verbs"]:
            device["ports"][0]["rate"] = 200000
    return evidence


def test_a_fabric_that_came_up_at_half_its_speed_as_a_whole_is_slow() -> None:
    results = replay(halved())
    assert red(results) == {"nic-speed"}
    found = results["nic-speed"].measures
    assert [(each.state, each.value, each.wanted) for each in found] == [("failed", 200, "at least 400 Gb/s")] * 2
    assert "broadcom 400G at 200 Gb/s, expected at least 400 Gb/s: bnxt_re0, " in found[0].why
    assert found[0].source.startswith("system acceptance")


@pytest.mark.parametrize("card", [{"device": "15b3:1021", "nic": "mellanox"}, {"device": "14e4:9999"}])
def test_a_card_whose_id_does_not_say_its_speed_is_compared_only(card: dict[str, Any]) -> None:
    found = replay(halved(**card), only="nic-speed")["nic-speed"].measures
    assert [(each.state, each.value) for each in found] == [("passed", 200)] * 2


def test_a_connectx_7_is_known_by_its_board() -> None:
    evidence = halved(device="15b3:1021", nic="mellanox")
    for node in evidence["cluster"]["nodes"]:
        node["virtual"] = node["profile"]["virtual"] = None
        boards = {device["name"]: "MT_0000000838" for device in node["profile"]["verbs"]}
        evidence["on_hosts"][node["name"]]["boards"] = boards
    found = replay(evidence, only="nic-speed")["nic-speed"]
    assert [(each.state, each.wanted) for each in found.measures] == [("failed", "at least 400 Gb/s")] * 2


def boasting() -> dict[str, Any]:
    """Five nodes, of which one says that its ports run at 1600 Gb/s and carry 65,000 bytes."""
    evidence = recorded()
    nodes = evidence["cluster"]["nodes"]
    good = next(node for node in nodes if node["name"] == "n2")
    for name in ("n3", "n4", "n5"):
        nodes.append({**copy.deepcopy(good), "name": name})
        nodes[-1]["profile"]["name"] = name
    for netdev in nodes[-1]["profile"]["netdevs"]:
        netdev |= {"mtu": 65000, "speed": 1600000}
    for device in nodes[-1]["profile"]["verbs"]:
        device["ports"][0]["rate"] = 1600000
    return evidence


@pytest.mark.parametrize("check", ["nic-speed", "mtu"])
def test_one_node_that_boasts_makes_no_other_one_slow(check: str) -> None:
    found = {each.node: each for each in replay(boasting(), only=check)[check].measures}
    assert {"n1", "n2", "n3", "n4", "n5"} <= found.keys()
    assert [name for name, each in found.items() if each.state == "failed"] == []


BLOCKS = {"CP_MEC1": "166", "RLC": "33", "PSP_SOSDRV": "36.00.43"}


def with_firmware(**of_gpu: dict[int, dict[str, str]]) -> dict[str, Any]:
    """Real nodes whose amd-smi answers; `of_gpu`: node -> GPU -> what is other there."""
    evidence = real(recorded())
    for node in ("n1", "n2"):
        named = [BLOCKS | of_gpu.get(node, {}).get(number, {}) for number in range(8)]
        blocks = [[{"fw_id": key, "fw_version": value} for key, value in each.items()] for each in named]
        rows = [{"gpu": number, "fw_list": each} for number, each in enumerate(blocks)]
        listed = [{"gpu": number, "bdf": f"0000:{number:02x}:00.0", "uuid": f"{number}"} for number in range(8)]
        evidence["gpu_jobs"][node]["all"]["amd_smi"] = {"firmware": json.dumps(rows), "list": json.dumps(listed)}
    return evidence


def firmware_of(evidence: dict[str, Any]) -> list[tuple[str, str, Any]]:
    found = replay(evidence, only="gpu-firmware")["gpu-firmware"].measures
    told = [m for m in found if m.unit == "firmware blocks" or m.state == "skipped"]
    return [(m.state, m.node, m.value) for m in sorted(told, key=lambda m: m.node)]


def test_all_firmware_of_the_gpus_is_the_same() -> None:
    evidence = with_firmware()
    assert red(replay(evidence)) == set()
    assert firmware_of(evidence) == [("passed", "n1", 3), ("passed", "n2", 3)]


def test_a_gpu_with_other_firmware_is_named_with_its_node() -> None:
    results = replay(with_firmware(n2={5: {"CP_MEC1": "165"}}))
    assert red(results) == {"gpu-firmware"}
    assert [m.node for m in results["gpu-firmware"].measures if m.state == "failed"] == ["n2"]
    assert results["gpu-firmware"].why == "GPU 5: CP_MEC1 165, most have 166"


def test_a_node_with_other_firmware_is_told_once_for_each_block() -> None:
    odd = {"CP_MEC1": "165", "RLC": "32"}
    results = replay(with_firmware(n2=dict.fromkeys(range(1, 8), odd)), only="gpu-firmware")
    texts = {m.node: m.why for m in results["gpu-firmware"].measures if m.state == "failed"}
    assert texts == {"n2": "7 GPUs: CP_MEC1 165, most have 166; 7 GPUs: RLC 32, most have 33"}


def test_gpus_of_another_model_have_firmware_of_their_own() -> None:
    evidence = with_firmware(n2={number: {"CP_MEC1": "165"} for number in range(8)})
    for gpu in evidence["cluster"]["nodes"][1]["profile"]["gpus"]:
        gpu["name"] = "AMD Instinct MI325X OAM"
    assert firmware_of(evidence) == [("passed", "n1", 3), ("passed", "n2", 3)]


def test_firmware_that_nobody_could_read_is_not_equal() -> None:
    """Not of a block, of a GPU, of a node, nor where the image has no amd-smi."""
    evidence = with_firmware(n2={2: {"RLC": "N/A"}})
    assert firmware_of(evidence) == [("passed", "n1", 3), ("passed", "n2", 3)]
    said = evidence["gpu_jobs"]["n2"]["all"]
    said["amd_smi"]["firmware"] = json.dumps([{"gpu": number, "fw_list": "N/A"} for number in range(8)])
    assert firmware_of(evidence) == [("passed", "n1", 3), ("skipped", "n2", None)]
    said["amd_smi"]["firmware"] = None
    assert firmware_of(evidence) == [("passed", "n1", 3)]
    evidence["gpu_jobs"]["n2"]["all"] = {"error": "srun: error: Immediate execution impossible"}
    assert firmware_of(evidence) == [("passed", "n1", 3)]
    del evidence["gpu_jobs"]
    assert firmware_of(evidence) == []
    virtual = recorded()
    virtual["gpu_jobs"]["n2"]["all"]["amd_smi"] = {"firmware": "[]", "list": "[]"}
    assert red(replay(virtual)) == set()


@pytest.mark.parametrize("words", ["", '[{"gpu": 0, "fw_', "ERROR:root:driver not initialized"])
@pytest.mark.parametrize(("what", "check"), [("firmware", "gpu-firmware"), ("list", "gpu-tools")])
def test_what_amd_smi_breaks_off_is_an_error_of_its_node(words: str, what: str, check: str) -> None:
    evidence = with_firmware()
    evidence["gpu_jobs"]["n2"]["all"]["amd_smi"][what] = words
    results = replay(evidence)
    assert red(results) == {check}
    assert [m.node for m in results[check].measures if m.state == "failed"] == ["n2"]
    assert results[check].why.startswith(f"amd-smi {what}")


def test_amd_smi_counts_the_gpus_too() -> None:
    evidence = with_firmware()
    said = evidence["gpu_jobs"]["n2"]["all"]["amd_smi"]
    said["list"] = json.dumps(json.loads(said["list"])[1:])
    results = replay(evidence)
    assert red(results) == {"gpu-tools"}
    assert results["gpu-tools"].why == "amd-smi sees 7 of 8"


@pytest.mark.parametrize(
    ("words", "state", "says"),
    [
        ('[{"gpu": 0, "links": [{"gpu": 3, "link_type": "XGMI", "link_status": "ENABLED"}]}]', "passed", ""),
        (
            '[{"gpu": 3, "links": [{"gpu": 0, "link_type": "XGMI", "link_status": "DISABLED"}]}]',
            "failed",
            "links of 0-3",
        ),
        ('[{"gpu": 3, "links": [{"gpu": 0, "link_type": "PCIE", "link_status": "DISABLED"}]}]', "passed", ""),
        ('{"error": "Command \'topology\' is invalid.", "code": -1}', "passed", ""),
    ],
)
def test_a_link_that_amd_smi_calls_disabled(words: str, state: str, says: str) -> None:
    """Older ones answer in another form: rocm-smi is asked anyhow."""
    evidence = with_firmware()
    evidence["gpu_jobs"]["n2"]["all"]["amd_smi"]["topology"] = words
    results = replay(evidence, only="gpu-links")
    (found,) = [measure for measure in results["gpu-links"].measures if measure.node == "n2"]
    assert found.state == state
    assert says in found.why
    assert ("amd-smi" in found.evidence) == ("error" in words)


def test_what_amd_smi_says_travels_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what indents it; what it complains of, where it says nothing else; nothing, where it isn't there."""
    source = (suite.checks() / "programs/gpus.py").read_text().partition("\nanswer = ")[0]
    program: dict[str, Any] = {}
    exec(source, program)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert program["amd_smi"]() == dict.fromkeys(("firmware", "list", "topology"))
    tool = tmp_path / "amd-smi"
    tool.write_text(
        '#!/bin/sh\n[ $1 = list ] && { echo "no driver" >&2; exit 3; }\nprintf \'[\\n    {"gpu": 0}\\n]\\n\'\n'
    )
    tool.chmod(0o755)
    text = '[\n{"gpu": 0}\n]'
    assert program["amd_smi"]() == {"firmware": text, "list": "no driver", "topology": text}


def test_a_warning_before_what_rocm_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program: dict[str, Any] = {}
    exec((suite.checks() / "programs/gpus.py").read_text().partition("\nanswer = ")[0], program)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool = tmp_path / "rocm-smi"
    tool.write_text(
        "#!/bin/sh\necho 'WARNING: AMD GPU device(s) is/are in a low-power state.'; echo\n"
        'echo "WARNING: {power} is unknown"; echo \'{"card0": {"Device ID": "0x74a1"}}\'\n'
        "echo; echo 'WARNING: One or more commands failed.'\n"
    )
    tool.chmod(0o755)
    assert program["smi"]()["cards"] == {"card0": "0x74a1"}


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


@pytest.mark.parametrize(
    ("counts", "taken", "left"),
    [
        ({"n1": 8, "n2": 8, "n3": 7}, ["n1", "n2"], {"n3": 7}),
        ({"n1": 4, "n2": 4, "n3": 8}, ["n1", "n2"], {"n3": 8}),
        ({"n1": 0, "n2": 0}, ["n1", "n2"], {}),
    ],
)
def test_of_a_node_with_more_gpus_no_part_is_taken_for_all(
    counts: dict[str, int], taken: list[str], left: dict[str, int]
) -> None:
    """Four of its eight would be judged, or their number would be called a fault."""
    slurm = SimpleNamespace(gpus=0, wait=5.0, allocate=list, states=lambda names: {})
    cluster: Any = SimpleNamespace(ready=[*counts], _gpus=counts, slurm=slurm)
    cluster.allocated = lambda: DeployedCluster.allocated(cluster)
    assert list(cluster.allocated()) == taken
    whys = DeployedCluster.left_out(cluster)
    assert whys == {name: f"the suite's jobs take {slurm.gpus} GPUs, it has {count}" for name, count in left.items()}


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


def test_firmware_older_than_any_known_good_one_is_told_and_fails_no_node() -> None:
    """It is known to matter where GPUs start transfers themselves alone."""
    evidence = real(recorded())
    told = {m.value: m for m in replay(evidence, only="nic-firmware")["nic-firmware"].measures if m.state == "measured"}
    (old,) = told.values()
    assert str(old.value).endswith(": 231.2.63.0")
    assert (old.wanted or "").startswith("235.2.86.0 or 237.1.137.0 or newer")
    assert "ROCm/mori" in old.source
    for node in evidence["cluster"]["nodes"]:
        for nic in node["profile"]["nics"]:
            nic["firmware"] = "237.1.137.0" if nic["nic"] else nic["firmware"]
    assert {m.state for m in replay(evidence, only="nic-firmware")["nic-firmware"].measures} == {"passed"}

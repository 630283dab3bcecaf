"""What is exported for AMD's cvs has the keys and the kinds of values of its own example files (data/cvs)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocstack.edge.ssh import SshHost
from rocstack.image import node_package
from rocstack.node import parse
from rocstack.node.fabric import parse_env
from rocstack.node.nic_settings import FabricSetting
from rocstack.node.profile import Address, Gpu, Netdev, Nic, NodeProfile, Pcie, System
from rocstack.probe import recordings
from rocstack.stack.component import NicProfile, library, validate_head
from rocstack.verify import cvs
from rocstack.verify.cvs import FILL_IN, CvsFacts, CvsHost
from rocstack.virtual import machine, model, tree

DATA = Path(__file__).parents[1] / "data/cvs"
SHAPES = {name: each["shape"] for name, each in json.loads((DATA / "shapes.json").read_text())["files"].items()}
SAID = CvsFacts(
    "20171212",
    "1.5T",
    {"CP_MEC1": "32945", "VCN": "09.11.70.09"},
    {"NCCL_IB_HCA": "=bnxt_re0:1,bnxt_re1:1", "NCCL_IB_GID_INDEX": "1", "GLOO_SOCKET_IFNAME": "eno1"},
)


def host(number: int, **more: Any) -> CvsHost:
    fast = Pcie(16.0, 8, 32.0, 16)
    gpus = tuple(
        Gpu(n, f"0000:{n:02x}:00.0", "1002:74a1", "gfx942", "AMD Instinct MI300X OAM", pcie=fast) for n in range(8)
    )
    profile = NodeProfile(
        1,
        f"n{number}",
        system=System(os_name="Ubuntu 24.04.1 LTS", kernel="6.8.0-60-generic"),
        gpus=gpus,
        nics=tuple(Nic(f"0000:8{n}:00.0", "14e4:1760", "broadcom", pcie=fast, netdevs=(f"ens{n}",)) for n in range(8)),
        netdevs=tuple(Netdev(f"ens{n}", speed=400000) for n in range(8)),
        addresses=(Address("eno1", f"10.0.0.{number}/24"),),
    )
    login = {"User": "ann", "IdentityFile": "/home/ann/.ssh/cluster"}
    return CvsHost(f"n{number}", f"192.0.2.{number}", f"10.0.0.{number}", replace(profile, **more), login)


HOSTS = (host(1), host(2))


def made(hosts: tuple[CvsHost, ...] = HOSTS, said: CvsFacts = SAID, rocm: str = "7.0.2") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(cvs.documents(hosts, said, rocm)))
    return found


def misfits(value: Any, shape: Any, where: str = "") -> list[str]:
    """Where a value has other keys, or is of another kind, than the example's."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{where} is no map"]
        wanted = dict.fromkeys(value, shape["*"]) if "*" in shape else shape
        odd = [f"{where}.{key}" for key in wanted.keys() ^ value.keys()]
        return odd + [
            text for key in wanted.keys() & value.keys() for text in misfits(value[key], wanted[key], f"{where}.{key}")
        ]
    if isinstance(shape, list):
        return [f"{where}[{n}]" for n, each in enumerate(value) if all(misfits(each, kind) for kind in shape)]
    return [] if type(value).__name__ == shape else [f"{where} is {type(value).__name__}, not {shape}"]


def test_the_files_are_like_the_examples() -> None:
    found = made()
    assert set(found) == set(SHAPES)
    for name, value in found.items():
        assert misfits(value, SHAPES[name], name) == []


@pytest.mark.parametrize(("key", "value"), [("extra", "x"), ("username", 3), ("node_dict", [])])
def test_what_is_not_like_them_would_be_seen(key: str, value: Any) -> None:
    cluster = made()["cluster.json"]
    assert misfits(cluster | {key: value}, SHAPES["cluster.json"])
    del cluster["username"]
    assert misfits(cluster, SHAPES["cluster.json"]) == [".username"]


def test_the_nodes() -> None:
    cluster = made()["cluster.json"]
    assert cluster["head_node_dict"] == {"mgmt_ip": "192.0.2.1"}
    assert cluster["node_dict"] == {
        f"192.0.2.{number}": {"bmc_ip": "NA", "vpc_ip": f"10.0.0.{number}"} for number in (1, 2)
    }
    assert (cluster["username"], cluster["priv_key_file"]) == ("ann", "/home/ann/.ssh/cluster")


def test_what_was_probed() -> None:
    wanted = made()["host_config.json"]["host"]
    assert {key: wanted[key] for key in ("gpu_count", "gpu_pcie_speed", "gpu_pcie_width", "nic_pcie_speed")} == {
        "gpu_count": "8",
        "gpu_pcie_speed": "32",
        "gpu_pcie_width": "16",
        "nic_pcie_speed": "32",
    }
    assert (wanted["bios_version"], wanted["online_memory"], wanted["rocm_version"]) == ("20171212", "1.5T", "7.0.2")
    params = made()["rccl_config.json"]["rccl"]["mpi_params"]
    assert (params["no_of_nodes"], params["no_of_local_ranks"], params["mpi_oob_port"]) == ("2", "8", "eno1")
    assert params["net_dev_list"] == "bnxt_re0:1,bnxt_re1:1"
    assert made()["ibperf_config.json"]["ibperf"]["gid_index"] == "1"


def test_most_nodes_say_what_is_wanted() -> None:
    odd = host(3, system=System(os_name="Ubuntu 22.04", kernel="5.15"), gpus=HOSTS[0].profile.gpus[:7])
    assert made((odd, *HOSTS))["host_config.json"] == made()["host_config.json"]


def test_our_thresholds() -> None:
    results = made()["rccl_config.json"]["rccl"]["results"]
    assert results["all_reduce_perf"] == {"bus_bw": {"8589934592": "304.00"}}
    assert "gather_perf" not in results, "there is none of ours"
    assert made()["ibperf_config.json"]["ibperf"]["expected_results"]["ib_write_bw"]["8388608"]["8"] == "280.00"
    assert made()["health_config.json"]["rvs"]["config_path_mi300x"].endswith("/conf/MI300X")


def mi250x() -> CvsHost:
    profile = parse.parse(tree.record(machine.expand(model.load("mi250x-slingshot"), 1)), recordings.kinds())
    return replace(HOSTS[0], profile=profile)


def results(hosts: tuple[CvsHost, ...], overlay: Path | None = None) -> dict[str, str]:
    """TransferBench's, and what a pair of nodes must reach."""
    found = json.loads(json.dumps(cvs.documents(hosts, SAID, "7.0.2", overlay)))
    bounds: dict[str, str] = found["health_config.json"]["transferbench"]["results"]
    pairwise = found["rccl_config.json"]["rccl"]["cvs_params"]["pairwise_min_bw"]
    return {key: value for key, value in bounds.items() if key not in ("bytes_to_transfer", "path")} | {
        "pair": pairwise
    }


def test_mi300x_is_judged_by_the_numbers_of_mi300x() -> None:
    assert {key: float(value) for key, value in results(HOSTS).items()} == {
        "gpu_to_gpu_a2a_rtotal": 320,
        "avg_gpu_to_gpu_p2p_unidir_bw": 33.9,
        "avg_gpu_to_gpu_p2p_bidir_bw": 43.9,
        "best_gpu0_bw": 480,
        "32_cu_local_read": 1650,
        "32_cu_local_write": 1250,
        "32_cu_local_copy": 1250,
        "32_cu_rem_read": 48,
        "32_cu_rem_write": 48,
        "32_cu_rem_copy": 48,
        "pair": 300,
    }


def test_another_gpu_is_not_judged_by_them_and_a_person_is_told() -> None:
    hosts = (mi250x(),)
    assert set(results(hosts).values()) == {FILL_IN, "30.00", "55.00"}, "of which AMD's guide has other numbers"
    found = made(hosts)
    assert misfits(found["health_config.json"], SHAPES["health_config.json"]) == []
    notes = [note for note in cvs._notes(hosts, SAID, [], found) if FILL_IN in note]
    assert [note.partition(":")[0] for note in notes] == ["rccl_config.json", "health_config.json"]
    assert "pairwise_min_bw" in notes[0]
    assert "gpu_to_gpu_a2a_rtotal" in notes[1]


def test_a_sites_own_thresholds_are_exported(tmp_path: Path) -> None:
    (tmp_path / "thresholds.yml").write_text(
        "transferbench-p2p: {unit: GB/s, thresholds: [{least: 29, source: ours}]}\n"
        "all-reduce-busbw: {unit: GB/s, thresholds: [{least: 120, source: ours}]}\n"
    )
    found = results((mi250x(),), tmp_path)
    assert (found["avg_gpu_to_gpu_p2p_unidir_bw"], found["avg_gpu_to_gpu_p2p_bidir_bw"]) == ("29.00", "55.00")
    rccl = cvs.documents(HOSTS, SAID, "7.0.2", tmp_path)["rccl_config.json"]["rccl"]
    assert rccl["results"]["all_reduce_perf"] == {"bus_bw": {"8589934592": "120.00"}}


def test_unknown_hardware_is_judged_by_nothing() -> None:
    bare = (host(1, gpus=(), nics=()),)
    found = made(bare, CvsFacts())
    rccl = found["rccl_config.json"]["rccl"]
    assert (rccl["results"], rccl["cvs_params"]["verify_bus_bw"], rccl["cvs_params"]["nic_model"]) == (
        {},
        "False",
        FILL_IN,
    )
    assert rccl["mpi_params"]["mpi_oob_port"] == "eno1"
    assert found["ibperf_config.json"]["ibperf"]["verify_bw"] == "False"
    assert found["host_config.json"]["host"]["gpu_pcie_speed"] == FILL_IN


def test_a_name_with_signs_of_a_pattern_finds_itself() -> None:
    name = "Debian GNU/Linux 13 (trixie)+x"
    wanted = made((host(1, system=System(os_name=name)),))["host_config.json"]["host"]["os_version"]
    assert re.search(wanted, f'PRETTY_NAME="{name}"')


def test_what_nobody_could_read_is_to_be_filled_in() -> None:
    wanted = made(said=CvsFacts(), rocm="")["host_config.json"]["host"]
    assert {wanted[key] for key in ("bios_version", "online_memory", "rocm_version")} == {FILL_IN}


def test_of_the_way_in_only_what_cvs_takes() -> None:
    options = ("-o", "BatchMode=yes", "-o", "Port=2222", "-o", 'IdentityFile="/k/id"', "-o", 'User="ann"')
    found = cvs.login(SshHost("n1", ("ssh", *options), "192.0.2.1", password=True))
    assert found == {"Port": "2222", "IdentityFile": "/k/id", "User": "ann"}
    first = ("ssh", "-o", "User=first", "-o", "User=second")
    assert cvs.login(SshHost("n1", first)) == {"User": "first"}, "as ssh has it"


@pytest.mark.parametrize("text", ["", "{}", "[]", '[{"fw_list": 3}]', "no such command"])
def test_firmware_that_is_none(text: str) -> None:
    assert cvs.read_firmware(text) == {}


def test_firmware() -> None:
    rows = [{"gpu": 0, "fw_list": [{"fw_id": "CP_MEC1", "fw_version": "32945"}]}]
    assert cvs.read_firmware(json.dumps(rows)) == {"CP_MEC1": "32945"}


def test_what_a_person_must_know() -> None:
    virtual = (host(1, virtual="mi300x-thor2"), replace(host(2), login={"Port": "2222"}))
    said = " ".join(cvs._notes(virtual, CvsFacts(), ["n3"], made(virtual, CvsFacts())))
    for text in ("virtual nodes (mi300x-thor2)", "bios_version", FILL_IN, "fw_dict", "port 22", "n3 was not reached"):
        assert text in said
    assert len(list(cvs._notes(HOSTS, SAID, [], made()))) == 1


def test_one_worker_brings_no_code_into_all_jobs() -> None:
    good = {
        "NCCL_IB_HCA": "=bnxt_re0:1,bnxt_re1:1",
        "NCCL_IB_ADDR_RANGE": "10.1.0.0/16",
        "NCCL_NET": "AWS Libfabric",
        "UCX_NET_DEVICES": "bnxt_re0:1",
        "NCCL_NET_PLUGIN": "none",
    }
    bad = {
        "LD_PRELOAD": "x.so",
        "PATH": "bin",
        "BASH_ENV": "x",
        "NCCL_NET_PLUGIN": "/home/eve/x.so",
        "HSA_TOOLS_LIB": "./x.so",
        "UCX_MODULE_DIR": "1/2/x",
        "UCX_GDB_COMMAND": "perl -e system+id",
        "UCX_HANDLE_ERRORS": "debug",
        "NCCL_CONF_FILE": "x",
        "NCCL_NET": "x.so",
        "NCCL_SOCKET_IFNAME": "eth0 -x PATH=.",
        "NCCL_IB_HCA": "mlx5_0:1,",
        "GLOO_SOCKET_IFNAME": "-x",
        "NCCL_IB_GID_INDEX": "3\n",
        "UCX_NET_DEVICES": "^a",
    }
    assert cvs.harmless(good) == good
    assert cvs.harmless(bad) == {}


def test_what_rocstack_sets_itself_is_left_but_for_files() -> None:
    """Each profile's own settings, and what is computed for the nodes of the tests."""
    own = {each.name: each.value for path in library("nic").files for each in rdma_settings(path)}
    for file in (DATA.parent / "fabric").glob("*.env"):
        if "overrides" not in file.name and "odd-names" not in file.name:
            own |= parse_env(file.read_text())
    assert len(own) > 25
    assert {name for name in own if name not in cvs.harmless(own)} <= {"NCCL_NET_PLUGIN"}


def rdma_settings(name: str) -> tuple[FabricSetting, ...]:
    return node_package.settings(validate_head(library("nic").files[name], NicProfile)).env


def test_the_command_lines_of_cvs_have_no_words_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evil = {"NCCL_IB_HCA": "=a;id", "GLOO_SOCKET_IFNAME": "$(id)", "NCCL_IB_GID_INDEX": "`id`", "NCCL_NET": "IB"}
    odd = host(1, addresses=(Address("a;id", "10.0.0.1/24"),))
    gpus = tuple(replace(gpu, name="AMD Instinct MI300X;id;# OAM") for gpu in odd.profile.gpus)
    odd = replace(odd, profile=replace(odd.profile, gpus=gpus))
    state = SimpleNamespace(release=None, gathered=SimpleNamespace(ssh_hosts={"n1": None}, failures=()), inventory=None)
    monkeypatch.setattr(cvs.inventory, "load", lambda path: None)
    monkeypatch.setattr(cvs.cluster_state, "read_state", lambda *_, **more: state)
    monkeypatch.setattr(cvs, "_hosts", lambda state: [odd])
    monkeypatch.setattr(cvs, "_ask", lambda host, virtual: CvsFacts(fabric=evil))
    cluster: Any = SimpleNamespace(ship=SimpleNamespace(forks=1))
    files, notes = cvs.export(tmp_path / "i.yml", tmp_path / "out", cluster)
    text = "".join(file.read_text() for file in files)
    assert "id)" not in text
    assert ";id" not in text
    assert "`id" not in text
    assert "export NCCL_NET=IB\n" in text
    assert any("NCCL_IB_HCA, GLOO_SOCKET_IFNAME, NCCL_IB_GID_INDEX" in note for note in notes)

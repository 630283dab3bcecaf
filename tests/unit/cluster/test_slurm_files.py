"""slurm.conf, gres.conf and cgroup.conf from nodes and settings. That Slurm takes them is seen in tests/integration."""

from __future__ import annotations

import itertools
import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocstack.base.errors import BadInput
from rocstack.cluster import cgroup, slurm_files
from rocstack.cluster.settings import ClusterSettings
from rocstack.cluster.slurm_node import SlurmNodeConfig, gpu_type, job_memory, slurm_node
from rocstack.node.profile import Gpu, Nic, NodeProfile, System
from rocstack.stack import blocks

CONTROL = slurm_files.Control("head", "10.0.0.1")
GIB = 1 << 30


def gpu(index: int, minor: int | None = None, product: str | None = "AMD Instinct MI300X OAM", **more: Any) -> Gpu:
    minor = 128 + index if minor is None else minor
    facts = {"kfd_node": index + 2, **more}
    return Gpu(index, f"0000:{index:02x}:00.0", "1002:74a1", "gfx942", product, minor, **facts)


def profile(count: int = 8, **more: Any) -> NodeProfile:
    facts: dict[str, Any] = {"gpus": tuple(map(gpu, range(count))), "system": System(cpus=384, memory=2000 * GIB)}
    return NodeProfile(1, "x", nics=(Nic("0000:80:00.0", "14e4:1760", "broadcom"),), **{**facts, **more})


def node(name: str, last: int, of: NodeProfile | None = None, **more: Any) -> SlurmNodeConfig:
    facts = {"cgroup": 1, "cgroup_writable": True, **more}
    return slurm_node(of or profile(), name=name, address=f"10.0.0.{last}", **facts)


def made(
    machines: list[SlurmNodeConfig], folder: Path | None = None, groups: Any = None, **settings: Any
) -> dict[str, str]:
    cluster = ClusterSettings.model_validate(settings)
    files = slurm_files.files(cluster, CONTROL, machines, groups=groups, password="pass-word-1", overlay=folder)
    return dict(files.texts)


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


def test_the_same_bytes_in_whatever_order() -> None:
    nodes = [node(f"n{number}", number) for number in (10, 2, 1, 3)]
    texts = [made(list(order)) for order in itertools.permutations(nodes)]
    assert all(text == texts[0] for text in texts)
    assert lines(texts[0]["slurm.conf"], "NodeName") == [
        "NodeName=n[1-3,10] NodeAddr=10.0.0.[1-3,10] CPUs=384 RealMemory=1983488 Gres=gpu:mi300x:8 "
        "Features=broadcom,gfx942,mi300x State=UNKNOWN"
    ]
    assert lines(texts[0]["gres.conf"], "NodeName") == [
        "NodeName=n[1-3,10] Name=gpu Type=mi300x File=/dev/dri/renderD[128-135] Flags=amd_gpu_env"
    ]


def test_addresses_stand_in_the_order_of_the_names() -> None:
    text = made([node("n1", 9), node("n2", 8), node("n3", 10)])["slurm.conf"]
    assert "NodeName=n[1-3] NodeAddr=10.0.0.[9,8,10] " in text


def test_nodes_that_differ_stand_apart() -> None:
    bare = profile(0)
    four = profile(4)
    small = profile(system=System(cpus=384, memory=1000 * GIB))
    text = made([node("n1", 1), node("n2", 2, four), node("n3", 3, bare), node("n4", 4, small), node("n5", 5, four)])
    names = [
        re.match(r"NodeName=(\S+) .*?(Gres=\S+)?( Features=\S+)? State", row)
        for row in lines(text["slurm.conf"], "NodeName")
    ]
    assert [found and found[1] for found in names] == ["n1", "n[2,5]", "n3", "n4"]
    assert "Gres" not in lines(text["slurm.conf"], "NodeName=n3")[0]
    assert [row.split()[0] for row in lines(text["gres.conf"], "NodeName")] == ["NodeName=n[1,4]", "NodeName=n[2,5]"]
    assert "AccountingStorageTRES=gres/gpu,gres/gpu:mi300x\n" in text["slurm.conf"]
    assert "DefMemPerCPU=2" in text["slurm.conf"], "of the smallest"
    assert "DefCpuPerGPU=48" in text["slurm.conf"], "of the node with the fewest CPUs a GPU"


def test_rocms_order_is_the_order_of_the_files() -> None:
    mixed = (gpu(0, 131), gpu(1, 128), gpu(2, 129), gpu(3, 130, "AMD Instinct MI210"), gpu(4, 132))
    text = made([node("n1", 1, profile(gpus=mixed))])
    assert lines(text["gres.conf"], "NodeName") == [
        "NodeName=n1 Name=gpu Type=mi300x File=/dev/dri/renderD[131,128-129] Flags=amd_gpu_env",
        "NodeName=n1 Name=gpu Type=mi210 File=/dev/dri/renderD130 Flags=amd_gpu_env",
        "NodeName=n1 Name=gpu Type=mi300x File=/dev/dri/renderD132 Flags=amd_gpu_env",
    ]
    assert " Gres=gpu:mi300x:4,gpu:mi210:1 " in text["slurm.conf"]


def test_a_gpu_without_a_driver_is_not_offered() -> None:
    gpus = (gpu(0), gpu(1, kfd_node=None), replace(gpu(2), render_minor=None))
    assert node("n1", 1, profile(gpus=gpus)).gpus == 1
    off = made([node("n1", 1, offer_gpus=False)])
    assert " Gres=" not in off["slurm.conf"]
    assert not lines(off["gres.conf"], "NodeName")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "mi250"),
        ("AMD Instinct MI355X", "mi355x"),
        ("aqua_vanjaram", "gfx942"),
        ("M\u0131\uff13\uff10\uff10", "gfx942"),  # not of ASCII: slurm.conf holds nothing else
        (None, "gfx942"),
    ],
)
def test_types(name: str | None, kind: str) -> None:
    assert gpu_type(gpu(0, product=name)) == kind


def test_sizes() -> None:
    assert [job_memory(size << 20) for size in (512, 6144, 65536, 2048000)] == [256, 5632, 63488, 1983488]
    assert job_memory(2000 * GIB) == job_memory(2000 * GIB - (300 << 20)), "another kernel keeps a little more"
    with pytest.raises(BadInput, match="lacks the number of CPUs or the size of the memory"):
        node("n1", 1, profile(system=System(cpus=4)))


@pytest.mark.parametrize(
    "more",
    [
        {"system": System(cpus=70_000, memory=GIB)},
        {"system": System(cpus=8, memory=10**19)},
        {"gpus": (gpu(0, 10**10), gpu(1, 10**10 + 1))},
        {"gpus": tuple(gpu(index) for index in range(1025))},
    ],
    ids=["cpus", "memory", "minors", "gpus"],
)
def test_a_node_that_says_what_cannot_be_does_not_reach_the_controller(more: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"n1 says .* Slurm takes no more than"):
        node("n1", 1, profile(**more))


def test_topology_where_it_is_known_and_right() -> None:
    assert "Sockets=2 CoresPerSocket=96 ThreadsPerCore=2 " in made([node("n1", 1, topology=(2, 96, 2))])["slurm.conf"]
    assert " CPUs=384 " in made([node("n1", 1, topology=(2, 96, 1))])["slurm.conf"], "half of them are off"


def test_virtual_nodes_say_more_than_there_is() -> None:
    virtual = profile(virtual="mi300x-thor2", system=System(cpus=2, memory=6 * GIB))
    text = made([node("n1", 1, virtual)])["slurm.conf"]
    assert "SlurmdParameters=config_overrides\n" in text
    assert " CPUs=32 RealMemory=5632 " in text
    assert ",virtual State" in text
    assert "task/affinity" not in text
    assert "config_overrides" not in made([node("n1", 1)])["slurm.conf"]


@pytest.mark.parametrize(
    ("setting", "nodes", "plugin"),
    [
        ("auto", [(1, True), (1, True)], "cgroup/v1"),
        ("auto", [(2, True)], "cgroup/v2"),
        ("auto", [(1, True), (2, True)], "autodetect"),
        ("auto", [(1, True), (1, False)], "disabled"),
        ("auto", [(None, True)], "disabled"),
        ("auto", [], "disabled"),
        ("disabled", [(1, True)], "disabled"),
        ("v1", [(1, True)], "cgroup/v1"),
        ("v1", [(2, True)], "n1 has cgroup v2"),
        ("v2", [(2, False)], "n1 lets no container write its cgroups"),
    ],
)
def test_cgroups(setting: str, nodes: list[tuple[int | None, bool]], plugin: str) -> None:
    machines = [
        node(f"n{number}", number, cgroup=version, cgroup_writable=allowed)
        for number, (version, allowed) in enumerate(nodes, 1)
    ]
    if " " in plugin:
        with pytest.raises(BadInput, match=plugin):
            made(machines, cgroup=setting)
        return
    texts = made(machines, cgroup=setting)
    used = plugin != "disabled"
    assert lines(texts["cgroup.conf"], "CgroupPlugin") == [f"CgroupPlugin={plugin}"]
    assert ("ConstrainDevices=yes" in texts["cgroup.conf"]) == used
    assert ("IgnoreSystemd=yes" in texts["cgroup.conf"]) == (plugin in ("cgroup/v2", "autodetect"))
    assert ("ProctrackType=proctrack/cgroup" in texts["slurm.conf"]) == used
    assert ("PrologFlags=Alloc,Contain" in texts["slurm.conf"]) == used


def test_which_node_stands_in_the_way_of_cgroups_is_said() -> None:
    machines = [node(f"n{number}", number, cgroup_writable=number != 2) for number in (1, 2, 3)]
    (note,) = cgroup.decide("auto", machines).notes
    assert "because of n2: n2 lets no container write its cgroups" in note


@pytest.mark.parametrize(("version", "allowed"), [(1, True), (2, True), (1, False), (2, False), (None, True)])
def test_flags_for_cgroups(version: int | None, allowed: bool) -> None:
    flags = cgroup.cgroup_flags("n1", version, allowed)
    if not allowed or version is None:
        assert flags == ()
        return
    assert "--security-opt=seccomp=/etc/rocstack/seccomp.json" in flags, "or SYS_ADMIN would bring mount"
    assert ("--cap-add=SYS_ADMIN" in flags) == (version == 1)
    assert ("--cap-add=BPF" in flags) == (version == 2)
    folders = {f"/sys/fs/cgroup/{controller}/slurm_n1" for controller in cgroup.CONTROLLERS}
    own = {f"--volume={path}:{path}" for path in {*folders, "/sys/fs/cgroup/memory/memory.use_hierarchy"}}
    branch = {"--volume=/sys/fs/cgroup/rocstack.slice:/sys/fs/cgroup/rocstack.slice"}
    assert {flag for flag in flags if flag.startswith("--volume=")} == (own if version == 1 else branch)


@pytest.mark.parametrize(
    ("engine", "driver", "parent"),
    [
        ("docker", "systemd", "rocstack.slice"),
        ("docker", "cgroupfs", "/rocstack.slice"),
        ("docker", "", "rocstack.slice"),
        ("podman", "systemd", None),
    ],
)
def test_a_worker_lies_in_the_branch_that_it_writes(engine: str, driver: str, parent: str | None) -> None:
    flags = cgroup.cgroup_flags("n1", 2, True, engine=engine, driver=driver)
    assert [flag for flag in flags if "--cgroup-parent" in flag] == ([f"--cgroup-parent={parent}"] if parent else [])
    path = "/sys/fs/cgroup/rocstack.slice" if parent else "/sys/fs/cgroup"
    assert [flag for flag in flags if "--volume" in flag] == [f"--volume={path}:{path}"]


def test_the_profile_opens_what_jobs_need_and_nothing_of_an_administrator() -> None:
    profile = json.loads(cgroup.seccomp_profile())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    opened: dict[str, list[dict[str, Any]]] = {}
    for rule in profile["syscalls"]:
        for name in rule["names"]:
            opened.setdefault(name, []).append(rule)
    closed = "mount umount2 move_mount fsopen setns unshare pivot_root chroot init_module kexec_load perf_event_open"
    assert not opened.keys() & {*closed.split(), "open_by_handle_at", "io_uring_setup", "userfaultfd", "keyctl"}
    assert [rule["includes"] for rule in opened["bpf"]] == [{"caps": ["CAP_BPF"]}]
    assert [rule["includes"] for rule in opened["mbind"]] == [{"caps": ["CAP_SYS_NICE"]}]
    assert all(rule.get("args") for rule in opened["clone"]), "not with the flags that make namespaces"
    # Each compared whole: the kernel reads 32 of the 64 bits, and "not 40" is true of 40 with a bit above them.
    assert {(each["value"], each["op"]) for rule in opened["socket"] for each in rule["args"]} == {
        (family, "SCMP_CMP_EQ") for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
    }
    assert "socketcall" not in opened
    assert {"process_vm_readv", "ptrace", "execve", "openat"} <= opened.keys()


def test_partitions() -> None:
    parts = {
        "all": {"max_time": "7d"},
        "rack": {"nodes": "rack1", "default": True, "tier": 5, "accounts": ["default"], "qos": "high"},
        "two": {"nodes": ["n[1-2]", "n4"], "state": "drain", "max_time": "30s"},
        "none": {"nodes": "rack2"},
    }
    nodes = [node(f"n{number}", number) for number in (1, 2, 3, 4)]
    text = made(nodes, groups={"rack1": ["n3", "n4", "head"], "rack2": []}, partitions=parts)["slurm.conf"]
    assert lines(text, "PartitionName") == [
        "PartitionName=all Nodes=ALL Default=NO MaxTime=10080 State=UP PriorityTier=1 DefCpuPerGPU=48",
        "PartitionName=rack Nodes=n[3-4] Default=YES MaxTime=525600 State=UP PriorityTier=5 QOS=high "
        "AllowAccounts=default DefCpuPerGPU=48",
        "PartitionName=two Nodes=n[1-2,4] Default=NO MaxTime=1 State=DRAIN PriorityTier=1 DefCpuPerGPU=48",
        'PartitionName=none Nodes="" Default=NO MaxTime=525600 State=UP PriorityTier=1',
        "PartitionName=rocstack-verify Nodes=ALL AllowAccounts=rocstack-verify Hidden=YES MaxTime=UNLIMITED",
    ]


def test_a_partition_of_nodes_that_are_not_there() -> None:
    with pytest.raises(
        BadInput, match=r"cluster\.partitions\.a\.nodes names 'node9', .*did you mean 'node1'"
    ) as refused:
        made([node("node1", 1)], partitions={"a": {"nodes": "node9"}})
    assert refused.value.code == "unknown-node"


def test_more_lines() -> None:
    text = made([node("n1", 1)], slurm={"Licenses": "matlab:10", "JobFileAppend": 1, "DisableRootJobs": True})[
        "slurm.conf"
    ]
    assert text.endswith("DisableRootJobs=YES\nJobFileAppend=1\nLicenses=matlab:10\n")


def test_a_credential_counts_for_its_own_message_alone() -> None:
    """One that somebody else saw, without a payload, is worth nothing to slurmctld, slurmd and slurmdbd."""
    for name in ("slurm.conf", "slurmdbd.conf"):
        assert "\nCommunicationParameters=block_null_hash\n" in made([node("n1", 1)])[name]
    text = made([node("n1", 1)], slurm={"CommunicationParameters": "EnableIPv6"})["slurm.conf"]
    (line,) = (line for line in text.splitlines() if line.startswith("CommunicationParameters"))
    assert line == "CommunicationParameters=block_null_hash,EnableIPv6"


@pytest.mark.parametrize(
    "key", ["PreemptType", "preempttype", "NodeName", "PartitionName", "Include", "SlurmdParameters"]
)
def test_a_line_that_is_ours(key: str) -> None:
    with pytest.raises(BadInput, match=f"cluster.slurm sets {key}") as refused:
        made([node("n1", 1)], slurm={key: "preempt/none" if key.lower() == "preempttype" else "x"})
    assert refused.value.code == "bad-slurm-line"


def test_tokens_that_people_make_themselves_end() -> None:
    """Where they sign in at an issuer they make none: one that is longer than the sign-in would outlast it."""
    oidc = {"issuer": "https://i.example", "client_id": "c"}
    signs_in = ClusterSettings.model_validate({"mounts": ["/data"], "service": {"data": "/data/s", "oidc": oidc}})
    for cluster, says in ((ClusterSettings(), "max_token_lifespan=7776000"), (signs_in, "disable_token_creation")):
        conf = slurm_files.files(cluster, CONTROL, [], password="pass-word-1").texts["slurm.conf"]
        assert f"AuthAltParameters=jwt_key=/run/slurm/jwt_hs256.key,{says}" in conf.splitlines()


@pytest.mark.parametrize(
    ("version", "refuses"), [("", False), ("24.11.5-4", False), ("25.05.0", True), ("26.05.3", True)]
)
def test_no_slurmd_ends_where_a_job_asks_for_its_users_environment(version: str, refuses: bool) -> None:
    """By a file, or by a refusal where Slurm knows no such file any more."""
    made = slurm_files.files(ClusterSettings(), CONTROL, [], password="pass-word-1", slurm=version).texts
    lines = made["slurm.conf"].splitlines()
    assert (slurm_files.REFUSE_LOGIN in made) is refuses
    assert ("JobSubmitPlugins=lua" in lines) is refuses
    assert ("GetEnvTimeout=0" in lines) is not refuses


def test_the_ports_that_no_job_can_take(tmp_path: Path) -> None:
    """Whatever an overlay replaces."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    (folder / "slurm.conf.j2").write_text("{% block controller %}\nClusterName=own\n{% endblock %}\n")
    texts = slurm_files.files(ClusterSettings(), CONTROL, [], password="pass-word-1", overlay=tmp_path).texts
    conf = texts["slurm.conf"].splitlines()
    assert {"ClusterName=own", "SlurmctldPort=297", "SlurmdPort=298", "AccountingStoragePort=299"} <= {*conf}
    assert "DbdPort=299" in texts["slurmdbd.conf"].splitlines()


def test_the_users_overlay(tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    file = tmp_path / "slurm/slurm.conf.j2"
    file.write_text("{% block scheduling %}\n{{ super() -}}\nSchedulerTimeSlice=60\n{% endblock %}\n")
    text = made([node("n1", 1)], tmp_path)["slurm.conf"]
    assert "PreemptMode=REQUEUE\nSchedulerTimeSlice=60\n" in text
    assert "\x00" not in text
    file.write_text("{% block sheduling %}\n{% endblock %}\n")
    with pytest.raises(BadInput, match="block 'sheduling' is never used: did you mean 'scheduling'"):
        made([node("n1", 1)], tmp_path)
    file.rename(tmp_path / "slurm/slrum.conf.j2")
    with pytest.raises(BadInput, match=r"did you mean 'slurm\.conf'"):
        made([node("n1", 1)], tmp_path)


def test_every_block_is_rendered() -> None:
    """Those that overrides may name, those of the templates and those that are put together are the same."""
    names = [name for blocks_of in slurm_files.BLOCKS.values() for name in blocks_of]
    assert sorted(blocks.BLOCKS["slurm"]) == sorted(names)
    texts = made([node("n1", 1)], slurm={"JobFileAppend": 1})
    assert set(texts) == {*slurm_files.BLOCKS, *slurm_files.MPI}
    keys = [line.partition("=")[0] for text in texts.values() for line in text.splitlines() if "=" in line]
    assert not [
        line
        for text in texts.values()
        for line in text.splitlines()
        if "=" not in line and not line.startswith("#") and line
    ]
    assert "StoragePass=pass-word-1\n" in texts["slurmdbd.conf"]
    assert not any("pass-word-1" in texts[name] for name in ("slurm.conf", "gres.conf", "cgroup.conf"))
    assert {"SlurmctldHost", "StorageHost", "CgroupPlugin"} < set(keys)


def test_the_password_is_in_no_message() -> None:
    files = slurm_files.files(ClusterSettings(), CONTROL, [node("n1", 1)], password="pass-word-1")
    assert "pass-word-1" not in repr(files)
    with pytest.raises(ValueError, match=r"^a password that slurmdbd.conf can't hold$"):
        slurm_files.files(ClusterSettings(), CONTROL, [], password="two\nLines=1")

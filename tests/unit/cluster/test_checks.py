"""`cluster:` judged as a whole without a node: names of nodes, and files that Slurm couldn't read."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_run import Cli

from rocstack.base.errors import BadInput
from rocstack.cluster import checks, slurm_syntax
from rocstack.cluster.settings import ClusterSettings, Reservation

INVENTORY = "control: {hosts: {head: }}\nworkers: {hosts: {n1: }, children: {rack1: {hosts: {n2: }}}}\n"


def block(place: Path, name: str, text: str, file: str = "slurm.conf") -> Path:
    folder = place / "own"
    (folder / "slurm").mkdir(parents=True, exist_ok=True)
    (folder / f"slurm/{file}.j2").write_text(f"{{% block {name} %}}\n{{{{ super() }}}}\n{text}\n{{% endblock %}}\n")
    return folder


def test_what_rocstack_writes_is_in_order(tmp_path: Path) -> None:
    checks.check(ClusterSettings())
    checks.check(ClusterSettings(gres="off", cgroup="disabled"), workers=["n1", "n2"], groups={"rack": ["n1"]})
    checks.check(ClusterSettings(), overlay=block(tmp_path, "more", "# mine\nLicenses=a:3\nPreemptMode=SUSPEND,GANG"))


LINES = {
    "a keyword": ("slurm.conf", "more", "SchedulerParamters=defer", "did you mean 'SchedulerParameters'"),
    "a keyword of another file": ("cgroup.conf", "limits", "KillWait=30", "cgroup.conf has no keyword KillWait"),
    "no pair": ("slurm.conf", "jobs", "KillWait 30", "'KillWait 30' is no KEYWORD=VALUE"),
    "a number": ("slurm.conf", "jobs", "MinJobAge=5m", "MinJobAge must be a whole number, not '5m'"),
    "a truth": ("cgroup.conf", "limits", "ConstrainRAMSpace=yse", "ConstrainRAMSpace must be yes or no, not 'yse'"),
    "a plugin": ("slurm.conf", "scheduling", "SelectType=select/cons_trse", "did you mean 'select/cons_tres'"),
    "a part of a list": ("slurm.conf", "jobs", "PrologFlags=Alloc,Contian", "did you mean 'Contain'?"),
    "of a node": ("slurm.conf", "nodes", "NodeName=x CPU=3", "NodeName has no CPU: did you mean 'CPUs'"),
    "of a partition": ("slurm.conf", "partitions", "PartitionName=x Node=ALL", "PartitionName has no Node: did"),
    "a GPU": ("gres.conf", "gpus", "NodeName=x Name=gpu Tpye=mi300x", "NodeName has no Tpye: did you mean 'Type'?"),
    "detection": ("gres.conf", "gpus", "AutoDetect=rmsi", "AutoDetect can't be 'rmsi': did you mean 'rsmi'?"),
    "the database": ("slurmdbd.conf", "database", "StorageHots=x", "did you mean 'StorageHost'"),
}  # fmt: skip


@pytest.mark.parametrize("case", LINES)
def test_a_line_of_a_block_that_slurm_can_not_read(case: str, tmp_path: Path) -> None:
    file, name, line, says = LINES[case]
    overlay = block(tmp_path, name, line, file)
    with pytest.raises(BadInput) as error:
        checks.check(ClusterSettings(), overlay=overlay)
    assert says in error.value.what
    assert str(error.value.where) == f"{overlay}/slurm/{file}.j2:3"


def test_ports_and_nodes_of_blocks(tmp_path: Path) -> None:
    overlay = block(tmp_path, "more", "SlurmdPort=7000")
    with pytest.raises(BadInput, match=r"'SlurmdPort=7000' moves a port of Slurm's, which is 298") as error:
        checks.check(ClusterSettings(), overlay=overlay)
    assert str(error.value.where) == f"{overlay}/slurm/slurm.conf.j2:3"
    overlay = block(tmp_path, "partitions", "PartitionName=x Nodes=n[1-7]")
    checks.check(ClusterSettings(), overlay=overlay)  # without an inventory any may be there
    with pytest.raises(BadInput, match="PartitionName=x names 'n3'") as error:
        checks.check(ClusterSettings(), workers=["n1", "n2"], overlay=overlay)
    assert str(error.value.where) == f"{overlay}/slurm/slurm.conf.j2:3"


def test_reservations_one_after_the_other_may_have_the_same_nodes() -> None:
    early, late = (
        Reservation(nodes=("n1",), accounts=("default",), start=f"2099-01-0{day}T08:00", duration="1d")
        for day in (1, 2)
    )
    checks.check(ClusterSettings(reservations={"a": early, "b": late}), workers=["n1"])
    later = late.model_copy(update={"start": "2099-01-02T07:00"})
    with pytest.raises(BadInput, match="'b' has n1, which reservation 'a' has at that time"):
        checks.check(ClusterSettings(reservations={"a": early, "b": later}), workers=["n1"])


@pytest.mark.parametrize(
    ("key", "says"),
    [("SlurmdTimeout", "`timeouts.slurmd`"), ("ClusterName", "`name`"), ("KillWait", "`timeouts.kill_wait`")],
)
def test_own_keywords_name_their_setting(key: str, says: str) -> None:
    with pytest.raises(BadInput) as error:
        checks.check(ClusterSettings(slurm={key: 30}))
    assert says in (error.value.next_step or "")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("MessageTimeout", "0", "from 1 to 65535"),
        ("TCPTimeout", "65536", "from 0 to 65535"),
        ("ReturnToService", "3", "from 0 to 2"),
        ("MaxArraySize", "4000002", "from 0 to 4000001"),
        ("SlurmdTimeout", "65534", "from 0 to 65533"),
        ("SchedulerTimeSlice", "4", "from 5 to 65533"),
        ("MaxJobId", "67108864", "from 1 to 67108863"),
        ("FirstJobId", "0", "from 1 to 67108863"),
        ("MaxDBDMsgs", "9999", "from 10000"),
        ("MaxNodeCount", "65537", "from 0 to 65536"),
        ("EpilogMsgTime", "1000001", "from 0 to 1000000"),
        ("PrologTimeout", "65536", "from 0 to 65535"),
        ("HealthCheckTimeout", "0", "from 1 to 65535"),
        ("KeepAliveTime", "2147483648", "from 0 to 2147483647"),
        ("MinJobAge", "-1", "must be a whole number, not '-1'"),
        ("MinJobAge", "089", "must be a whole number"),
        ("KillWait", "1k", "must be a whole number, not '1k'"),
        ("MaxJobCount", "4194304k", "from 1 to 4294967295"),
        ("SuspendTime", "never", "seconds, or INFINITE"),
        ("TmpFS", "relative", "an absolute path"),
        ("StateSaveLocation", "spool/state", "an absolute path"),
        ("JobAcctGatherFrequency", "often", "task=30,network=60"),
        ("JobAcctGatherFrequency", "task=30,disk=1", "task=30,network=60"),
        ("PriorityMaxAge", "a week", "DAYS-HOURS"),
        ("SrunPortRange", "60001", "60001-63000"),
    ],
)
def test_values_that_their_keyword_cannot_have_are_told(key: str, value: str, says: str) -> None:
    assert says in (slurm_syntax.complaint("slurm.conf", key, value) or "")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("MessageTimeout", "100"),
        ("OverTimeLimit", "UNLIMITED"),
        ("MaxArraySize", "0"),
        ("MaxJobCount", "100k"),
        ("MaxStepCount", "0x10"),
        ("ResumeTimeout", "INFINITE"),
        ("MinJobAge", "0"),
        ("GroupUpdateForce", "2"),
        ("SuspendTime", "-1"),
        ("SuspendTime", "600"),
        ("DefMemPerCPU", "5000000000"),
        ("TmpFS", "/scratch/%n"),
        ("JobAcctGatherFrequency", "30"),
        ("JobAcctGatherFrequency", "Task=30,energy=0"),
        ("PriorityMaxAge", "14-0"),
        ("PriorityDecayHalfLife", "7-00:00:00"),
        ("PreemptExemptTime", "-1"),
        ("SrunPortRange", "60001-63000"),
    ],
)
def test_values_that_slurm_takes_are_taken(key: str, value: str) -> None:
    assert slurm_syntax.complaint("slurm.conf", key, value) is None


@pytest.mark.parametrize("file", ["slurm.conf", "slurmdbd.conf"])
def test_every_bound_is_of_a_number(file: str) -> None:
    known = slurm_syntax.keywords(file)
    assert {name: known.kinds[name] for name in known.bounds} == dict.fromkeys(known.bounds, "number")


def test_every_keyword_misspelt_by_a_swap_is_caught() -> None:
    for file in ("slurm.conf", "cgroup.conf", "slurmdbd.conf"):
        names = slurm_syntax.keywords(file).names
        for small, name in names.items():
            typo = name[:-2] + name[-1] + name[-2]
            if typo.lower() not in names:
                assert f"'{names[small]}'" in (slurm_syntax.complaint(file, typo, "1") or ""), typo


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "inventory.yml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SETTINGS: dict[str, tuple[str, int | None, str]] = {
    "a partition's node": ("partitions:\n    a: {}\n    b:\n      nodes:\n      - n1\n      - n3", 7, "names 'n3'"),
    "a group": ("partitions:\n    a: {nodes: rcak1}", 3, "did you mean 'rack1'?"),
    "a reservation's node": ("reservations:\n    a: {nodes: [n9], accounts: [default]}", 3, "names 'n9'"),
    "what rocstack sets": ("slurm:\n    MessageTimeout: 30\n    ClusterName: x", 4, "cluster.slurm sets ClusterName"),
    "more nodes than there are": ("reservations:\n    a: {count: 99, accounts: [default]}", 3, "partition train has 2"),
    "nodes that are reserved": (
        "reservations:\n    a: {nodes: n1, accounts: [default]}\n    b: {nodes: all, accounts: [default]}",
        4,
        "'b' has n1, which reservation 'a' has",
    ),
    "a port": ("slurm:\n    SlurmctldPort: 7777", 3, "cluster.slurm sets SlurmctldPort"),
    "racks that are not there": ("ship: {method: rack}", None, "no rack has a registry"),
    "what blocks set": ("slurm:\n    KillWait: 30", 3, "cluster.slurm sets KillWait"),
}


@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("command", ["config --check", "deploy --plan"])
def test_settings_are_judged_with_the_inventory(case: str, command: str, place: Path, cli: Cli) -> None:
    text, line, says = SETTINGS[case]
    (place / "rocstack.yml").write_text(f"cluster:\n  {text}\n")
    ran = cli(*command.split(), "--json")
    code, document = ran.code, ran.json()
    assert code == 2
    assert says in document["error"]["what"]
    assert document["error"]["where"].endswith(f"rocstack.yml:{line}" if line else "inventory.yml")


def test_config_check_says_what_it_read(place: Path, cli: Cli) -> None:
    (place / "rocstack.yml").write_text("cluster:\n  partitions:\n    a: {nodes: rack1}\n")
    ran = cli("config", "--check", "--json")
    code, document = ran.code, ran.json()
    assert (code, document["ok"], document["absent"]) == (0, True, [])
    assert document["checked"] == [
        "rocstack.yml",
        "inventory.yml",
        "stack debian-13",
        "NIC profile tcp",
        "Slurm's files",
    ]


def test_render_judges_the_cluster_too(place: Path, cli: Cli) -> None:
    (place / "rocstack.yml").write_text("cluster:\n  slurm: {KillWait: 30}\n")
    ran = cli("render", "--json")
    code, document = ran.code, ran.json()
    assert (code, document["error"]["where"]) == (2, f"{place}/rocstack.yml:2")

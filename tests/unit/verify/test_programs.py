"""What the programs say that look at each node, beside the containers (host.py) and in a job (worker.py)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from module_file import module_of

from rocstack.base import finding_texts
from rocstack.node.fabric import parse_env
from rocstack.verify import suite
from rocstack.verify.evidence import Evidence
from rocstack.verify.slurm_session import StepOutput

sys.path.append(str(suite.checks()))
import kernel

SLINGSHOT = Path(__file__).parents[1] / "data/fabric/mi250x-slingshot.env"


def host(said: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Its functions, where `said` is what commands print; others are not there."""
    source = (suite.checks() / "programs/host.py").read_text().partition("\nrefused, let = ")[0]
    found: dict[str, Any] = {}
    exec(source, found)
    found["said"] = lambda *command: said.get(" ".join(command))
    monkeypatch.setattr(found["shutil"], "which", lambda name: None)
    return found


def test_a_tools_words_may_be_of_any_encoding(tmp_path: Path) -> None:
    """One byte that is no UTF-8 lost what all tools on that node had said."""
    asked = {"batches": [{"a": ["printf", "GPU \\265s 1.0\\n"]}], "seconds": 20}
    words = [sys.executable, str(suite.checks() / "programs/tools.py"), json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert json.loads(done.stdout.partition("@rocstack ")[2])["said"]["a"] == {"code": 0, "out": "GPU \ufffds 1.0\n"}


@pytest.mark.parametrize(
    ("served", "chosen"),
    [(("v0.0.39", "v0.0.40"), "v0.0.40"), (("v0.0.43", "v0.0.44", "v0.0.45", "v0.0.46"), "v0.0.43")],
)
def test_slurmrestd_is_asked_in_a_version_that_it_serves(served: Sequence[str], chosen: str) -> None:
    """Of Slurm 23.11, and of 26.11, which has dropped v0.0.42."""
    source = (suite.checks() / "programs/controller.py").read_text().partition("\nWANTED = ")[0]
    found: dict[str, Any] = {}
    exec(source, found)
    found["said"] = lambda *command: {"out": "SLURM_JWT=a.b.c"}
    found["ask"] = lambda path, token: (200 if token else 401) if path.split("/")[2] in served else 404
    assert found["rest"]() == {"api": chosen, "with": 200, "without": 401}


NFT = """table inet filter {
\tchain input {
\t\ttype filter hook input priority filter; policy %s;
\t\tct state established,related accept
\t\tct state invalid drop
\t\tiifname "lo" accept
\t\ttcp dport { 22, 443 } accept
\t\tip saddr 192.0.2.1 drop
%s\t}
}
"""
FIREWALLD = """table inet firewalld {
\tchain filter_INPUT {
\t\ttype filter hook input priority filter + 10; policy accept;
\t\tct state { established, related } accept
\t\tiifname "lo" accept
\t\tjump filter_INPUT_ZONES
\t\treject with icmpx admin-prohibited
\t}
\tchain filter_INPUT_ZONES {
%s\t\tiifname "eno1" goto filter_IN_public
\t\tgoto filter_IN_public
\t}
\tchain filter_IN_public {
\t\tjump filter_IN_public_allow
\t\tmeta l4proto { icmp, ipv6-icmp } accept
\t\treject with icmpx admin-prohibited
\t}
\tchain filter_IN_public_allow {
\t\ttcp dport 22 accept
\t}
\tchain filter_IN_trusted {
\t\taccept
\t}
}
"""
UFW = """-P INPUT DROP
-P FORWARD ACCEPT
-N ufw-before-input
-N ufw-user-input
-A INPUT -j ufw-before-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -d 224.0.0.251/32 -p udp -m udp --dport 5353 -j ACCEPT
-A ufw-before-input -j ufw-user-input
-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT
%s"""
REST = "reject with icmpx admin-prohibited"


@pytest.mark.parametrize(
    ("tool", "rules", "refuses", "lets"),
    [
        ("nft", NFT % ("accept", ""), "", ""),
        ("nft", NFT % ("drop", ""), "policy drop", ""),
        ("nft", NFT % ("drop", "\t\tip saddr 10.0.0.0/8 accept\n"), "", "policy drop, but not of ip saddr 10.0.0.0/8"),
        ("nft", NFT % ("accept", f"\t\t{REST}\n"), REST, ""),
        ("nft", NFT % ("accept", "\t\tcounter packets 3 bytes 180 drop\n"), "drop", ""),
        ("nft", NFT % ("drop", "\t\tcounter packets 3 bytes 180 accept\n"), "", ""),
        ("nft", FIREWALLD % "", REST, ""),
        (
            "nft",
            FIREWALLD % "\t\tip saddr { 10.0.0.0/8, 172.16.0.0/12 } goto filter_IN_trusted\n",
            "",
            f"{REST}, but not of ip saddr {{ 10.0.0.0/8, 172.16.0.0/12 }}",
        ),
        ("iptables", "-P INPUT ACCEPT\n", "", ""),
        ("iptables", "-P INPUT ACCEPT\n-A INPUT -m conntrack --ctstate INVALID -j DROP\n", "", ""),
        ("iptables", "-P INPUT ACCEPT\n-A INPUT -p tcp -m tcp --dport 111 -j REJECT\n", "", ""),
        ("iptables", "-P INPUT ACCEPT\n-A INPUT -s 192.0.2.1/32 -j DROP\n", "", ""),
        ("iptables", "-P INPUT DROP\n", "policy DROP", ""),
        ("iptables", "-P INPUT ACCEPT\n-A INPUT -i lo -j ACCEPT\n-A INPUT -j DROP\n", "DROP", ""),
        (
            "iptables",
            "-P INPUT ACCEPT\n-A INPUT -p icmp -j ACCEPT\n-A INPUT -j REJECT --reject-with icmp-host-prohibited\n",
            "REJECT --reject-with icmp-host-prohibited",
            "",
        ),
        ("iptables", "-P INPUT ACCEPT\n-A INPUT -j all\n-A all -j DROP\n", "DROP", ""),
        ("iptables", "-P INPUT DROP\n-A INPUT -i eno1 -j ACCEPT\n", "", "policy DROP, but not of -i eno1"),
        ("iptables", "-P INPUT DROP\n-A INPUT -i docker0 -j ACCEPT\n", "policy DROP", ""),
        ("iptables", "-P INPUT DROP\n-A INPUT -i lom1 -j ACCEPT\n", "", "policy DROP, but not of -i lom1"),
        (
            "iptables",
            "-P INPUT DROP\n-A INPUT -p tcp -m multiport --dports 30000:60999 -j ACCEPT\n",
            "",
            "policy DROP, but not of -m multiport --dports 30000:60999",
        ),
        (
            "iptables",
            "-P INPUT DROP\n"
            '-A INPUT -s 10.0.0.0/8 -d 10.0.0.0/8 -p tcp -m state --state NEW -m comment --comment "-j b" -j ACCEPT\n',
            "",
            "policy DROP, but not of -s 10.0.0.0/8 -d 10.0.0.0/8",
        ),
        (
            "nft",
            NFT % ("drop", '\t\tiifname { "eno1", "ib0" } accept comment "nodes"\n'),
            "",
            'policy drop, but not of iifname { "eno1", "ib0" }',
        ),
        ("iptables", UFW % "", "policy DROP", ""),
        (
            "iptables",
            UFW % "-A ufw-user-input -s 10.0.0.0/8 -j ACCEPT\n",
            "",
            "policy DROP, but not of -s 10.0.0.0/8",
        ),
    ],
)
def test_a_firewall_refuses_or_lets_through(
    tool: str, rules: str, refuses: str, lets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is what becomes of a packet that no rule for a port or a state is about."""
    asked = {"nft": "nft list ruleset", "iptables": "iptables -S"}[tool]
    found = host({asked: rules}, monkeypatch)["firewall"]()
    name = {"nft": "nftables"}.get(tool, tool)
    assert found == ({name: refuses}, {name: lets} if lets else {})


def test_a_firewall_that_is_on_refuses_nothing_by_that_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"ufw status": "Status: active\n", "iptables -S": "-P INPUT ACCEPT\n", "firewall-cmd --state": "running\n"}
    refuses, lets = host(said, monkeypatch)["firewall"]()
    assert not any(refuses.values())
    assert lets == {"ufw": "active", "firewalld": "running"}


# As a healthy node of eight MI300X says it, hundreds of lines of each.
CHATTER = [
    "amdgpu 0000:05:00.0: amdgpu: ring comp_1.0.0 uses VM inv eng 1 on hub 0",
    "amdgpu 0000:05:00.0: amdgpu: RAS: optional ras ta ucode is not available",
    "[drm] amdgpu kernel modesetting enabled.",
]
AER = "pcieport 0000:00:01.1: AER: Uncorrected (Fatal) error received: 0000:05:00.0"


def test_of_the_kernels_log_what_matters_is_kept_however_much_a_start_says(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        AER,
        "mlx5_core 0000:17:00.0: health_care:151: handling bad device here",
        "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 5: bea0000000000108",
    ]
    lines += [f"[{number}] {text}" for number in range(1000) for text in CHATTER]
    lines += [f"[{number}] amdgpu 0000:05:00.0: amdgpu: GPU reset begin!" for number in range(3)]
    log = host({"dmesg --time-format=iso": "\n".join(lines)}, monkeypatch)["log"](kernel.KEPT)
    assert log == lines[:3] + lines[-3:]


def test_a_flood_of_one_kind_takes_no_room_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    links = [
        f"[{number}] bnxt_en 0000:06:00.0 rdma0: NIC Link is {'Down' if number % 2 else 'Up'}" for number in range(999)
    ]
    corrected = [f"[{n}] pcieport 0000:00:01.1: PCIe Bus Error: severity=Corrected, type=Physical" for n in range(999)]
    log = host({"dmesg": "\n".join([AER, *links, *corrected])}, monkeypatch)["log"](kernel.KEPT)
    assert AER in log
    assert links[-1] in log
    assert len(log) < 1000


def test_a_log_that_nobody_may_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host({}, monkeypatch)["log"](kernel.KEPT) is None


def test_a_task_says_the_variables_it_is_asked_for_and_no_others() -> None:
    env = parse_env(SLINGSHOT.read_text())
    given = {**os.environ, **env, "NCCL_DEBUG": "INFO", "SITE_TOKEN": "secret"}
    program = suite.checks() / "programs/worker.py"
    done = subprocess.run(
        [sys.executable, program, *env, "UCX_TLS"], env=given, capture_output=True, text=True, check=True
    )
    (answer,) = StepOutput(0, done.stdout, "").answers
    assert answer["env"] == env
    assert "secret" not in done.stdout


def test_each_task_is_asked_for_all_that_the_fabric_of_a_node_has() -> None:
    conftest = module_of(suite.checks() / "conftest.py")
    asked: list[str] = []

    def python(program: Path, *names: str, **_: Any) -> StepOutput:
        asked.extend(names)
        return StepOutput(0, '@rocstack {"node": "n1"}', "")

    cluster = SimpleNamespace(allocated=lambda: ("n1",), slurm=SimpleNamespace(python=python))
    fabric = {"n1": {"FI_MR_CACHE_MONITOR": "x"}, "n2": {"FI_MR_CACHE_MONITOR": "x", "OURS": "1"}}
    found = conftest.in_jobs.__wrapped__(Evidence(), cluster, SimpleNamespace(fabric=fabric))
    assert {name: answer.node for name, answer in found.items()} == {"n1": "n1"}
    assert asked == ["FI_MR_CACHE_MONITOR", "OURS"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_what_a_user_types_is_no_private_key_of_ours(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def found(user: int) -> list[str]:
        with subprocess.Popen(["sh", "-c", "read x", "BEGIN RSA PRIVATE KEY"], stdin=-1, user=user) as process:
            program = [sys.executable, str(suite.checks() / "programs/secrets.py")]
            said = subprocess.run(program, env=env, capture_output=True, text=True, check=True).stdout
            process.kill()
        place = f"the process list ({process.pid})"
        return [each for each in json.loads(said)["found"] if each.endswith(place)]

    assert found(65534) == []
    assert len(found(0)) == 1


def test_one_table_tells_the_check_and_the_doctor_what_is_a_fault() -> None:
    """Each entry's own examples; a row of the table is all that a new fault needs."""
    table = {code: entry for code, entry in finding_texts.table().items() if entry.kernel}
    for entry in table.values():
        for line in (str(entry.example), *entry.examples):
            assert (kernel.bad(line), kernel.contained(line)) == (
                entry.kernel != "contained",
                entry.kernel == "contained",
            )
            assert kernel.lasting(line) == (entry.kernel == "lasting")
            assert any(re.search(pattern, line, re.IGNORECASE) for pattern in kernel.KEPT)
    assert {entry.level for entry in table.values() if entry.kernel != "contained"} == {"error"}
    for code in ("oom-killer", "gpu-page-fault-kernel", "gpu-page-fault", "gpu-out-of-memory", "storage-away"):
        assert not kernel.bad(str(finding_texts.table()[code].example)), "any program makes the kernel say that"

"""The suite's programs between machines with a real RDMA stack: what they print is parsed and judged as on a cluster.
Slurm's place is mpirun's."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from evidence_replay import good, red, replay
from mpi import DEVICES, SETTINGS, Pair, rdma_traffic
from test_probe import inventory, probe, profiles  # noqa: F401 (fixtures)
from verbs import DEVICE, NETDEV, VLAN_ADDRESS, index_of

from rocstack.node.nic_settings import SOFT_ROCE
from rocstack.node.profile import Nic, NodeProfile
from rocstack.verify.result import CheckResult
from rocstack.verify.slurm_session import StepOutput
from rocstack.verify.suite import checks

sys.path.append(str(checks()))
from experiments import mpi as launching
from experiments import rdma

WRITE = ("-s", "65536", "-n", "200")  # what an emulated CPU manages


class Mpirun:
    """Steps on the two machines."""

    def __init__(self, machines: Pair, variables: Mapping[str, str]) -> None:
        self.machines, self.variables = machines, variables

    def step(
        self, *words: str, nodes: Sequence[str], tasks: int = 1, seconds: float, env: Mapping[str, str] | None = None
    ) -> StepOutput:
        python, _, source, *arguments = words
        chosen = [machine for machine in self.machines if machine.name in nodes]
        for machine in chosen:
            machine.write("/run/program.py", source)
        exported = " ".join(f"-x {name}={value}" for name, value in {**self.variables, **(env or {})}.items())
        hosts = ",".join(f"{machine.name}:{tasks}" for machine in chosen)
        done = chosen[0].try_run(
            f"mpirun --allow-run-as-root --bind-to none -np {tasks * len(chosen)} --host {hosts}"
            f" --mca oob_tcp_if_include {NETDEV} {exported} {python} /run/program.py {shlex.join(arguments)}",
            seconds=int(seconds),
        )
        return StepOutput(done.code, done.out, done.err)


@pytest.fixture
def mpirun(machines: Pair) -> Mpirun:
    return Mpirun(machines, {**DEVICES, "GLOO_SOCKET_IFNAME": NETDEV})


def ends_of(found: Sequence[NodeProfile]) -> dict[str, list[list[Any]]]:
    return {profile.name: rdma.rails(profile, {}, SOFT_ROCE) for profile in found}


def judged(found: Sequence[NodeProfile], only: str, **evidence: Any) -> dict[str, CheckResult]:
    """By the checks, with what was probed of the machines as the cluster; soft-RoCE is no card, so one is added that
    the image is for."""
    given = good()
    given["cluster"]["labels"]["io.rocstack.nic"] = SOFT_ROCE.nic
    card = Nic(pci="0000:00:00.0", device="0000:0000", nic=SOFT_ROCE.nic, verbs=DEVICE)
    nodes = {node["name"]: node for node in given["cluster"]["nodes"]}
    for profile in found:
        nodes[profile.name] |= {
            "virtual": None,
            "profile": json.loads(json.dumps(asdict(replace(profile, nics=(*profile.nics, card))))),
        }
    return replay({**given, **evidence}, only=only)


def test_good(mpirun: Mpirun, profiles: list[NodeProfile], machines: Pair) -> None:  # noqa: F811
    ends = ends_of(profiles)
    assert ends == {"n1": [[DEVICE, 1, 1, 4096]], "n2": [[DEVICE, 1, 1, 4096]]}
    with rdma_traffic(machines, packets=200):
        pingpong = rdma.between(mpirun, ends, rdma.PINGPONG)
        write = rdma.between(mpirun, ends, rdma.WRITE, more=WRITE)
        both = rdma.between(mpirun, ends, rdma.BOTH_WAYS, more=("-b", *WRITE))
    found = judged(profiles, "rdma-*", **{rdma.PINGPONG: pingpong, rdma.WRITE: write, rdma.BOTH_WAYS: both})
    assert {m.node: (m.state, m.value) for m in found["rdma-reachability"].measures} == {
        "n1": ("passed", 1),
        "n2": ("passed", 1),
    }
    for name in ("rdma-write-bandwidth", "rdma-write-both-ways"):  # no threshold is known of such a device
        (rate,) = found[name].measures
        assert (rate.state, rate.node, rate.peer, rate.unit) == ("measured", "n1", "n2", "Gb/s"), rate
        assert isinstance(rate.value, float)
        assert 0 < rate.value < 100


def test_a_wrong_gid_index_is_seen(inventory: Any, readdressed: Pair, mpirun: Mpirun) -> None:  # noqa: F811
    """The row that was right yesterday is a VLAN's now, where the other machine isn't."""
    now = probe(inventory)
    ends = ends_of(now)
    assert [rails[0][2] for rails in ends.values()] == [index_of(machine, machine.address) for machine in readdressed]
    right = rdma.between(mpirun, ends, rdma.PINGPONG)
    assert not red(judged(now, "rdma-reachability", **{rdma.PINGPONG: right}))
    ends["n1"][0][2] = index_of(readdressed[0], VLAN_ADDRESS)
    wrong = rdma.between(mpirun, ends, rdma.PINGPONG)
    found = judged(now, "rdma-reachability", **{rdma.PINGPONG: wrong})["rdma-reachability"]
    assert found.state == "failed"
    assert "rail 0: ibv_rc_pingpong: " in found.why


def test_a_device_that_is_gone_is_seen(
    profiles: list[NodeProfile],  # noqa: F811
    without_rdma: Pair,
    mpirun: Mpirun,
) -> None:
    """Since it was probed."""
    said = rdma.between(mpirun, ends_of(profiles), rdma.PINGPONG)
    write = rdma.between(mpirun, ends_of(profiles), rdma.WRITE, more=WRITE)
    found = judged(profiles, "rdma-*", **{rdma.PINGPONG: said, rdma.WRITE: write})
    assert red(found) >= {"rdma-reachability", "rdma-write-bandwidth"}
    assert "device rxe0 not found" in found["rdma-reachability"].measures[0].evidence


def test_mpi_over_rdma(mpirun: Mpirun, profiles: list[NodeProfile]) -> None:  # noqa: F811
    mpirun.variables = {**mpirun.variables, **SETTINGS}
    said = launching.launched(mpirun, ["n1", "n2"], shared=True, parts=["ring"])
    found = judged(profiles, "mpi-*", mpi=said)
    assert [m.value for m in found["mpi-transport"].measures] == [f"ucx over rc_verbs/{DEVICE}:1"] * 2, said
    assert {found[name].state for name in ("mpi-launch", "mpi-ring", "mpi-transport")} == {"passed"}


def test_mpi_over_tcp_where_rdma_is_asked_for(
    profiles: list[NodeProfile],  # noqa: F811
    without_rdma: Pair,
    mpirun: Mpirun,
) -> None:
    """Its results are right all the same."""
    mpirun.variables = {**mpirun.variables, **SETTINGS}
    said = launching.launched(mpirun, ["n1", "n2"], shared=True, parts=["ring"])
    found = judged(profiles, "mpi-*", mpi=said)
    assert {found[name].state for name in ("mpi-launch", "mpi-ring")} == {"passed"}
    assert found["mpi-transport"].state == "failed"
    assert f"ucx over tcp/{NETDEV}: not RDMA" in found["mpi-transport"].why


def test_queue_pairs(machines: Pair, profiles: list[NodeProfile]) -> None:  # noqa: F811
    """--all: the image is for no NIC."""
    said = {}
    for machine in machines:
        done = machine.try_run("rocstack-node prove --all --many")
        said[machine.name] = {"node": machine.name, "code": done.code, "said": done.err}
    found = judged(profiles, "queue-pairs", queue_pairs=said)["queue-pairs"]
    assert [(m.state, m.value) for m in found.measures] == [("passed", 512)] * 2

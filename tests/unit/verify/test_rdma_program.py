"""What programs/rdma.py does between two nodes, of which this test is both; and what it is asked."""

from __future__ import annotations

import base64
import json
import re
import shlex
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest
from evidence_replay import good
from pydantic import TypeAdapter
from testinfra.backend.base import CommandResult
from testinfra.host import Host

from rocstack.node.profile import Affinity, NodeProfile
from rocstack.node.rdma_ports import Hca, choose_ports
from rocstack.verify.slurm_session import SlurmSession, StepOutput
from rocstack.verify.suite import checks

sys.path.append(str(checks()))
from experiments import rdma

PROGRAMS = checks() / "programs"
MESSAGES = (PROGRAMS / "messages.py").read_text()
PROGRAM = MESSAGES + (PROGRAMS / "rdma.py").read_text().rpartition("\nmain()")[0]
# As ibv_rc_pingpong does: a server whose client is gone waits for ever.
TOOL = f"""#!{sys.executable}
import socket, sys, time
words = sys.argv[1:]
device, port = words[words.index("-d") + 1], int(words[words.index("-p") + 1])
print(*words)
if words[-2] == "-p":
    with socket.create_server(("127.0.0.1", port)) as server:
        server.accept()[0].recv(1)
    time.sleep(60 if device == "lost" else 0)
else:
    client = socket.create_connection(("127.0.0.1", port))
    time.sleep(60 if device == "mute" else 0)
    client.send(b".")
    if device == "lost":
        sys.exit("Failed status transport retry counter exceeded")
print("100 iters in 0.01 seconds = 10.00 usec/iter")
"""


class Comm:
    """One of two ranks."""

    def __init__(self, rank: int, boxes: Sequence[Queue[Any]]) -> None:
        self.rank, self.boxes = rank, boxes

    def Send(self, data: bytes, peer: int, tag: int) -> None:
        self.boxes[peer].put(data)

    def Iprobe(self, source: int) -> bool:
        return not self.boxes[self.rank].empty()

    def Recv(self, buffer: bytearray, peer: int, tag: int) -> None:
        buffer[:] = self.boxes[self.rank].get()


def program() -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "rdma"}
    exec(PROGRAM, scope)
    return scope


def between(
    rails: Sequence[Sequence[Any]], *, seconds: float = 20, together: bool = True, more: Sequence[str] = ()
) -> list[Any]:
    """What n1, who serves, and n2 say."""
    boxes: list[Queue[Any]] = [Queue(), Queue()]
    said: list[Any] = []
    asked = {"tool": rdma.PINGPONG, "together": together, "seconds": seconds, "more": more}
    ranks = []
    for rank in (0, 1):
        scope = program()
        scope |= {"NODE": f"n{rank + 1}", "say": said.append}
        words = (Comm(rank, boxes), ["n1", "n2"], rails, 0, 1, asked)
        ranks.append(threading.Thread(target=scope["run"], args=words, daemon=True))
        ranks[-1].start()
    for each in ranks:
        each.join(40)
        assert not each.is_alive()
    return said


@pytest.fixture(autouse=True)
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / rdma.PINGPONG
    path.write_text(TOOL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


def test_no_program_unpickles_what_another_node_sends() -> None:
    """mpi4py's functions for objects are those with small letters."""
    objects = (
        r"(comm|heads|local)\.(i?send|i?m?recv|sendrecv|bcast|scatter|alltoall|(all)?gather|(all)?reduce|e?x?scan)\("
    )
    texts = {path.name: path.read_text() for path in PROGRAMS.glob("*.py")}
    assert any("mpi4py" in text for text in texts.values())
    assert [name for name, text in texts.items() if re.search(objects, text) or "pickle.load" in text] == []


@pytest.mark.parametrize(
    "told", [None, 5, [], {}, "ab", ["127.0.0.1"], ["127.0.0.1", 5], ["-x", [70000]], [[], [None]]]
)
def test_what_a_server_tells_is_an_address_and_ports(told: Any) -> None:
    """Else there is no server: no word of it becomes an option of a tool."""
    where, up = program()["served"](told, 1)
    assert up == [None]
    assert where in ("", "127.0.0.1")
    for odd in ("--output=/etc/x", "-h", "a;b"):
        assert program()["served"]([odd, [4000]], 1) == ("", [None])
    assert program()["served"](["10.1.2.3", [4000, None]], 2) == ("10.1.2.3", [4000, None])


@pytest.mark.parametrize("sent", [b"\x80\x04N.", b"[" * 100_000, b"{", b"\xff"])
def test_nonsense_from_another_node_is_nothing(sent: bytes) -> None:
    boxes: list[Queue[Any]] = [Queue(), Queue()]
    boxes[0].put(len(sent).to_bytes(8, "big"))
    boxes[0].put(sent)
    assert program()["heard"](Comm(0, boxes), 1) is None


def test_what_all_tell_comes_in_their_order() -> None:
    class All:
        size = 3

        def Allgather(self, own: bytes, every: bytearray) -> None:
            assert len(own) * 3 == len(every)
            every[:] = own + b"{".ljust(len(own)) + json.dumps(True).encode().ljust(len(own))

    assert program()["told_by_all"](All(), "n1") == ["n1", None, True]


def test_servers_whose_clients_are_lost_end_soon_and_together() -> None:
    said = between([[["lost", 1, 3, None]] * 4 + [["fine", 1, 3, None]]] * 2)
    assert {"node": "n2", "peer": "n1", "well": [4]} in said
    ends = {(each["node"], each["rail"]): each for each in said if "rail" in each}
    assert ends.keys() == {(node, rail) for node in ("n1", "n2") for rail in range(4)}
    assert "retry counter exceeded" in ends["n2", 0]["said"]
    assert "no end when its client had ended with 1" in ends["n1", 3]["said"]


def test_all_clients_of_a_round_have_one_deadline() -> None:
    """What ended in time is told by its own words, though it was waited for after one that did not."""
    said = between([[["mute", 1, 3, None]] * 4 + [["fine", 1, 3, None]]] * 2, seconds=3)
    assert {"node": "n2", "peer": "n1", "well": [4]} in said
    late = [each for each in said if each.get("server") is False]
    assert len(late) == 4
    assert all("no end within 3 s" in each["said"] for each in late)


def test_a_rail_that_a_node_lacks_is_left_out() -> None:
    both = [["fine", 1, 3, None], ["fine", 1, 3, None]]
    assert between([both, [None, both[1]]]) == [{"node": "n2", "peer": "n1", "well": [1]}]
    assert between([both, [None, None]]) == []


@pytest.mark.parametrize(
    ("one", "other", "wanted"), [(4096, 1024, "-m 1024"), (4096, 4096, "-m 4096"), (None, 4096, None)]
)
def test_packets_are_as_large_as_both_ports_can(one: int | None, other: int | None, wanted: str | None) -> None:
    said = between([[["lost", 1, 3, one]], [["lost", 1, 3, other]]])
    assert len(said) == 2
    for each in said:
        assert ("-m" in each["said"]) == bool(wanted)
        assert (wanted or "") in each["said"]


def test_no_port_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    held: set[int] = set()

    class Probe:
        """The kernel may give a port again that nobody holds."""

        port = 0

        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *_: object) -> None:
            held.discard(self.port)

        def bind(self, _: object) -> None:
            self.port = min({*range(20)} - held)
            held.add(self.port)

        def getsockname(self) -> tuple[str, int]:
            return "", self.port

    scope = program()
    scope["socket"] = SimpleNamespace(socket=Probe)
    assert len(set(scope["free_ports"](8))) == 8
    assert not held


def test_of_a_thousand_nodes_the_command_line_is_short_enough() -> None:
    """Linux allows one argument 128 KiB, and the whole line is one to the shell that docker's command goes through."""
    names = [sha256(str(number).encode()).hexdigest()[:27] for number in range(1000)]
    ends = {name: [[f"bnxt_re{rail}", 1, 3 + rail % 2, 4096] for rail in range(8)] for name in names}
    lines: list[str] = []

    class Control:
        def run(self, line: str, seconds: float) -> CommandResult:
            lines.append(line)
            return CommandResult(cast(Any, None), 0, line, "", "")

    rdma.between(SlurmSession(cast(Host, Control())), ends, rdma.PINGPONG)
    (line,) = lines
    assert len(line) < 100_000, len(line)
    request = json.loads(zlib.decompress(base64.b64decode(shlex.split(line)[-1])))
    assert request["rails"] == ends
    assert request["more"] == ["-s", "65536", "-n", "100", "-c"]


def test_bandwidth_is_of_8_queue_pairs_and_messages_of_8_mib_at_both_ends() -> None:
    """As thresholds have it: with one queue pair, or small messages, a healthy port is slower."""
    for tool in (rdma.WRITE, rdma.BOTH_WAYS, rdma.GPU_WRITE):
        more = rdma.MORE[tool]
        options = dict(pairwise(more))
        assert (options["-q"], options["-s"]) == ("8", "8388608"), tool
        said = between([[["bnxt_re0", 1, 3, 4096]]] * 2, together=False, more=more)
        assert len(said) == 2
        assert all(f" {' '.join(more)} -p " in f" {each['said']}" for each in said), said


def test_both_directions_are_measured_by_the_same_tool() -> None:
    class Srun:
        def step(self, *words: str, **_: Any) -> StepOutput:
            asked.append(json.loads(zlib.decompress(base64.b64decode(words[-1]))))
            return StepOutput(0, "", "")

    asked: list[dict[str, Any]] = []
    for tool in (rdma.WRITE, rdma.BOTH_WAYS):
        rdma.between(Srun(), {}, tool)
    assert [each["tool"] for each in asked] == ["ib_write_bw"] * 2
    assert ["-b" in each["more"] for each in asked] == [False, True]


def profile(name: str, **changes: Any) -> NodeProfile:
    node = next(each for each in good()["cluster"]["nodes"] if each["profile"]["verbs"])
    return replace(TypeAdapter(NodeProfile).validate_json(json.dumps(node["profile"])), name=name, **changes)


def placed(*profiles: NodeProfile) -> list[list[Any]]:
    """The devices of each."""
    nic = rdma.nic_of("broadcom")
    found = rdma.placed(
        {each.name: rdma.rails(each, {}, nic) for each in profiles}, {each.name: each for each in profiles}
    )
    return [[rail and rail[0] for rail in listed] for listed in found.values()]


def down(name: str, device: int, **changes: Any) -> NodeProfile:
    verbs = list(profile(name).verbs)
    (port,) = verbs[device].ports
    verbs[device] = replace(verbs[device], ports=(replace(port, state="DOWN"),))
    return profile(name, verbs=tuple(verbs), **changes)


DEVICES = [f"bnxt_re{number}" for number in range(8)]


def test_a_port_that_is_down_leaves_the_others_at_their_places() -> None:
    """By the GPU on the same switch; by name where there is none; the first node may be the one that lacks it."""
    lacking = [None if device == "bnxt_re3" else device for device in DEVICES]
    assert placed(profile("n1"), down("n2", 3)) == [DEVICES, lacking]
    assert placed(down("n1", 3, affinity=()), profile("n2", affinity=())) == [lacking, DEVICES]


def test_two_nodes_that_lack_different_ports() -> None:
    one, other = placed(down("n1", 3), down("n2", 5))
    met = [(one[rail], other[rail]) for rail in rdma.shared(one, other)]
    assert met == [(device, device) for device in DEVICES if device not in ("bnxt_re3", "bnxt_re5")]


def test_devices_of_other_names_meet_by_their_gpus() -> None:
    """A card that is gone shifts the names of the later ones."""
    whole = profile("n1")
    verbs = tuple(device for device in whole.verbs if device.name != "bnxt_re7")
    switch = [each for each in whole.affinity if each.gpu != 3]
    near = tuple(Affinity(each.gpu, f"bnxt_re{rail}", each.via) for rail, each in enumerate(switch))
    (_, found) = placed(whole, profile("n2", verbs=verbs, affinity=(*near, Affinity(3, "bnxt_re2", "numa"))))
    assert found == ["bnxt_re0", "bnxt_re1", "bnxt_re2", None, "bnxt_re3", "bnxt_re4", "bnxt_re5", "bnxt_re6"]


def test_where_nothing_tells_ports_meet_as_they_come() -> None:
    profiles = {"n1": profile("n1", affinity=()), "n2": profile("n2", affinity=())}
    ends = {"n1": [["mlx5_0", 1, 3, None]], "n2": [["mlx5_4", 1, 3, None], ["mlx5_5", 1, 3, None]]}
    assert rdma.placed(ends, profiles) == ends
    assert rdma.placed({}, {}) == {}


@pytest.mark.parametrize(
    ("device", "wanted"), [(9000, 4096), (4200, 4096), (4191, 2048), (1500, 1024), (100, None), (None, None)]
)
def test_the_mtu_of_rdma_is_the_largest_that_fits(device: int | None, wanted: int | None) -> None:
    """4096 and 96 bytes of headers are 4192."""
    gid = next(each.gid for each in choose_ports(profile("n1"), rdma.nic_of("broadcom"))[0])
    assert rdma.mtu(Hca("bnxt_re0", 1, "Ethernet", mtu=device, gid=gid)) == wanted
    assert rdma.mtu(Hca("mlx5_0", 1, "InfiniBand", mtu=device)) is None
    assert rdma.mtu(None) is None


def test_no_node_s_queue_pairs_end_with_another_s() -> None:
    class Srun:
        def step(self, *words: str, nodes: Sequence[str], **more: Any) -> StepOutput:
            asked.append(more)
            said = [f'@rocstack {{"node": "{name}", "code": 0, "said": ""}}' for name in nodes]
            return StepOutput(0, "\n".join(said), "")

    asked: list[Mapping[str, Any]] = []
    assert rdma.queue_pairs(Srun(), ["n1", "n2"]).keys() == {"n1", "n2"}
    assert asked == [{"independent": True}]
    assert rdma.queue_pairs(Srun(), []) == {}


def test_rails_are_the_ports_and_gids_of_the_workers_own_environment() -> None:
    nic = rdma.nic_of("broadcom")
    by_rule = rdma.rails(profile("n1"), {}, nic)
    assert [rail[0] for rail in by_rule] == [f"bnxt_re{number}" for number in range(8)]
    assert {rail[2] for rail in by_rule} == {1}
    said = {"NCCL_IB_HCA": "=bnxt_re5:1,bnxt_re2:1", "NCCL_IB_GID_INDEX": "3"}
    assert rdma.rails(profile("n1"), said, nic) == [["bnxt_re5", 1, 3, 4096], ["bnxt_re2", 1, 3, 4096]]
    assert rdma.rails(profile("n1"), {}, rdma.nic_of("tcp")) == []


def test_memory_of_a_gpu_is_asked_only_of_a_tool_that_has_it(tmp_path: Path) -> None:
    helps = tmp_path / "helps"
    helps.write_text("#!/bin/sh\necho '      --use_rocm=<rocm device id>  Use ROCm'; exit 1\n")
    helps.chmod(0o755)
    scope = program()
    scope["NODE"] = "n1"
    knows, memory = scope["knows"], scope["memory"]
    assert knows(str(helps), "--use_rocm")
    assert not knows(str(helps), "--use_rocm", "--use_rocm_dmabuf")
    assert not knows(str(tmp_path / "absent"), "--use_rocm")
    asked = {"gpus": {"n1": {"bnxt_re1": 3}}, "dmabuf": True}
    assert memory(asked, "bnxt_re1") == ["--use_rocm=3", "--use_rocm_dmabuf"]
    assert memory({}, "bnxt_re1") == []

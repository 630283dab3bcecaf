"""What others on a cluster may send to a run, or leave in its folders."""

import ast
import json
import os
import pickle
import re
import shutil
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as torchs
from conftest import grouped, ranks, run, small, start, state
from torch.distributed import TCPStore, distributed_c10d

from rocstack_trainer import cli, errors
from rocstack_trainer.config import Config
from rocstack_trainer.errors import CheckpointError, ConfigError, PeerLostError, TrainerError
from rocstack_trainer.groups import mesh
from rocstack_trainer.groups.mesh import Broken, Mesh
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import connect, launch, rendezvous, secret
from rocstack_trainer.ranks.peers import Peers
from rocstack_trainer.report import wire
from rocstack_trainer.saving import dcp, folder
from rocstack_trainer.slices import of

SECRET = "0123456789abcdef"
MODULES = sorted(Path(cli.__file__).parent.rglob("*.py"))


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.NAME, "")


# Nothing is unpickled


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["EVIL"],)


def without_pickle(rank: Rank, config: Config) -> int:
    def refuse(*_: object, **__: object) -> None:
        os._exit(66)

    pickle.load = pickle.loads = pickle.Unpickler = distributed_c10d._unpickler = refuse
    return run(rank, config)


@pytest.mark.parametrize("more", [(), ("checkpoint.background=true", "diloco.always=true", "diloco.inner_steps=2")])
def test_a_run_that_saves_and_resumes_unpickles_nothing(tmp_path: Path, more: tuple[str, ...]) -> None:
    for steps in (2, 4):
        here = small(f"train.steps={steps}", "checkpoint.every=2", f"checkpoint.dir={tmp_path / 'c'}", *more)
        assert ranks(2, without_pickle, here) == [0, 0]
    assert state(tmp_path / "c", 4)["world"] == 2


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.stem)
def test_no_module_has_a_function_that_unpickles(file: Path) -> None:
    """By name, wherever it comes from: c10d's functions for objects, DCP's save and load, torch.load."""
    tree = ast.parse(file.read_text())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    taken = [
        (node.module, name.name) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names
    ]
    names |= {name for _, name in taken}
    assert not [name for name in names if re.search(r"_object(_list|s)?$|^(unsafe_load|read_metadata)$", name)]
    assert ("torch.distributed.checkpoint", "save") not in taken
    assert ("torch.distributed.checkpoint", "load") not in taken
    calls = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not calls & {"torch.load", "pickle.load", "pickle.loads", "np.load", "dcp.save", "dcp.load"}


def failing(rank: Rank) -> list[tuple[str, str]]:
    found = []
    for kind in [*errors.KINDS.values(), OSError]:

        def fail(kind: type[Exception] = kind) -> None:
            if rank.rank == 1:
                raise kind("what happened")

        try:
            Peers(rank).agree(fail, "where: ", ConfigError)
        except TrainerError as error:
            found.append((type(error).__name__, str(error), error.everywhere))
    return found


def test_errors_travel_as_their_kind_and_text() -> None:
    def below(kind: type) -> set[type]:
        return {kind, *(each for sub in kind.__subclasses__() for each in below(sub))}

    assert {kind.__name__: kind for kind in below(TrainerError)} == errors.KINDS
    first, second = ranks(2, grouped, failing)
    assert first == second
    said = f"where: rank 1 on {socket.gethostname()}: what happened"
    assert first == [(kind, said, True) for kind in [*errors.KINDS, "ConfigError"]]


def forged(rank: Rank) -> str:
    """Rank 1 is a stranger, who says what kind of error rank 0 shall make."""
    if rank.rank:
        return str(Peers(rank)._gather([None, ["Popen", "touch /tmp/x", "a host"]]))
    with pytest.raises(TrainerError) as error:
        Peers(rank).agree(lambda: None)
    return type(error.value).__name__


def test_a_kind_that_nobody_knows_is_a_plain_error() -> None:
    assert ranks(2, grouped, forged)[0] == "TrainerError"


# The store


def listens(rank: Rank) -> set[str]:
    os.environ.pop("ROCSTACK_TRAINER_STORE_FD", None)
    port = int(os.environ["MASTER_PORT"]) + 1
    os.environ["MASTER_PORT"] = str(port)
    with launch.process_group(rank, 60):
        lines = [
            line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()
        ]
        return {words[1].partition(":")[0] for words in lines if words[3] == "0A" and words[1].endswith(f":{port:04X}")}


def test_the_store_listens_where_the_ranks_look_for_it_only() -> None:
    assert ranks(2, listens) == [{"0100007F"}] * 2


SRUN = {"SLURM_STEP_NODELIST": "n[1-2]"}


@pytest.mark.parametrize(
    ("names", "ways", "several", "env", "found"),
    [
        ({"n1": "10.0.0.1"}, {"n1": "10.0.0.1", "n2": "10.0.0.1"}, True, SRUN, "10.0.0.1"),
        ({"n1": "127.0.1.1"}, {"n1": "127.0.0.1", "n2": "10.0.0.1"}, True, SRUN, "10.0.0.1"),  # Debian's /etc/hosts
        ({"n1": "127.0.1.1"}, {"n1": "127.0.0.1"}, True, {}, ""),
        ({"n1": "127.0.1.1"}, {"n1": "127.0.0.1"}, False, {}, "127.0.1.1"),
        ({}, {"n2": "10.0.0.1"}, True, SRUN, "10.0.0.1"),
    ],
)
def test_rank_0_listens_where_other_nodes_reach_it(monkeypatch, names, ways, several, env, found) -> None:
    monkeypatch.setattr(wire, "address", lambda host: names.get(host, ""))
    monkeypatch.setattr(wire, "own_address", lambda host, _: ways.get(host, ""))
    rank = Rank(0, 0, 4, 2 if several else 4)
    assert next(rendezvous.doors(rank, "n1", 1, env), "") == found


def as_debian_installs_it(rank: Rank) -> set[str]:
    """Rank 0's host has a loopback address by its own name, and the other rank is on it, too."""
    os.environ |= {"MASTER_ADDR": "n1", "SLURM_STEP_NODELIST": "n1,203.0.113.7"}
    socket.gethostbyname = lambda host: "127.0.1.1" if host == "n1" else host
    return listens(replace(rank, local_world=1))


@pytest.mark.skipif(not wire.own_address("203.0.113.7", 1), reason="there is no way out of here")
def test_ranks_beside_rank_0_find_it_where_other_nodes_do() -> None:
    own = socket.inet_aton(wire.own_address("203.0.113.7", 1))[::-1].hex().upper()
    assert ranks(2, as_debian_installs_it) == [{own}] * 2


def test_an_address_of_another_machine_is_passed_over() -> None:
    with connect.listen(0, ["203.0.113.1", "127.0.0.1"]) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"
    with connect.listen(0, ["203.0.113.1"]) as listening:
        assert listening.getsockname()[0] in connect.ANYWHERE


@pytest.mark.parametrize(
    ("nodes", "last"),
    [("n1", "n1"), ("n1,n2", "n2"), ("gpu[03-05,9],x", "x"), ("x,r[7,9-11]-ib", "r11-ib"), ("r[7]", "r7"), ("", "")],
)
def test_last_host(nodes: str, last: str) -> None:
    assert rendezvous.last_host(nodes) == last


def test_a_store_at_one_address_of_this_machine(capfd) -> None:
    process = start("--store", "127.0.0.1:0")
    try:
        said = process.stdout.readline()
        assert re.match(r"store: 127.0.0.1:\d+$", said)
        port = int(said.rpartition(":")[2])
        other = wire.own_address("192.0.2.1", 1)
        if other:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((other, port), timeout=5)
    finally:
        process.kill()
        process.communicate()
    done = start("--store", "203.0.113.1:0")
    assert "--store 203.0.113.1:0: this machine doesn't have that address" in done.communicate(timeout=60)[1]
    assert done.returncode == 2


def guarded(rank: Rank, address: str, keys: list[str]) -> list[bool]:
    os.environ[secret.NAME] = keys[rank.rank]
    with launch.process_group(rank, 60, address, 1):
        host, port = address.split(":")
        stranger = TCPStore(host, int(port), is_master=False, wait_for_workers=False, use_libuv=False)
        stranger.set("group0/attempt1/lost", "nobody")  # ends a run that has no secret
        return [stranger.check([f"{prefix}group0/attempts"]) for prefix in ("", f"{secret.corner()}/", f"{SECRET}/")]


def test_who_does_not_know_the_secret_does_not_find_the_keys(store) -> None:
    assert ranks(2, guarded, store[0], [SECRET] * 2) == [[False, True, False]] * 2
    for error in ranks(2, guarded, store[0], [SECRET, SECRET[::-1]]):
        assert isinstance(error, PeerLostError)
        assert f"do all ranks have the same {secret.NAME}?" in str(error)


def test_a_secret_that_can_be_guessed_is_refused(monkeypatch) -> None:
    monkeypatch.setenv(secret.NAME, "secret")
    with pytest.raises(ConfigError, match="has 6 characters, at least 16"):
        secret.corner()


def test_what_is_seen_in_the_store_does_not_tell_the_secret(monkeypatch) -> None:
    monkeypatch.setenv(secret.NAME, SECRET)
    corner = secret.corner()
    monkeypatch.setenv(secret.NAME, corner)
    assert SECRET not in corner
    assert secret.corner() != corner


@pytest.mark.parametrize(("more", "made"), [((), True), (("--parallel.store=n1:29500",), False)])
def test_ranks_on_one_machine_get_a_secret_of_their_own(monkeypatch, more: tuple[str, ...], made: bool) -> None:
    """Not where they meet the ranks of other commands, who couldn't know it."""
    seen = []
    monkeypatch.setattr(cli, "spawn", lambda *_: seen.append(os.environ[secret.NAME]) or 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for _ in range(2):
        monkeypatch.setenv(secret.NAME, "")
        assert cli.run(["--ranks=2", *more]) == 0
    assert [len(text) for text in seen] == [32 * made] * 2
    assert not made or seen[0] != seen[1]


# A checkpoint's folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "c"
    assert ranks(1, open_umask, settings(path)) == [0]
    return path


def settings(path: Path, steps: int = 2) -> Config:
    return small(f"train.steps={steps}", f"checkpoint.dir={path}")


def open_umask(rank: Rank, config: Config) -> int:
    os.umask(0)
    return run(rank, config)


def test_others_can_not_write_to_a_checkpoint_whatever_the_umask_is(saved: Path) -> None:
    found = [saved, *saved.rglob("*")]
    assert len(found) == 6
    assert not [path for path in found if path.stat().st_mode & 0o022]
    assert all(path.stat().st_mode & 0o044 for path in found)  # they may read it, as the umask says
    assert ranks(1, run, settings(saved, 3)) == [0]


@pytest.mark.parametrize("what", [".", "step-00000002", "step-00000002/tensors.json", "step-00000002/state.json"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_a_folder_that_others_can_write_is_refused(saved: Path, tmp_path: Path, what: str, mode: int) -> None:
    copy = Path(shutil.copytree(saved, tmp_path / "a b"))
    shutil.rmtree(copy / "step-00000003", ignore_errors=True)
    (path := copy / what).chmod((copy / what).stat().st_mode | mode)
    (error,) = ranks(1, run, settings(copy, 4))
    assert isinstance(error, ConfigError)
    assert re.search(rf"{re.escape(str(path))}: others can write to it \(.*w.*\)", str(error))
    command = str(error).splitlines()[1].strip()
    assert command == f"chmod -R go-w '{path}'"
    assert ranks(1, run, small("train.steps=1", f"checkpoint.dir={copy}", "checkpoint.resume=false")) == [0]
    subprocess.run(command, shell=True, check=True)
    assert ranks(1, run, settings(copy, 4)) == [0]


def test_a_folder_like_tmp_will_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    folder.private(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder.private(tmp_path)
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to user 65534, not to you"):
        folder.private(tmp_path)


ROW = ["a", "float32", [2], [0], [2], "__0_0.distcp", 0, 8]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (1, "load"), (1, "nn"), (1, 7), (2, "2"), (2, [2.0]), (2, [-1]), (3, [True]), (3, None), (5, "../x"),
        (5, "/etc/x"), (5, ".."), (5, None), (6, "0"), (7, 1 << 70), (8, 1), (None, None), (None, {}), (None, 3),
    ],
)  # fmt: skip
def test_a_forged_index_is_refused(tmp_path: Path, at: int | None, value: Any) -> None:
    rows: Any = [[*ROW[:at], value, *ROW[at + 1 :]]] if at is not None else value
    (tmp_path / "tensors.json").write_text(json.dumps(rows))
    with pytest.raises(CheckpointError, match=r"tensors\.json is not what rocstack-train writes"):
        dcp.contents(tmp_path)


@pytest.mark.parametrize("text", ["", "[[", "[" * 100_000, "\xff"])
def test_an_index_that_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tensors.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError):
        dcp.contents(tmp_path)


def test_a_checkpoint_is_read_without_a_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever .metadata holds: a list of classes is no guard, since a pickle sets attributes of those classes."""
    monkeypatch.setenv("EVIL", str(tmp_path / "ran"))
    rows, _ = dcp.write({name: of(tensor) for name, tensor in tensors().items()}, tmp_path, 0)
    dcp.write_index(rows, tmp_path)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    into = {name: torch.full_like(tensor, 7) for name, tensor in tensors().items()}
    dcp.read(into, tmp_path)
    assert all(torch.equal(into[name], tensor) for name, tensor in tensors().items())
    assert not (tmp_path / "ran").exists()


KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]


def tensors() -> dict[str, torch.Tensor]:
    found = {f"a.{kind}": torch.arange(6).reshape(2, 3).to(kind) for kind in KINDS}
    return found | {"none": torch.zeros(()), "empty": torch.zeros(0, 3), "part": torch.arange(9.0)[3:5]}


@pytest.mark.filterwarnings("ignore")
def test_dcp_reads_ours(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    rows, sums = dcp.write({name: of(tensor) for name, tensor in tensors().items()}, tmp_path / "ours", 0)
    dcp.write_index(rows, tmp_path / "ours")
    assert sums == folder.sums([tmp_path / "ours/__0_0.distcp"]), "hashed on the way is hashed on the disk"

    def by_dcp(into: dict[str, torch.Tensor]) -> None:
        torchs.load(into, checkpoint_id=tmp_path / "ours")

    for read in (by_dcp, lambda into: dcp.read(into, tmp_path / "ours")):
        into = {name: torch.full_like(tensor, 7) for name, tensor in tensors().items()}
        read(into)
        assert all(torch.equal(into[name], tensor) for name, tensor in tensors().items())
    assert dcp.contents(tmp_path / "ours") == dcp.shapes(tensors())


# Between DiLoCo's groups


def test_bytes_from_a_stranger_are_no_progress() -> None:
    here, over = Mesh("127.0.0.1"), threading.Event()

    def drip() -> None:
        with socket.create_connection(here.address) as stranger:
            for _ in range(31):  # one more would be a greeting
                stranger.sendall(b"x")
                if over.wait(1):
                    return

    stranger = threading.Thread(target=drip, daemon=True)
    stranger.start()
    try:
        with pytest.raises(Broken, match="a: nothing came or went"):
            here.swap("t", "b", {"a": here.address}, {"a": []}, {"a": []}, 2, lambda: None)
        assert stranger.is_alive(), "it was waited for as long as the stranger sent"
    finally:
        over.set()


def test_strangers_who_say_nothing_are_let_go(monkeypatch) -> None:
    monkeypatch.setattr(mesh, "STRANGERS", 8)
    one, other = Mesh("127.0.0.1"), Mesh("127.0.0.1")
    crowd = [socket.create_connection(other.address) for _ in range(30)]
    into = {name: [memoryview(bytearray(3))] for name in "ab"}
    most = [0]

    def look() -> None:
        most[0] = max(most[0], open_connections(other.address[1]))

    ends = threading.Event()

    def first() -> None:
        time.sleep(1)
        one.swap("t", "a", {"b": other.address}, {"b": [memoryview(b"abc")]}, {"b": into["b"]}, 5, lambda: None)
        ends.set()

    threading.Thread(target=first, daemon=True).start()
    other.swap("t", "b", {"a": one.address}, {"a": [memoryview(b"xyz")]}, {"a": into["a"]}, 5, look)
    assert ends.wait(5)
    assert (bytes(into["a"][0]), bytes(into["b"][0])) == (b"abc", b"xyz")
    assert 0 < most[0] <= 8
    gone = 0
    for stranger in crowd:
        stranger.settimeout(1)
        gone += stranger.recv(1) == b""
    assert gone == 30


def open_connections(port: int) -> int:
    """Sockets of this process that a peer has connected to this port and that it keeps."""
    here = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                here += copy.family == socket.AF_INET and copy.getsockname()[1] == port and bool(copy.getpeername())
        except OSError:
            continue
    return here


def test_groups_with_another_secret_do_not_talk(monkeypatch) -> None:
    """The listener is one who took a leader's place: it gets nothing but a greeting, which tells it nothing."""
    greetings = set()
    for text in (SECRET, SECRET[::-1], ""):
        monkeypatch.setenv(secret.NAME, text)
        greetings.add(bytes(mesh._greeting("t", "b", "a")))
    assert len(greetings) == 3
    monkeypatch.setenv(secret.NAME, SECRET)
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def answer() -> None:
            client, _ = impostor.accept()
            received.extend(client.recv(99))
            client.sendall(sorted(greetings - {bytes(mesh._greeting("t", "b", "a"))})[0] + b"xyz")
            with suppress(ConnectionResetError):
                received.extend(client.recv(99))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        into = {"b": [memoryview(bytearray(3))]}
        with pytest.raises(Broken, match="b: another program answers there, or it has another secret"):
            Mesh("127.0.0.1").swap(
                "t", "a", {"b": impostor.getsockname()}, {"b": [memoryview(b"abc")]}, into, 5, lambda: None
            )
        thread.join(5)
    assert bytes(into["b"][0]) == bytes(3)
    assert bytes(received) == bytes(mesh._greeting("t", "a", "b"))

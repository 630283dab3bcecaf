"""Groups that die, stop, come late or come back. Each is a real process with a real `Outer` on a toy model."""

import errno
import hashlib
import json
import os
import random
import re
import select
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Group, kill, lines, small, store_process, wait_for

from rocstack_trainer.errors import ConfigError, PeerLostError
from rocstack_trainer.groups import mesh
from rocstack_trainer.groups.diloco import Outer
from rocstack_trainer.groups.mesh import Broken, Link, Mesh, _greeting
from rocstack_trainer.groups.roster import Roster
from rocstack_trainer.rank import Rank

LOST_AFTER_S = 1.0
H = 10


def config(groups: int, rounds: int, *more: str) -> Any:
    return small(
        f"diloco.groups={groups}",
        f"diloco.inner_steps={H}",
        f"train.steps={H * rounds}",
        "diloco.beat_s=0.1",
        f"diloco.lost_after_s={LOST_AFTER_S}",
        "diloco.compress=none",
        *more,
    )


def moved(group: int, step: int, size: int) -> torch.Tensor:
    """How far the inner steps to `step` lead this group."""
    return torch.randn(size, generator=torch.Generator().manual_seed(1000 * group + step))


def life(rank: Rank, store: Any, config: Any, log: Path, size: int = 50, at: int = 0, **odd: Any) -> list[str]:
    """Every group's loop without the training. Writes (step, sha256 of anchor and momentum) after each outer step."""
    net = torch.nn.Linear(size, 1, bias=False)
    torch.nn.init.constant_(net.weight, odd.get("start", 1.0))
    said: list[str] = []
    outer = Outer(config, rank, store, net, said.append)
    outer.at.fill_(at if at else -1)
    if at:
        outer.anchor.fill_(odd.get("start", 1.0))
    if "misbehave" in odd:
        misbehave(*odd["misbehave"])
    step = outer.join(at)
    while step < config.train.steps:
        time.sleep(odd.get("pause", 0))
        step += H
        with torch.no_grad():
            net.weight.add_(moved(rank.group, step, size))
        step = outer.sync(step)
        state = hashlib.sha256(outer.anchor.numpy().tobytes() + outer.momentum.numpy().tobytes()).hexdigest()
        with log.open("a") as file:
            print(json.dumps([rank.group, step, state]), file=file)
    outer.close()
    return said


def misbehave(number: int, calls: int, *where: str) -> None:
    """Sends itself a signal at one of its calls: to the store ("ask") or to a connection ("move")."""
    left = [calls]

    def counted(function: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), number)
            return function(*args)

        return wrapper

    for kind, name in ((Roster, "ask"), (Link, "move")):
        if name in where:
            setattr(kind, name, counted(getattr(kind, name)))


def odd_life(rank: Rank, store: Any, config: Any, log: Path, odd: dict[str, Any]) -> list[str]:
    return life(rank, store, config, log, **odd)


def states(log: Path) -> dict[int, set[str]]:
    """Of each outer step: the states that groups had after it."""
    found: dict[int, set[str]] = {}
    for _, step, state in lines(log):
        found.setdefault(step, set()).add(state)
    return found


def agree(log: Path, rounds: int) -> dict[int, set[str]]:
    found = states(log)
    assert sorted(found) == [H * (n + 1) for n in range(rounds)]
    assert all(len(each) == 1 for each in found.values()), found
    return found


def reference(size: int, rounds: list[list[int]]) -> str:
    """The state after outer steps with these groups, by torch's own optimizer and plain means."""
    anchor = torch.nn.Parameter(torch.ones(size))
    sgd = torch.optim.SGD([anchor], lr=0.7, momentum=0.9, nesterov=True)
    for number, groups in enumerate(rounds):
        deltas = [anchor.data - (anchor.data + moved(group, H * (number + 1), size)) for group in groups]
        anchor.grad = sum(deltas, torch.zeros(size)) / len(groups)
        sgd.step()
    momentum = sgd.state[anchor]["momentum_buffer"]
    return hashlib.sha256(anchor.data.numpy().tobytes() + momentum.numpy().tobytes()).hexdigest()


def test_three_groups_make_the_steps_of_torchs_nesterov_sgd(store, tmp_path) -> None:
    log = tmp_path / "log"
    groups = [Group(store[0], g, 3, 1, life, config(3, 4), log) for g in range(3)]
    assert [group.results() for group in groups] == [[[]]] * 3
    assert agree(log, 4)[4 * H] == {reference(50, [[0, 1, 2]] * 4)}
    assert len(lines(log)) == 12


def test_a_killed_group_is_left_out_and_comes_back(store, tmp_path) -> None:
    log, settings = tmp_path / "log", config(3, 8)
    odd = {"pause": 0.3}
    groups = [Group(store[0], g, 3, 1, odd_life, settings, log, odd) for g in range(3)]
    wait_for(lambda: len(lines(log)) >= 3)  # all made the first outer step
    groups[1].signal(signal.SIGKILL)
    groups[1].results()
    back = Group(store[0], 1, 3, 1, odd_life, settings, log, odd)
    for group in (groups[0], groups[2], back):
        assert group.results()[0] is not None
    found = agree(log, 8)
    by = {step: sorted(group for group, at, _ in lines(log) if at == step) for step in found}
    assert by[H] == [0, 1, 2]
    assert [0, 2] in by.values()  # the mean of two...
    assert by[8 * H] == [0, 1, 2]  # ...and it was back
    assert found[8 * H] == {reference(50, [by[step] for step in sorted(by)])}


@pytest.mark.parametrize("calls", [1, 6])  # of moves, of some MB each: 20 MB are not all sent then
def test_a_group_killed_in_the_middle_of_an_exchange_does_not_hang_or_split_the_others(store, tmp_path, calls) -> None:
    log, settings, large = tmp_path / "log", config(3, 2), {"size": 5_000_000}
    whole = [Group(store[0], g, 3, 1, odd_life, settings, log, large) for g in (0, 2)]
    dying = large | {"misbehave": (signal.SIGKILL, calls, "move")}
    assert Group(store[0], 1, 3, 1, odd_life, settings, log, dying).results() == [None]
    said = [group.results()[0] for group in whole]
    assert any("outer step at 0" in text and "tries again" in text for each in said for text in each)
    assert agree(log, 2)[2 * H] == {reference(5_000_000, [[0, 2]] * 2)}


def cut_off(pairs: set[tuple[int, int]], until: float) -> None:
    """No route between these groups until then."""
    connect = socket.create_connection

    def create_connection(address: Any, *more: Any, **keywords: Any) -> socket.socket:
        if time.time() < until and address[1] in ports():
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        return connect(address, *more, **keywords)

    def ports() -> set[int]:
        return {address[1] for uid, address in known.items() if (me[0], int(uid[:4])) in pairs}

    about = Roster.about
    known: dict[str, Any] = {}
    me = [-1]

    def looked(roster: Roster, uid: str) -> dict[str, Any]:
        found = about(roster, uid)
        known[uid], me[0] = found["address"], roster.group
        return found

    Roster.about = looked
    mesh.socket.create_connection = create_connection


def apart_life(rank: Rank, store: Any, config: Any, log: Path, pairs: set, until: float, odd: dict) -> list[str]:
    cut_off(pairs, until)
    return life(rank, store, config, log, **odd)


def test_no_route_for_two_seconds_stops_nobody(store, tmp_path) -> None:
    log, settings = tmp_path / "log", config(3, 2, "diloco.lost_after_s=2")
    more = (settings, log, {(0, 2)}, time.time() + 2.5, {"pause": 0.2})
    said = [Group(store[0], g, 3, 1, apart_life, *more) for g in range(3)]
    assert all(isinstance(each, list) for group in said for each in group.results())
    assert agree(log, 2)[2 * H] == {reference(50, [[0, 1, 2]] * 2)}


@pytest.mark.parametrize(("pairs", "out"), [({(0, 2)}, 2), ({(0, 1), (0, 2)}, 0), ({(0, 2), (1, 2)}, 2)])
def test_who_has_the_fewest_working_links_is_left_out(store, tmp_path, pairs, out) -> None:
    log, settings = tmp_path / "log", config(3, 2)
    more = (settings, log, pairs, time.time() + 1000, {"pause": 0.2})
    groups = [Group(store[0], g, 3, 1, apart_life, *more) for g in range(3)]
    staying = [g for g in range(3) if g != out]
    said = [groups[g].results()[0] for g in staying]
    assert all(isinstance(each, list) for each in said), said
    assert any(f"group {out} on" in text and "is left out" in text for each in said for text in each)
    assert agree(log, 2)[2 * H] == {reference(50, [staying] * 2)}
    groups[out].signal(signal.SIGKILL)
    groups[out].results()


def test_of_two_groups_that_do_not_reach_each_other_one_ends_after_a_while(store, tmp_path) -> None:
    more = (config(2, 2), tmp_path / "log", {(0, 1)}, time.time() + 1000, {})
    began = time.monotonic()
    groups = [Group(store[0], g, 2, 1, apart_life, *more) for g in range(2)]
    (error,), (alone,) = (group.results() for group in groups)
    assert isinstance(error, PeerLostError)
    assert "6 attempts failed" in str(error)
    assert "No route" in str(error)
    assert any("tries again with 1 of 2 groups" in text for text in alone)
    assert time.monotonic() - began > 1.5 * LOST_AFTER_S


def test_a_leader_listens_where_it_is_told(store, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = (f"diloco.port={port}", "diloco.address=localhost")
        (error,) = Group(store[0], 0, 2, 1, life, config(2, 1, "diloco.group=0", *where), tmp_path / "log").results()
        assert isinstance(error, ConfigError)
        assert f"diloco.port={port}: " in str(error)
        assert "Address already in use" in str(error)
    of = [config(2, 1, f"diloco.group={g}", *(where if g == 1 else ())) for g in range(2)]
    groups = [Group(store[0], g, 2, 1, life, of[g], tmp_path / "log") for g in range(2)]
    assert [group.results() for group in groups] == [[[]]] * 2


def test_a_group_that_was_stopped_joins_again(store, tmp_path) -> None:
    log, settings = tmp_path / "log", config(2, 12)
    odd = {"pause": 0.25}
    groups = [Group(store[0], g, 2, 1, odd_life, settings, log, odd) for g in range(2)]
    wait_for(lambda: len(lines(log)) >= 2)
    groups[1].signal(signal.SIGSTOP)
    made = len(lines(log))
    wait_for(lambda: len(lines(log)) > made + 1)  # the other one goes on
    groups[1].signal(signal.SIGCONT)
    (alone,), (stopped,) = (group.results() for group in groups)
    assert alone  # it says what it waits for, and who joined
    assert any("went on without this one" in text for text in stopped)
    agree(log, 12)


def test_an_older_checkpoint_gets_the_newest_weights(store, tmp_path) -> None:
    log, settings = tmp_path / "log", config(3, 5)
    odd = [{"at": 2 * H}, {}, {"at": 2 * H}]
    groups = [Group(store[0], g, 3, 1, odd_life, settings, log, odd[g]) for g in range(3)]
    said = [group.results()[0] for group in groups]
    assert any("joined at step 20" in text for text in said[1])
    found = states(log)
    assert sorted(found) == [3 * H, 4 * H, 5 * H]
    assert all(len(each) == 1 for each in found.values())


def test_all_killed_start_again_in_the_same_store(store, tmp_path) -> None:
    log, settings = tmp_path / "log", config(2, 3)
    odd = {"pause": 0.3}
    groups = [Group(store[0], g, 2, 1, odd_life, settings, log, odd) for g in range(2)]
    wait_for(lambda: len(lines(log)) >= 2)
    for group in groups:
        group.signal(signal.SIGKILL)
        group.results()
    log.write_text("")
    groups = [Group(store[0], g, 2, 1, life, settings, log) for g in range(2)]
    assert [group.results() for group in groups] == [[[]]] * 2
    assert agree(log, 3)[3 * H] == {reference(50, [[0, 1]] * 3)}


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"start": 2.0}, "groups started from different weights"),
        ({"size": 51}, "group [01] on .* has other settings: 5"),
    ],
)
def test_groups_that_do_not_fit_are_refused(store, tmp_path, odd, message) -> None:
    groups = [Group(store[0], g, 2, 1, odd_life, config(2, 3), tmp_path / "log", odd if g else {}) for g in range(2)]
    for group in groups:
        (error,) = group.results()
        assert isinstance(error, ConfigError)
        assert re.search(message, str(error))


def test_a_group_number_is_given_once(store, tmp_path) -> None:
    settings = config(2, 30)
    groups = [Group(store[0], g, 2, 1, odd_life, settings, tmp_path / "log", {"pause": 0.2}) for g in range(2)]
    wait_for(lambda: lines(tmp_path / "log"))
    (error,) = Group(store[0], 1, 2, 1, life, settings, tmp_path / "log").results()
    assert isinstance(error, ConfigError)
    assert f"group 1 on {socket.gethostname()} is already running" in str(error)
    for group in groups:
        group.signal(signal.SIGKILL)
        group.results()


def test_a_group_that_does_not_come_is_named(store, tmp_path) -> None:
    (error,) = Group(store[0], 1, 3, 1, life, config(3, 1, "parallel.timeout_s=2"), tmp_path / "log").results()
    assert isinstance(error, PeerLostError)
    assert "group 0, 2 of 3 didn't come within 2 s" in str(error)


def test_a_lost_store_is_said(store, tmp_path, capfd) -> None:
    log, settings = tmp_path / "log", config(2, 30, "parallel.timeout_s=1")
    groups = [Group(store[0], g, 2, 1, odd_life, settings, log, {"pause": 0.2}) for g in range(2)]
    wait_for(lambda: lines(log))
    kill(store[1])
    errors = [group.results(10)[0] for group in groups]  # None: the thread that beats was faster, and ended the process
    err = capfd.readouterr().err
    said = f"the store .* {store[0]}"
    for error in filter(None, errors):
        assert isinstance(error, PeerLostError)
        assert re.search(said, str(error))
    ended = re.findall(f"(?m)^error: .*{said}", err)  # by the thread; what is raised, conftest prints otherwise
    assert len(ended) >= errors.count(None), "a leader hung, or ended without a word"


def test_between_outer_steps_the_store_may_start_anew(store, tmp_path) -> None:
    log = tmp_path / "log"
    groups = [Group(store[0], g, 2, 1, odd_life, config(2, 3), log, {"pause": 1.0}) for g in range(2)]
    wait_for(lambda: len(lines(log)) == 2)
    kill(store[1])
    with store_process(int(store[0].rpartition(":")[2])):
        for group in groups:
            ((said,),) = group.results()
            assert "the store was started anew" in said
    assert agree(log, 3)[3 * H] == {reference(50, [[0, 1]] * 3)}


def fuzz(tmp_path: Path, seed: int, rounds: int = 8) -> None:
    """Random groups die or stop at random points, and some come back. Whoever makes an outer step has what all have."""
    chance, log = random.Random(seed), tmp_path / "log"
    settings = config(3, rounds, "diloco.lost_after_s=0.6", "parallel.timeout_s=8")
    usual = {"pause": 0.05, "size": 300_000}

    def odd() -> dict[str, Any]:
        if chance.random() < 0.15:
            return usual
        number = chance.choice([signal.SIGKILL, signal.SIGSTOP])
        return usual | {"misbehave": (number, chance.randint(1, 150), "ask", "move")}

    with store_process() as (address, _):
        whole = Group(address, 0, 3, 1, odd_life, settings, log, usual)
        groups = {g: Group(address, g, 3, 1, odd_life, settings, log, odd()) for g in (1, 2)}
        deadline, starts = time.monotonic() + 60, 0
        while not select_ready(whole):
            assert time.monotonic() < deadline, "it hangs"
            for number, group in groups.items():
                ((pid, _),) = group.children
                status = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
                if status and status.si_code == os.CLD_STOPPED and chance.random() < 0.01:
                    os.kill(pid, signal.SIGCONT)
                elif status and status.si_code == os.CLD_KILLED and starts < 3:
                    starts += 1
                    group.results()
                    groups[number] = Group(address, number, 3, 1, odd_life, settings, log, odd())
            time.sleep(0.02)
        (first,) = whole.results()
        for group in groups.values():
            group.signal(signal.SIGKILL)
            group.results()
    assert isinstance(first, list) or (isinstance(first, PeerLostError) and "didn't come" in str(first)), first
    found = states(log) if log.exists() else {}
    assert found or isinstance(first, PeerLostError), "it ended well without an outer step"
    assert all(len(each) == 1 for each in found.values())


def select_ready(group: Group) -> bool:
    return bool(select.select([group.children[0][1]], [], [], 0)[0])


@pytest.mark.parametrize("seed", range(int(os.environ.get("FUZZ_FROM", 100)), int(os.environ.get("FUZZ_TO", 103))))
def test_random_deaths_never_split_the_groups(tmp_path, seed) -> None:
    fuzz(tmp_path, seed)


def swapping(meshes: list[Mesh], token: str, data: dict[str, bytes], patience_s: float = 5) -> list[Any]:
    names = sorted(data)
    found: list[Any] = [None] * len(names)

    def one(number: int) -> None:
        me = names[number]
        peers = {peer: meshes[n].address for n, peer in enumerate(names) if peer != me}
        into = {peer: [memoryview(bytearray(len(data[peer])))] for peer in peers}
        try:
            out = dict.fromkeys(peers, (memoryview(data[me]),))
            meshes[number].swap(token, me, peers, out, into, patience_s, lambda: None)
            found[number] = {peer: bytes(into[peer][0]) for peer in peers}
        except Broken as error:
            found[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("sizes", [(1, 1), (0, 5), (3_000_000, 10, 70_000), (1, 2, 3, 4, 5)])
def test_everybody_gets_everybodys_bytes(sizes) -> None:
    data = {f"{n}": os.urandom(size) for n, size in enumerate(sizes)}
    meshes = [Mesh("127.0.0.1") for _ in sizes]
    for me, found in zip(sorted(data), swapping(meshes, "t", data), strict=True):
        assert found == {peer: bytes_ for peer, bytes_ in data.items() if peer != me}
    greetings = 32 * len(sizes) * (len(sizes) - 1)
    assert sum(mesh.sent for mesh in meshes) == sum(sizes) * (len(sizes) - 1) + greetings


def test_who_comes_from_another_exchange_is_not_listened_to() -> None:
    meshes = [Mesh("127.0.0.1") for _ in range(2)]
    strays = [socket.create_connection(mesh.address) for mesh in meshes for _ in range(4)]
    for number, stray in enumerate(strays):
        if number % 4 == 0:
            stray.close()
        elif number % 4 == 1:
            stray.sendall(b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n" * 10)
        elif number % 4 == 2:
            stray.sendall(bytes(_greeting("an older attempt", "a", "b")) + b"x" * 100)
    assert swapping(meshes, "t", {"a": b"from a", "b": b"from b"}) == [{"b": b"from b"}, {"a": b"from a"}]


def test_a_connection_that_stands_still_is_given_up() -> None:
    meshes = [Mesh("127.0.0.1")]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        into = {"b": [memoryview(bytearray(5))]}
        with pytest.raises(Broken, match="b: nothing came or went for 0 s"):
            meshes[0].swap("t", "a", {"b": silent.getsockname()}, {"b": []}, into, 0.3, lambda: None)


def test_nobody_there_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    with pytest.raises(Broken, match="Connection refused"):
        Mesh("127.0.0.1").swap("t", "a", {"b": address}, {"b": []}, {"b": []}, 1, lambda: None)

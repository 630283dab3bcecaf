"""Ranks that stop, vanish or are only slow; the store in its own process."""

import mmap
import os
import re
import signal
import socket
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import Ranks, wait_for

from rocstack_trainer.config import Parallel
from rocstack_trainer.errors import ConfigError, PeerLostError
from rocstack_trainer.rank import Rank
from rocstack_trainer.ranks import connect, launch
from rocstack_trainer.ranks.beat import LEFT, Beat, Pulses, Watchdog
from rocstack_trainer.ranks.connect import serve

LOST_AFTER_S = 1.0
SOON_S = 4.0
AT_LAST_S = 60.0  # for what happens soon, but on a machine with much else to do
TRAINS = mmap.mmap(-1, 3)  # a byte of each rank, which parent and children share


def watched(rank: Rank, given: str, body: Any) -> None:
    parallel = Parallel(store=given, lost_after_s=LOST_AFTER_S, timeout_s=SOON_S if given else 600)
    at = [0]
    with launch.process_group(rank, 60, given, 15) as store, Watchdog(store, rank, parallel, lambda: at[0]):
        body(rank, at)


def forever(rank: Rank, at: list[int]) -> None:
    while True:
        dist.all_reduce(torch.ones(4))
        at[0] += 1
        if at[0] == 3:
            TRAINS[rank.rank] = 1


def start(world: int, *args: Any) -> list[tuple[int, Any]]:
    TRAINS[:] = bytes(len(TRAINS))
    return Ranks(world, watched, *args).children


def end(children: list[tuple[int, Any]], within_s: float, but: int = -1) -> list[int | None]:
    """The exit codes; None for who didn't end in time (and is killed). `but` isn't waited for."""
    deadline, codes = time.monotonic() + within_s, {}
    waited = [pid for number, (pid, _) in enumerate(children) if number != but]
    while len(codes) < len(waited) and time.monotonic() < deadline:
        for pid in waited:
            if pid not in codes and (done := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid] = os.waitstatus_to_exitcode(done[1])
        time.sleep(0.02)
    for pid, pipe in children:
        if pid not in codes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        pipe.close()
    return [codes.get(pid) for pid, _ in children]


def until_train(world: int) -> None:
    wait_for(lambda: sum(TRAINS[:]) == world, within_s=120)  # processes that import PyTorch


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("stopped", [0, 2])
def test_a_stopped_rank_ends_the_others_with_its_name(apart, stopped, store, capfd) -> None:
    """SIGSTOP keeps its sockets open: as a host that is off or cut off, it gives no reset."""
    children = start(3, store[0] if apart else "", forever)
    until_train(3)
    os.kill(children[stopped][0], signal.SIGSTOP)
    codes = end(children, AT_LAST_S, but=stopped)
    err = capfd.readouterr().err
    assert [code for number, code in enumerate(codes) if number != stopped] == [PeerLostError.exit_code] * 2, err
    named = 0
    for number in {0, 1, 2} - {stopped}:
        who = f"rank {number}: rank {stopped} on {socket.gethostname()}"
        named += bool(re.search(rf"error: {who} gave no sign of life for 1 s \(here: step \d+", err))
    # The second may hear of the first one's end before it has looked itself.
    assert named == 2 or (named == 1 and "ended or can't be reached" in err), err


def slow(rank: Rank, at: list[int]) -> None:
    if rank.rank == 1:
        time.sleep(2.5 * LOST_AFTER_S)
    dist.all_reduce(torch.ones(1))


def test_a_slow_step_is_not_a_loss() -> None:
    assert end(start(2, "", slow), 30) == [0, 0]


def early(rank: Rank, at: list[int]) -> None:
    """Leaves the watch at once; the last rank stays."""
    if rank.rank == 2:
        time.sleep(2 * LOST_AFTER_S)


def test_who_finishes_first_is_not_lost(capfd) -> None:
    assert end(start(3, "", early), 30) == [0, 0, 0]
    assert "no sign of life" not in capfd.readouterr().err


def test_all_suspended_together_lose_nobody(capfd) -> None:
    children = start(2, "", forever)
    until_train(2)
    for pid, _ in children:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2 * LOST_AFTER_S)
    for pid, _ in reversed(children):
        os.kill(pid, signal.SIGCONT)
    time.sleep(1.5 * LOST_AFTER_S)
    assert end(children, 0.1) == [None, None], capfd.readouterr().err


def test_ranks_go_on_without_a_store_of_its_own_for_a_while(store, capfd) -> None:
    children = start(2, store[0], forever)
    until_train(2)
    os.kill(store[1], signal.SIGKILL)
    time.sleep(2 * LOST_AFTER_S)
    assert [os.waitpid(pid, os.WNOHANG)[0] for pid, _ in children] == [0, 0]
    assert end(children, AT_LAST_S) == [PeerLostError.exit_code] * 2
    assert f"the store at {store[0]} gave no sign of life" in capfd.readouterr().err


def test_one_rank_has_no_watchdog() -> None:
    before = threading.active_count()
    with Watchdog(dist.HashStore(), Rank(), Parallel(), lambda: 0):
        assert threading.active_count() == before


def test_pulses_count_looks_not_seconds() -> None:
    store, pulses = dist.HashStore(), Pulses(0.5)
    store.add("beat/a", 1)
    assert pulses.silent_s("a") == 0  # nobody looked
    pulses.look(store, "a")
    assert pulses.silent_s("a") == 0
    for expected in (0.5, 1.0):
        pulses.look(store, "a")
        assert pulses.silent_s("a") == expected
    store.add("beat/a", 1)
    pulses.look(store, "a")
    assert pulses.silent_s("a") == 0
    assert not pulses.left("a")
    store.add("beat/a", LEFT)
    store.add("beat/a", 1)  # a beat that was on its way
    pulses.look(store, "a")
    assert pulses.left("a")


def test_a_beat_survives_a_broken_connection() -> None:
    store, broken = dist.HashStore(), []

    def reach() -> dist.Store:
        if len(broken) < 2:
            broken.append(1)
            raise PeerLostError("not now")
        return store

    beat = Beat(reach, "a", 0.02, 5, lambda _: None, lambda: pytest.fail("lost"))
    time.sleep(0.3)
    assert store.add("beat/a", 0) > 1
    beat.stop(goodbye=True)
    assert store.add("beat/a", 0) < 0


def test_the_first_connection_is_made_by_the_callers_thread() -> None:
    """PyTorch enters a new store into pybind11's table without the GIL: beside a busy main thread it may crash."""
    store, threads = dist.HashStore(), []

    def reach() -> dist.Store:
        threads.append(threading.current_thread())
        return store

    beat = Beat(reach, "a", 0.02, 5, lambda _: None, lambda: pytest.fail("lost"))
    time.sleep(0.1)
    beat.stop(goodbye=True)
    assert threads == [threading.main_thread()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_store_serves_until_it_is_told_to_end(store, number) -> None:
    address, pid = store
    for count in (1, 2):  # a second connection sees the first one's
        client = connect.connect(*connect.address(address), 5, 5, "the store", "")
        assert client.add("n", 1) == count
    os.kill(pid, number)
    assert os.waitpid(pid, 0) == (pid, 0)


def test_a_taken_port_is_named() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with socket.create_server(("0.0.0.0", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError, match=f"--store {port}: Address already in use"):
                serve(port)
        with pytest.raises(ConfigError, match="65535"):
            serve(70000)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

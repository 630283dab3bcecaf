"""Ranks that meet, that don't come, and that start again in a store which still knows the dead ones."""

import errno
import os
import re
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from conftest import ranks

from rocstack_trainer import errors
from rocstack_trainer.config import DiLoCo
from rocstack_trainer.errors import ConfigError, PeerLostError
from rocstack_trainer.rank import Rank, split
from rocstack_trainer.ranks import connect, launch
from rocstack_trainer.report import wire

HERE = Rank(backend="gloo", device="cpu")


def total(rank: Rank, store: str, start_s: float = 30) -> tuple[float, str]:
    with launch.process_group(rank, 30, store, start_s):
        value = torch.tensor([2.0**rank.rank])
        dist.all_reduce(value)
        return value.item(), os.environ["GLOO_SOCKET_IFNAME"]


def dies(rank: Rank, store: str) -> None:
    with launch.process_group(rank, 30, store):
        dist.barrier()
        os._exit(9)


def test_ranks_start_again_in_a_store_that_knows_the_dead_ones(store) -> None:
    for _ in range(2):
        assert ranks(3, total, store[0]) == [(7.0, "lo")] * 3
        ranks(3, dies, store[0])
    assert ranks(2, total, store[0]) == [(3.0, "lo")] * 2


def grouped(rank: Rank, store: str) -> tuple[int, float]:
    mine = split(rank, DiLoCo(groups=2))
    return mine.group, total(mine, store)[0]


def test_groups_meet_apart_in_one_store(store) -> None:
    assert ranks(4, grouped, store[0]) == [(0, 3.0), (0, 3.0), (1, 3.0), (1, 3.0)]


def test_groups_need_a_store() -> None:
    for error in ranks(2, grouped, ""):
        assert isinstance(error, ConfigError)
        assert "set parallel.store=HOST:PORT" in str(error)


def late(rank: Rank, store: str) -> None:
    if rank.rank != 1:
        total(rank, store, 3)


def test_a_rank_that_does_not_come_is_named_on_all_others() -> None:
    first, none, third = ranks(3, late, "")
    assert none is None
    for error in (first, third):
        assert isinstance(error, PeerLostError)
        assert "rank 1 of 3 didn't come within 3 s" in str(error)
        assert socket.gethostname() in str(error)


def doubled(rank: Rank) -> None:
    total(replace(rank, rank=min(rank.rank, 1)), "", 3)


def test_two_of_one_number_are_not_taken_for_all() -> None:
    """As many as there should be had come, and the missing one was waited for without a word."""
    for error in ranks(3, doubled):
        assert isinstance(error, PeerLostError)
        assert "rank 2 of 3 didn't come within 3 s" in str(error)


def ended(rank: Rank) -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert connect._serve("127.0.0.1", listening, 30)
    return socket.socket().connect_ex(("127.0.0.1", port))


def test_where_a_store_was_nobody_listens() -> None:
    assert ranks(1, ended) == [errno.ECONNREFUSED]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        return gone.getsockname()[1]


@pytest.mark.parametrize("where", ["127.0.0.1:{}", "no-such-host.invalid:{}"])
def test_an_unreachable_store_is_told_with_its_address(where: str) -> None:
    where = where.format(closed_port())
    with pytest.raises(PeerLostError, match=f"{re.escape(where)}(?s:.*)rocstack-train --store"):
        total(HERE, where, 1)


def test_a_listener_that_is_no_store_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(PeerLostError, match=f"{where} is no store: no answer in 1 s"):
            total(HERE, where, 1)


def talks(rank: Rank) -> str:
    """Rank 0 is some other server, rank 1 looks for a store there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        if os.fork() == 0:
            for _ in range(2):
                client, _ = server.accept()
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9)
            os._exit(0)
        with launch.process_group(HERE, 60, f"127.0.0.1:{server.getsockname()[1]}", 2):
            return "met"


def test_another_server_is_told_from_a_store() -> None:
    (error,) = ranks(1, talks)
    assert re.search(r"the store at 127.0.0.1:\d+ is no store: (another program|no answer in 2 s)", str(error))


def crowded(rank: Rank) -> None:
    del os.environ["ROCSTACK_TRAINER_STORE_FD"]
    with launch.process_group(replace(rank, world=2, local_world=2), 60):
        pass


def test_a_taken_port_is_named() -> None:
    (error,) = ranks(1, crowded)  # conftest listens on it
    assert re.search(r"port \d+ of 127.0.0.1: Address already in use(?s:.*)set MASTER_PORT", str(error))


def orphan(rank: Rank) -> None:
    if rank.rank:
        os.environ["MASTER_PORT"] = str(closed_port())
        total(rank, "", 1)


def test_a_rank_without_its_rank_0_says_where_it_looked() -> None:
    error = ranks(2, orphan)[1]
    assert isinstance(error, PeerLostError)
    assert re.search(r"rank 0 can't be reached at 127.0.0.1:\d+ for 1 s: Connection refused", str(error))


@pytest.mark.parametrize("text", ["nohost", ":1", "a:b", "a:0", "a:70000"])
def test_a_store_address_is_host_and_port(text: str) -> None:
    with pytest.raises(ConfigError, match="not HOST:PORT"), launch.process_group(HERE, 9, text):
        pass


def test_a_launch_is_split_into_groups_or_is_one() -> None:
    first_node = [Rank(r, r, 8, 4) for r in range(4)]
    second_node = [Rank(4 + r, r, 8, 4) for r in range(4)]
    two = [split(rank, DiLoCo(groups=2)) for rank in first_node + second_node]
    assert [(r.group, r.rank, r.local_rank) for r in two] == [(g, r, r) for g in (0, 1) for r in range(4)]
    assert {(r.world, r.local_world, r.groups) for r in two} == {(4, 4, 2)}
    four = [split(rank, DiLoCo(groups=4)) for rank in first_node + second_node]
    assert [(r.group, r.rank, r.local_rank, r.local_world) for r in four[2:4]] == [(1, 0, 2, 2), (1, 1, 3, 2)]
    across = [split(Rank(r, r % 2, 6, 2), DiLoCo(groups=2)) for r in range(6)]
    assert [(r.group, r.rank, r.local_world) for r in across] == [
        (0, 0, 2),
        (0, 1, 2),
        (0, 2, 1),
        (1, 0, 1),
        (1, 1, 2),
        (1, 2, 2),
    ]
    assert split(Rank(3, 1, 4, 2), DiLoCo(groups=5, group=2)) == Rank(3, 1, 4, 2, group=2, groups=5)
    assert split(Rank(3, 1, 4, 2), DiLoCo()) == Rank(3, 1, 4, 2)
    with pytest.raises(ConfigError, match="can't share 8 ranks evenly: start 6"):
        split(Rank(0, 0, 8, 8), DiLoCo(groups=3))


def falls(rank: Rank) -> float:
    with launch.process_group(rank, 60):
        value = torch.ones(1 << 20)
        for step in range(1000):
            if rank.rank == 1 and step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(value)
    return 0


def test_survivors_of_a_killed_rank_end_within_seconds_and_say_why() -> None:
    first, _, third = ranks(3, falls)
    for error in (first, third):
        assert isinstance(error, PeerLostError)
        assert re.match(r"(the rank at 127.0.0.1|another rank) ended or can't be reached\n", str(error))


def test_what_gloo_says_is_told_with_the_address() -> None:
    text = "[/src/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.2.3]:4567"
    assert str(errors.explain(RuntimeError(text))).startswith("the rank at 10.1.2.3 ended or can't be reached\n")
    assert str(errors.explain(RuntimeError("Timed out waiting 5ms for recv"))).startswith("another rank")
    assert errors.explain(RuntimeError("out of memory")) is None


def test_the_interface_to_a_host() -> None:
    assert wire.own_address("127.0.0.1", 1) == "127.0.0.1"
    assert wire.interface("127.0.0.1") == "lo"
    assert wire.interface("203.0.113.1") == ""
    assert wire.own_address("no-such-host.invalid", 1) == ""


def test_bytes_are_counted_once_where_interfaces_rest_on_others(tmp_path: Path) -> None:
    def put(path: str, text: object) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")

    for name, kind, sent in (("lo", 772, 5), ("eth0", 1, 70), ("bond0", 1, 70), ("ib0", 32, 9000)):
        put(f"net/{name}/type", kind)
        put(f"net/{name}/statistics/tx_bytes", sent)
    put("net/bond0/lower_eth0", "")
    put("infiniband/mlx5_0/ports/1/counters/port_xmit_data", 100)
    put("infiniband/mlx5_1/ports/1/counters/port_xmit_data", "N/A (no PMA)")
    assert wire.sent_bytes(tmp_path) == 5 + 70 + 400


def test_bytes_over_the_loopback_are_counted() -> None:
    before = wire.sent_bytes()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for _ in range(100):
            out.sendto(b"x" * 10_000, ("127.0.0.1", 9))
    assert 1_000_000 <= wire.sent_bytes() - before < 3_000_000

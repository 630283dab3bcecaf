"""Attempts, their pauses, and how they end."""

from __future__ import annotations

import threading

import pytest

from rocstack.edge.retry import Retry, stoppable


class _Failure(Exception):
    """What is worth another attempt."""


def test_pauses_double_up_to_the_longest() -> None:
    pauses: list[float] = []
    retry = Retry(attempts=6, first_s=5, longest_s=60, sleep=pauses.append)
    while not retry.last:
        retry.wait()
    assert pauses == [5, 10, 20, 40, 60]
    assert retry.attempt == 6


def test_work_that_got_further_counts_anew() -> None:
    pauses: list[float] = []
    retry = Retry(attempts=2, sleep=pauses.append)
    for _ in range(3):
        assert not retry.last
        retry.wait()
        assert retry.last
        retry.reset()
    assert pauses == [1, 1, 1]


def test_a_pause_ends_when_the_work_is_stopped() -> None:
    stop = threading.Event()
    stoppable(stop, _Failure)(0)
    stop.set()
    with pytest.raises(_Failure):
        stoppable(stop, _Failure)(3600)

"""Attempts, their pauses, and how they end."""

from __future__ import annotations

import threading

import pytest

from rocstack.edge.retry import Retry, stoppable


class _Failure(Exception):
    """What is worth another attempt."""


class _Action:
    def __init__(self, failures: int, error: type[Exception] = _Failure) -> None:
        self.calls, self.failures, self.error = 0, failures, error

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error(f"failure {self.calls}")
        return self.calls


def test_pauses_double_up_to_the_longest() -> None:
    pauses: list[float] = []
    retry = Retry(attempts=6, first_s=5, longest_s=60, sleep=pauses.append)
    assert retry.call(_Action(5), _Failure) == 6
    assert pauses == [5, 10, 20, 40, 60]
    assert retry.attempt == 6


def test_the_last_failure_is_raised() -> None:
    action = _Action(9)
    with pytest.raises(_Failure, match="failure 3"):
        Retry(attempts=3, sleep=lambda seconds: None).call(action, _Failure)
    assert action.calls == 3


def test_another_error_ends_it_at_once() -> None:
    action = _Action(1, KeyError)
    with pytest.raises(KeyError):
        Retry(attempts=3, sleep=pytest.fail).call(action, (_Failure, OSError))
    assert action.calls == 1


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

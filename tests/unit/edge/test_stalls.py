"""Commands that stand still, as real processes that are stopped."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable

import pytest

from rocstack.edge import stalls

BLOCK = bytes(1 << 16)
FREEZES = "echo begun; kill -STOP $$"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "SILENCE_S", 0.5)


def run(line: str, ask: str, feed: Iterable[bytes] = (), **more: object) -> tuple[int, bytes]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = stalls.run(["sh", "-c", line], ["sh", "-c", ask], out, err, feed=feed, **more)  # type: ignore[arg-type]
        out.seek(0)
        return code, out.read()


def test_data_goes_through() -> None:
    assert run("cat; exit 3", "true", iter([BLOCK] * 50)) == (3, BLOCK * 50)
    assert run("head -c 5", "true", iter([BLOCK] * 50)) == (0, bytes(5)), "it needn't read everything"


@pytest.mark.parametrize("ask", ["true", "false"])
def test_who_takes_no_data_is_ended(ask: str) -> None:
    with pytest.raises(stalls.Stalled, match=r"no data was taken for 0\.5 s"):
        run(f"head -c 5; {FREEZES}", ask, iter([BLOCK] * 50))


@pytest.mark.parametrize("ask", ["false", "kill -STOP $$"])
def test_who_is_silent_at_an_engine_that_is_too_is_ended(ask: str) -> None:
    with pytest.raises(stalls.Stalled, match="the engine doesn't answer"):
        run(FREEZES, ask)
    with pytest.raises(stalls.Stalled, match="the engine doesn't answer"):
        run(f"cat; {FREEZES}", ask, iter([BLOCK]))


def test_an_engine_that_answers_is_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("sleep 2; echo done", "true") == (0, b"done\n")
    monkeypatch.setattr(stalls, "LONGEST_S", 2)
    with pytest.raises(stalls.Stalled, match="nothing came for 2 s"):
        run(FREEZES, "true")


def test_every_byte_begins_the_wait_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "SILENCE_S", 3)
    assert run("for i in 1 2 3 4 5 6 7 8; do sleep 0.7; printf $i; done", "false") == (0, b"12345678")


def test_a_stop_ends_it() -> None:
    stop = threading.Event()
    stop.set()
    assert run(FREEZES, "true", iter([BLOCK] * 50), stopped=stop)[0] == -9

"""Commands that stand still, as real processes that are stopped."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from rocstack.edge import stalls

BLOCK = bytes(1 << 16)
ENOUGH = 200 << 20  # bytes: what goes on writing after a test has failed doesn't fill the disk
FREEZES = "echo begun; kill -STOP $$"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "SILENCE_S", 0.5)


def run(line: str, ask: str, feed: Iterable[bytes] = (), **more: object) -> tuple[int, bytes]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = stalls.run(
            ["sh", "-c", f"ulimit -f {ENOUGH >> 9}; {line}"], ["sh", "-c", ask], out, err, feed=feed, **more
        )  # type: ignore[arg-type]
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
    with pytest.raises(stalls.Stalled, match="it has not ended within 2 s"):
        run(FREEZES, "true")


def test_every_byte_begins_the_wait_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "SILENCE_S", 3)
    assert run("for i in 1 2 3 4 5 6 7 8; do sleep 0.7; printf $i; done", "false") == (0, b"12345678")


def test_a_stop_ends_it() -> None:
    stop = threading.Event()
    stop.set()
    assert run(FREEZES, "true", iter([BLOCK] * 50), stopped=stop)[0] == -9


@pytest.mark.parametrize("end", ["yes", "yes >&2", "cat; yes >&2"])
def test_who_says_too_much_is_ended(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node would fill this machine's disk, then its memory."""
    monkeypatch.setattr(stalls, "MOST", 1 << 20)
    with pytest.raises(stalls.Flooded, match="it said more than 1 MB"):
        run(f"{end}; true", "true", iter([BLOCK]) if "cat" in end else ())


def test_too_much_while_it_should_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "MOST", 1 << 20)
    monkeypatch.setattr(stalls, "SILENCE_S", 30)
    with pytest.raises(stalls.Flooded):
        run("yes >&2", "true", iter([BLOCK] * 50))


def test_a_word_now_and_then_holds_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "LONGEST_S", 1.5)
    for data, says in ((False, "it has not ended within"), (True, "less than 64 KB came in")):
        with pytest.raises(stalls.Stalled, match=says):
            run("while sleep 0.1; do echo .; echo . >&2; done", "true", data=data)


def test_data_may_be_long_but_leaves_the_disk_some_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "MOST", 1 << 20)
    monkeypatch.setattr(stalls, "LONGEST_S", 1.5)
    slow = "for i in 1 2 3 4 5 6; do sleep 0.5; head -c 1000000 /dev/zero; done"
    assert len(run(slow, "true", data=True)[1]) == 6_000_000
    with pytest.raises(stalls.Flooded):
        run("yes >&2", "true", data=True)
    monkeypatch.setattr(stalls, "ROOM", 1 << 60)
    with pytest.raises(stalls.Flooded, match="this machine's disk has less than"):
        run("yes", "true", data=True)


def test_the_end_of_what_was_said() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"first" + bytes(stalls.KEPT) + b"last")
        assert len(stalls.tail(file)) == stalls.KEPT
        assert stalls.tail(file).endswith(b"last")


def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    file = tmp_path / "child"
    with pytest.raises(stalls.Stalled):
        run(f"sleep 300 & echo $! >{file}; sleep 300; true", "false")
    child = Path(f"/proc/{file.read_text().strip()}/stat")
    until = time.monotonic() + 10  # a busy machine takes its time to end what was killed
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < until:
        time.sleep(0.05)
    assert not child.exists() or child.read_text().split()[2] == "Z"

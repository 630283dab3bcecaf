"""Numbers of steps: read where they changed, a person's at her turn, and of many the newest."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from conftest import Site

from rocstack.service import page, progress

pytestmark = pytest.mark.anyio


async def test_numbers_of_steps_are_read_again_when_they_change(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = site.of("alice")
    key = (await alice.post("/v1/jobs", json={"recipe": "mine", "arguments": ["true"]})).json()["id"]
    file, read = site.data / "alice/jobs" / key / "metrics.jsonl", []
    parse = progress._steps
    monkeypatch.setattr(progress, "_steps", lambda data: read.append(len(data)) or parse(data))

    async def steps(after: int = 0) -> list[int]:
        rows = (await alice.get(f"/v1/jobs/{key}/metrics", params={"after": after})).json()["data"]
        return [row["step"] for row in rows]

    assert await steps() == []
    file.write_text('{"step": 2}\n{"step": 1}\n{"step": 2, "loss": 1.0}\n')
    assert [await steps(), await steps(), await steps(1), await steps(2)] == [[1, 2], [1, 2], [2], []]
    assert len(read) == 1
    assert '{"step":1}' in (await alice.get(f"/v1/jobs/{key}/metrics")).text, "a whole number, not 1.0"
    with file.open("a") as more:
        more.write('{"step": 3}\n')
    assert (await steps(1), len(read)) == ([2, 3], 2)
    monkeypatch.setattr(progress, "FILES", 0)
    assert (await steps(), progress._KNOWN) == ([1, 2, 3], {})


async def test_who_asks_for_all_steps_many_times_takes_one_thread(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Odd numbers of steps take seconds to read, again whenever the file changes: forty that ask were all threads."""
    alice, at_work, most = site.of("alice"), 0, list[int]()
    key = (await alice.post("/v1/jobs", json={"recipe": "mine", "arguments": ["true"]})).json()["id"]
    file = site.data / "alice/jobs" / key / "metrics.jsonl"
    file.write_text('{"step": 1}\n')

    def noted(data: bytes) -> list[dict[str, Any]]:
        nonlocal at_work
        at_work += 1
        most.append(at_work)
        time.sleep(0.05)
        with file.open("a") as more:
            more.write("\n")
        at_work -= 1
        return []

    monkeypatch.setattr(progress, "_steps", noted)
    await asyncio.gather(*(alice.get(f"/v1/jobs/{key}/metrics") for _ in range(6)))
    assert most == [1] * 6


def test_short_lines_of_steps_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 MiB of them each was read: 5 seconds."""
    monkeypatch.setattr(progress, "READ_LINES", 4)
    rows = [*(f'{{"step":{step}}}' for step in range(1, 9)), *['{"step":9}'] * 3, ""]
    assert [row["step"] for row in progress._steps("\n".join(rows).encode())] == [9]


async def test_what_is_made_of_many_steps_is_made_beside_what_others_ask(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Curves of fifty thousand, and what is answered of them, take half a second."""
    alice, here, where = site.of("alice"), threading.get_ident(), set[int]()
    key = (await alice.post("/v1/jobs", json={"recipe": "mine", "arguments": ["true"]})).json()["id"]
    (site.data / "alice/jobs" / key / "metrics.jsonl").write_text('{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n')

    class Row(dict[str, Any]):
        def items(self) -> Any:
            where.add(threading.get_ident())
            return super().items()

    draw, parse = page.curve, progress._steps
    monkeypatch.setattr(page, "curve", lambda *given: where.add(threading.get_ident()) or draw(*given))
    monkeypatch.setattr(progress, "_steps", lambda data: [Row(row) for row in parse(data)])
    monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    answer = await alice.get(f"/v1/jobs/{key}/metrics")
    assert answer.json() == {
        "object": "list", "data": [{"step": 1, "loss": 3}, {"step": 2, "loss": 2}], "has_more": False,
    }  # fmt: skip
    assert "<svg" in (await alice.get(f"/jobs/{key}")).text
    assert where
    assert here not in where
